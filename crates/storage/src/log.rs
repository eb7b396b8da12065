//! The write-ahead log: append, group commit, durable LSN.

use std::time::{Duration, Instant};

use slimio_device::Device;

use crate::{Job, Latch, Lsn, Outcome, Policy, Room};

/// The log, open for appending. Plain state: the device and the time are arguments.
///
/// A turn of the caller's loop: [`reap`](Self::reap), then check [`room`](Self::room) and
/// [`append`](Self::append) as often as wanted, then [`drive`](Self::drive); replies may leave up
/// to [`releasable`](Self::releasable). [`next_job`](Self::next_job) goes to the keeper, whose
/// answer comes back through [`job_done`](Self::job_done).
#[derive(Debug)]
pub struct Log {}

/// Counters for INFO, since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of records appended, their headers included.
    pub record_bytes: u64,
    /// Batches written.
    pub batches: u64,
    /// Bytes sent to the device.
    pub device_bytes: u64,
    /// Bytes of the log's area used up.
    pub log_bytes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Batches and flushes in flight now.
    pub in_flight: u32,
    /// Bytes appended and not yet written.
    pub backlog_bytes: u64,
    /// Bytes of the segments that the log has now, prepared ones included.
    pub capacity_bytes: u64,
    /// Bytes of them that are free.
    pub free_bytes: u64,
    /// Longest time from the submission of a batch or flush to its completion being reaped.
    pub latency_max: Duration,
}

impl Log {
    /// Puts a record, made of `parts` one after the other, at the end of the log, and returns its
    /// LSN. Never fails and never blocks: the caller has asked [`room`](Self::room) before.
    pub fn append(&mut self, _db: u16, _parts: &[&[u8]]) -> Lsn {
        unimplemented!("the next change")
    }

    /// End of what has been appended.
    pub fn appended(&self) -> Lsn {
        unimplemented!("the next change")
    }

    /// End of what outlives the process.
    pub fn kept(&self) -> Lsn {
        unimplemented!("the next change")
    }

    /// End of what survives the loss of power.
    pub fn durable(&self) -> Lsn {
        unimplemented!("the next change")
    }

    /// Replies that depend on records up to here may leave, under the policy in force.
    pub fn releasable(&self, _now: Instant) -> Lsn {
        unimplemented!("the next change")
    }

    /// Submits what is due under the policy. Never blocks; at most one system call.
    pub fn drive(&mut self, _device: &mut dyn Device, _now: Instant) {
        unimplemented!("the next change")
    }

    /// Takes in what the device has finished. Never blocks.
    pub fn reap(&mut self, _device: &mut dyn Device, _now: Instant) {
        unimplemented!("the next change")
    }

    /// Sleeps until the device has finished something or `timeout` has passed; a
    /// [`reap`](Self::reap) must follow. Returns at once when nothing is in flight.
    pub fn wait(&mut self, _device: &mut dyn Device, _timeout: Option<Duration>) {
        unimplemented!("the next change")
    }

    /// When [`drive`](Self::drive) must be called again, if nothing is appended or reaped before.
    pub fn next_deadline(&self) -> Option<Instant> {
        unimplemented!("the next change")
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        unimplemented!("the next change")
    }

    /// Changes the policy. What was appended before is acknowledged under the new one.
    pub fn set_policy(&mut self, _policy: Policy) {
        unimplemented!("the next change")
    }

    /// Asks that everything appended until now becomes durable as soon as may be, whatever the
    /// policy (SHUTDOWN, WAITAOF).
    pub fn request_durable(&mut self) {
        unimplemented!("the next change")
    }

    /// When the oldest record that is not durable was first seen by [`drive`](Self::drive).
    pub fn oldest_undurable(&self) -> Option<Instant> {
        unimplemented!("the next change")
    }

    /// Whether a record with `payload_size` bytes may be appended now.
    pub fn room(&self, _payload_size: u64) -> Room {
        unimplemented!("the next change")
    }

    /// Why the log has stopped for good, if it has.
    pub fn latched(&self) -> Option<&Latch> {
        unimplemented!("the next change")
    }

    /// Records up to `lsn` are not needed any more: as soon as it is durable, the log may start
    /// behind it.
    pub fn release_before(&mut self, _lsn: Lsn) {
        unimplemented!("the next change")
    }

    /// What the keeper should do now. Nothing more is returned until [`job_done`](Self::job_done).
    pub fn next_job(&mut self, _now: Instant) -> Option<Job> {
        unimplemented!("the next change")
    }

    /// Takes in the keeper's answer.
    pub fn job_done(&mut self, _outcome: Outcome, _now: Instant) {
        unimplemented!("the next change")
    }

    /// Counters for INFO.
    pub fn stats(&self) -> LogStats {
        unimplemented!("the next change")
    }
}
