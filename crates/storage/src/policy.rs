//! When a write is acknowledged, and when the log goes to the device.

use std::time::Duration;

/// A flush begins when the oldest undurable record is this old, so that it begins well within the
/// promised 500 ms even when the records must be written first.
pub const FLUSH_AFTER: Duration = Duration::from_millis(400);

/// Under [`Policy::EverySec`], nothing new is acknowledged while an undurable record is this old.
pub const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(1);

/// Under [`Policy::No`], a batch that is not full is submitted at this age.
pub const WRITE_AFTER: Duration = Duration::from_secs(1);

/// `appendfsync`: what an acknowledged write has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Acknowledged when it, and all before it, is on stable media.
    Always,
    /// Acknowledged when it outlives the process; stable at most a second later.
    EverySec,
    /// Acknowledged when it outlives the process; stable whenever the device makes it so.
    No,
}

/// What the log's room allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// Every write may run.
    Free,
    /// Only deletes, flushes, expiry and eviction may run, to free memory; other writes fail.
    Scarce,
    /// Only commands that empty the data set may run: the log can start behind them, from nothing.
    Last,
    /// Nothing may be appended just now; room is being made, and the answer will change.
    Wait,
    /// Nothing may be appended, and no more room can be made.
    Full,
}
