//! The ring itself: what is in flight, and handing it to the kernel.

#![expect(unsafe_code, reason = "the kernel is handed entries that point to memory")]

use std::collections::VecDeque;
use std::mem::ManuallyDrop;
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use io_uring::squeue::Entry;
use io_uring::types::{SubmitArgs, Timespec};
use io_uring::{EnterFlags, IoUring, cqueue, opcode};
use slimio_planted::is_planted;

use crate::files::{Fd, Files};
use crate::operations::{InFlight, NOBODY};
use crate::pool::{Pool, Provided};
use crate::reap::{Arrived, Completion};
use crate::registered::Registered;
use crate::table::{Name, Table};
use crate::{Cause, Errno, Features, Memory, Narrow, Polling, Refused, Setup, Width, setup};

/// How long a dropped ring waits for its operations to end before it gives up their memory.
const DROP_WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two questions to the device while a ring is dropped that polls for completions.
const DROP_ASK_PAUSE: Duration = Duration::from_millis(1);

/// Longest time for the first operation of a ring: one that does nothing takes microseconds.
const TRIAL_MAX: Duration = Duration::from_secs(5);

/// How often a submission that the kernel has no memory for is tried, a millisecond apart.
const SUBMIT_TRIES_MAX: u32 = 1000;

/// The name of an operation in flight, for [`Ring::cancel`]. Never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) Name);

impl std::fmt::Debug for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpId({}.{})", self.0.index, self.0.generation)
    }
}

/// An io_uring and everything that is in flight on it.
///
/// `T` is the caller's name for an operation and comes back with each of its completions; `M` is
/// the memory of file reads and writes.
///
/// With [`Features::deferred`] it belongs to the thread that first submits to it: on another thread
/// every submission fails. Without, it may be handed from thread to thread.
///
/// Dropping it cancels everything in flight and waits for it to end; memory that the kernel may
/// still write to after five seconds is leaked.
pub struct Ring<T: Copy, M: Memory = Vec<u8>, W: Width = Narrow> {
    /// `ManuallyDrop`: closed after everything in flight has ended.
    pub(crate) uring: ManuallyDrop<IoUring<W::Submission, W::Completion>>,
    pub(crate) features: Features,
    polling: Polling,
    pub(crate) in_flight: ManuallyDrop<Table<InFlight<T, M>>>,
    pub(crate) files: Files,
    pub(crate) pool: ManuallyDrop<Option<Pool>>,
    pub(crate) registered: Option<Registered>,
    /// Entries that found no room in the submission queue, oldest first.
    backlog: VecDeque<W::Submission>,
    /// Completions taken from the queue that were not looked at yet.
    pub(crate) arrived: VecDeque<Arrived>,
    /// Completions that the kernel knows nothing of.
    pub(crate) made: Vec<Completion<T, M>>,
    /// Receives that wait for a buffer to be given back.
    pub(crate) starved: Vec<Name>,
    /// Entries queued so far, those in the backlog among them: they reach the kernel in this order.
    pub(crate) queued: u64,
    is_enabled: bool,
    /// Whether an open file is registered: see [`Ring::hold`].
    pub(crate) is_holding: bool,
    /// Why the kernel takes nothing any more.
    refused: Option<Errno>,
}

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// A ring with the best setup that the kernel allows.
    ///
    /// # Errors
    /// Why there is none; see [`probe`](crate::probe).
    pub fn new(setup: Setup) -> Result<Self, Refused> {
        let (uring, features) = setup::build::<W>(setup)?;
        Ok(Self {
            uring: ManuallyDrop::new(uring),
            features,
            polling: setup.polling,
            in_flight: ManuallyDrop::new(Table::new()),
            files: Files::new(),
            pool: ManuallyDrop::new(None),
            registered: None,
            backlog: VecDeque::new(),
            arrived: VecDeque::new(),
            made: Vec::new(),
            starved: Vec::new(),
            queued: 0,
            is_enabled: false,
            is_holding: false,
            refused: None,
        })
    }

    /// The features that this ring uses.
    pub fn features(&self) -> Features {
        self.features
    }

    /// Makes the buffers that [`receive`](Self::receive) receives into: `count` (a power of two)
    /// of `buffer_size` bytes.
    ///
    /// # Errors
    /// When the kernel has no memory for it.
    ///
    /// # Panics
    /// When there are some already.
    pub fn provide_buffers(&mut self, count: u16, buffer_size: u32) -> Result<(), Errno> {
        assert!(self.pool.is_none(), "a ring has one pool of buffers");
        let submitter = self.features.multishot_receive.then(|| self.uring.submitter());
        *self.pool = Some(Pool::new(count, buffer_size, submitter.as_ref())?);
        Ok(())
    }

    /// The bytes that were received into a buffer.
    ///
    /// # Panics
    /// When the buffer is another ring's.
    pub fn bytes(&self, provided: &Provided) -> &[u8] {
        self.pool.as_ref().expect("a buffer comes from a pool").bytes(provided)
    }

    /// Lets the buffer be filled again.
    ///
    /// # Panics
    /// When the buffer is another ring's.
    #[expect(clippy::needless_pass_by_value, reason = "it is given back")]
    pub fn give_back(&mut self, provided: Provided) {
        self.pool.as_mut().expect("a buffer comes from a pool").give_back(&provided);
        if !self.starved.is_empty() {
            self.feed_starved();
        }
    }

    /// Takes a descriptor over. It must be in blocking mode: for a descriptor that is not, the
    /// kernel completes operations that would block with an error instead of waiting.
    pub fn adopt(&mut self, descriptor: OwnedFd) -> Fd {
        self.files.adopt(descriptor)
    }

    /// The descriptor, for calls that need it (socket options, names); `None` when it was closed
    /// and its last operation has ended.
    pub fn descriptor(&self, fd: Fd) -> Option<BorrowedFd<'_>> {
        self.files.borrow(fd)
    }

    /// Gives a descriptor back that has no operation in flight; `None` when it was closed.
    ///
    /// # Panics
    /// When an operation on it is in flight.
    pub fn release(&mut self, fd: Fd) -> Option<OwnedFd> {
        self.files.release(fd)
    }

    /// Operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// A descriptor that is readable while [`reap`](Self::reap) has something to return. `None` for
    /// a ring with [`Features::deferred`]: its completions appear when its thread waits in it, and
    /// polling its descriptor does not wake. The same holds where completions are polled for. Polled
    /// through another ring, it may wake once too often.
    pub fn readiness(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring's descriptor is open as long as `self`, which the result borrows.
        let fd = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        (!self.features.deferred && !self.polling.completions).then_some(fd)
    }

    /// Queues an entry for the next submission.
    ///
    /// # Safety
    /// All that the entry points to stays as it is until its completion was reaped: it is owned by
    /// the operation that the entry's user data names.
    pub(crate) unsafe fn push(&mut self, entry: W::Submission) {
        if self.refused.is_some() {
            // This is a cancel, whose effect nobody would see.
            return;
        }
        // SAFETY: the caller's promise.
        let pushed =
            self.backlog.is_empty() && unsafe { self.uring.submission().push(&entry) }.is_ok();
        if !pushed {
            self.backlog.push_back(entry);
        }
        self.queued += 1;
    }

    fn refill(&mut self) {
        let mut submission = self.uring.submission();
        while let Some(entry) = self.backlog.front() {
            // SAFETY: `push` was promised that what the entry points to stays.
            if unsafe { submission.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Hands everything that is queued to the kernel. Never waits.
    ///
    /// # Errors
    /// When the kernel takes nothing: on another thread than the ring's (`EEXIST`), or for want of
    /// memory (`EAGAIN`, `EBUSY`). What is queued stays queued. With any other error it takes nothing
    /// ever again: see [`refused`](Self::refused).
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0, None)
    }

    /// Hands everything that is queued to the kernel and sleeps until `min` completions can be
    /// reaped or `timeout` has passed. May return earlier, for a signal for example.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub fn submit_and_wait(&mut self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        let waiting = self.arrived.len() + self.made.len();
        self.enter(min.saturating_sub(waiting), timeout)
    }

    /// Whether there is something queued that a later [`submit`](Self::submit) may hand over: the kernel
    /// had no memory for it, or it was queued since.
    pub fn has_unsubmitted(&mut self) -> bool {
        self.refused.is_none() && (!self.backlog.is_empty() || !self.uring.submission().is_empty())
    }

    /// Why the kernel takes nothing from this ring any more: for example, a filter was put on the
    /// running process. Operations that it has not taken, and all later ones, end with that error
    /// at the next [`reap`](Self::reap). Those that it has taken go on, and are reaped when they
    /// end, but no call waits for them.
    pub fn refused(&self) -> Option<Errno> {
        self.refused
    }

    fn enter(&mut self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        let entered = match self.refused {
            Some(errno) => Err(errno),
            None => self.enter_usable(min, timeout),
        };
        match entered {
            Ok(()) => Ok(()),
            Err(errno) => {
                // The cause of these may be gone the next time.
                if !matches!(errno.number(), libc::EAGAIN | libc::EBUSY | libc::EEXIST) {
                    self.give_up(errno);
                }
                Err(errno)
            }
        }
    }

    fn enter_usable(&mut self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        if !self.is_enabled {
            self.uring.submitter().register_enable_rings().map_err(|error| Errno::of(&error))?;
            self.is_enabled = true;
        }
        if self.polling.submissions_idle_ms.is_some() {
            return self.enter_polled(min, timeout);
        }
        let (mut tries, mut short_since) = (0, None);
        loop {
            self.refill();
            let submission = self.uring.submission();
            let (queued, must_run) =
                (submission.len(), submission.taskrun() || submission.cq_overflow());
            drop(submission);
            let is_rest = !self.backlog.is_empty();
            if queued == 0 && !must_run && self.uring.completion().len() >= min {
                return Ok(());
            }
            let entered = self.enter_once(queued, if is_rest { 0 } else { min }, timeout, must_run);
            match entered.map_err(|error| Errno::of(&error).number()) {
                // A filter may pretend that a call was made.
                Ok(0) if queued > 0 && tries < SUBMIT_TRIES_MAX => tries += 1,
                Ok(0) if queued > 0 => return Err(Errno::new(libc::EPROTO)),
                // An entry that fails at once stops the kernel behind it.
                Ok(count) if is_rest || count < queued => {}
                Ok(_) | Err(libc::ETIME | libc::EINTR) => return Ok(()),
                // The completion queue is full: nothing is taken before completions are.
                Err(libc::EBUSY) if tries < SUBMIT_TRIES_MAX => {
                    tries += 1;
                    self.collect();
                }
                // No memory for requests; those in flight may give some back.
                Err(libc::EAGAIN) if min > 0 && tries < SUBMIT_TRIES_MAX => {
                    let since: Instant = *short_since.get_or_insert_with(Instant::now);
                    if timeout.is_some_and(|timeout| since.elapsed() >= timeout) {
                        return Ok(());
                    }
                    tries += 1;
                    self.collect();
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(number) => return Err(Errno::new(number)),
            }
        }
    }

    /// Ends the operations that the kernel has not taken, and will not: no later call on this ring
    /// can hand them over, so entries left in the submission queue stay there unread.
    fn give_up(&mut self, errno: Errno) {
        if self.refused.replace(errno).is_some() {
            return;
        }
        let may_be_taken = self.polling.submissions_idle_ms.is_some() && self.is_enabled;
        if may_be_taken && !is_planted("refused-ends-polled") {
            // A kernel thread may take entries at any moment, without a call, and only that thread
            // knows which it has taken. So all of them stay the kernel's.
            return;
        }
        let untaken = self.uring.submission().len() + self.backlog.len();
        let taken = self.queued - untaken as u64;
        self.backlog.clear();
        self.queued = taken;
        let names = self.in_flight.iter_mut().filter(|(name, op)| {
            op.queued_as >= taken || self.starved.contains(name) || is_planted("refused-ends-all")
        });
        for name in names.map(|(name, _)| name).collect::<Vec<_>>() {
            self.end_made(name, errno);
        }
        self.starved.clear();
    }

    /// As [`enter`](Self::enter), where a kernel thread takes the queued entries: it is woken if it
    /// sleeps; otherwise a call is only made to wait for something.
    fn enter_polled(&mut self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        loop {
            self.refill();
            let mut submission = self.uring.submission();
            submission.sync();
            let must_wake = submission.need_wakeup();
            let must_run = submission.cq_overflow();
            drop(submission);
            let is_rest = !self.backlog.is_empty();
            let min = if is_rest { 0 } else { min };
            let is_there = self.uring.completion().len() >= min;
            if !must_wake && !must_run && !is_rest && is_there {
                return Ok(());
            }
            let mut flags = EnterFlags::empty();
            flags.set(EnterFlags::SQ_WAKEUP, must_wake);
            // There is room for the rest once the thread has taken some.
            flags.set(EnterFlags::SQ_WAIT, is_rest);
            match self.enter_with(flags, 0, min, timeout, must_run) {
                Ok(_) if is_rest => {}
                Ok(_) => return Ok(()),
                Err(error) => match Errno::of(&error).number() {
                    libc::ETIME | libc::EINTR => return Ok(()),
                    libc::EBUSY => self.collect(),
                    number => return Err(Errno::new(number)),
                },
            }
        }
    }

    fn enter_once(
        &self,
        queued: usize,
        min: usize,
        timeout: Option<Duration>,
        must_run: bool,
    ) -> std::io::Result<usize> {
        self.enter_with(EnterFlags::empty(), queued, min, timeout, must_run)
    }

    fn enter_with(
        &self,
        flags: EnterFlags,
        queued: usize,
        min: usize,
        timeout: Option<Duration>,
        must_run: bool,
    ) -> std::io::Result<usize> {
        let submitter = self.uring.submitter();
        let mut flags = flags | EnterFlags::EXT_ARG;
        if min > 0 || must_run {
            flags |= EnterFlags::GETEVENTS;
        }
        let timespec = timeout.map(Timespec::from);
        let mut arguments = SubmitArgs::new();
        if let Some(timespec) = &timespec {
            arguments = arguments.timespec(timespec);
        }
        // SAFETY: the flags say that the argument is a `SubmitArgs`, and it and the time it points
        // to live during the call.
        unsafe { submitter.enter(queued as u32, min as u32, flags.bits(), Some(&arguments)) }
    }

    /// Has the kernel run an operation that does nothing, like any other: a ring that can be made
    /// may still be refused in use. With [`Features::deferred`], it belongs to this thread from
    /// here on.
    ///
    /// # Errors
    /// Why it can't be used; the ring is then useless.
    ///
    /// # Panics
    /// When something is in flight.
    pub fn try_out(&mut self) -> Result<(), Refused> {
        assert!(self.in_flight.len() == 0, "a ring is tried out before it is used");
        let nothing: Entry = opcode::Nop::new().build().user_data(NOBODY);
        // SAFETY: the entry points to nothing.
        unsafe { self.push(nothing.into()) };
        let deadline = Instant::now() + TRIAL_MAX;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.submit_and_wait(1, Some(left)).map_err(Refused::diagnose)?;
            self.collect_all();
            if self.arrived.pop_front().is_some() {
                // A kernel thread may have done it without a call. The next time it may be asleep.
                let entered = self.enter_once(0, 0, None, true);
                return entered.map(drop).map_err(|error| Refused::diagnose(Errno::of(&error)));
            }
            if left.is_zero() {
                return Err(Refused { cause: Cause::Silent, errno: None });
            }
        }
    }

    /// Lets the kernel finish completions, without waiting, and takes them from the queue.
    pub(crate) fn collect_all(&mut self) {
        let submission = self.uring.submission();
        let mut must_run = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        // Nobody else asks the device.
        must_run |= self.polling.is_ours_to_ask() && self.in_flight.len() > 0;
        if must_run && self.is_enabled && self.refused.is_none() {
            // If it can't now (no memory), it does next time: readiness stays.
            drop(self.enter_once(0, 0, None, true));
        }
        self.collect();
    }

    /// Takes the entries of the completion queue.
    fn collect(&mut self) {
        let completions = self.uring.completion();
        self.arrived.extend(completions.map(|entry| {
            let entry: cqueue::Entry = entry.into();
            Arrived { name: entry.user_data(), res: entry.result(), flags: entry.flags() }
        }));
    }

    /// Cancels everything and waits until it has ended. Returns whether it has.
    fn finish(&mut self) -> bool {
        if !self.is_enabled {
            // The kernel has not seen anything yet, and never will.
            return true;
        }
        let deadline = Instant::now() + DROP_WAIT_MAX;
        let mut completions = Vec::new();
        while self.in_flight.len() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = if left.is_zero() {
                return false;
            } else if self.refused.is_some() && !self.features.deferred {
                // Operations that the kernel has end by themselves, which shows without a call.
                std::thread::sleep(DROP_ASK_PAUSE);
                Ok(())
            } else if self.polling.is_ours_to_ask() {
                // A wait would spin, even past a timeout, and nothing can be cancelled there.
                self.submit()
            } else {
                self.cancel_all();
                self.submit_and_wait(1, Some(left.min(Duration::from_millis(100))))
            };
            if ended.is_err() {
                return false;
            }
            self.reap(&mut completions);
            completions.clear();
            if self.polling.is_ours_to_ask() && self.in_flight.len() > 0 {
                std::thread::sleep(DROP_ASK_PAUSE);
            }
        }
        true
    }
}

impl<T: Copy, M: Memory, W: Width> Drop for Ring<T, M, W> {
    fn drop(&mut self) {
        // Unless it is over, memory that the kernel may touch is leaked, and a file stays held.
        let is_over = self.finish();
        if self.is_holding && (is_over || is_planted("claim-dropped-in-flight")) {
            // Releases the file at once; the kernel closes a ring some 30 ms later.
            drop(self.uring.submitter().unregister_files());
        }
        if is_over {
            if let Some(pool) = self.pool.as_mut() {
                pool.unregister(&self.uring.submitter());
            }
            if self.registered.is_some() {
                // Unlocks the memory at once, as others may want to lock some; closing the ring
                // takes time. If this is refused, closing does it.
                drop(self.uring.submitter().unregister_buffers());
            }
            // SAFETY: neither is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.in_flight);
                ManuallyDrop::drop(&mut self.pool);
            }
        }
        // SAFETY: it is not used again.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
    }
}
