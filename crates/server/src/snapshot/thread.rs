//! The thread that encodes and writes what the command thread takes.
//!
//! It owns a path to each slot. What waits for it is bounded by its size, which the command thread
//! looks at before it takes more, so that handing over never blocks.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use slimio_keyspace::{Captured, Chunk, ChunkEncoder, ChunkOptions, DbIndex};
use slimio_storage::{
    Error, SlotCheck, SlotName, SlotPaths, SlotSummary, SlotWriter, SnapshotPlan, WriterOptions,
};

use super::check::{Checked, Checking};
use super::pace::Pace;
use super::surplus::Surplus;

/// Bytes that may wait to be encoded before no more is taken.
const WAITING_SIZE_MAX: u64 = 4 << 20;
/// Bytes that still wait when more is asked for.
const WAITING_SIZE_MIN: u64 = 1 << 20;
/// How nice to others the thread is, as nice(2) has it. Nicer than this, it may starve on a machine
/// that is busy with other things, and the log grows meanwhile.
const NICENESS: i32 = 10;

/// The thread does not rest longer without a look at what is wanted of it.
const REST_MAX: Duration = Duration::from_millis(10);

/// What the thread is told.
enum Order {
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

/// Counters that both threads see.
#[derive(Debug, Default)]
struct Shared {
    /// Bytes of keys and values that wait to be encoded.
    waiting_size: AtomicU64,
    /// Bytes of memory that wait with them and are nobody else's.
    waiting_memory: AtomicU64,
    /// Bytes written, or about to be.
    written: AtomicU64,
    /// Bytes that checks have read.
    checked: AtomicU64,
    /// Bytes of keys and values that are to be encoded per second at most; 0 is no limit.
    rate: AtomicU64,
    /// The command thread wants to be woken when less is waiting.
    is_wake_wanted: AtomicBool,
    /// The command thread wants to be woken as soon as less memory is held: writers wait for it.
    is_memory_wanted: AtomicBool,
    /// Counts snapshots begun and given up: what is in the queue for another round is not wanted.
    round: AtomicU64,
}

/// The snapshot thread, as the command thread has it.
#[derive(Debug)]
pub(crate) struct SnapshotThread {
    orders: Option<Sender<Order>>,
    answers: Receiver<(u64, Answer)>,
    checked: Receiver<Checked>,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
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
        let mut worker = Worker {
            paths,
            current: None,
            shared: Arc::clone(&shared),
            wake: Arc::clone(&wake),
            answers: answer_sender,
            round: 0,
            pace: Pace::new(Instant::now()),
            checking: None,
            check_rate: 0,
            checked: checked_sender,
            surplus: Surplus::default(),
        };
        let thread = std::thread::Builder::new().name("snapshot".into()).spawn(move || {
            slimio_device::give_way(NICENESS);
            worker.work(&order_receiver);
            worker.cancel();
        })?;
        Ok(Self { orders: Some(orders), answers, checked, shared, wake, thread: Some(thread) })
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

    /// What has become of the snapshot, once.
    pub(crate) fn answer(&self) -> Option<Answer> {
        let round = self.shared.round.load(Ordering::Relaxed);
        let mut answers = self.answers.try_iter();
        answers.find(|(of, _)| *of == round).map(|(_, answer)| answer)
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
        if let Some(thread) = self.thread.take() {
            // A panic was reported when it happened.
            let _ = thread.join();
        }
    }
}

/// The thread's own state.
struct Worker {
    paths: SlotPaths,
    current: Option<Current>,
    shared: Arc<Shared>,
    wake: Arc<OwnedFd>,
    answers: Sender<(u64, Answer)>,
    /// Which snapshot is being written.
    round: u64,
    pace: Pace,
    checking: Option<Checking>,
    /// Bytes per second that a check reads at most.
    check_rate: u64,
    checked: Sender<Checked>,
    surplus: Surplus,
}

/// Takes a chunk that is complete.
type Emit<'a> = dyn FnMut(Chunk<'_>) -> Result<(), Error> + 'a;

/// The snapshot that is being written.
struct Current {
    writer: SlotWriter,
    encoder: ChunkEncoder,
}

impl Worker {
    /// Obeys until nobody can give orders any more; while it writes no snapshot, it checks slots and
    /// gives back space in between.
    fn work(&mut self, orders: &Receiver<Order>) {
        loop {
            let surplus = self.surplus.pause();
            let check = self.checking.as_ref().map(Checking::pause);
            let pause = surplus.into_iter().chain(check).min();
            let next = match pause.filter(|_| self.current.is_none()) {
                Some(pause) => orders.recv_timeout(pause),
                None => orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(order) => self.obey(order),
                Err(RecvTimeoutError::Timeout) if surplus == pause => {
                    self.surplus.step(&mut self.paths);
                }
                Err(RecvTimeoutError::Timeout) => self.check_step(),
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin { plan, options, sizes, round } => {
                self.round = round;
                self.begin(plan, options, &sizes);
            }
            Order::Batch(batch, round) => self.batch(batch, round),
            Order::Finish => self.finish(),
            Order::Cancel => self.cancel(),
            Order::Check(check) => {
                self.checking = Some(Checking::new(*check));
                if self.check_rate == 0 {
                    self.end_check(Checked::GivenUp);
                }
            }
            Order::CheckRate(rate) => {
                self.check_rate = rate;
                if rate == 0 && self.checking.is_some() {
                    self.end_check(Checked::GivenUp);
                }
            }
            Order::Reserve { slot, need_lbas } => {
                self.give_up_check_of(slot);
                self.surplus.add(slot, need_lbas);
            }
        }
    }

    fn begin(&mut self, plan: SnapshotPlan, options: ChunkOptions, sizes: &[DbSize]) {
        let mut encoder = ChunkEncoder::new(options);
        for size in sizes {
            encoder.resize_db(size.db, size.keys, size.expiring);
        }
        self.give_up_check_of(plan.slot);
        self.surplus.forget(plan.slot);
        let path = self.paths.get(plan.slot);
        match SlotWriter::begin(path, plan, WriterOptions::default()) {
            Ok(writer) => self.current = Some(Current { writer, encoder }),
            Err(error) => self.answer(Answer::Failed(error)),
        }
    }

    fn batch(&mut self, batch: Captured, round: u64) {
        let memory = batch.owned_size() as u64;
        let payload = batch.size() as u64;
        let size = memory.max(payload);
        if round == self.shared.round.load(Ordering::Relaxed) {
            self.write(|encoder, emit| encoder.encode(&batch, &mut |chunk| emit(chunk)));
        }
        drop(batch);
        self.shared.waiting_memory.fetch_sub(memory, Ordering::Relaxed);
        let left = self.shared.waiting_size.fetch_sub(size, Ordering::SeqCst) - size;
        let is_room_wanted =
            left < WAITING_SIZE_MIN && self.shared.is_wake_wanted.swap(false, Ordering::SeqCst);
        if self.shared.is_memory_wanted.swap(false, Ordering::SeqCst) || is_room_wanted {
            self.wake();
        }
        self.rest(payload);
    }

    /// Rests as becomes the rate, unless that changes, or what was written is no longer wanted.
    fn rest(&mut self, written: u64) {
        let rate = self.shared.rate.load(Ordering::Relaxed);
        let mut now = Instant::now();
        let Some(rest) = self.pace.rest(now, written, rate) else { return };
        let end = now + rest;
        let is_wanted = || {
            self.round == self.shared.round.load(Ordering::Relaxed)
                && rate == self.shared.rate.load(Ordering::Relaxed)
        };
        while now < end && is_wanted() {
            std::thread::sleep((end - now).min(REST_MAX));
            now = Instant::now();
        }
    }

    /// Writes the chunks that `make` emits.
    fn write(&mut self, make: impl FnOnce(&mut ChunkEncoder, &mut Emit<'_>) -> Result<(), Error>) {
        let Some(Current { writer, encoder }) = &mut self.current else { return };
        let path = self.paths.get(writer.plan().slot);
        let mut emit = |chunk: Chunk<'_>| writer.chunk(path, chunk.payload, chunk.keys as u32);
        let result = make(encoder, &mut emit);
        self.shared.written.store(writer.written_bytes(), Ordering::Relaxed);
        if let Err(error) = result {
            self.fail(error);
        }
    }

    fn finish(&mut self) {
        self.write(|encoder, emit| encoder.finish(&mut |chunk| emit(chunk)));
        let Some(Current { writer, .. }) = self.current.take() else { return };
        let path = self.paths.get(writer.plan().slot);
        let answer = match writer.finish(path) {
            Ok(summary) => Answer::Written(summary),
            Err(error) => Answer::Failed(error),
        };
        self.answer(answer);
    }

    fn cancel(&mut self) {
        if let Some(Current { writer, .. }) = self.current.take() {
            let slot = writer.plan().slot;
            writer.cancel(self.paths.get(slot));
        }
    }

    fn fail(&mut self, error: Error) {
        self.cancel();
        self.answer(Answer::Failed(error));
    }

    fn check_step(&mut self) {
        let Some(checking) = &mut self.checking else { return };
        let path = self.paths.get(checking.slot());
        let (size, ended) = checking.step(path, self.check_rate);
        self.shared.checked.fetch_add(size, Ordering::Relaxed);
        if let Some(outcome) = ended {
            self.end_check(outcome);
        }
    }

    /// What a slot held is of no more use.
    fn give_up_check_of(&mut self, slot: SlotName) {
        if self.checking.as_ref().is_some_and(|checking| checking.slot() == slot) {
            self.end_check(Checked::GivenUp);
        }
    }

    fn end_check(&mut self, outcome: Checked) {
        self.checking = None;
        // Nobody is there to hear it when the server ends.
        let _ = self.checked.send(outcome);
        self.wake();
    }

    fn answer(&self, answer: Answer) {
        // Nobody is there to hear it when the server ends.
        let _ = self.answers.send((self.round, answer));
        self.wake();
    }

    fn wake(&self) {
        // The counter cannot overflow, so this cannot fail.
        let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
    }
}
