//! How the command thread uses the log.
//!
//! The command thread submits and reaps batches itself, on its own path to the device. The keeper
//! does the work that blocks (preparing segments, updating the superblock), on its own thread and
//! its own paths.

use std::os::fd::BorrowedFd;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use slimio_device::Device;
use slimio_keyspace::DbIndex;
use slimio_planted::is_planted;
use slimio_storage::{
    Job, Keeper, KeeperPaths, Log, LogState, LogStats, Lsn, Outcome, Policy, Room, SlotPaths,
    StagedRecord, Volume,
};

use crate::worker::{Waker, WorkerThread};

/// If log writes take less time than this on average, and if only clients that write would have to
/// wait, the command thread itself waits for each log write. This saves two wake-ups per write.
const QUICK_MAX: Duration = Duration::from_micros(500);

/// For this long after a quick write, the device is trusted not to hang.
const TRUSTED_FOR: Duration = Duration::from_millis(100);

/// While the device is slow, the command thread waits for one write in each period of this length,
/// to find out whether the device has become quick.
const TRY_AGAIN_EVERY: Duration = Duration::from_millis(200);

/// If the kernel had no memory for an operation, the operation is handed over again after this
/// pause.
const UNTAKEN_PAUSE: Duration = Duration::from_millis(1);

/// The open log.
pub(crate) struct Wal {
    log: Log,
    path: Box<dyn Device + Send>,
    keeper: KeeperThread,
    /// Whether the keeper is running a job.
    is_busy: bool,
    /// Whether an operation was submitted but not handed to the device yet.
    is_queued: bool,
    /// Moving average of the time of log writes that the command thread has waited for.
    write_time: Duration,
    /// Until when the device is trusted not to hang; see [`TRUSTED_FOR`].
    trusted_until: Option<Instant>,
    /// The end of the last write for which the command thread has waited.
    written_at: Option<Instant>,
    /// Number of log writes that the command thread has waited for, not counting writes for which
    /// all clients waited.
    own_writes: u64,
    /// Whether, at the last check, records were kept (outlived the process) as soon as they were
    /// appended.
    was_kept: bool,
}

impl Wal {
    /// Takes over an open volume. Returns the paths to its snapshot slots, because the log does not
    /// use them.
    ///
    /// # Errors
    /// When the keeper's thread cannot be started.
    pub(crate) fn new(volume: Volume) -> std::io::Result<(Self, SlotPaths)> {
        let Volume { log, log_path, keeper, keeper_paths, slot_paths, report: _ } = volume;
        let keeper = KeeperThread::start(keeper, keeper_paths)?;
        let wal = Self {
            log,
            path: log_path,
            keeper,
            is_busy: false,
            is_queued: false,
            write_time: Duration::ZERO,
            trusted_until: None,
            written_at: None,
            own_writes: 0,
            was_kept: false,
        };
        Ok((wal, slot_paths))
    }

    /// Descriptors that are readable when [`reap`](Self::reap) has something to take: the
    /// descriptor of the device, if the device has one, and the descriptor of the keeper.
    pub(crate) fn readiness(&self) -> (Option<BorrowedFd<'_>>, BorrowedFd<'_>) {
        (self.path.readiness(), self.keeper.waker.readiness())
    }

    /// Appends a record whose payload is the concatenation of these parts. There must be
    /// [room](Self::room).
    pub(crate) fn append(&mut self, db: DbIndex, payload: &[&[u8]]) -> Lsn {
        self.log.append(db.0, payload)
    }

    /// Appends a record that was built in advance. There must be [room](Self::room).
    pub(crate) fn append_staged(&mut self, record: StagedRecord) -> Lsn {
        self.log.append_staged(record)
    }

    /// Whether a record with this many bytes of payload may be appended.
    pub(crate) fn room(&mut self, payload_size: u64) -> Room {
        self.log.room(payload_size)
    }

    /// Reaps what the device and the keeper have finished.
    pub(crate) fn reap(&mut self, now: Instant) {
        self.log.reap(&mut *self.path, now);
        while self.is_busy
            && let Some(outcome) = self.keeper.answer()
        {
            self.is_busy = false;
            self.log.job_done(outcome, now);
        }
    }

    /// Submits the log's next operations, and gives the keeper its next job. The submitted
    /// operations stay queued until [`kick`](Self::kick) or [`wait`](Self::wait) is called.
    pub(crate) fn drive(&mut self, now: Instant) {
        debug_assert!(self.log.has_place(), "appended records have no place in the log");
        self.is_queued |= self.log.drive(&mut *self.path, now);
        self.log.check_all();
        self.tell_of_faults();
        if !self.is_busy
            && let Some(job) = self.log.next_job(now)
        {
            self.is_busy = true;
            self.keeper.give(job);
        }
    }

    /// Reports once that the log's buffers no longer outlive the process.
    fn tell_of_faults(&mut self) {
        let was_kept = std::mem::replace(&mut self.was_kept, self.log.are_buffers_kept());
        if was_kept && !self.was_kept {
            log::error!(
                "the kernel could not provide a page of the log's mapped buffers: their file \
                 system is full, or their device fails. The buffers are now private memory: with \
                 appendfsync everysec or no, a reply leaves only when its record is written. Check \
                 the disk under the volume, and make room on it; a restart maps the buffers again"
            );
        }
    }

    /// Hands the submitted operations to the device.
    pub(crate) fn kick(&mut self) {
        if std::mem::take(&mut self.is_queued) {
            self.path.kick();
        }
    }

    /// If a single operation is queued, and the device is quick or is to be tried again, hands the
    /// operation over and waits for it. Otherwise, everything stays queued. Returns whether the
    /// operation was waited for.
    pub(crate) fn wait_if_quick(&mut self, now: Instant) -> bool {
        let is_due = self.written_at.is_none_or(|at| now >= at + TRY_AGAIN_EVERY);
        let is_quick = self.write_time < QUICK_MAX || is_due;
        if !self.has_single() || !is_quick || is_planted("own-writes-never") {
            return false;
        }
        self.wait_for_write(QUICK_MAX, true, now);
        self.own_writes += 1;
        // Submits records that had to wait while the write was in flight.
        self.drive(Instant::now());
        true
    }

    /// Number of log writes that the command thread waited for, not counting writes for which all
    /// clients waited.
    pub(crate) fn own_writes(&self) -> u64 {
        self.own_writes
    }

    /// Hands over the submitted operations, and sleeps until the device has finished something, but
    /// at most for `timeout`.
    ///
    /// The wait has no timeout if four things hold:
    ///
    /// - a single write is queued
    /// - `only_writers` says that no other clients would wait
    /// - the device was quick a moment ago
    /// - the write would run as a plain system call in this thread
    ///
    /// In that case, the write runs in this thread, which saves a wake-up. But if the device hangs
    /// during the write, this thread hangs with it, and all clients wait.
    pub(crate) fn wait_for_write(&mut self, timeout: Duration, only_writers: bool, now: Instant) {
        if !self.has_single() {
            return self.wait(Some(timeout), now);
        }
        let began = Instant::now();
        let is_trusted = only_writers
            && self.path.would_run_here()
            && self.write_time < QUICK_MAX
            && self.trusted_until.is_some_and(|until| began < until);
        self.wait((!is_trusted).then_some(timeout), now);
        let ended = Instant::now();
        self.written_at = Some(ended);
        let took = if self.is_in_flight() { Duration::MAX } else { ended - began };
        self.trusted_until = (took < QUICK_MAX).then(|| ended + TRUSTED_FOR);
        // The time that counts is limited, so that a few quick writes make up for a slow write,
        // however long the slow write took.
        self.write_time = self.write_time * 7 / 8 + took.min(QUICK_MAX * 8) / 8;
    }

    /// Hands over the submitted operations, and sleeps until the device has finished something. If
    /// there is no timeout and the device hangs, the command thread is blocked.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, now: Instant) {
        self.is_queued = false;
        self.log.wait(&mut *self.path, timeout);
        self.log.reap(&mut *self.path, now);
    }

    /// When [`drive`](Self::drive) or [`reap`](Self::reap) must be called, if nothing is appended
    /// and nothing becomes ready before that time.
    pub(crate) fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let has_unsubmitted = self.path.has_unsubmitted() && !is_planted("untaken-not-woken");
        let again = has_unsubmitted.then(|| now + UNTAKEN_PAUSE);
        [again, self.log.next_deadline()].into_iter().flatten().min()
    }

    /// Whether exactly one operation has been submitted and has not ended, and this operation has
    /// not been handed to the device yet.
    fn has_single(&self) -> bool {
        self.is_queued && self.path.in_flight() == 1
    }

    /// Whether an operation is in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.path.in_flight() > 0
    }

    /// Access to the log, for its positions and its policy.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// Access to the log, for its snapshots.
    pub(crate) fn log_mut(&mut self) -> &mut Log {
        &mut self.log
    }

    /// Whether the effects of commands are appended.
    pub(crate) fn takes_records(&self) -> bool {
        matches!(self.log.log_state(), LogState::On | LogState::Resuming)
    }

    pub(crate) fn stats(&self) -> LogStats {
        self.log.stats()
    }

    pub(crate) fn set_policy(&mut self, policy: Policy) {
        self.log.set_policy(policy);
    }

    pub(crate) fn request_durable(&mut self) {
        self.log.request_durable();
    }

    /// Lets the log start after `lsn`; see [`Log::release_before`].
    pub(crate) fn release_before(&mut self, lsn: Lsn) {
        self.log.release_before(lsn);
    }
}

/// The thread that runs the keeper's jobs. If the keeper is running a job when this value is
/// dropped, the drop waits for the job, because the job may be in the middle of an update of the
/// superblock.
struct KeeperThread {
    thread: WorkerThread<Job>,
    outcomes: Receiver<Outcome>,
    waker: Waker,
}

impl KeeperThread {
    fn start(mut keeper: Keeper, mut paths: KeeperPaths) -> std::io::Result<Self> {
        let (waker, (outcome_sender, outcomes)) = (Waker::new()?, channel());
        let woken = waker.clone();
        let thread = WorkerThread::start("keeper", move |jobs: Receiver<Job>| {
            for job in jobs {
                if outcome_sender.send(keeper.run(&mut paths, job)).is_err() {
                    return;
                }
                woken.wake();
            }
        })?;
        Ok(Self { thread, outcomes, waker })
    }

    fn give(&self, job: Job) {
        assert!(self.thread.give(job).is_ok(), "the keeper has panicked");
    }

    fn answer(&self) -> Option<Outcome> {
        let outcome = self.outcomes.try_recv().ok()?;
        self.waker.woken();
        Some(outcome)
    }
}
