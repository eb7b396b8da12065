//! How a volume reaches its storage.

use slimio_device::{Buffer, Device, OpenError, PlacementId};

use crate::Pool;
use crate::layout::SLOT_COUNT;

/// A named part of a volume. Addresses inside an area are relative to the area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// The four copies of the superblock, two at the area's start and two at its end.
    Superblock,
    /// The segments of the log.
    Wal,
    /// A place for a snapshot.
    Snapshot(SlotName),
}

/// One of the three places for snapshots.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotName {
    /// The first slot.
    A,
    /// The second slot.
    B,
    /// The third slot.
    C,
}

impl SlotName {
    /// All values, in order.
    pub const ALL: [Self; SLOT_COUNT] = [Self::A, Self::B, Self::C];

    /// The index, counted from zero.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl Area {
    /// Name of the area in messages, and name of its file in a directory.
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
    /// The superblock, which is overwritten all the time.
    Superblock,
    /// The log, whose segments die one by one when a snapshot makes them unnecessary.
    Wal,
    /// WAL-snapshots, from which the log goes on. Each dies when the next is adopted.
    WalSnapshot,
    /// On-demand snapshots. Each dies when the next is adopted, which may be weeks later.
    Snapshot,
}

impl Lifetime {
    /// All values, in order.
    pub const ALL: [Self; 4] = [Self::Superblock, Self::Wal, Self::WalSnapshot, Self::Snapshot];

    /// The index, counted from zero.
    pub fn index(self) -> usize {
        self as usize
    }

    /// The number that writes of this lifetime carry. A medium turns this number into a placement
    /// of its device.
    pub(crate) fn placement(self) -> PlacementId {
        PlacementId(self as u16)
    }

    /// The lifetime whose writes carry this number; [`Wal`](Self::Wal) if the number is unknown.
    pub fn of(placement: PlacementId) -> Self {
        Self::ALL.get(usize::from(placement.0)).copied().unwrap_or(Self::Wal)
    }

    /// Name of the lifetime in INFO.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "superblock",
            Self::Wal => "log",
            Self::WalSnapshot => "wal_snapshot",
            Self::Snapshot => "snapshot",
        }
    }
}

/// A report on where a device puts writes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlacementReport {
    /// Number of placements that the device has for writes; 0 if the device has no data placement.
    pub placement_count: usize,
    /// For each [`Lifetime`], its placement on the device, and the bytes that this process has sent
    /// to that placement.
    pub lifetimes: [(PlacementId, u64); 4],
    /// The device's own counters, which count everyone's writes; `None` if the device reports no
    /// counters.
    pub counted: Option<DeviceCounts>,
    /// Why the device reports no counters; empty if it reports them.
    pub why_not_counted: String,
}

/// A device's own counters.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DeviceCounts {
    /// Bytes written by hosts since the device was made.
    pub host_bytes: u128,
    /// Bytes that the device wrote to its media for these host bytes.
    pub media_bytes: u128,
    /// Bytes of media erased.
    pub erased_bytes: u128,
    /// `host_bytes` when the volume was opened.
    pub host_bytes_at_open: u128,
    /// `media_bytes` when the volume was opened.
    pub media_bytes_at_open: u128,
}

impl DeviceCounts {
    /// Bytes that the device wrote to its media for each byte that hosts wrote, since the volume
    /// was opened; 1 as long as hosts have written nothing.
    pub fn waf(&self) -> f64 {
        let since = |now: u128, then: u128| now.saturating_sub(then) as f64;
        match since(self.host_bytes, self.host_bytes_at_open) {
            0.0 => 1.0,
            host => since(self.media_bytes, self.media_bytes_at_open) / host,
        }
    }
}

/// Reports where a device puts writes. Never blocks. If asking the device takes time, another
/// thread asks it.
pub trait PlacementMonitor: Send {
    /// The present report.
    fn report(&self) -> PlacementReport;
}

/// The medium of a volume: a directory of files, or one device that is cut into areas.
///
/// The owner of a medium holds its lock, so two programs never have the same volume open.
pub trait Media {
    /// The extent pool, if the medium is one device. The device is cut into equal parts, the extents,
    /// and the pool knows which area has which extents. `None` if each area is a file of its own.
    /// The pool [makes](Pool::path) the paths to areas, and the superblock has the pool's map.
    fn pool(&self) -> Option<&Pool> {
        None
    }

    /// Opens a path on which all free extents appear as one contiguous range. The superblock that
    /// was read says which extents are free. `None` if areas are files.
    ///
    /// # Errors
    /// If the path can't be opened.
    fn open_free(&mut self) -> Result<Option<Box<dyn Device + Send>>, OpenError> {
        Ok(None)
    }

    /// The identity of the device, which stays the same even if the device's name changes; `None`
    /// if areas are files or if the identity is unknown.
    fn identity(&self) -> Option<String> {
        None
    }

    /// Opens one more path to an area. Two paths share nothing outside the kernel. Opening a path
    /// writes nothing.
    ///
    /// # Errors
    /// [`OpenError::Missing`] if the area does not exist; another error if it can't be opened.
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError>;

    /// Makes a missing snapshot slot. The new slot is empty, and is durable when this returns.
    ///
    /// # Errors
    /// If there is no room, or if the medium is opened only for reading.
    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError>;

    /// Makes the areas of a new volume: the superblock's area with `super_lbas` blocks, the log's
    /// area with `wal_lbas` blocks, and the snapshot slots, which may be empty. The log's area
    /// grows later, if it can. The areas are durable when this returns.
    ///
    /// # Errors
    /// If there is no room, or if the medium holds something that must not be overwritten.
    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError>;

    /// The log's buffers as the last process left them, each of `size` bytes, in order. Empty if
    /// the medium holds no buffers, for example because the last process had them in private
    /// memory.
    ///
    /// # Errors
    /// If the buffers exist but can't be read. Such buffers can't be ignored, because their records
    /// may have been acknowledged.
    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError>;

    /// Makes `count` empty buffers of `size` bytes for the log, and drops the contents of the old
    /// buffers. If they can't be mapped from the medium, they are private memory.
    ///
    /// # Errors
    /// If there is no room for the buffers.
    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError>;

    /// Whether the bytes in the log's buffers outlive the process. If they do not, recovery does
    /// not use the [opened](Self::open_buffers) buffers again.
    fn buffers_outlive_process(&self) -> bool;

    /// Whether blocks that were never written must be zeroed before the log uses them. In a file
    /// they must be zeroed, because the first write to a block costs a commit of the file system's
    /// journal.
    fn fresh_blocks_need_zeroing(&self) -> bool;

    /// How the medium is reached now, and why it is not reached in a better way. The texts in
    /// [`Storage`] are from before any path was opened, and some paths may since have fallen back
    /// to a worse way. `None` if paths to this medium never fall back.
    fn io_path(&self) -> Option<(String, String)> {
        None
    }
}

/// The medium of a volume, and how it is reached.
pub struct Storage {
    /// The medium.
    pub media: Box<dyn Media>,
    /// Whether the medium holds a volume. If not, a volume is to be made.
    pub exists: bool,
    /// Where the volume is, as text for people.
    pub name: String,
    /// Whether the medium is reached in the best of the ways that were asked for.
    pub is_best: bool,
    /// Where the device puts writes; `None` if there is nothing to tell.
    pub placement: Option<Box<dyn PlacementMonitor>>,
    /// How the medium is reached, as text for people.
    pub io_path: String,
    /// Why the medium is not reached in a better way; empty if there is no better way.
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
