//! The snapshot thread as the command thread sees it.
//!
//! The queue to it is bounded by its size in bytes, which the command thread checks before it takes
//! more, so that handing over never blocks.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};
use slimio_keyspace::{Captured, ChunkOptions, DbIndex};
use slimio_planted::is_planted;
use slimio_storage::{
    Error, SlotCheck, SlotName, SlotPaths, SlotSummary, SnapshotPlan, WriterOptions,
};

use super::check::Checked;
use super::turns::TurnThreads;
use super::worker::Worker;

/// Bytes that may wait to be encoded before no more is taken.
const WAITING_SIZE_MAX: u64 = 4 << 20;
/// Bytes that still wait when the command thread is woken for more.
pub(super) const WAITING_SIZE_MIN: u64 = 1 << 20;

/// What the thread is told.
pub(super) enum Order {
    Begin {
        plan: SnapshotPlan,
        options: ChunkOptions,
        writer: WriterOptions,
        sizes: Vec<DbSize>,
        round: u64,
    },
    Batch(Captured, u64),
    Finish,
    Cancel,
    Check(Box<SlotCheck>),
    CheckRate(u64),
    Reserve {
        slot: SlotName,
        need_lbas: u64,
    },
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
    /// It is complete and stable: what it is, and the bytes of keys and values in it.
    Written(SlotSummary, u64),
    /// It failed; batches that still come are dropped.
    Failed(Error),
}

/// State shared by both sides.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Bytes of keys and values that wait to be encoded.
    pub(super) waiting_size: AtomicU64,
    /// Bytes of memory that they alone keep in use.
    pub(super) waiting_memory: AtomicU64,
    /// Bytes written, or about to be.
    pub(super) written: AtomicU64,
    /// Blocks that each slot has.
    pub(super) slot_lbas: [AtomicU64; SlotName::ALL.len()],
    /// Bytes that checks have read.
    pub(super) checked: AtomicU64,
    /// Most bytes of keys and values to encode per second; 0 is no limit.
    pub(super) rate: AtomicU64,
    /// Turns of the idle thread that ended because it hardly got a core.
    pub(super) starved_turns: AtomicU64,
    /// The command thread wants to be woken when less is waiting.
    pub(super) is_wake_wanted: AtomicBool,
    /// The command thread wants to be woken as soon as less memory is held: writers wait for it.
    pub(super) is_memory_wanted: AtomicBool,
    /// Counts snapshots begun and given up: batches queued in another round are dropped.
    pub(super) round: AtomicU64,
}

/// The snapshot thread, as the command thread sees it.
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
    /// When the thread, or the descriptor that wakes the command thread, cannot be made.
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
    pub(crate) fn begin(
        &self,
        plan: SnapshotPlan,
        options: ChunkOptions,
        writer: WriterOptions,
        sizes: Vec<DbSize>,
    ) {
        self.shared.written.store(0, Ordering::Relaxed);
        let round = self.shared.round.fetch_add(1, Ordering::Relaxed) + 1;
        self.tell(Order::Begin { plan, options, writer, sizes, round });
    }

    /// Hands over captured entries.
    pub(crate) fn give(&self, batch: Captured) {
        let memory = batch.owned_size() as u64;
        let size = memory.max(batch.size() as u64);
        self.shared.waiting_size.fetch_add(size, Ordering::Relaxed);
        self.shared.waiting_memory.fetch_add(memory, Ordering::Relaxed);
        self.tell(Order::Batch(batch, self.shared.round.load(Ordering::Relaxed)));
    }

    /// Sets the most bytes of keys and values that are encoded per second; 0 is no limit.
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

    /// Gives up the running snapshot: no answer follows.
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
        // The thread may have caught up meanwhile without seeing that.
        self.shared.waiting_size.load(Ordering::SeqCst) < WAITING_SIZE_MIN
    }

    /// Has the command thread woken when the next batch has been dropped. If no batch is queued, it
    /// is up to the command thread: the memory held waits for it to take entries.
    pub(crate) fn wake_when_less(&self) {
        self.shared.is_memory_wanted.store(true, Ordering::SeqCst);
    }

    /// Bytes of keys and values that wait to be encoded.
    pub(crate) fn waiting_size(&self) -> u64 {
        self.shared.waiting_size.load(Ordering::Relaxed)
    }

    /// Bytes of memory that they alone keep in use.
    pub(crate) fn waiting_memory(&self) -> u64 {
        self.shared.waiting_memory.load(Ordering::Relaxed)
    }

    /// Bytes written so far, or about to be.
    pub(crate) fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Blocks that each slot has.
    pub(crate) fn slot_lbas(&self) -> [u64; SlotName::ALL.len()] {
        self.shared.slot_lbas.each_ref().map(|lbas| lbas.load(Ordering::Relaxed))
    }

    /// How often the idle thread's turn has ended because it hardly got a core.
    pub(crate) fn starved_turns(&self) -> u64 {
        self.shared.starved_turns.load(Ordering::Relaxed)
    }

    /// The outcome of the snapshot, once.
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

    /// Sets the most bytes per second that a check reads. At 0 the check under way is given up.
    pub(crate) fn set_check_rate(&self, rate: u64) {
        self.tell(Order::CheckRate(rate));
    }

    /// Shortens a slot that holds nothing that counts and that nobody reads: what it has far beyond
    /// `need_lbas`, about what the next snapshot takes, goes back to the file system.
    pub(crate) fn shorten_reserve(&self, slot: SlotName, need_lbas: u64) {
        self.tell(Order::Reserve { slot, need_lbas });
    }

    /// The outcome of a check, once.
    pub(crate) fn checked(&self) -> Option<Checked> {
        self.checked.try_recv().ok()
    }

    /// Bytes that checks have read since the start.
    pub(crate) fn checked_bytes(&self) -> u64 {
        self.shared.checked.load(Ordering::Relaxed)
    }

    /// Forgets that the command thread was woken.
    pub(crate) fn woken(&self) {
        // It does no harm if there is nothing to read.
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
