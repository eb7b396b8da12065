//! The ring itself, which keeps the operations in flight and hands them to the kernel.

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

/// The longest time that a dropped ring waits for its operations to end. After that, it leaks their
/// memory.
const DROP_WAIT_MAX: Duration = Duration::from_secs(5);

/// A dropped ring that can't wait in the kernel looks for completions again and again. This is the
/// pause between two looks.
const DROP_ASK_PAUSE: Duration = Duration::from_millis(1);

/// The longest time that a ring's first operation may take. This operation does nothing and usually
/// takes microseconds.
const TRIAL_MAX: Duration = Duration::from_secs(5);

/// How many times a submission is tried again while the kernel takes no entry. If the kernel lacks
/// memory, the tries are a millisecond apart.
const SUBMIT_TRIES_MAX: u32 = 1000;

/// The name of an operation in flight, for [`Ring::cancel`]. Names are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) Name);

impl std::fmt::Debug for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpId({}.{})", self.0.index, self.0.generation)
    }
}

/// An io_uring and all operations in flight on it.
///
/// `T` is the payload that the caller gives with an operation. Each completion of the operation
/// contains this payload. `M` is the memory of file reads and writes.
///
/// With [`Features::deferred`], a ring belongs to the thread that first submits to it, and every
/// submission on another thread fails. Without this feature, the ring may be moved from thread to
/// thread.
///
/// Dropping a ring cancels all operations in flight and waits for them to end, for at most five
/// seconds. If operations are still in flight after that, the memory that the kernel may still
/// access is leaked.
pub struct Ring<T: Copy, M: Memory = Vec<u8>, W: Width = Narrow> {
    /// This is `ManuallyDrop`, because `drop` itself closes the io_uring: after all operations have
    /// ended, or after it has waited for them as long as it may.
    pub(crate) uring: ManuallyDrop<IoUring<W::Submission, W::Completion>>,
    pub(crate) features: Features,
    polling: Polling,
    pub(crate) in_flight: ManuallyDrop<Table<InFlight<T, M>>>,
    pub(crate) files: Files,
    pub(crate) pool: ManuallyDrop<Option<Pool>>,
    pub(crate) registered: Option<Registered>,
    /// Entries that found no room in the submission queue, oldest first.
    backlog: VecDeque<W::Submission>,
    /// Completions that were taken from the kernel's queue, but not handled yet.
    pub(crate) arrived: VecDeque<Arrived>,
    /// Completions that this ring has made itself, without the kernel.
    pub(crate) made: Vec<Completion<T, M>>,
    /// Receive operations that wait until a buffer is given back.
    pub(crate) starved: Vec<Name>,
    /// Number of entries that were queued so far, including those in the backlog. The kernel gets
    /// the entries in the order in which they were queued.
    pub(crate) queued: u64,
    is_enabled: bool,
    /// Whether an open file is registered: see [`Ring::hold`].
    pub(crate) is_holding: bool,
    /// Why the kernel accepts no more entries; `None` if it accepts them.
    refused: Option<Errno>,
}

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// Makes a ring with the best setup that the kernel allows.
    ///
    /// # Errors
    /// When no ring can be made. The error says why: see [`probe`](crate::probe).
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

    /// Makes `count` buffers of `buffer_size` bytes each for [`receive`](Self::receive). `count`
    /// must be a power of two.
    ///
    /// # Errors
    /// When the kernel has no memory for the buffers.
    ///
    /// # Panics
    /// When this ring already has such buffers.
    pub fn provide_buffers(&mut self, count: u16, buffer_size: u32) -> Result<(), Errno> {
        assert!(self.pool.is_none(), "a ring has at most one pool of buffers");
        let submitter = self.features.multishot_receive.then(|| self.uring.submitter());
        *self.pool = Some(Pool::new(count, buffer_size, submitter.as_ref())?);
        Ok(())
    }

    /// The bytes that were received into a buffer.
    ///
    /// # Panics
    /// When this ring has not handed out the buffer that `provided` names, or when the ring's
    /// buffers are smaller than `provided` says.
    pub fn bytes(&self, provided: &Provided) -> &[u8] {
        self.pool.as_ref().expect("the ring has a pool of buffers").bytes(provided)
    }

    /// Gives a buffer back to the ring, so that the ring can receive into it again.
    ///
    /// # Panics
    /// When this ring has not handed out the buffer that `provided` names.
    #[expect(clippy::needless_pass_by_value, reason = "the ring takes the buffer back")]
    pub fn give_back(&mut self, provided: Provided) {
        self.pool.as_mut().expect("the ring has a pool of buffers").give_back(&provided);
        if !self.starved.is_empty() {
            self.feed_starved();
        }
    }

    /// Takes over a descriptor, which must be in blocking mode. In non-blocking mode, an operation
    /// that has to wait would end with an error.
    pub fn adopt(&mut self, descriptor: OwnedFd) -> Fd {
        self.files.adopt(descriptor)
    }

    /// The descriptor, for calls that need it (socket options, names); `None` after it was closed
    /// and its last operation has ended.
    pub fn descriptor(&self, fd: Fd) -> Option<BorrowedFd<'_>> {
        self.files.borrow(fd)
    }

    /// Returns a descriptor to the caller; `None` when it was closed.
    ///
    /// # Panics
    /// When an operation on the descriptor is in flight.
    pub fn release(&mut self, fd: Fd) -> Option<OwnedFd> {
        self.files.release(fd)
    }

    /// Number of operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// A descriptor that is readable while [`reap`](Self::reap) would return a completion. If
    /// another ring polls this descriptor, the poll may also complete when there is nothing to
    /// reap.
    ///
    /// `None` for a ring with [`Features::deferred`]. The completions of such a ring appear only
    /// when its thread waits in the ring, so a poll of its descriptor would never complete. Also
    /// `None` if the ring polls for completions.
    pub fn readiness(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring's descriptor is open as long as `self` lives, and the result borrows
        // `self`.
        let fd = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        (!self.features.deferred && !self.polling.completions).then_some(fd)
    }

    /// Queues an entry for the next submission.
    ///
    /// # Safety
    /// The entry's user data names an operation. The memory that the entry points to must belong to
    /// this operation, and must stay unchanged until the operation's completion is reaped.
    pub(crate) unsafe fn push(&mut self, entry: W::Submission) {
        if self.refused.is_some() {
            // After a refusal, `push` is called only for cancels. The entry is dropped, because the
            // kernel would not accept it.
            return;
        }
        // SAFETY: the caller promises that the memory that the entry points to stays unchanged.
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
            // SAFETY: the caller of `push` promised that the memory that the entry points to stays
            // unchanged.
            if unsafe { submission.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Hands all queued entries to the kernel. Never waits.
    ///
    /// # Errors
    /// When the kernel accepts no entries. If the ring belongs to another thread (`EEXIST`) or
    /// memory is lacking (`EAGAIN`, `EBUSY`), the entries stay queued. After any other error, the
    /// kernel never accepts entries of this ring again: see [`refused`](Self::refused).
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0, None)
    }

    /// Hands all queued entries to the kernel, and sleeps until `min` completions can be reaped or
    /// `timeout` has passed. May return earlier, for example because of a signal.
    ///
    /// # Errors
    /// The same errors as [`submit`](Self::submit).
    pub fn submit_and_wait(&mut self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        let waiting = self.arrived.len() + self.made.len();
        self.enter(min.saturating_sub(waiting), timeout)
    }

    /// Whether entries are queued for a later [`submit`](Self::submit), because they were queued
    /// after the last submission or because the kernel had no memory for them then.
    pub fn has_unsubmitted(&mut self) -> bool {
        self.refused.is_none() && (!self.backlog.is_empty() || !self.uring.submission().is_empty())
    }

    /// Why the kernel accepts no more entries of this ring; `None` if it accepts them. One possible
    /// cause is a seccomp filter that was put on the running process. Operations that are not in
    /// the kernel, and all later operations, end with this error at the next [`reap`](Self::reap).
    /// Operations in the kernel continue and can be reaped when they end, but no call waits for
    /// them.
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
                // The cause of these errors may be gone at the next call.
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
                // A filter (seccomp) may skip the call and report success, so the call is tried
                // again.
                Ok(0) if queued > 0 && tries < SUBMIT_TRIES_MAX => tries += 1,
                Ok(0) if queued > 0 => return Err(Errno::new(libc::EPROTO)),
                // When an entry fails at once, the kernel accepts no more entries in the same call.
                // The next call hands over the rest.
                Ok(count) if is_rest || count < queued => {}
                Ok(_) | Err(libc::ETIME | libc::EINTR) => return Ok(()),
                // The completion queue is full, and the kernel accepts no entries until there is
                // room again.
                Err(libc::EBUSY) if tries < SUBMIT_TRIES_MAX => {
                    tries += 1;
                    self.collect();
                }
                // The kernel has no memory for requests. Requests in flight may free memory when
                // they end.
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

    /// Ends the operations that are not in the kernel, because no later call can hand them over.
    /// Their entries in the submission queue are never read.
    fn give_up(&mut self, errno: Errno) {
        if self.refused.replace(errno).is_some() {
            return;
        }
        let may_be_taken = self.polling.submissions_idle_ms.is_some() && self.is_enabled;
        if may_be_taken && !is_planted("refused-ends-polled") {
            // A kernel thread may take entries from the queue at any moment, without a call. Only
            // that thread knows which entries it has taken. So no operation can be ended here.
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

    /// Like [`enter`](Self::enter), for a ring with a kernel thread that takes queued entries. A
    /// system call is needed only to wake the thread if it sleeps, or to wait for completions.
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
            // With this flag, the call waits until the thread has taken some entries, so that there
            // is room for the rest.
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
        // SAFETY: the flags say that the argument is a `SubmitArgs`. It lives during the call, and
        // so does the time that it points to.
        unsafe { submitter.enter(queued as u32, min as u32, flags.bits(), Some(&arguments)) }
    }

    /// Tests the ring with an operation that does nothing, because a ring that could be made may
    /// still be unusable. With [`Features::deferred`], the ring belongs to this thread from then
    /// on.
    ///
    /// # Errors
    /// When the ring can't be used. The error says why. After an error, the ring is useless.
    ///
    /// # Panics
    /// When an operation is in flight.
    pub fn try_out(&mut self) -> Result<(), Refused> {
        assert!(self.in_flight.len() == 0, "a ring with operations in flight cannot be tried out");
        let nothing: Entry = opcode::Nop::new().build().user_data(NOBODY);
        // SAFETY: the entry points to nothing.
        unsafe { self.push(nothing.into()) };
        let deadline = Instant::now() + TRIAL_MAX;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.submit_and_wait(1, Some(left)).map_err(Refused::diagnose)?;
            self.collect_all();
            if self.arrived.pop_front().is_some() {
                // A kernel thread may have run the operation without a call. Later, the thread may
                // sleep, and a call must wake it. So a call is tested here, too.
                let entered = self.enter_once(0, 0, None, true);
                return entered.map(drop).map_err(|error| Refused::diagnose(Errno::of(&error)));
            }
            if left.is_zero() {
                return Err(Refused { cause: Cause::Silent, errno: None });
            }
        }
    }

    /// Lets the kernel finish completions, and takes all completions from the kernel's queue. Never
    /// waits.
    pub(crate) fn collect_all(&mut self) {
        let submission = self.uring.submission();
        let mut must_run = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        // If the ring polls for completions without a kernel thread, the device is polled only
        // during a call.
        must_run |= self.polling.is_ours_to_ask() && self.in_flight.len() > 0;
        if must_run && self.is_enabled && self.refused.is_none() {
            // If the kernel lacks memory to finish completions now, it finishes them at the next
            // call. The caller will make that call, because the descriptor stays readable.
            drop(self.enter_once(0, 0, None, true));
        }
        self.collect();
    }

    /// Takes all entries from the completion queue.
    fn collect(&mut self) {
        let completions = self.uring.completion();
        self.arrived.extend(completions.map(|entry| {
            let entry: cqueue::Entry = entry.into();
            Arrived { name: entry.user_data(), res: entry.result(), flags: entry.flags() }
        }));
    }

    /// Cancels all operations, and waits a limited time until they have ended. Returns whether all
    /// have ended.
    fn finish(&mut self) -> bool {
        if !self.is_enabled {
            // No operation was ever handed to the kernel.
            return true;
        }
        let deadline = Instant::now() + DROP_WAIT_MAX;
        let mut completions = Vec::new();
        while self.in_flight.len() > 0 {
            let left = deadline.saturating_duration_since(Instant::now());
            let ended = if left.is_zero() {
                return false;
            } else if self.refused.is_some() && !self.features.deferred {
                // Operations in the kernel end by themselves, and their completions can be seen
                // without a call.
                std::thread::sleep(DROP_ASK_PAUSE);
                Ok(())
            } else if self.polling.is_ours_to_ask() {
                // This ring polls for completions. A wait would spin, even past its timeout, and
                // operations can't be cancelled.
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
        // If operations are still in flight, the memory that the kernel may access is leaked, and
        // the file that the ring holds stays held.
        let is_over = self.finish();
        if self.is_holding && (is_over || is_planted("claim-dropped-in-flight")) {
            // Releases the held file at once, because the kernel finishes closing a ring only about
            // 30 ms later.
            drop(self.uring.submitter().unregister_files());
        }
        if is_over {
            if let Some(pool) = self.pool.as_mut() {
                pool.unregister(&self.uring.submitter());
            }
            if self.registered.is_some() {
                // Unlocks the registered memory at once, because closing the ring takes time, and
                // other rings may need to lock memory. If this call is refused, closing the ring
                // unlocks the memory.
                drop(self.uring.submitter().unregister_buffers());
            }
            // SAFETY: neither of the two fields is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.in_flight);
                ManuallyDrop::drop(&mut self.pool);
            }
        }
        // SAFETY: `uring` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
    }
}
