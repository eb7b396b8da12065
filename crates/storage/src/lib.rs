//! The volume: its superblock, its areas, its write-ahead log, and their recovery. To this crate,
//! payloads are opaque bytes.
//!
//! ```text
//!            append            drive                 reap
//!  records ─────────► batch ──────────► device ───────────────► durable LSN
//!                     (mapped buffer:                │
//!                      outlives the process)         │ room is short
//!                                                    ▼
//!                     superblock ◄──────────────── Keeper
//!                     (which slot of the log's area holds which segment, where the log
//!                     starts, epoch, cut)
//! ```
//!
//! The [`Keeper`] owns the superblock. When the log is short of room, the keeper makes room, and
//! notes the new segments in the superblock.
//!
//! The invariant: [`recover`] brings back every acknowledged record that the `appendfsync` policy
//! promises to keep. The records that come back are a prefix of the appended records, in order and
//! without gaps. This crate starts no thread. Its callers pass devices and times as arguments. It
//! reads a clock only to measure the timeout of a wait.

mod batch;
mod checksum;
mod error;
mod extents;
mod identity;
mod inspect;
mod io;
mod keeper;
pub mod layout;
mod log;
mod lsn;
mod media;
mod policy;
mod recover;
mod snapshot;
mod superblock;
mod unfinished;

pub(crate) use error::EIO;
pub use error::{Error, Latch, LatchCause};
pub use extents::{ExtentMap, Pool, PoolUse};
pub use inspect::{Inspection, check_slot, inspect, read, superblock, verify};
pub use keeper::{Adoption, Job, Keeper, KeeperPaths, Outcome};
pub use log::{Log, LogState, LogStats, SnapshotEvent, StagedRecord};
pub use lsn::Lsn;
pub use media::{
    Area, DeviceCounts, Lifetime, Media, PlacementMonitor, PlacementReport, SlotName, Storage,
};
pub use policy::{ACKNOWLEDGE_WITHIN, FLUSH_AFTER, Policy, Room, WRITE_AFTER};
pub use recover::{
    FormatOptions, Phase, Progress, Record, RecoverOptions, RecoverSink, Report, RootChoice,
    Volume, format, recover,
};
pub use snapshot::{
    Chunk, READ_AHEAD_CHUNKS, SlotCheck, SlotPaths, SlotReader, SlotSummary, SlotWriter,
    SnapshotKind, SnapshotPlan, Snapshots, WriterOptions, give_back,
};
pub use superblock::{Cut, LogStart, Superblock, SuperblockCopy, VolumeGeometry, VolumeId};
pub use unfinished::is_unfinished;
