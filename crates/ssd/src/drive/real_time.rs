//! A path whose operations complete by the machine's clock. A path is a way to the drive, with a
//! queue of its own. A thread moves the operations' bytes, and waits until the operations are due.
//!
//! ```text
//!  submit ──► queued ──kick──► arrived ──► thread: begin, bytes, sleep ──► finished ──poll──►
//!          (not shared)        └──────────────── shared ─────────────────────┘
//! ```
//!
//! The event descriptor is signalled when `finished` gets its first completion, and cleared when
//! `finished` is emptied. Both happen under the lock, so the descriptor is readable exactly while
//! `finished` has a completion.

use std::collections::VecDeque;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::event::{EventfdFlags, eventfd};
use slimio_device::{Completion, Device, DeviceError, Geometry, Op, OpenError, Token};

use super::Shared;
use super::data::Data;
use super::queue::DriveQueue;

pub(super) struct RealTimePath {
    core: Shared,
    /// A copy of the drive's geometry, so that reading it needs no lock. The drive itself may be
    /// locked for milliseconds while the file system frees space.
    geometry: Geometry,
    queued: Vec<(Token, Op)>,
    in_flight: usize,
    meeting: Arc<Meeting>,
    thread: Option<JoinHandle<()>>,
}

/// What the path and its thread share.
struct Meeting {
    state: Mutex<State>,
    /// Notified when operations have arrived, or when the path is gone.
    work: Condvar,
    /// Notified when operations have completed.
    done: Condvar,
    event: OwnedFd,
}

#[derive(Default)]
struct State {
    arrived: VecDeque<(Token, Op, Duration)>,
    finished: Vec<Completion>,
    is_over: bool,
}

impl Meeting {
    fn lock(&self) -> MutexGuard<'_, State> {
        // The thread whose panic poisoned the lock has reported that panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl RealTimePath {
    pub(super) fn new(
        core: Shared,
        data: Arc<Data>,
        in_flight_max: u32,
    ) -> Result<Self, OpenError> {
        let failed = |doing, errno: Option<i32>| OpenError::Io {
            doing,
            path: "emulated".into(),
            errno: errno.unwrap_or_default(),
        };
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let event = eventfd(0, flags)
            .map_err(|error| failed("making a descriptor for", Some(error.raw_os_error())))?;
        let meeting = Arc::new(Meeting {
            state: Mutex::default(),
            work: Condvar::new(),
            done: Condvar::new(),
            event,
        });
        let queue = DriveQueue::new(core.clone(), data, in_flight_max);
        let geometry = queue.geometry();
        let thread = Worker { queue, core: core.clone(), meeting: meeting.clone() };
        let thread = std::thread::Builder::new().name("emulated".into()).spawn(|| thread.run());
        let thread =
            thread.map_err(|error| failed("starting a thread for", error.raw_os_error()))?;
        Ok(Self { core, geometry, queued: Vec::new(), in_flight: 0, meeting, thread: Some(thread) })
    }

    fn take(&mut self, state: &mut State, completions: &mut Vec<Completion>) {
        if !state.finished.is_empty() {
            self.in_flight -= state.finished.len();
            completions.append(&mut state.finished);
            // This read clears the descriptor. The read does not block, because the descriptor was
            // signalled when the completions were added.
            let _ = rustix::io::read(&self.meeting.event, &mut [0; 8]);
        }
    }
}

impl Device for RealTimePath {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if self.in_flight >= self.geometry.in_flight_max as usize {
            return Err(op);
        }
        self.in_flight += 1;
        self.queued.push((token, op));
        Ok(())
    }

    fn kick(&mut self) {
        if self.queued.is_empty() {
            return;
        }
        let now = self.core.real_now();
        let mut state = self.meeting.lock();
        state.arrived.extend(self.queued.drain(..).map(|(token, op)| (token, op, now)));
        drop(state);
        self.meeting.work.notify_one();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let meeting = self.meeting.clone();
        self.take(&mut meeting.lock(), completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.kick();
        if self.in_flight == 0 {
            return;
        }
        let deadline = timeout.map(|timeout| Instant::now() + timeout);
        let meeting = self.meeting.clone();
        let mut state = meeting.lock();
        while state.finished.is_empty() {
            state = match deadline {
                None => meeting.done.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return;
                    }
                    let waited = meeting.done.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        self.take(&mut state, completions);
    }

    fn in_flight(&self) -> usize {
        self.in_flight
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.meeting.event.as_fd())
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count <= self.geometry.lba_count { Ok(()) } else { Err(DeviceError::NoSpace) }
    }
}

impl Drop for RealTimePath {
    fn drop(&mut self) {
        self.meeting.lock().is_over = true;
        self.meeting.work.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread ends early only if it panics. It has then reported the panic itself.
            drop(thread.join());
        }
    }
}

/// Everything that the thread owns.
struct Worker {
    queue: DriveQueue,
    core: Shared,
    meeting: Arc<Meeting>,
}

impl Worker {
    fn run(mut self) {
        while let Some(arrived) = self.sleep() {
            for (token, op, now) in arrived {
                self.queue.begin_at(token, op, now);
            }
            self.finish();
        }
    }

    /// Sleeps until operations have arrived or the next operation is due. Returns the operations
    /// that have arrived, or `None` if the path is gone.
    fn sleep(&self) -> Option<VecDeque<(Token, Op, Duration)>> {
        let next = self.queue.next_due_at();
        let mut state = self.meeting.lock();
        loop {
            if state.is_over {
                return None;
            }
            let left = next.map(|next| next.saturating_sub(self.core.real_now()));
            if !state.arrived.is_empty() || left.is_some_and(|left| left.is_zero()) {
                return Some(std::mem::take(&mut state.arrived));
            }
            state = match left {
                None => self.meeting.work.wait(state).unwrap_or_else(PoisonError::into_inner),
                Some(left) => {
                    let waited = self.meeting.work.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
    }

    /// Completes the operations that are due, in the order of their due times.
    fn finish(&mut self) {
        let mut finished = Vec::new();
        self.queue.poll(&mut finished);
        if finished.is_empty() {
            return;
        }
        let mut state = self.meeting.lock();
        if state.finished.is_empty() {
            // This write can't fail: the descriptor's counter is 0 now, and its limit is 2^64 - 2.
            let _ = rustix::io::write(&self.meeting.event, &1_u64.to_ne_bytes());
        }
        state.finished.append(&mut finished);
        drop(state);
        self.meeting.done.notify_one();
    }
}
