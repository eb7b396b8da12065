//! A queue whose operations begin in the calling thread, and complete when a thread polls the
//! queue.

use std::cmp::Ordering;
use std::collections::BinaryHeap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use slimio_device::{Completion, Geometry, Op, Token};

use super::Shared;
use super::core::{Opened, Scratch, StartedOp};
use super::data::Data;
use super::deallocation::Canceller;

/// A queue to an emulated drive, without a thread of its own. The thread that begins an operation
/// also moves the operation's bytes. The same or another thread reaps the operation when it is due.
///
/// Like the operations of a [`Device`](slimio_device::Device), the operations in flight on a queue
/// may complete in any order. The caller has to limit their number.
#[derive(Debug)]
pub struct DriveQueue {
    core: Shared,
    data: Arc<Data>,
    geometry: Geometry,
    opened: Opened,
    begun: InFlight,
    /// Whether flushes or durable writes need a sync that the last [`poll`](Self::poll) has left to
    /// the next poll.
    has_waited: bool,
    scratch: Scratch,
}

impl Drop for DriveQueue {
    fn drop(&mut self) {
        self.opened.canceller.cancel();
    }
}

impl DriveQueue {
    pub(super) fn new(core: Shared, data: Arc<Data>, in_flight_max: u32) -> Self {
        let (geometry, opened) = core.lock().open(in_flight_max);
        let (begun, scratch) = (InFlight::default(), Scratch::default());
        Self { core, data, geometry, opened, begun, has_waited: false, scratch }
    }

    /// The drive's geometry. The queue does not enforce `in_flight_max`. Only the
    /// [devices](slimio_device::Device) that the drive opens do.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Begins an operation that arrived at the time `arrived`. The operation takes effect in the
    /// mapping at once. This call also moves the operation's bytes, which takes as long as a read
    /// or write of a cached file. An impossible operation completes with an error.
    ///
    /// If the drive has `sync=yes`, flushes and durable writes also need a sync. A later
    /// [`poll`](Self::poll) runs one sync for all of them.
    pub fn begin(&mut self, token: Token, op: Op, arrived: Instant) {
        self.begin_at(token, op, arrived.saturating_duration_since(self.core.start));
    }

    /// Like [`begin`](Self::begin), but `arrived` is a time of the drive's clock.
    pub(super) fn begin_at(&mut self, token: Token, op: Op, arrived: Duration) {
        let (opened, scratch) = (&self.opened, &mut self.scratch);
        let begun = self.core.begin(op, Some(arrived), opened, &self.data, scratch);
        self.begun.push(token, begun);
    }

    /// When the next operation completes, or when [`poll`](Self::poll) has to make an operation
    /// durable. `None` if no operation is in flight.
    pub fn next_due(&self) -> Option<Instant> {
        Some(self.core.start + self.next_due_at()?)
    }

    /// Like [`next_due`](Self::next_due), but as a time of the drive's clock.
    pub(super) fn next_due_at(&self) -> Option<Duration> {
        self.begun.next_due()
    }

    /// Moves the operations that are due into `completions`, in the order of their due times. If
    /// flushes or durable writes need a sync, this call may then run the sync, which takes as long
    /// as the disk takes. The sync runs if no operation was due, or if the previous call has put
    /// the sync off.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.begun.count() == 0 {
            return;
        }
        let before = completions.len();
        self.reap(completions);
        let is_sync_due = self.has_waited || completions.len() == before;
        self.has_waited = !is_sync_due && !self.begun.unsynced.is_empty();
        if is_sync_due && self.begun.settle(&self.core) {
            self.reap(completions);
        }
    }

    fn reap(&mut self, completions: &mut Vec<Completion>) {
        let now = self.core.real_now();
        while let Some((token, begun)) = self.begun.take_due(now) {
            completions.push(begun.end(token, &self.core));
        }
    }

    /// Returns a [`Canceller`], with which another thread can cancel the queue's deallocations.
    /// Dropping the queue also cancels them.
    pub fn canceller(&self) -> Canceller {
        self.opened.canceller.clone()
    }

    /// Number of operations that have begun, but that [`poll`](Self::poll) has not returned yet.
    pub fn in_flight(&self) -> usize {
        self.begun.count()
    }
}

/// Operations that have begun, ordered by the times at which they are due.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    ops: BinaryHeap<Waiting>,
    /// Flushes and durable writes that are not durable in the file system yet.
    unsynced: Vec<(Token, StartedOp)>,
    /// How many operations were ever added to `ops`.
    count: u64,
}

impl InFlight {
    pub(super) fn push(&mut self, token: Token, op: StartedOp) {
        if op.is_unsynced() {
            self.unsynced.push((token, op));
        } else {
            self.wait_for(token, op);
        }
    }

    fn wait_for(&mut self, token: Token, op: StartedOp) {
        self.count += 1;
        self.ops.push(Waiting { number: self.count, token, op });
    }

    /// Runs a sync if flushes or durable writes wait for one. One sync serves all of them: a host
    /// may have hundreds of them in flight, and a sync takes no longer for many operations than for
    /// one. Returns whether any operation waited.
    pub(super) fn settle(&mut self, shared: &Shared) -> bool {
        if self.unsynced.is_empty() {
            return false;
        }
        let synced = shared.make_durable();
        for (token, mut op) in std::mem::take(&mut self.unsynced) {
            op.set_synced(synced.clone());
            self.wait_for(token, op);
        }
        true
    }

    /// When the next operation is due. A flush or durable write that is not durable yet counts as
    /// due at once.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if !self.unsynced.is_empty() {
            return Some(Duration::ZERO);
        }
        Some(self.ops.peek()?.op.due)
    }

    /// Takes the next operation, if it is due at `now`. Operations that are due at the same time
    /// come in the order in which they were added.
    pub(super) fn take_due(&mut self, now: Duration) -> Option<(Token, StartedOp)> {
        if self.ops.peek()?.op.due > now {
            return None;
        }
        self.ops.pop().map(|waiting| (waiting.token, waiting.op))
    }

    pub(super) fn count(&self) -> usize {
        self.ops.len() + self.unsynced.len()
    }
}

/// An operation in the heap. The operation that is due first counts as the greatest, because the
/// heap returns its greatest element.
#[derive(Debug)]
struct Waiting {
    number: u64,
    token: Token,
    op: StartedOp,
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> Ordering {
        (other.op.due, other.number).cmp(&(self.op.due, self.number))
    }
}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Waiting {}
