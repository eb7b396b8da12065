//! How a volume reaches its storage.

use slimio_device::{Buffer, Device, OpenError, PlacementId};

use crate::Pool;
use crate::layout::SLOT_COUNT;

/// A named part of a volume. Addresses inside an area are relative to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// The four copies of the root of everything: two at the area's start, two at its end.
    Superblock,
    /// The segments of the log.
    Wal,
    /// A place for a snapshot.
    Snapshot(SlotName),
}

/// One of the three places where a snapshot may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotName {
    /// The first.
    A,
    /// The second.
    B,
    /// The third.
    C,
}

impl SlotName {
    /// All of them, in order.
    pub const ALL: [Self; SLOT_COUNT] = [Self::A, Self::B, Self::C];

    /// Counted from zero.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl Area {
    /// Its name in messages, and its file's name in a directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "super",
            Self::Wal => "wal",
            Self::Snapshot(SlotName::A) => "snapshot-a",
            Self::Snapshot(SlotName::B) => "snapshot-b",
            Self::Snapshot(SlotName::C) => "snapshot-c",
        }
    }
}

/// The lifetime of data: data that dies together should be placed together on the media.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lifetime {
    /// The superblock: overwritten all the time.
    Superblock,
    /// The log: its segments die one by one, behind a snapshot.
    Wal,
    /// WAL-snapshots: one dies when the next is adopted.
    WalSnapshot,
    /// On-demand snapshots: one dies when the next is adopted, which may be in weeks.
    Snapshot,
}

impl Lifetime {
    /// All of them, in order.
    pub const ALL: [Self; 4] = [Self::Superblock, Self::Wal, Self::WalSnapshot, Self::Snapshot];

    /// Counted from zero.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The number in its writes, which a medium turns into one of its device's placements.
    pub(crate) fn placement(self) -> PlacementId {
        PlacementId(self as u16)
    }

    /// The lifetime of a write with this number; that of the log for an unknown number.
    pub fn of(placement: PlacementId) -> Self {
        Self::ALL.get(usize::from(placement.0)).copied().unwrap_or(Self::Wal)
    }

    /// Its name in INFO.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Wal => "log",
            Self::WalSnapshot => "wal_snapshot",
            Self::Snapshot => "snapshot",
        }
    }
}

/// What is known of where a device puts writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementReport {
    /// Placements that the device has for writes; 0 where it does not tell them apart.
    pub placement_count: usize,
    /// The device's placement for each [`Lifetime`], and the bytes that this process has sent there.
    pub lifetimes: [(PlacementId, u64); 4],
    /// The device's own counters, whoever wrote to it; `None` where it reports none.
    pub counted: Option<DeviceCounts>,
    /// Why it reports none; empty where it does.
    pub why_not_counted: String,
}

/// A device's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Bytes written by hosts since the device was made.
    pub host_bytes: u128,
    /// Bytes written to the media for it.
    pub media_bytes: u128,
    /// Bytes of media erased.
    pub erased_bytes: u128,
    /// `host_bytes` when the volume was opened.
    pub host_bytes_at_open: u128,
    /// `media_bytes` when the volume was opened.
    pub media_bytes_at_open: u128,
}

impl DeviceCounts {
    /// Bytes written to the media for each byte written by hosts, since the volume was opened; 1
    /// while nothing was written.
    pub fn waf(&self) -> f64 {
        let since = |now: u128, then: u128| now.saturating_sub(then) as f64;
        match since(self.host_bytes, self.host_bytes_at_open) {
            0.0 => 1.0,
            host => since(self.media_bytes, self.media_bytes_at_open) / host,
        }
    }
}

/// Tells where a device puts writes. Never blocks: the device is asked elsewhere.
pub trait PlacementMonitor: Send {
    /// What is known at present.
    fn report(&self) -> PlacementReport;
}

/// The medium of a volume: a directory of files, or one device cut in areas.
///
/// The owner of a medium holds its lock: two programs never have the same volume open.
pub trait Media {
    /// The extent pool, on one device; `None` where each area is a file of its own. The pool
    /// [makes](Pool::path) the paths to areas, and the superblock has its map.
    fn pool(&self) -> Option<&Pool> {
        None
    }

    /// Opens a path to all free extents, one after the other, by the superblock that was read.
    /// `None` where areas are files.
    ///
    /// # Errors
    /// When it can't be opened.
    fn open_free(&mut self) -> Result<Option<Box<dyn Device + Send>>, OpenError> {
        Ok(None)
    }

    /// What identifies the device, whatever its name is today; `None` for files, and if unknown.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Opens one more path to an area. Paths share nothing above the kernel. Nothing is written.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when the area does not exist; otherwise when it can't be opened.
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError>;

    /// Makes a snapshot slot that is missing, empty. Durable when this returns.
    ///
    /// # Errors
    /// When there is no room, or nothing may be written.
    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError>;

    /// Makes the areas of a new volume: the superblock's with `super_lbas` blocks, the log's with
    /// `wal_lbas` (it grows later, where it can), and the snapshot slots, which may be empty.
    /// Durable when this returns.
    ///
    /// # Errors
    /// When there is no room, or something is there that must not be overwritten.
    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError>;

    /// The log's buffers as the last process left them, each of `size` bytes, in order. Empty where
    /// there are none, or where nothing can be mapped.
    ///
    /// # Errors
    /// When they exist but can't be read: their records may have been acknowledged.
    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError>;

    /// Makes `count` empty buffers of `size` bytes for the log; the contents of the old ones are
    /// gone. Private memory where nothing can be mapped.
    ///
    /// # Errors
    /// When there is no room for them.
    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError>;

    /// Whether bytes stored in these buffers outlive the process. [Opened](Self::open_buffers)
    /// buffers are used again only where they do.
    fn buffers_outlive_process(&self) -> bool;

    /// Whether blocks that were never written must be zeroed before the log uses them: in a file,
    /// the first write to a block costs a commit of the file system's journal.
    fn fresh_blocks_need_zeroing(&self) -> bool;

    /// How the medium is reached now, and why not in a better way. [`Storage`] has the same from
    /// before a path was opened; some paths may only have opened in a worse way. `None` where that
    /// can't happen.
    fn io_path(&self) -> Option<(String, String)> {
        None
    }
}

/// The medium of a volume, and how it is reached.
pub struct Storage {
    /// The medium.
    pub media: Box<dyn Media>,
    /// Whether there is a volume; if not, one is to be made.
    pub exists: bool,
    /// Where it is, for people.
    pub name: String,
    /// Whether it is reached in the best of the ways asked for.
    pub is_best: bool,
    /// Where the device puts writes; `None` where there is nothing to tell.
    pub placement: Option<Box<dyn PlacementMonitor>>,
    /// How it is reached, for people.
    pub io_path: String,
    /// Why not in a better way; empty when there is none.
    pub why_not_better: String,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lifetime_is_known_by_what_its_writes_carry() {
        for (index, lifetime) in Lifetime::ALL.into_iter().enumerate() {
            assert_eq!(lifetime.index(), index);
            assert_eq!(Lifetime::of(lifetime.placement()), lifetime);
        }
        assert_eq!(Lifetime::of(PlacementId(99)), Lifetime::Wal);
    }

    #[test]
    fn the_waf_is_what_was_written_since_the_volume_was_opened() {
        let mut counts = DeviceCounts {
            host_bytes: 1000,
            media_bytes: 2000,
            host_bytes_at_open: 1000,
            media_bytes_at_open: 2000,
            ..DeviceCounts::default()
        };
        assert!((counts.waf() - 1.0).abs() < f64::EPSILON);
        counts.host_bytes += 400;
        counts.media_bytes += 500;
        assert!((counts.waf() - 1.25).abs() < f64::EPSILON);
    }
}
