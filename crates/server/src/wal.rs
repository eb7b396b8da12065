//! The log as the command thread holds it: its own path to the device, and a thread that makes
//! room.
//!
//! The command thread submits and reaps batches itself. What blocks (preparing segments, updating
//! the superblock) is the keeper's, on a thread and paths of its own.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use slimio_device::Device;
use slimio_keyspace::DbIndex;
use slimio_planted::is_planted;
use slimio_storage::{
    Job, Keeper, KeeperPaths, Log, LogState, LogStats, Lsn, Outcome, Policy, Room, SlotPaths,
    StagedRecord, Volume,
};

/// If log writes take less time than this on average, and only writers would wait meanwhile, the
/// command thread waits for them itself: otherwise a write takes two wake-ups more.
const QUICK_MAX: Duration = Duration::from_micros(500);

/// For how long a device whose last write was quick is trusted not to hang.
const TRUSTED_FOR: Duration = Duration::from_millis(100);

/// How often it is tried whether the device has become quick.
const TRY_AGAIN_EVERY: Duration = Duration::from_millis(200);

/// How long to wait before an operation that the kernel had no memory for is handed over again.
const UNTAKEN_PAUSE: Duration = Duration::from_millis(1);

/// The log, open.
pub(crate) struct Wal {
    log: Log,
    path: Box<dyn Device + Send>,
    keeper: KeeperThread,
    /// Whether a job is with the keeper.
    is_busy: bool,
    /// Whether something was submitted that the device does not have yet.
    is_queued: bool,
    /// Mean time of the log writes that the command thread has waited for, recent ones weighing more.
    write_time: Duration,
    /// Until when a device whose last write was quick is trusted not to hang.
    trusted_until: Option<Instant>,
    /// When the last such write ended.
    written_at: Option<Instant>,
    /// How many it has waited for, without those that all clients waited for.
    own_writes: u64,
    /// Whether appended records outlived the process at once when last checked.
    was_kept: bool,
}

impl Wal {
    /// Takes over an open volume, but for the paths to its snapshot slots.
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

    /// Descriptors that tell when [`reap`](Self::reap) has something to take: the device's, if it
    /// has one, and the keeper's.
    pub(crate) fn readiness(&self) -> (Option<BorrowedFd<'_>>, BorrowedFd<'_>) {
        (self.path.readiness(), self.keeper.wake.as_fd())
    }

    /// Appends a record that is made of these parts in a row. There must be [room](Self::room).
    pub(crate) fn append(&mut self, db: DbIndex, payload: &[&[u8]]) -> Lsn {
        self.log.append(db.0, payload)
    }

    /// Appends a record that was made beside the log. There must be [room](Self::room).
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

    /// Submits what is due, and gives the keeper its next job. What is submitted stays queued until
    /// [`kick`](Self::kick) or [`wait`](Self::wait).
    pub(crate) fn drive(&mut self, now: Instant) {
        debug_assert!(self.log.has_place(), "what was appended has no place in the log");
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

    /// Logs it once when the log's buffers no longer outlive the process.
    fn tell_of_faults(&mut self) {
        let was_kept = std::mem::replace(&mut self.was_kept, self.log.are_buffers_kept());
        if was_kept && !self.was_kept {
            log::error!(
                "the log's mapped buffers met a page that the kernel could not give: their file \
                 system is full, or their device fails. They are private memory from here on: under \
                 everysec and no, a reply leaves when its record is written. Check the disk under \
                 the volume, and make room on it; a restart maps them anew"
            );
        }
    }

    /// Hands what was submitted to the device.
    pub(crate) fn kick(&mut self) {
        if std::mem::take(&mut self.is_queued) {
            self.path.kick();
        }
    }

    /// Hands over what was submitted and waits for it, when it is a single operation and the device
    /// is quick; returns whether it did. Otherwise it stays queued.
    pub(crate) fn wait_if_quick(&mut self, now: Instant) -> bool {
        let is_due = self.written_at.is_none_or(|at| now >= at + TRY_AGAIN_EVERY);
        let is_quick = self.write_time < QUICK_MAX || is_due;
        if !self.has_single() || !is_quick || is_planted("own-writes-never") {
            return false;
        }
        self.wait_for_write(QUICK_MAX, true, now);
        self.own_writes += 1;
        // Submits what came while the log had no room for it.
        self.drive(Instant::now());
        true
    }

    /// Log writes that the command thread waited for, without those that all clients waited for.
    pub(crate) fn own_writes(&self) -> u64 {
        self.own_writes
    }

    /// Hands over what was submitted, and sleeps until the device has finished something, for `timeout`
    /// at most.
    ///
    /// If that saves a wake-up, and `only_writers` would wait, a single write to a device that was
    /// quick a moment ago is a plain system call, which nothing cuts short: a device that hangs
    /// just then keeps everybody waiting.
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
        // However long one write took, a few quick ones make up for it.
        self.write_time = self.write_time * 7 / 8 + took.min(QUICK_MAX * 8) / 8;
    }

    /// Hands over what was submitted, and sleeps until the device has finished something. Without a
    /// timeout, a device that hangs blocks the thread.
    pub(crate) fn wait(&mut self, timeout: Option<Duration>, now: Instant) {
        self.is_queued = false;
        self.log.wait(&mut *self.path, timeout);
        self.log.reap(&mut *self.path, now);
    }

    /// When [`drive`](Self::drive) or [`reap`](Self::reap) must be called, if nothing is appended and
    /// nothing becomes ready before.
    pub(crate) fn next_deadline(&mut self, now: Instant) -> Option<Instant> {
        let has_unsubmitted = self.path.has_unsubmitted() && !is_planted("untaken-not-woken");
        let again = has_unsubmitted.then(|| now + UNTAKEN_PAUSE);
        [again, self.log.next_deadline()].into_iter().flatten().min()
    }

    /// Whether there is a single operation, which the device does not have yet.
    fn has_single(&self) -> bool {
        self.is_queued && self.path.in_flight() == 1
    }

    /// Whether an operation is in flight.
    pub(crate) fn is_in_flight(&self) -> bool {
        self.path.in_flight() > 0
    }

    /// The log, for its positions and its policy.
    pub(crate) fn log(&self) -> &Log {
        &self.log
    }

    /// The log, for its snapshots.
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

    /// Lets the log start behind `lsn`.
    pub(crate) fn release_before(&mut self, lsn: Lsn) {
        self.log.release_before(lsn);
    }
}

/// The thread that runs the keeper's jobs.
struct KeeperThread {
    jobs: Option<Sender<Job>>,
    outcomes: Receiver<Outcome>,
    wake: Arc<OwnedFd>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl KeeperThread {
    fn start(mut keeper: Keeper, mut paths: KeeperPaths) -> std::io::Result<Self> {
        let wake = Arc::new(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?);
        let (jobs, job_receiver) = channel::<Job>();
        let (outcome_sender, outcomes) = channel();
        let waker = Arc::clone(&wake);
        let thread = std::thread::Builder::new().name("keeper".into()).spawn(move || {
            for job in job_receiver {
                let outcome = keeper.run(&mut paths, job);
                if outcome_sender.send(outcome).is_err() {
                    return;
                }
                // The counter cannot overflow, so this cannot fail.
                let _ = rustix::io::write(&waker, &1u64.to_ne_bytes());
            }
        })?;
        Ok(Self { jobs: Some(jobs), outcomes, wake, thread: Some(thread) })
    }

    fn give(&self, job: Job) {
        let jobs = self.jobs.as_ref().expect("jobs are given until the thread is stopped");
        jobs.send(job).expect("the keeper takes jobs until it is stopped");
    }

    fn answer(&self) -> Option<Outcome> {
        let outcome = self.outcomes.try_recv().ok()?;
        let mut counter = [0; 8];
        match rustix::io::read(&self.wake, &mut counter) {
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(errno) => log::debug!("eventfd: {errno}"),
        }
        Some(outcome)
    }
}

impl Drop for KeeperThread {
    fn drop(&mut self) {
        // A job under way is finished: it may be in the middle of a superblock update.
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
