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

/// How long a dropped ring waits for its operations to end before it leaks their memory.
const DROP_WAIT_MAX: Duration = Duration::from_secs(5);

/// Pause between two polls of the device while a ring that polls for completions is dropped.
const DROP_ASK_PAUSE: Duration = Duration::from_millis(1);

/// Limit of the time for a ring's first operation, which does nothing and usually takes
/// microseconds.
const TRIAL_MAX: Duration = Duration::from_secs(5);

/// How often a submission is tried at most while the kernel has no memory for it. The tries are a
/// millisecond apart.
const SUBMIT_TRIES_MAX: u32 = 1000;

/// Names an operation in flight, for [`Ring::cancel`]. Names are never reused.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct OpId(pub(crate) Name);

impl std::fmt::Debug for OpId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "OpId({}.{})", self.0.index, self.0.generation)
    }
}

/// An io_uring and everything in flight on it.
///
/// `T` is the caller's name for an operation and comes back with each of its completions; `M` is
/// the memory of file reads and writes.
///
/// With [`Features::deferred`], a ring belongs to the thread that first submits to it, and every
/// submission on another thread fails. Without this feature, the ring may be handed from thread to
/// thread.
///
/// Dropping a ring cancels all operations in flight and waits for them to end, for at most five
/// seconds. If the kernel may still write to some memory after that, this memory is leaked.
pub struct Ring<T: Copy, M: Memory = Vec<u8>, W: Width = Narrow> {
    /// `ManuallyDrop`, because the io_uring is closed only after everything in flight has ended.
    pub(crate) uring: ManuallyDrop<IoUring<W::Submission, W::Completion>>,
    pub(crate) features: Features,
    polling: Polling,
    pub(crate) in_flight: ManuallyDrop<Table<InFlight<T, M>>>,
    pub(crate) files: Files,
    pub(crate) pool: ManuallyDrop<Option<Pool>>,
    pub(crate) registered: Option<Registered>,
    /// Entries that found no room in the submission queue, oldest first.
    backlog: VecDeque<W::Submission>,
    /// Completions that were taken from the queue but not looked at yet.
    pub(crate) arrived: VecDeque<Arrived>,
    /// Completions that this ring has made itself. The kernel knows nothing of them.
    pub(crate) made: Vec<Completion<T, M>>,
    /// Receives that wait until a buffer is given back.
    pub(crate) starved: Vec<Name>,
    /// Number of entries that were queued so far, including those in the backlog. The entries reach
    /// the kernel in the order in which they were queued.
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
    /// Why there is no such ring; see [`probe`](crate::probe).
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

    /// Makes `count` buffers of `buffer_size` bytes each, into which [`receive`](Self::receive)
    /// receives. `count` is a power of two.
    ///
    /// # Errors
    /// When the kernel has no memory for them.
    ///
    /// # Panics
    /// When this ring has such buffers already.
    pub fn provide_buffers(&mut self, count: u16, buffer_size: u32) -> Result<(), Errno> {
        assert!(self.pool.is_none(), "a ring has one pool of buffers");
        let submitter = self.features.multishot_receive.then(|| self.uring.submitter());
        *self.pool = Some(Pool::new(count, buffer_size, submitter.as_ref())?);
        Ok(())
    }

    /// The bytes that were received into a buffer.
    ///
    /// # Panics
    /// When this ring has not handed out a buffer of that number, or when the ring's buffers are
    /// smaller than `provided` says.
    pub fn bytes(&self, provided: &Provided) -> &[u8] {
        self.pool.as_ref().expect("a buffer comes from a pool").bytes(provided)
    }

    /// Lets the buffer be filled again.
    ///
    /// # Panics
    /// When this ring has not handed out a buffer of that number.
    #[expect(clippy::needless_pass_by_value, reason = "it is given back")]
    pub fn give_back(&mut self, provided: Provided) {
        self.pool.as_mut().expect("a buffer comes from a pool").give_back(&provided);
        if !self.starved.is_empty() {
            self.feed_starved();
        }
    }

    /// Takes over a descriptor. The descriptor must be in blocking mode. Otherwise, if an operation
    /// on it would block, the kernel ends the operation with an error instead of waiting.
    pub fn adopt(&mut self, descriptor: OwnedFd) -> Fd {
        self.files.adopt(descriptor)
    }

    /// The descriptor, for calls that need it (socket options, names); `None` when it was closed
    /// and its last operation has ended.
    pub fn descriptor(&self, fd: Fd) -> Option<BorrowedFd<'_>> {
        self.files.borrow(fd)
    }

    /// Gives back a descriptor that has no operation in flight; `None` when it was closed.
    ///
    /// # Panics
    /// When an operation on it is in flight.
    pub fn release(&mut self, fd: Fd) -> Option<OwnedFd> {
        self.files.release(fd)
    }

    /// Number of operations that have not ended.
    pub fn in_flight(&self) -> usize {
        self.in_flight.len()
    }

    /// A descriptor that is readable while [`reap`](Self::reap) has something to return. If another
    /// ring polls this descriptor, the poll may complete although there is nothing to return.
    ///
    /// `None` for a ring with [`Features::deferred`]. The completions of such a ring appear only
    /// when its thread waits in the ring, so a poll of its descriptor would not end. Also `None` if
    /// completions are polled for.
    pub fn readiness(&self) -> Option<BorrowedFd<'_>> {
        // SAFETY: the ring's descriptor is open as long as `self`, which the result borrows.
        let fd = unsafe { BorrowedFd::borrow_raw(self.uring.as_raw_fd()) };
        (!self.features.deferred && !self.polling.completions).then_some(fd)
    }

    /// Queues an entry for the next submission.
    ///
    /// # Safety
    /// Everything that the entry points to belongs to the operation that the entry's user data
    /// names, and stays as it is until the completion of this operation was reaped.
    pub(crate) unsafe fn push(&mut self, entry: W::Submission) {
        if self.refused.is_some() {
            // The entry is a cancel, because no other entry gets here after a refusal. It is
            // dropped, because the kernel would not take it.
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
            // SAFETY: the caller of `push` promised that everything that the entry points to stays.
            if unsafe { submission.push(entry) }.is_err() {
                return;
            }
            self.backlog.pop_front();
        }
    }

    /// Hands everything that is queued to the kernel. Never waits.
    ///
    /// # Errors
    /// When the kernel takes nothing. If the reason is that the ring belongs to another thread
    /// (`EEXIST`) or that memory is lacking (`EAGAIN`, `EBUSY`), everything that is queued stays
    /// queued. After any other error, the kernel never takes anything from this ring again: see
    /// [`refused`](Self::refused).
    pub fn submit(&mut self) -> Result<(), Errno> {
        self.enter(0, None)
    }

    /// Hands everything that is queued to the kernel and sleeps until `min` completions can be
    /// reaped or `timeout` has passed. May return earlier, for example because of a signal.
    ///
    /// # Errors
    /// The same errors as of [`submit`](Self::submit).
    pub fn submit_and_wait(&mut self, min: usize, timeout: Option<Duration>) -> Result<(), Errno> {
        let waiting = self.arrived.len() + self.made.len();
        self.enter(min.saturating_sub(waiting), timeout)
    }

    /// Whether entries are queued that a later [`submit`](Self::submit) may hand over. They were
    /// queued after the last submission, or the kernel had no memory for them at that submission.
    pub fn has_unsubmitted(&mut self) -> bool {
        self.refused.is_none() && (!self.backlog.is_empty() || !self.uring.submission().is_empty())
    }

    /// Why the kernel takes nothing from this ring any more, for example because a filter was put
    /// on the running process. Operations that the kernel has not taken, and all later operations,
    /// end with this error at the next [`reap`](Self::reap). Operations that the kernel has taken
    /// continue, and can be reaped when they end, but no call waits for them.
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
                // A filter (seccomp) may skip the call and pretend that it was made, so the call is
                // tried again.
                Ok(0) if queued > 0 && tries < SUBMIT_TRIES_MAX => tries += 1,
                Ok(0) if queued > 0 => return Err(Errno::new(libc::EPROTO)),
                // If an entry fails at once, the kernel takes no more entries in the same call. The
                // next call hands over the rest.
                Ok(count) if is_rest || count < queued => {}
                Ok(_) | Err(libc::ETIME | libc::EINTR) => return Ok(()),
                // The completion queue is full: the kernel takes nothing until there is room again.
                Err(libc::EBUSY) if tries < SUBMIT_TRIES_MAX => {
                    tries += 1;
                    self.collect();
                }
                // The kernel has no memory for requests, but requests in flight may give memory
                // back when they end.
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

    /// Ends the operations that the kernel has not taken and will not take. No later call on this
    /// ring can hand them over, so entries left in the submission queue stay there unread.
    fn give_up(&mut self, errno: Errno) {
        if self.refused.replace(errno).is_some() {
            return;
        }
        let may_be_taken = self.polling.submissions_idle_ms.is_some() && self.is_enabled;
        if may_be_taken && !is_planted("refused-ends-polled") {
            // A kernel thread may take entries at any moment, without a call, and only that thread
            // knows which entries it has taken. So no operation is ended here.
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

    /// Like [`enter`](Self::enter), for a ring with a kernel thread that takes the queued entries.
    /// If the thread sleeps, a call wakes it. Otherwise, a call is made only to wait for something.
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
            // With this flag, the call waits until the thread has taken some entries. From then on,
            // there is room for the rest.
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
        // SAFETY: the flags say that the argument is a `SubmitArgs`. The `SubmitArgs` and the time
        // that it points to live during the call.
        unsafe { submitter.enter(queued as u32, min as u32, flags.bits(), Some(&arguments)) }
    }

    /// Makes the kernel run an operation that does nothing. This is a test, because the kernel may
    /// refuse the use of a ring that it has made. With [`Features::deferred`], the ring belongs to
    /// this thread from then on.
    ///
    /// # Errors
    /// Why the ring can't be used. After an error, the ring is useless.
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
                // A kernel thread may have run the operation without a call. The next time, the
                // thread may be asleep, and a call must wake it. So a call is tried out here.
                let entered = self.enter_once(0, 0, None, true);
                return entered.map(drop).map_err(|error| Refused::diagnose(Errno::of(&error)));
            }
            if left.is_zero() {
                return Err(Refused { cause: Cause::Silent, errno: None });
            }
        }
    }

    /// Lets the kernel finish completions, and takes them from the queue. Never waits.
    pub(crate) fn collect_all(&mut self) {
        let submission = self.uring.submission();
        let mut must_run = submission.taskrun() || submission.cq_overflow();
        drop(submission);
        // If no kernel thread polls the device, only a call polls it.
        must_run |= self.polling.is_ours_to_ask() && self.in_flight.len() > 0;
        if must_run && self.is_enabled && self.refused.is_none() {
            // If the kernel can't finish completions now, because memory is lacking, it does so at
            // the next call. That call will be made, because the descriptor stays readable.
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

    /// Cancels all operations and waits until they have ended, but not forever. Returns whether all
    /// of them have ended.
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
                // Operations that the kernel has taken end by themselves. No call is needed to see
                // their end.
                std::thread::sleep(DROP_ASK_PAUSE);
                Ok(())
            } else if self.polling.is_ours_to_ask() {
                // A wait would spin, even past a timeout, and a ring that polls for completions
                // can't cancel anything.
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
        // If not everything has ended, memory that the kernel may touch is leaked, and a file that
        // the ring holds stays held.
        let is_over = self.finish();
        if self.is_holding && (is_over || is_planted("claim-dropped-in-flight")) {
            // Releases the file at once, because the kernel closes a ring only some 30 ms later.
            drop(self.uring.submitter().unregister_files());
        }
        if is_over {
            if let Some(pool) = self.pool.as_mut() {
                pool.unregister(&self.uring.submitter());
            }
            if self.registered.is_some() {
                // Unlocks the memory at once, because others may want to lock memory, and closing
                // the ring takes time. If this call is refused, closing the ring unlocks the
                // memory.
                drop(self.uring.submitter().unregister_buffers());
            }
            // SAFETY: neither of the two is used again.
            unsafe {
                ManuallyDrop::drop(&mut self.in_flight);
                ManuallyDrop::drop(&mut self.pool);
            }
        }
        // SAFETY: `uring` is not used again.
        unsafe { ManuallyDrop::drop(&mut self.uring) };
    }
}
