//! Snapshots on the volume: where they may be, how they are written, read and checked.
//!
//! ```text
//! slot  | header | chunk | chunk | ... | index | trailer |      (superblock: checksum of the trailer)
//!                    ▲       ▲             │  ▲      │
//!                    └───────┴─ checksum ──┘  └──────┘ checksum
//! ```
//!
//! Three slots with rotating roles: WAL-snapshot, on-demand snapshot, reserve. A new snapshot of
//! either kind is written to the reserve. When it is complete and stable, and all records that it
//! needs are durable, one update of the superblock adopts it; the slot of the snapshot that it
//! replaces becomes the reserve.
//!
//! A WAL-snapshot of a log that goes on is fuzzy: values overwritten while it was taken may be
//! missing in it, because the log behind it has the new ones. It needs the log up to the last
//! record appended while it was taken. An on-demand snapshot, or one without a log, stands on its
//! own.
//!
//! The invariant: a reader gets only what this one snapshot wrote. The superblock has the checksum
//! of the trailer, the trailer that of the index, the index that of each chunk, and all are salted
//! with volume, epoch, number and slot: old contents of the slot are never taken for new ones.

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

/// What a snapshot is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SnapshotKind {
    /// The log goes on from it: once adopted, it lets the log start behind it.
    Wal,
    /// A point in time that is kept.
    OnDemand,
}

impl SnapshotKind {
    pub(crate) fn lifetime(self) -> Lifetime {
        match self {
            Self::Wal => Lifetime::WalSnapshot,
            Self::OnDemand => Lifetime::Snapshot,
        }
    }

    /// Its name in messages.
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

/// A snapshot that is to be written: what it is, where it goes, and what identifies its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SnapshotPlan {
    /// The slot to write.
    pub slot: SlotName,
    /// What it is for.
    pub kind: SnapshotKind,
    /// The point in time: it holds the effects of records up to here.
    pub lsn: Lsn,
    /// Whether it may lack data that later records set anew, whatever its old value. These are the
    /// records up to the last one appended when it is [adopted](crate::Log::adopt): it is always
    /// read together with them.
    pub is_fuzzy: bool,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
    pub(crate) volume_id: VolumeId,
    pub(crate) epoch: u64,
    pub(crate) number: u64,
    pub(crate) superblock_sequence: u64,
}

/// A complete snapshot: its slot, and how its contents are recognised.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct SlotSummary {
    /// The slot that it is in.
    pub slot: SlotName,
    /// What it is for.
    pub kind: SnapshotKind,
    /// Epoch in which it was written.
    pub epoch: u64,
    /// Counts snapshots that were begun: a later one has a higher number.
    pub number: u64,
    /// It holds the effects of records up to here.
    pub lsn: Lsn,
    /// It may lack data that records between `lsn` and here set anew: only together with them is it
    /// a state that the data set was in. Equal to `lsn` for a snapshot that stands on its own.
    pub consistent_lsn: Lsn,
    /// Its blocks, from header to trailer.
    pub len_lbas: u64,
    /// Checksum of its trailer, which covers everything else.
    pub checksum: u64,
    /// Chunks in it.
    pub chunk_count: u64,
    /// Entries in them.
    pub entry_count: u64,
    /// Bytes of the chunks' payloads.
    pub payload_size: u64,
    /// When it was begun, in milliseconds since 1970.
    pub created_ms: u64,
}

impl SlotSummary {
    /// Whether it needs some of the log behind it.
    pub fn is_fuzzy(&self) -> bool {
        self.consistent_lsn > self.lsn
    }
}

/// A path to each snapshot slot.
pub struct SlotPaths {
    paths: [Option<Box<dyn Device + Send>>; crate::layout::SLOT_COUNT],
    /// The extent pool, on a device.
    pool: Option<Pool>,
}

impl SlotPaths {
    /// Opens a path to each slot that exists. Nothing is written.
    ///
    /// # Errors
    /// When one can't be opened.
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

    /// Makes the missing slots, empty. Durable when this returns.
    ///
    /// # Errors
    /// When one can't be made.
    pub(crate) fn complete(&mut self, media: &mut dyn Media) -> Result<(), Error> {
        for slot in self.missing().collect::<Vec<_>>() {
            media.make_slot(slot)?;
            self.paths[slot.index()] = Some(media.open_path(Area::Snapshot(slot))?);
        }
        Ok(())
    }

    /// The path to a slot. When the slot is missing, what it held is damaged.
    ///
    /// # Errors
    /// [`Error::SnapshotDamaged`] when it is missing.
    pub(crate) fn find(&mut self, slot: SlotName) -> Result<&mut (dyn Device + Send), Error> {
        match &mut self.paths[slot.index()] {
            Some(path) => Ok(&mut **path),
            None => Err(Error::SnapshotDamaged { slot, what: "its file is missing".into() }),
        }
    }

    /// The path to a slot.
    ///
    /// # Panics
    /// When it is missing: an open volume has them all.
    pub fn get(&mut self, slot: SlotName) -> &mut (dyn Device + Send) {
        self.find(slot).expect("an open volume has all slots")
    }

    /// Blocks that each slot has.
    pub fn lengths(&self) -> [u64; crate::layout::SLOT_COUNT] {
        let lbas = |path: &Option<Box<dyn Device + Send>>| {
            path.as_ref().map_or(0, |path| path.geometry().lba_count)
        };
        self.paths.each_ref().map(lbas)
    }

    /// Gives back a piece of the space of a reserve that nobody reads. True while there is more to
    /// give back: the caller waits a little between two steps, so that giving back never holds up
    /// the log.
    ///
    /// On a device all of its space is given back, in whole extents, for others to take. Of a file,
    /// everything beyond twice a snapshot of `need_lbas` blocks and 64 MiB goes back to the file
    /// system. A slot grows to at most a quarter, or 64 MiB, more than its snapshot needs. So a
    /// shortened slot grows again only when a snapshot is more than twice as long as before, and a
    /// data set whose size goes up and down by half keeps its blocks.
    ///
    /// # Errors
    /// When the slot can't be shortened: it then stays as long as it is.
    ///
    /// # Panics
    /// When it is missing: an open volume has them all.
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
