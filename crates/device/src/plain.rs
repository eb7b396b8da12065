//! A path that uses plain system calls. Operations run on a worker thread. A thread that waits
//! without a timeout may also run operations itself.
//!
//! ```text
//!  submit ──► queued ──kick──► waiting ──► worker, or the thread in wait ──► finished ──poll──►
//!          (the path's)        └────────────────── shared ───────────────────────┘
//! ```
//!
//! Adding to `finished` makes the event descriptor readable, and emptying `finished` makes it
//! unreadable. Both changes happen under the lock, so the descriptor is readable exactly while
//! `finished` is not empty.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use slimio_ring::EventFd;

use crate::target::Target;
use crate::{
    Completion, Device, DeviceError, FilledHoles, Geometry, LbaRange, Op, OpenError, Token,
};

/// A path to a file or block device that uses plain system calls.
pub(crate) struct PlainPath {
    target: Target,
    /// Operations that were submitted, but were not kicked yet.
    queued: VecDeque<(Token, Op)>,
    in_flight: usize,
    shared: Arc<Shared>,
    worker: Option<JoinHandle<()>>,
}

struct Shared {
    state: Mutex<State>,
    /// Wakes the worker when an operation is waiting.
    work: Condvar,
    /// Wakes the waiting caller when an operation has finished.
    done: Condvar,
    readiness: EventFd,
}

#[derive(Default)]
struct State {
    waiting: VecDeque<(Token, Op)>,
    finished: Vec<Completion>,
    is_over: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The lock is never poisoned, because no code that can panic runs while the lock is held.
        self.state.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    fn finish(&self, completion: Completion) {
        let mut state = self.lock();
        state.finished.push(completion);
        self.readiness.raise();
        self.done.notify_one();
    }
}

impl PlainPath {
    pub(crate) fn new(target: Target) -> Result<Self, OpenError> {
        let failed = |error: &std::io::Error| OpenError::io("opening", &target.path, error);
        let readiness = EventFd::new().map_err(|errno| failed(&errno.into()))?;
        let shared = Arc::new(Shared {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            readiness,
        });
        let mut worker_target = target.duplicate().map_err(|error| failed(&error))?;
        let worker_shared = shared.clone();
        let worker = std::thread::Builder::new()
            .name("device".into())
            .spawn(move || work(&mut worker_target, &worker_shared))
            .map_err(|error| failed(&error))?;
        Ok(Self { target, queued: VecDeque::new(), in_flight: 0, shared, worker: Some(worker) })
    }

    /// Moves the finished operations from the shared state to `completions`.
    fn take_finished(&mut self, state: &mut State, completions: &mut Vec<Completion>) {
        if !state.finished.is_empty() {
            self.in_flight -= state.finished.len();
            completions.append(&mut state.finished);
            self.shared.readiness.lower();
        }
    }
}

/// Runs operations until the path is dropped.
fn work(target: &mut Target, shared: &Shared) {
    let mut state = shared.lock();
    loop {
        if let Some((token, op)) = state.waiting.pop_front() {
            drop(state);
            shared.finish(run(target, token, op));
            state = shared.lock();
        } else if state.is_over {
            return;
        } else {
            state = shared.work.wait(state).unwrap_or_else(std::sync::PoisonError::into_inner);
        }
    }
}

fn run(target: &mut Target, token: Token, op: Op) -> Completion {
    let (buffer, result) = target.run(op);
    Completion { token, buffer, result }
}

impl Device for PlainPath {
    fn geometry(&self) -> Geometry {
        self.target.geometry()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if self.in_flight >= self.target.in_flight_max as usize {
            return Err(op);
        }
        self.in_flight += 1;
        self.queued.push_back((token, op));
        Ok(())
    }

    fn kick(&mut self) {
        if !self.queued.is_empty() {
            self.shared.lock().waiting.append(&mut self.queued);
            self.shared.work.notify_one();
        }
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let shared = self.shared.clone();
        self.take_finished(&mut shared.lock(), completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        if self.in_flight == 0 {
            return;
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let shared = self.shared.clone();
        let mut state = shared.lock();
        state.waiting.append(&mut self.queued);
        if state.finished.is_empty()
            && timeout.is_none()
            && let Some((token, op)) = state.waiting.pop_front()
        {
            if !state.waiting.is_empty() {
                shared.work.notify_one();
            }
            drop(state);
            let completion = run(&mut self.target, token, op);
            self.in_flight -= 1;
            completions.push(completion);
            self.take_finished(&mut shared.lock(), completions);
            return;
        }
        if !state.waiting.is_empty() {
            shared.work.notify_one();
        }
        while state.finished.is_empty() {
            let left = match deadline {
                Some(deadline) => deadline.saturating_duration_since(Instant::now()),
                None => Duration::MAX,
            };
            if left.is_zero() {
                break;
            }
            state = shared
                .done
                .wait_timeout(state, left)
                .unwrap_or_else(std::sync::PoisonError::into_inner)
                .0;
        }
        self.take_finished(&mut state, completions);
    }

    fn would_run_here(&self) -> bool {
        !self.queued.is_empty()
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.shared.readiness.as_fd())
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.target.grow(lba_count)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.target.shrink(lba_count)
    }

    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        self.target.fill_holes(range)
    }

    fn free_space(&self) -> Option<u64> {
        self.target.free_space()
    }

    fn empty_holes(&mut self, filled: &FilledHoles) {
        self.target.empty_holes(filled);
    }
}

impl Drop for PlainPath {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_over = true;
        drop(state);
        self.shared.work.notify_one();
        if let Some(worker) = self.worker.take() {
            // The worker can fail only by a panic, which was reported when it happened.
            drop(worker.join());
        }
    }
}
