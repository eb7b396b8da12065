//! The snapshot thread as the command thread sees it.
//!
//! The command thread queues captured entries for the snapshot thread. The size of this queue, in
//! bytes, is bounded. The command thread checks the size before it takes more entries, so that
//! handing them over never blocks.

use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, channel};

use slimio_keyspace::{Captured, ChunkOptions, DbIndex};
use slimio_planted::is_planted;
use slimio_storage::{
    Error, SlotCheck, SlotName, SlotPaths, SlotSummary, SnapshotPlan, WriterOptions,
};

use super::check::Checked;
use super::turns;
use super::worker::Worker;
use crate::worker::{Waker, WorkerThread};

/// No more entries are taken while this many bytes or more wait to be encoded.
const WAITING_SIZE_MAX: u64 = 4 << 20;
/// The command thread is woken for more entries when fewer bytes than this wait.
pub(super) const WAITING_SIZE_MIN: u64 = 1 << 20;

/// An order to the thread.
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

/// The outcome of a snapshot.
#[derive(Debug)]
pub(crate) enum Answer {
    /// The snapshot is complete and durable. Contains its summary, and the number of bytes of its
    /// keys and values.
    Written(SlotSummary, u64),
    /// The snapshot failed. If further batches arrive, they are dropped.
    Failed(Error),
}

/// State that the command thread and the snapshot thread share.
#[derive(Debug, Default)]
pub(super) struct Shared {
    /// Size in bytes of the batches that wait to be encoded. The size of a batch is that of its
    /// keys and values, or that of the memory that only the batch holds, whichever is more.
    pub(super) waiting_size: AtomicU64,
    /// Bytes of memory that are kept in use only by waiting entries.
    pub(super) waiting_memory: AtomicU64,
    /// Bytes of the snapshot that are written or are about to be written.
    pub(super) written: AtomicU64,
    /// Number of LBAs of each slot.
    pub(super) slot_lbas: [AtomicU64; SlotName::ALL.len()],
    /// Bytes that checks have read.
    pub(super) checked: AtomicU64,
    /// Largest number of bytes of keys and values to encode per second; 0 means no limit.
    pub(super) rate: AtomicU64,
    /// Two threads take turns at the work: the idle thread and the nice thread (see `turns`). This
    /// is how often the idle thread gave up its turn because it hardly got a core.
    pub(super) starved_turns: AtomicU64,
    /// The command thread wants to be woken when fewer bytes wait to be encoded.
    pub(super) is_wake_wanted: AtomicBool,
    /// The command thread wants to be woken as soon as less memory is held, because writers wait
    /// for memory.
    pub(super) is_memory_wanted: AtomicBool,
    /// Incremented when a snapshot begins and when a snapshot is given up, so that batches that
    /// were queued in an earlier round are dropped.
    pub(super) round: AtomicU64,
}

impl Shared {
    /// Notes how long the slots are.
    pub(super) fn note_lengths(&self, paths: &SlotPaths) {
        for (shared, lbas) in self.slot_lbas.iter().zip(paths.lengths()) {
            shared.store(lbas, Ordering::Relaxed);
        }
    }
}

/// The snapshot thread, as the command thread sees it.
#[derive(Debug)]
pub(crate) struct SnapshotThread {
    answers: Receiver<(u64, Answer)>,
    checked: Receiver<Checked>,
    shared: Arc<Shared>,
    waker: Waker,
    thread: WorkerThread<Order>,
}

impl SnapshotThread {
    /// Starts the thread.
    ///
    /// # Errors
    /// When the thread, or the descriptor that wakes the command thread, cannot be made.
    pub(crate) fn start(paths: SlotPaths) -> std::io::Result<Self> {
        let waker = Waker::new()?;
        let shared = Arc::new(Shared::default());
        shared.note_lengths(&paths);
        let (answer_sender, answers) = channel();
        let (checked_sender, checked) = channel();
        let of_thread = (Arc::clone(&shared), waker.clone());
        let thread = turns::start(move |orders| {
            let (shared, waker) = of_thread;
            Box::new(Worker::new(paths, orders, shared, waker, answer_sender, checked_sender))
        })?;
        Ok(Self { answers, checked, shared, waker, thread })
    }

    /// A descriptor that is readable when there is an answer, or when more entries can be handed
    /// over.
    pub(crate) fn readiness(&self) -> BorrowedFd<'_> {
        self.waker.readiness()
    }

    /// Begins a snapshot. The previous snapshot must have been answered or given up.
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

    /// Sets how many bytes of keys and values may be encoded per second; 0 means no limit.
    pub(crate) fn set_rate(&self, rate: u64) {
        self.shared.rate.store(rate, Ordering::Relaxed);
    }

    /// The current limit; see [`set_rate`](Self::set_rate).
    pub(crate) fn rate(&self) -> u64 {
        self.shared.rate.load(Ordering::Relaxed)
    }

    /// Completes the snapshot after everything was handed over; an answer follows.
    pub(crate) fn finish(&self) {
        self.tell(Order::Finish);
    }

    /// Gives up the running snapshot: no answer follows.
    pub(crate) fn cancel(&self) {
        self.shared.round.fetch_add(1, Ordering::Relaxed);
        self.tell(Order::Cancel);
    }

    /// Whether more entries may be handed over. If not, the command thread is woken as soon as more
    /// entries may be handed over.
    pub(crate) fn has_room(&self) -> bool {
        if self.waiting_size() < WAITING_SIZE_MAX {
            return true;
        }
        self.shared.is_wake_wanted.store(true, Ordering::SeqCst);
        // The snapshot thread may have caught up before the flag was set. In that case, it wakes
        // nobody, so the size is read once more.
        self.shared.waiting_size.load(Ordering::SeqCst) < WAITING_SIZE_MIN
    }

    /// Asks the snapshot thread to wake the command thread as soon as the next batch is encoded and
    /// dropped. If no batch is queued, the snapshot thread has no memory to release, so it wakes
    /// nobody. The command thread must then take entries and hand them over.
    pub(crate) fn wake_when_less(&self) {
        self.shared.is_memory_wanted.store(true, Ordering::SeqCst);
    }

    /// Size in bytes of the batches that wait to be encoded; see [`Shared::waiting_size`].
    pub(crate) fn waiting_size(&self) -> u64 {
        self.shared.waiting_size.load(Ordering::Relaxed)
    }

    /// Bytes of memory that would be free if no entries waited to be encoded.
    pub(crate) fn waiting_memory(&self) -> u64 {
        self.shared.waiting_memory.load(Ordering::Relaxed)
    }

    /// Bytes of the snapshot that are written so far or are about to be written.
    pub(crate) fn written(&self) -> u64 {
        self.shared.written.load(Ordering::Relaxed)
    }

    /// Number of LBAs of each slot.
    pub(crate) fn slot_lbas(&self) -> [u64; SlotName::ALL.len()] {
        self.shared.slot_lbas.each_ref().map(|lbas| lbas.load(Ordering::Relaxed))
    }

    /// How often the idle thread has given up its turn because it hardly got a core.
    pub(crate) fn starved_turns(&self) -> u64 {
        self.shared.starved_turns.load(Ordering::Relaxed)
    }

    /// The outcome of the current snapshot, which is returned only once.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let round = self.shared.round.load(Ordering::Relaxed);
        let mut answers = self.answers.try_iter();
        answers.find(|(of, _)| *of == round || is_planted("any-answer")).map(|(_, answer)| answer)
    }

    /// Checks the snapshot in a slot. The check reads only while no snapshot is being written. The
    /// previous check must have been answered.
    pub(crate) fn check(&self, check: SlotCheck) {
        self.tell(Order::Check(Box::new(check)));
    }

    /// Sets how many bytes per second a check may read. If this is 0, the check under way is given
    /// up.
    pub(crate) fn set_check_rate(&self, rate: u64) {
        self.tell(Order::CheckRate(rate));
    }

    /// Shortens a slot that is not in use, if the slot has far more LBAs than the next snapshot
    /// needs. The next snapshot needs about `need_lbas`. The surplus is returned to the file
    /// system or, if the volume is on a device, to the pool of extents.
    pub(crate) fn shorten_reserve(&self, slot: SlotName, need_lbas: u64) {
        self.tell(Order::Reserve { slot, need_lbas });
    }

    /// The outcome of a check, which is returned only once.
    pub(crate) fn checked(&self) -> Option<Checked> {
        self.checked.try_recv().ok()
    }

    /// Bytes that checks have read since the start.
    pub(crate) fn checked_bytes(&self) -> u64 {
        self.shared.checked.load(Ordering::Relaxed)
    }

    /// Makes the descriptor that woke the command thread unreadable again.
    pub(crate) fn woken(&self) {
        self.waker.woken();
    }

    fn tell(&self, order: Order) {
        assert!(self.thread.give(order).is_ok(), "the snapshot thread has panicked");
    }
}

impl Drop for SnapshotThread {
    fn drop(&mut self) {
        // A new round makes the thread drop the entries that are still queued, instead of writing
        // them.
        self.shared.round.fetch_add(1, Ordering::Relaxed);
    }
}
