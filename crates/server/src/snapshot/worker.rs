//! The snapshot thread's work: it encodes captured entries and writes them to a slot. Between
//! snapshots, it checks slots, and gives back space of slots that wait for the next snapshots (the
//! reserves).
//!
//! Two threads take turns at this work: the idle thread, which has the idle class (`SCHED_IDLE`),
//! and the nice thread, which has a higher niceness than other threads (see `turns`).

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use slimio_keyspace::{Captured, Chunk, ChunkEncoder, ChunkOptions};
use slimio_planted::is_planted;
use slimio_storage::{Error, SlotName, SlotPaths, SlotWriter, SnapshotPlan, WriterOptions};

use super::check::{Checked, Checking};
use super::pace::{Pace, cost};
use super::surplus::Surplus;
use super::thread::{Answer, DbSize, Order, Shared, WAITING_SIZE_MIN};
use crate::worker::Waker;

/// During a pause, the worker sleeps at most this long before it checks whether the rest of the
/// pause is still wanted.
const REST_MAX: Duration = Duration::from_millis(10);

/// Obeys the command thread's orders. It owns a path to each slot.
pub(super) struct Worker {
    orders: Receiver<Order>,
    paths: SlotPaths,
    current: Option<Current>,
    /// All of the current snapshot was handed over; only its end is still to be written.
    is_finish_due: bool,
    shared: Arc<Shared>,
    waker: Waker,
    answers: Sender<(u64, Answer)>,
    /// The round of the snapshot that is being written; see [`Shared::round`].
    round: u64,
    pace: Pace,
    checking: Option<Checking>,
    /// Limit of the bytes per second that a check reads.
    check_rate: u64,
    checked: Sender<Checked>,
    surplus: Surplus,
}

/// A function that takes a complete chunk.
type Emit<'a> = dyn FnMut(Chunk<'_>) -> Result<(), Error> + 'a;

/// The snapshot that is being written.
struct Current {
    writer: SlotWriter,
    encoder: ChunkEncoder,
    /// Bytes of keys and values that were encoded so far.
    payload: u64,
}

impl Worker {
    pub(super) fn new(
        paths: SlotPaths,
        orders: Receiver<Order>,
        shared: Arc<Shared>,
        waker: Waker,
        answers: Sender<(u64, Answer)>,
        checked: Sender<Checked>,
    ) -> Self {
        Self {
            orders,
            paths,
            current: None,
            is_finish_due: false,
            shared,
            waker,
            answers,
            round: 0,
            pace: Pace::new(Instant::now()),
            checking: None,
            check_rate: 0,
            checked,
            surplus: Surplus::default(),
        }
    }

    /// Tells the command thread how long the slots are.
    fn note_lengths(&self) {
        self.shared.note_lengths(&self.paths);
    }

    /// Obeys orders, and calls `is_over` before each order. Returns true as soon as `is_over`
    /// returns true, and false if nobody can give orders any more. Between orders, checks slots and
    /// shortens reserves, but not while a snapshot is written.
    pub(super) fn work(&mut self, mut is_over: impl FnMut(&mut Self) -> bool) -> bool {
        while !is_over(self) {
            if std::mem::take(&mut self.is_finish_due) {
                self.finish();
                self.note_lengths();
                continue;
            }
            let surplus = self.surplus.pause();
            let check = self.checking.as_ref().map(Checking::pause);
            let pause = surplus.into_iter().chain(check).min();
            let next = match pause.filter(|_| self.current.is_none()) {
                Some(pause) => self.orders.recv_timeout(pause),
                None => self.orders.recv().map_err(|_| RecvTimeoutError::Disconnected),
            };
            match next {
                Ok(order) => {
                    self.obey(order);
                    self.note_lengths();
                }
                Err(RecvTimeoutError::Timeout) if surplus == pause => {
                    self.surplus.step(&mut self.paths);
                    self.note_lengths();
                }
                Err(RecvTimeoutError::Timeout) => self.check_step(),
                Err(RecvTimeoutError::Disconnected) => {
                    self.cancel();
                    return false;
                }
            }
        }
        true
    }

    /// Whether a snapshot is being written at a limited rate, so that the idle thread may do the
    /// work. The end of a snapshot is not written at a limited rate, and not by the idle thread.
    /// Whoever writes the end waits for the device several times. After each wait, a thread that
    /// hardly gets a core takes long to go on, and until the end is written, the work can't be
    /// passed to another thread.
    pub(super) fn is_paced(&self) -> bool {
        let is_finish_due = self.is_finish_due && !is_planted("end-starves");
        self.current.is_some() && !is_finish_due && self.shared.rate.load(Ordering::Relaxed) != 0
    }

    /// Returns the time that the work has lost since the last call, for any reason. Time that the
    /// work will make up for is not counted.
    pub(super) fn take_lost(&mut self) -> Duration {
        self.pace.take_lost()
    }

    /// Counts a turn that the idle thread gave up because it hardly got a core.
    pub(super) fn count_starved_turn(&self) {
        self.shared.starved_turns.fetch_add(1, Ordering::Relaxed);
    }

    fn obey(&mut self, order: Order) {
        match order {
            Order::Begin { plan, options, writer, sizes, round } => {
                self.round = round;
                self.begin(plan, options, writer, &sizes);
            }
            Order::Batch(batch, round) => self.batch(batch, round),
            Order::Finish => self.is_finish_due = true,
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

    fn begin(
        &mut self,
        plan: SnapshotPlan,
        options: ChunkOptions,
        writer: WriterOptions,
        sizes: &[DbSize],
    ) {
        let mut encoder = ChunkEncoder::new(options);
        for size in sizes {
            encoder.resize_db(size.db, size.keys, size.expiring);
        }
        self.give_up_check_of(plan.slot);
        self.surplus.forget(plan.slot);
        let path = self.paths.get(plan.slot);
        match SlotWriter::begin(path, plan, writer) {
            Ok(writer) => self.current = Some(Current { writer, encoder, payload: 0 }),
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
            self.waker.wake();
        }
        self.throttle(payload);
    }

    /// Sleeps as long as the rate demands. Ends the sleep early if the rate changes or the snapshot
    /// is no longer wanted.
    fn throttle(&mut self, payload: u64) {
        let rate = self.shared.rate.load(Ordering::Relaxed);
        let cost = self.current.as_mut().map_or(payload, |current| {
            current.payload += payload;
            cost(payload, current.payload, current.writer.written_bytes())
        });
        let mut now = Instant::now();
        let Some(rest) = self.pace.pause_after(now, cost, rate) else { return };
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
        let Some(Current { writer, encoder, .. }) = &mut self.current else { return };
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
        let Some(Current { writer, payload, .. }) = self.current.take() else { return };
        let path = self.paths.get(writer.plan().slot);
        let answer = match writer.finish(path) {
            Ok(summary) => Answer::Written(summary, payload),
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

    /// Gives up the check of a slot whose contents are no longer needed.
    fn give_up_check_of(&mut self, slot: SlotName) {
        if self.checking.as_ref().is_some_and(|checking| checking.slot() == slot) {
            self.end_check(Checked::GivenUp);
        }
    }

    fn end_check(&mut self, outcome: Checked) {
        self.checking = None;
        // The send fails only when the server ends.
        let _ = self.checked.send(outcome);
        self.waker.wake();
    }

    fn answer(&self, answer: Answer) {
        // The send fails only when the server ends.
        let _ = self.answers.send((self.round, answer));
        self.waker.wake();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use slimio_device::PathOptions;
    use slimio_keyspace::EvictionConfig;
    use slimio_storage::{Policy, RecoverOptions, SnapshotKind, recover};

    use super::*;
    use crate::config::Config;
    use crate::exchange::NewVolumeSink;
    use crate::server::make_volume;

    #[test]
    fn the_end_of_a_snapshot_is_for_the_nice_thread() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("volume");
        let mut storage =
            slimio_volume::open(&path, PathOptions::default(), true, u64::MAX).unwrap();
        make_volume(&mut storage, &Config::default(), false).unwrap();
        let options = RecoverOptions::new(Policy::Always, 4, Instant::now());
        let mut volume = recover(&mut *storage.media, &options, &mut NewVolumeSink).unwrap();
        let plan = volume.log.begin_snapshot(SnapshotKind::OnDemand, 0).unwrap();
        let options =
            ChunkOptions { compresses: false, eviction: EvictionConfig::default(), now_ms: 0 };
        let shared = Arc::new(Shared::default());
        shared.rate.store(1 << 20, Ordering::Relaxed);
        let waker = Waker::new().unwrap();
        let ((orders, received), (answer, answers)) = (channel(), channel());
        let mut worker =
            Worker::new(volume.slot_paths, received, shared, waker, answer, channel().0);

        let (writer, sizes) = (WriterOptions::default(), Vec::new());
        orders.send(Order::Begin { plan, options, writer, sizes, round: 1 }).unwrap();
        orders.send(Order::Finish).unwrap();
        assert!(
            worker.work(|worker| worker.is_paced()),
            "the nice thread must pass the work to the idle thread"
        );
        assert!(
            worker.work(|worker| !worker.is_paced()),
            "the idle thread must give the work back"
        );
        assert!(
            answers.try_recv().is_err(),
            "the idle thread must leave the end to the nice thread"
        );
        drop(orders);
        assert!(!worker.work(|worker| worker.is_paced()));
        assert!(matches!(answers.try_recv(), Ok((1, Answer::Written(..)))));
    }
}
