//! The root of everything.

use crate::Lsn;

/// Random name of a volume, given when it is formatted. Everything on the volume is checksummed
/// together with it, so nothing of another volume is ever taken for its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct VolumeId(pub u128);

/// Where the log starts: what is before it is not needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LogStart {
    /// Sequence of the segment that the first batch is in.
    pub segment: u64,
    /// Block of the segment where the first batch starts.
    pub lba: u64,
    /// First LSN of that batch.
    pub batch_lsn: Lsn,
    /// Records up to here are not needed.
    pub lsn: Lsn,
    /// Checksum of the batch before it.
    pub parent: u64,
}

/// Where the log was cut by the last recovery: batches of older epochs behind it do not exist.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Cut {
    /// Sequence of the segment where the log went on.
    pub segment: u64,
    /// Block of the segment where the log went on.
    pub lba: u64,
    /// LSN with which it went on.
    pub lsn: Lsn,
    /// Checksum of the last batch before.
    pub parent: u64,
}
