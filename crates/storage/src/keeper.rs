//! Who owns the superblock and makes room for the log.

use slimio_device::{Device, DeviceError};

use crate::LogStart;

/// Owner of the superblock: prepares segments ahead of the log and releases those behind it.
///
/// Plain state; runs where blocking is allowed (a thread of its own), on paths of its own.
#[derive(Clone, Debug)]
pub struct Keeper {}

/// The keeper's own paths.
pub struct KeeperPaths {
    /// Path to the superblock's area.
    pub superblock: Box<dyn Device + Send>,
    /// Path to the log's area.
    pub wal: Box<dyn Device + Send>,
}

/// What the log asks of the keeper. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Prepare one more segment.
    Prepare,
    /// The log starts here from now on; what is before is free.
    Release(LogStart),
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The segment may be written: the superblock that says so is durable.
    Prepared {
        /// Its sequence.
        segment: u64,
        /// Which piece of the log's area it is.
        wal_slot: u32,
        /// The superblock in force.
        superblock_sequence: u64,
    },
    /// No segment could be prepared. Nothing has changed.
    PrepareFailed(DeviceError),
    /// The log starts there; what was before may be used again.
    Released {
        /// Where it starts.
        start: LogStart,
        /// The superblock in force.
        superblock_sequence: u64,
    },
    /// The superblock could not be updated: the log must be latched.
    SuperblockFailed(DeviceError),
}

impl Keeper {
    /// Does a job. Blocks until it is done and durable.
    pub fn run(&mut self, _paths: &mut KeeperPaths, _job: Job) -> Outcome {
        unimplemented!("the next change")
    }
}
