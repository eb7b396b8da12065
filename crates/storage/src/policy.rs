//! When a write is acknowledged, and when the log is written and flushed.

use std::time::Duration;

/// Under [`Policy::EverySec`], a flush begins when the oldest record that is not durable is this
/// old. The documentation promises that the flush begins when this record is at most 500 ms old.
/// This age is well below 500 ms, because the records may have to be written before the flush can
/// begin.
pub const FLUSH_AFTER: Duration = Duration::from_millis(400);

/// Under [`Policy::EverySec`], no more writes are acknowledged while the oldest record that is not
/// durable is at least this old.
pub const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(1);

/// Under [`Policy::No`], a batch (records that share one write) that is not full is submitted at
/// the latest when it is this old.
pub const WRITE_AFTER: Duration = Duration::from_secs(1);

/// The setting `appendfsync`, which says what an acknowledged write survives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// A write is acknowledged when it and all writes before it are on stable media.
    Always,
    /// A write is acknowledged as soon as a kill of the process can't lose it. The write is stable
    /// at most a second later.
    EverySec,
    /// A write is acknowledged as soon as a kill of the process can't lose it. The device decides
    /// when the write becomes stable.
    No,
}

/// Which commands may run, given the room in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// Every write may run.
    Free,
    /// Only operations that free memory may run: deletions, flushes of databases, expiry and
    /// eviction. Other writes fail.
    Scarce,
    /// Only commands that empty the data set may run, because after such a command the log can
    /// start anew, without a snapshot.
    Last,
    /// Nothing may be appended at present. Room is being made, so this state will pass.
    Wait,
    /// Nothing may be appended, and no more room can be made.
    Full,
}
