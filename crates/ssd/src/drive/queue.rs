//! A queue whose operations begin in the thread that calls it, and complete when it polls.

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
/// also moves its bytes, and the same or another thread reaps it when it is due.
///
/// Like the operations of a [`Device`](slimio_device::Device), those in flight on a queue are in no
/// order. The caller limits how many there are.
#[derive(Debug)]
pub struct DriveQueue {
    core: Shared,
    data: Arc<Data>,
    geometry: Geometry,
    opened: Opened,
    begun: InFlight,
    /// Whether what is to be made durable was left to the next [`poll`](Self::poll).
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

    /// What the queue can do. Its `in_flight_max` is that of the drive's paths, and not enforced.
    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// Begins an operation that arrived at `arrived`. It takes effect in the mapping at once, and
    /// its bytes are moved, which takes as long as a read or write of a cached file. An operation
    /// that is impossible completes with an error.
    ///
    /// If the drive has `sync=yes`, flushes and durable writes become durable in the next
    /// [`poll`](Self::poll), all of them by one sync.
    pub fn begin(&mut self, token: Token, op: Op, arrived: Instant) {
        self.begin_at(token, op, arrived.saturating_duration_since(self.core.start));
    }

    /// As [`begin`](Self::begin), by the drive's clock.
    pub(super) fn begin_at(&mut self, token: Token, op: Op, arrived: Duration) {
        let (opened, scratch) = (&self.opened, &mut self.scratch);
        let begun = self.core.begin(op, Some(arrived), opened, &self.data, scratch);
        self.begun.push(token, begun);
    }

    /// When the next operation completes, or has to be made durable by [`poll`](Self::poll); `None`
    /// if none is in flight.
    pub fn next_due(&self) -> Option<Instant> {
        Some(self.core.start + self.next_due_at()?)
    }

    /// As [`next_due`](Self::next_due), by the drive's clock.
    pub(super) fn next_due_at(&self) -> Option<Duration> {
        self.begun.next_due()
    }

    /// Moves the operations that are due into `completions`, in the order of their times. If there
    /// are none, or if some of the others have waited for one call already, it makes durable what has
    /// to be. That takes as long as the disk takes.
    pub fn poll(&mut self, completions: &mut Vec<Completion>) {
        if self.begun.count() == 0 {
            return;
        }
        let before = completions.len();
        self.reap(completions);
        let is_sync_due = self.has_waited || completions.len() == before;
        self.has_waited = !is_sync_due;
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

    /// What cancels the deallocations of the queue, for another thread. When the queue is dropped, they
    /// are cancelled.
    pub fn canceller(&self) -> Canceller {
        self.opened.canceller.clone()
    }

    /// Count of operations that have begun and were not moved into completions yet.
    pub fn in_flight(&self) -> usize {
        self.begun.count()
    }
}

/// Operations that have begun, by the times at which they are due.
#[derive(Debug, Default)]
pub(super) struct InFlight {
    ops: BinaryHeap<Waiting>,
    /// Flushes and durable writes that are not durable in the file system yet.
    unsynced: Vec<(Token, StartedOp)>,
    /// Count of operations that were ever added.
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

    /// Makes durable what has to be. A disk takes as long for one sync of many operations as for one
    /// operation, and its host may have hundreds of them in flight. Returns whether there was something.
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

    /// When the next operation is due. One that is not durable yet is due at once.
    pub(super) fn next_due(&self) -> Option<Duration> {
        if !self.unsynced.is_empty() {
            return Some(Duration::ZERO);
        }
        Some(self.ops.peek()?.op.due)
    }

    /// Takes the next operation, if it is due at `now`. Those that are due at the same time come in
    /// the order in which they began.
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

/// An operation in the heap, whose greatest element is the one that is due first.
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
