//! The snapshot thread as the command thread has it.
//!
//! What waits for it is bounded by its size, which the command thread looks at before it takes more,
//! so that handing over never blocks.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use slimio_keyspace::{Captured, ChunkOptions, DbIndex};
use slimio_planted::is_planted;
use slimio_storage::{Error, SlotCheck, SlotName, SlotPaths, SlotSummary, SnapshotPlan};

use super::check::Checked;
use super::turns::TurnThreads;
use super::worker::Worker;

/// Bytes that may wait to be encoded before no more is taken.
const WAITING_SIZE_MAX: u64 = 4 << 20;
/// Bytes that still wait when more is asked for.
pub(super) const WAITING_SIZE_MIN: u64 = 1 << 20;

/// What the thread is told.
pub(super) enum Order {
    Begin { plan: SnapshotPlan, options: ChunkOptions, sizes: Vec<DbSize>, round: u64 },
    Batch(Captured, u64),
    Finish,
    Cancel,
    Check(Box<SlotCheck>),
    CheckRate(u64),
    Reserve { slot: SlotName, need_lbas: u64 },
}

/// How many keys a database has, and how many of them expire.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DbSize {
    pub(crate) db: DbIndex,
    pub(crate) keys: usize,
    pub(crate) expiring: usize,
}

/// What became of a snapshot.
#[derive(Debug)]
pub(crate) enum Answer {
    /// It is complete and stable.
    Written(SlotSummary),
    /// It failed; what still comes of it is dropped.
    Failed(Error),
}

/// What both sides see.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Bytes of keys and values that wait to be encoded.
    pub(super) waiting_size: AtomicU64,
    /// Bytes of memory that wait with them and are nobody else's.
    pub(super) waiting_memory: AtomicU64,
    /// Bytes written, or about to be.
    pub(super) written: AtomicU64,
    /// Bytes that checks have read.
    pub(super) checked: AtomicU64,
    /// Bytes of keys and values that are to be encoded per second at most; 0 is no limit.
    pub(super) rate: AtomicU64,
    /// Turns of the idle thread that ended because it hardly got a core.
    pub(super) starved_turns: AtomicU64,
    /// The command thread wants to be woken when less is waiting.
    pub(super) is_wake_wanted: AtomicBool,
    /// The command thread wants to be woken as soon as less memory is held: writers wait for it.
    pub(super) is_memory_wanted: AtomicBool,
    /// Counts snapshots begun and given up: what is in the queue for another round is not wanted.
    pub(super) round: AtomicU64,
}

/// The snapshot thread, as the command thread has it.
#[derive(Debug)]
pub(crate) struct SnapshotThread {
    orders: Option<Sender<Order>>,
    answers: Receiver<(u64, Answer)>,
    checked: Receiver<Checked>,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    threads: Option<TurnThreads>,
}

impl SnapshotThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When it, or what it wakes the command thread with, cannot be made.
    pub(crate) fn start(paths: SlotPaths) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let shared = Arc::new(Shared::default());
        let (orders, order_receiver) = channel();
        let (answer_sender, answers) = channel();
        let (checked_sender, checked) = channel();
        let worker = Worker::new(
            paths,
            order_receiver,
            Arc::clone(&shared),
            Arc::clone(&wake),
            answer_sender,
            checked_sender,
        );
        let threads = TurnThreads::start(Box::new(worker))?;
        Ok(Self { orders: Some(orders), answers, checked, shared, wake, threads: Some(threads) })
    }

    /// Readable when there is an answer, or when more can be taken.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Begins a snapshot. The one before must have been answered for.
    pub(crate) fn begin(&self, plan: SnapshotPlan, options: ChunkOptions, sizes: Vec<DbSize>) {
        self.shared.written.store(0, Ordering::Relaxed);
        let round = self.shared.round.fetch_add(1, Ordering::Relaxed) + 1;
        self.tell(Order::Begin { plan, options, sizes, round });
    }

    /// Hands over what was taken.
    pub(crate) fn give(&self, batch: Captured) {
        let memory = batch.owned_size() as u64;
        let size = memory.max(batch.size() as u64);
        self.shared.waiting_size.fetch_add(size, Ordering::Relaxed);
        self.shared.waiting_memory.fetch_add(memory, Ordering::Relaxed);
        self.tell(Order::Batch(batch, self.shared.round.load(Ordering::Relaxed)));
    }

    /// Sets how many bytes of keys and values are encoded per second at most; 0 is no limit.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::Relaxed);
    }

    /// The limit in force.
    pub(crate) fn rate(&self) -> u64 {
        self.shared.rate.load(Ordering::Relaxed)
    }

    /// Everything was handed over: an answer follows.
    pub(crate) fn finish(&self) {
        self.tell(Order::Finish);
    }

    /// Gives up what is running: no answer follows.
    pub(crate) fn cancel(&self) {
        self.shared.round.fetch_add(1, Ordering::Relaxed);
        self.tell(Order::Cancel);
    }

    /// Whether more may be handed over. If not, the command thread is woken when it may.
    pub(crate) fn has_room(&self) -> bool {
        if self.waiting_size() < WAITING_SIZE_MAX {
            return true;
        }
        self.shared.is_wake_wanted.store(true, Ordering::SeqCst);
        // It may have caught up meanwhile, and not have seen that.
        self.shared.waiting_size.load(Ordering::SeqCst) < WAITING_SIZE_MIN
    }

    /// Wakes the command thread when the next batch has been dropped. If none is left, that is up to
    /// the command thread: what is held waits to be taken.
    pub(crate) fn wake_when_less(&self) {
        self.shared.is_memory_wanted.store(true, Ordering::SeqCst);
    }

    /// Bytes of keys and values that wait to be encoded.
    pub(crate) fn waiting_size(&self) -> u64 {
        self.shared.waiting_size.load(Ordering::Relaxed)
    }

    /// Bytes of memory that wait with them and are nobody else's.
    pub(crate) fn waiting_memory(&self) -> u64 {
        self.shared.waiting_memory.load(Ordering::Relaxed)
    }

    /// Bytes written so far, or about to be.
    pub(crate) fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// How often the idle thread's turn has ended because it hardly got a core.
    pub(crate) fn starved_turns(&self) -> u64 {
        self.shared.starved_turns.load(Ordering::Relaxed)
    }

    /// What has become of the snapshot, once.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let round = self.shared.round.load(Ordering::Relaxed);
        let mut answers = self.answers.try_iter();
        answers.find(|(of, _)| *of == round || is_planted("any-answer")).map(|(_, answer)| answer)
    }

    /// Checks what a slot holds, while no snapshot is written. The one before must have been
    /// answered for.
    pub(crate) fn check(&self, check: SlotCheck) {
        self.tell(Order::Check(Box::new(check)));
    }

    /// Sets how many bytes per second a check reads at most. At 0 the one under way is given up.
    pub(crate) fn set_check_rate(&self, rate: u64) {
        self.tell(Order::CheckRate(rate));
    }

    /// A slot holds nothing that counts, and nobody reads it; the next snapshot takes about
    /// `need_lbas` blocks. What it has far beyond that goes back to the file system.
    pub(crate) fn shorten_reserve(&self, slot: SlotName, need_lbas: u64) {
        self.tell(Order::Reserve { slot, need_lbas });
    }

    /// What has come of a check, once.
    pub(crate) fn checked(&self) -> Option<Checked> {
        self.checked.try_recv().ok()
    }

    /// Bytes that checks have read since the start.
    pub(crate) fn checked_bytes(&self) -> u64 {
        self.shared.checked.load(Ordering::Relaxed)
    }

    /// Forgets that the command thread was woken.
    pub(crate) fn woken(&self) {
        // Nothing to read is as good as having read it.
        let _ = rustix::io::read(&self.wake, &mut [0; 8]);
    }

    fn tell(&self, order: Order) {
        let orders = self.orders.as_ref().expect("the thread runs until this is dropped");
        assert!(orders.send(order).is_ok(), "the snapshot thread has panicked");
    }
}

impl Drop for SnapshotThread {
    fn drop(&mut self) {
        self.shared.round.fetch_add(1, Ordering::Relaxed);
        drop(self.orders.take());
        drop(self.threads.take());
    }
}
