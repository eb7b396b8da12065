//! When a write is acknowledged, and when the log goes to the device.

use std::time::Duration;

/// A flush begins when the oldest undurable record is this old, so that it has begun well within
/// the 500 ms that are promised, also when the records must be written first.
pub const FLUSH_AFTER: Duration = Duration::from_millis(400);

/// Under [`Policy::EverySec`], nothing new is acknowledged while an undurable record is this old.
pub const ACKNOWLEDGE_WITHIN: Duration = Duration::from_secs(1);

/// Under [`Policy::No`], a batch that is not full leaves for the device at this age.
pub const WRITE_AFTER: Duration = Duration::from_secs(1);

/// `appendfsync`: what an acknowledged write has survived.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Policy {
    /// Acknowledged when it, and all before it, is on stable media.
    Always,
    /// Acknowledged when it outlives the process; stable at most a second later.
    EverySec,
    /// Acknowledged when it outlives the process; stable when the device feels like it.
    No,
}

/// What the log's room allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Room {
    /// Every write may run.
    Free,
    /// Only what frees memory may run (deletes, flushes, expiry, eviction); other writes fail.
    Scarce,
    /// Only what empties the data set may run: the log can start behind it, from nothing.
    Last,
    /// Nothing may be appended just now; room is being made, and the answer will change.
    Wait,
    /// Nothing may be appended, and no more room is to be had.
    Full,
}
