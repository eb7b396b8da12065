//! Snapshots on the volume: where they may be, how they are written, read and checked.
//!
//! ```text
//! slot  | header | chunk | chunk | ... | index | trailer |  (superblock: checksum of the trailer)
//!                    ▲       ▲             │  ▲      │
//!                    └───────┴─ checksum ──┘  └──────┘ checksum
//! ```
//!
//! There are three slots, whose roles rotate: WAL-snapshot, on-demand snapshot and reserve. A new
//! snapshot of either kind is written to the reserve. When the snapshot is complete and stable, and
//! all records that it needs are durable, one update of the superblock adopts it. The slot of the
//! replaced snapshot becomes the reserve.
//!
//! While the log is on, a WAL-snapshot is fuzzy. It may lack values that were overwritten while the
//! snapshot was taken, because the log has the new values. So recovery needs, beside the snapshot,
//! the log up to the last record that was appended while the snapshot was taken. An on-demand
//! snapshot never needs the log. A snapshot that is taken while the log is off does not need the
//! log either.
//!
//! The invariant: a reader gets only bytes that were written for the snapshot that it reads. The
//! superblock has the checksum of the trailer, the trailer has the checksum of the index, and the
//! index has the checksum of each chunk. All these checksums are salted with volume, epoch,
//! snapshot number and slot, so old contents of a slot are never mistaken for new contents.

mod check;
mod format;
mod reader;
mod roles;
mod writer;

pub use check::SlotCheck;
pub(crate) use format::header_sequence;
pub use reader::{Chunk, READ_AHEAD_CHUNKS, SlotReader};
pub use roles::Snapshots;
pub use writer::{SlotWriter, WriterOptions, give_back};

use slimio_device::{Device, DeviceError, OpenError};

use crate::{Area, Error, Lifetime, Lsn, Media, Pool, SlotName, VolumeId};

/// The purpose of a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// The log goes on from this snapshot. Once the snapshot is adopted, the log before it is not
    /// needed.
    Wal,
    /// A point in time that is kept until the next on-demand snapshot.
    OnDemand,
}

impl SnapshotKind {
    pub(crate) fn lifetime(self) -> Lifetime {
        match self {
            Self::Wal => Lifetime::WalSnapshot,
            Self::OnDemand => Lifetime::Snapshot,
        }
    }

    /// Name of the kind in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wal => "WAL-snapshot",
            Self::OnDemand => "on-demand snapshot",
        }
    }

    pub(crate) fn to_u32(self) -> u32 {
        match self {
            Self::Wal => 1,
            Self::OnDemand => 2,
        }
    }

    pub(crate) fn from_u32(raw: u32) -> Option<Self> {
        match raw {
            1 => Some(Self::Wal),
            2 => Some(Self::OnDemand),
            _ => None,
        }
    }
}

/// A snapshot that is to be written: its kind, its slot, and the values that identify its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// The slot to write.
    pub slot: SlotName,
    /// Purpose of the snapshot.
    pub kind: SnapshotKind,
    /// The point in time of the snapshot. The snapshot holds the effects of records up to this LSN.
    pub lsn: Lsn,
    /// Whether the snapshot may lack data that later records overwrite without reading the data.
    /// Such a snapshot is always read together with the records that are appended before its
    /// [adoption](crate::Log::adopt).
    pub is_fuzzy: bool,
    /// When the snapshot was begun, in milliseconds since 1970.
    pub created_ms: u64,
    pub(crate) volume_id: VolumeId,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    pub(crate) superblock_sequence: u64,
}

/// A complete snapshot: its slot, and the values that its contents must match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotSummary {
    /// The slot that holds the snapshot.
    pub slot: SlotName,
    /// Purpose of the snapshot.
    pub kind: SnapshotKind,
    /// Epoch in which the snapshot was written.
    pub epoch: u64,
    /// Number of the snapshot. A snapshot that was begun later has a higher number.
    pub number: u64,
    /// The snapshot holds the effects of records up to this LSN.
    pub lsn: Lsn,
    /// The snapshot may lack data that records between `lsn` and this LSN overwrite. Without these
    /// records, the snapshot may be a state that the data set was never in. If the snapshot needs
    /// no records, this LSN is equal to `lsn`.
    pub consistent_lsn: Lsn,
    /// Length of the snapshot in blocks, from header to trailer.
    pub len_lbas: u64,
    /// Checksum of the trailer. Through other checksums, it covers the whole snapshot.
    pub checksum: u64,
    /// Number of chunks.
    pub chunk_count: u64,
    /// Number of entries in all chunks.
    pub entry_count: u64,
    /// Size in bytes of all chunks' payloads together.
    pub payload_size: u64,
    /// When the snapshot was begun, in milliseconds since 1970.
    pub created_ms: u64,
}

impl SlotSummary {
    /// Whether the snapshot needs some of the log after its LSN.
    pub fn is_fuzzy(&self) -> bool {
        self.consistent_lsn > self.lsn
    }
}

/// A path to each snapshot slot.
pub struct SlotPaths {
    paths: [Option<Box<dyn Device + Send>>; crate::layout::SLOT_COUNT],
    /// The extent pool, if the volume is on a device.
    pool: Option<Pool>,
}

impl SlotPaths {
    /// Opens a path to each slot that exists. This writes nothing.
    ///
    /// # Errors
    /// If a slot can't be opened.
    pub(crate) fn open(media: &mut dyn Media) -> Result<Self, Error> {
        let mut paths = Self { paths: [None, None, None], pool: media.pool().cloned() };
        for slot in SlotName::ALL {
            match media.open_path(Area::Snapshot(slot)) {
                Err(OpenError::Missing { .. }) => {}
                opened => paths.paths[slot.index()] = Some(opened?),
            }
        }
        Ok(paths)
    }

    /// The slots that are missing.
    pub(crate) fn missing(&self) -> impl Iterator<Item = SlotName> {
        SlotName::ALL.into_iter().filter(|slot| self.paths[slot.index()].is_none())
    }

    /// Makes the missing slots, which are empty. They are durable when this returns.
    ///
    /// # Errors
    /// If a slot can't be made.
    pub(crate) fn complete(&mut self, media: &mut dyn Media) -> Result<(), Error> {
        for slot in self.missing().collect::<Vec<_>>() {
            media.make_slot(slot)?;
            self.paths[slot.index()] = Some(media.open_path(Area::Snapshot(slot))?);
        }
        Ok(())
    }

    /// The path to a slot. If the slot is missing, the snapshot that it held is treated as damaged.
    ///
    /// # Errors
    /// [`Error::SnapshotDamaged`] if the slot is missing.
    pub(crate) fn find(&mut self, slot: SlotName) -> Result<&mut (dyn Device + Send), Error> {
        match &mut self.paths[slot.index()] {
            Some(path) => Ok(&mut **path),
            None => Err(Error::SnapshotDamaged { slot, what: "its file is missing".into() }),
        }
    }

    /// The path to a slot.
    ///
    /// # Panics
    /// If the slot is missing. An open volume has all slots.
    pub fn get(&mut self, slot: SlotName) -> &mut (dyn Device + Send) {
        self.find(slot).expect("an open volume has all slots")
    }

    /// Length of each slot, in blocks.
    pub fn lengths(&self) -> [u64; crate::layout::SLOT_COUNT] {
        let lbas = |path: &Option<Box<dyn Device + Send>>| {
            path.as_ref().map_or(0, |path| path.geometry().lba_count)
        };
        self.paths.each_ref().map(lbas)
    }

    /// Gives back a piece of a reserve's space. The slot must have no reader. Returns true as long
    /// as there is more to give back. The caller waits a little between two calls, so that the log
    /// never has to wait for this.
    ///
    /// On a device, all of the reserve's space is given back, in whole extents, so that other areas
    /// can take these extents. If the slot is a file, it keeps twice the `need_lbas` blocks that a
    /// snapshot needs, plus 64 MiB. The rest is returned to the file system. So a shortened slot
    /// grows again only if a snapshot is more than twice as long as the one before. While a
    /// snapshot is written, its slot grows beyond what the snapshot needs, but at most by a quarter
    /// or by 64 MiB, whichever is more. So if the size of a data set goes up by half and down
    /// again, no slot becomes longer than what it keeps, and nothing is given back.
    ///
    /// # Errors
    /// If the slot can't be shortened. Its length is then unchanged.
    ///
    /// # Panics
    /// If the slot is missing. An open volume has all slots.
    pub fn give_back(&mut self, slot: SlotName, need_lbas: u64) -> Result<bool, DeviceError> {
        let pool = self.pool.clone();
        give_back(self.get(slot), need_lbas, pool.as_ref())
    }
}

impl std::fmt::Debug for SlotPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SlotPaths").finish_non_exhaustive()
    }
}
