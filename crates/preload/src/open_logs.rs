//! The logs that the program has open, with a table that finds a log by its descriptor.
//!
//! A log is *taken* while this library writes it instead of the kernel. It is *given back* when the
//! kernel writes it again. The *stage* is memory that processes share. It has the bytes that were
//! appended but are not in the file yet. The *keeper* is a process that writes zeros after the end
//! of taken files, ahead of the appended bytes. If a process is killed, the keeper mends its files.

#![expect(unsafe_code, reason = "logs are shared by threads that may close them")]

use std::cell::UnsafeCell;
use std::ffi::c_int;
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU8, AtomicUsize, Ordering};
use std::time::Duration;

use libc::{off_t, ssize_t};
use rustix::fs::OFlags;
use slimio_planted::is_planted;
use slimio_shortcut::{Kind, LogFile, Stage, Written, end_lease};

use crate::meeting::{self, Answer, Process};
use crate::next::{errno, set_errno};
use crate::whole_files;

/// The table has entries for the descriptors below this number.
pub(crate) const DESCRIPTORS: usize = 1 << 16;
/// The number of logs that can be open at once. Further logs are left to the kernel.
pub(crate) const LOGS: usize = 64;
/// The table's entry for a descriptor of this library.
pub(crate) const OWN: u8 = u8::MAX;
const CLOSE_PAUSE: Duration = Duration::from_micros(20);

/// What each descriptor is for. Zero: nothing that concerns this library. `n + 1`, up to `LOGS`:
/// the log in slot `n`. `LOGS + 1 + n`: the file in slot `n` of the files that are written in whole
/// blocks. [`OWN`]: a descriptor of this library itself.
pub(crate) static TABLE: [AtomicU8; DESCRIPTORS] = [const { AtomicU8::new(0) }; DESCRIPTORS];
static SLOTS: [Slot; LOGS] = [const { Slot::new() }; LOGS];

/// Room for an open log.
struct Slot {
    /// How many threads use the log, plus one while the log is open; zero if the slot is free.
    users: AtomicUsize,
    log: UnsafeCell<Option<OpenLog>>,
}

// SAFETY: only two threads change the log: the one that has raised `users` from zero, and the last
// user. Only users read the log.
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Self {
        Self { users: AtomicUsize::new(0), log: UnsafeCell::new(None) }
    }
}

/// A log that this process or one of its ancestors has opened.
struct OpenLog {
    number: u32,
    /// The id of the process that has opened the log.
    taker: i32,
    file: LogFile<OwnedFd>,
    /// The stage's file. While the file is open, its lock shows that the stage is in use.
    stage: File,
}

/// A log that this thread is using.
pub(crate) struct Using {
    slot: &'static Slot,
}

/// The log of a descriptor; `None` if the descriptor is not for a log.
pub(crate) fn of(descriptor: c_int) -> Option<Using> {
    let entry = TABLE.get(descriptor as usize)?;
    match entry.load(Ordering::Acquire) {
        number if is_log(number) => use_slot(descriptor, number),
        _ => None,
    }
}

/// Whether an entry of the table is for a log.
fn is_log(number: u8) -> bool {
    (1..=LOGS).contains(&usize::from(number))
}

#[cold]
fn use_slot(descriptor: c_int, number: u8) -> Option<Using> {
    let slot = &SLOTS[usize::from(number) - 1];
    slot.users.fetch_add(1, Ordering::SeqCst);
    let using = Using { slot };
    // Another thread may have closed the log meanwhile, and the slot may hold another log now.
    if TABLE[descriptor as usize].load(Ordering::SeqCst) != number {
        return None;
    }
    meeting::lock(usize::from(number) - 1, &using.log().stage);
    Some(using)
}

impl Drop for Using {
    fn drop(&mut self) {
        self.slot.users.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Marks a descriptor as this library's own, so that the program can't close it.
pub(crate) fn keep(descriptor: c_int) {
    if let Some(entry) = TABLE.get(descriptor as usize) {
        entry.store(OWN, Ordering::SeqCst);
    }
}

/// Undoes [`keep`], so that the descriptor can be closed.
fn forget(descriptor: c_int) {
    if let Some(entry) = TABLE.get(descriptor as usize) {
        entry.store(0, Ordering::SeqCst);
    }
}

/// Whether a descriptor is this library's own.
pub(crate) fn is_own(descriptor: c_int) -> bool {
    TABLE.get(descriptor as usize).is_some_and(|entry| entry.load(Ordering::Relaxed) == OWN)
}

/// Called when the program has opened a log for writing. Asks the keeper to take the log. If the
/// keeper dies meanwhile, the file's flags are set to `flags` again.
pub(crate) fn opened(descriptor: c_int, flags: c_int, kind: Kind) {
    if (descriptor as usize) < DESCRIPTORS {
        // If the keeper can't take the file, the kernel writes the file, and the keeper has
        // reported the reason.
        let _ = try_open(descriptor, flags, kind);
    }
}

fn try_open(descriptor: c_int, flags: c_int, kind: Kind) -> io::Result<()> {
    let Some(number) = SLOTS.iter().position(|slot| {
        let exchanged = slot.users.compare_exchange(0, 1, Ordering::SeqCst, Ordering::SeqCst);
        exchanged.is_ok()
    }) else {
        return Ok(());
    };
    let slot = &SLOTS[number];
    // SAFETY: the descriptor is open, and the program can't close it yet, because the program does
    // not know its number.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    match ask(file, flags, kind) {
        Ok(Some(log)) => {
            // SAFETY: only this thread uses the slot, because the slot was free and no entry of the
            // table leads to the slot yet.
            unsafe { *slot.log.get() = Some(log) };
            TABLE[descriptor as usize].store(number as u8 + 1, Ordering::SeqCst);
            Ok(())
        }
        other => {
            slot.users.fetch_sub(1, Ordering::SeqCst);
            other.map(|_| ())
        }
    }
}

fn ask(file: BorrowedFd<'_>, flags: c_int, kind: Kind) -> io::Result<Option<OpenLog>> {
    match meeting::take(file, kind == Kind::SelfEnding) {
        Answer::Left => Ok(None),
        Answer::Taken(number, stage) => {
            let log = join(file, &stage);
            if log.is_err() {
                // This process itself gives the file back. It does not leave this to the keeper,
                // because the keeper may end first.
                let _ = undo(file, flags, &stage);
                meeting::close(number);
                forget(stage.as_raw_fd());
            }
            let (own, opened) = log?;
            let taker = meeting::process();
            Ok(Some(OpenLog { number, taker, file: LogFile::new(own, opened), stage }))
        }
        Answer::Broken(stage) => undo(file, flags, &stage.into()).map(|()| None),
    }
}

/// Opens the stage of a log that the keeper has taken, and then copies the program's descriptor of
/// the file. In this order nothing has to be closed if one of the two fails: closing a descriptor
/// of the file could drop the program's locks on the file (F_SETLK).
fn join(file: BorrowedFd<'_>, stage: &File) -> io::Result<(OwnedFd, Stage)> {
    let stage = Stage::open(stage)?;
    Ok((meeting::out_of_the_way(file)?, stage))
}

/// Gives a file back to the kernel, because the keeper was killed while it took the file, or
/// because this process can't use the log. The keeper's guard may do the same at the same time; the
/// stage's locks keep the two apart.
fn undo(file: BorrowedFd<'_>, flags: c_int, stage: &File) -> io::Result<()> {
    let log = LogFile::new(file, Stage::open(stage)?);
    if is_planted("taking-not-undone") {
        end_lease(file);
        rustix::fs::fcntl_setfl(file, OFlags::from_bits_retain(flags as u32))?;
        return Ok(());
    }
    log.by_kernel(|| {
        // If the keeper had not taken the file yet, it may have changed the flags already.
        let _ = rustix::fs::fcntl_setfl(file, OFlags::from_bits_retain(flags as u32));
        end_lease(file);
    })
}

/// Called when the program closes a descriptor. If the descriptor is for a log, gives the file back
/// and forgets the log. Returns an error if some appended bytes could not be made durable. Returns
/// `None` if the descriptor is not for a log, or if the process is a child of vfork(2).
pub(crate) fn close(descriptor: c_int) -> Option<io::Result<()>> {
    let entry = TABLE.get(descriptor as usize)?;
    if !is_log(entry.load(Ordering::Relaxed)) {
        return None;
    }
    let taker = of(descriptor)?.log().taker;
    let process = meeting::process_here(taker);
    // A child of vfork(2) shares this memory with its parent, but has descriptors of its own.
    if process == Process::Borrower {
        return None;
    }
    let number = entry.swap(0, Ordering::SeqCst);
    if !is_log(number) {
        return None;
    }
    // A forked child does not wait for the users, because they may be threads of the parent, which
    // the child does not have. The child does not give the file back either, because the parent
    // still uses the log.
    if process == Process::Child && !is_planted("child-gives-back") {
        return Some(Ok(()));
    }
    let number = usize::from(number) - 1;
    let slot = &SLOTS[number];
    while slot.users.load(Ordering::SeqCst) > 1 {
        std::thread::sleep(CLOSE_PAUSE);
    }
    // SAFETY: no entry of the table leads to the log any more, and no thread uses the log.
    let log = unsafe { (*slot.log.get()).take() };
    let released = log.map(|log| {
        let released = log.file.release();
        let OpenLog { number: kept, file, stage, .. } = log;
        meeting::close(kept);
        meeting::unlock(number);
        forget(file.file().as_raw_fd());
        forget(stage.as_raw_fd());
        released
    });
    slot.users.store(0, Ordering::SeqCst);
    released
}

/// Gives a log back for good. This is done if the program uses the log in a way that only the
/// kernel can serve. It is also done if the program hands the log to a process that does not know
/// of the stage. If the log can't be given back, the next call on the log reports the failure.
///
/// This function closes no descriptor, because that would drop the program's locks on the file
/// (`F_SETLK`).
pub(crate) fn give_up(descriptor: c_int) {
    if let Some(log) = of(descriptor) {
        let _ = log.log().file.give_up();
    }
}

/// Gives all logs back for good.
pub(crate) fn give_all_up() {
    for descriptor in 0..DESCRIPTORS as c_int {
        give_up(descriptor);
    }
}

/// Makes all logs durable. Returns the last failure.
pub(crate) fn sync_all() -> io::Result<()> {
    let mut result = Ok(());
    for descriptor in 0..DESCRIPTORS as c_int {
        if let Some(log) = of(descriptor)
            && let Err(error) = log.log().file.sync()
        {
            result = Err(error);
        }
    }
    result
}

/// Called before this process starts another program. Gives back for good every log whose
/// descriptor the new program inherits. If this process itself becomes the new program, also gives
/// back all logs that this process has opened. A file that is written in whole blocks is not given
/// back. Instead, from then on, each of its syncs calls the kernel.
pub(crate) fn give_up_before_exec(by_this_process: bool) {
    for descriptor in 0..DESCRIPTORS as c_int {
        if matches!(TABLE[descriptor as usize].load(Ordering::Relaxed), 0 | OWN) {
            continue;
        }
        // SAFETY: the call takes only numbers.
        let flags = unsafe { libc::fcntl(descriptor, libc::F_GETFD) };
        let is_inherited = flags >= 0 && flags & libc::FD_CLOEXEC == 0;
        let ends = || {
            let taker = of(descriptor).map(|log| log.log().taker);
            taker.is_some_and(|taker| meeting::process_here(taker) == Process::Taker)
        };
        if (is_inherited && !is_planted("inherited-kept")) || (by_this_process && ends()) {
            give_up(descriptor);
            whole_files::owe_for_good(descriptor);
        }
    }
}

impl Using {
    fn log(&self) -> &OpenLog {
        // SAFETY: a log is taken out of its slot only when it has no users.
        let log = unsafe { &*self.slot.log.get() };
        log.as_ref().expect("a slot in the table has a log")
    }

    /// Gives the file back if the keeper is dead. If the file stayed taken, a process that opens it
    /// would wait for a long time, and nobody would mend the file.
    fn leave_if_alone(&self) {
        let file = &self.log().file;
        if !file.stage().is_kept() && !is_planted("keeper-not-missed") {
            // If the file can't be given back, the next call on the log reports the failure.
            let _ = file.release();
        }
    }

    /// Writes bytes at the file's position. If the file is not taken, lets the kernel write them.
    pub(crate) fn write(&self, pieces: &[IoSlice<'_>], next: impl Fn() -> ssize_t) -> ssize_t {
        self.put(pieces, |log| log.append_vectored(pieces), next)
    }

    /// Writes bytes at an offset. If the file is not taken, lets the kernel write them.
    pub(crate) fn write_at(
        &self,
        pieces: &[IoSlice<'_>],
        offset: off_t,
        next: impl Fn() -> ssize_t,
    ) -> ssize_t {
        match u64::try_from(offset) {
            Ok(offset) => self.put(pieces, |log| log.write_at(pieces, offset), next),
            Err(_) => next(),
        }
    }

    fn put(
        &self,
        pieces: &[IoSlice<'_>],
        write: impl Fn(&LogFile<OwnedFd>) -> io::Result<Written>,
        next: impl Fn() -> ssize_t,
    ) -> ssize_t {
        self.leave_if_alone();
        let log = self.log();
        loop {
            let written = write(&log.file).and_then(|written| match written {
                Written::ByKernel => log.file.give_up().map(|()| Written::NotTaken),
                written => Ok(written),
            });
            match written {
                Ok(Written::NotTaken | Written::ByKernel) => {}
                Ok(written) => {
                    if written == Written::TellKeeper {
                        meeting::tell(log.number);
                    }
                    return pieces.iter().map(|piece| piece.len() as ssize_t).sum();
                }
                Err(error) => return failed(&error),
            }
            match self.unless_taken(&next) {
                Ok(Some(written)) => return written,
                Ok(None) => {}
                Err(error) => return failed(&error),
            }
        }
    }

    /// Reads bytes from the file with `read`. If the file is not taken, lets the kernel read them.
    pub(crate) fn read(
        &self,
        read: impl Fn(&LogFile<OwnedFd>) -> io::Result<Option<usize>>,
        next: impl Fn() -> ssize_t,
    ) -> ssize_t {
        self.leave_if_alone();
        loop {
            match read(&self.log().file) {
                Ok(Some(count)) => return count as ssize_t,
                Ok(None) => {}
                Err(error) => return failed(&error),
            }
            match self.unless_taken(&next) {
                Ok(Some(count)) => return count,
                Ok(None) => {}
                // The error comes from an earlier write. Such an error must not keep the program
                // from reading.
                Err(_) => return next(),
            }
        }
    }

    /// Lets the kernel read or write a file that is not taken. Returns `None` if the caller must
    /// try again. That is so if the file is taken now, or if this function has just turned off the
    /// file's direct I/O because the call failed with it.
    fn unless_taken(&self, next: impl Fn() -> ssize_t) -> io::Result<Option<ssize_t>> {
        let file = &self.log().file;
        let Some((result, error)) = file.unless_taken(|| (next(), errno()))? else {
            return Ok(None);
        };
        if (result, error) == (-1, libc::EINVAL) && file.end_direct().unwrap_or(false) {
            return Ok(None);
        }
        set_errno(error);
        Ok(Some(result))
    }

    /// Makes all bytes of the log durable. If the file is not taken, lets the kernel do this.
    pub(crate) fn sync(&self, next: impl FnOnce() -> c_int) -> c_int {
        self.leave_if_alone();
        match self.log().file.sync() {
            Ok(true) => 0,
            Ok(false) => next(),
            Err(error) => failed(&error) as c_int,
        }
    }

    /// Gives the file back and runs `next`, which calls the kernel for the file. Nobody can take
    /// the file again before `next` has returned.
    pub(crate) fn by_kernel<T: From<i8>>(&self, next: impl FnOnce() -> T) -> T {
        let log = self.log();
        let is_taken = log.file.is_taken().unwrap_or(false);
        let result = log.file.by_kernel(|| (next(), errno()));
        if is_taken {
            meeting::tell(log.number);
        }
        match result {
            Ok((result, error)) => {
                set_errno(error);
                result
            }
            Err(error) => T::from(failed(&error) as i8),
        }
    }

    /// Gives the file back and runs `next`, which moves the file's position by the kernel. If an
    /// earlier write has failed, `next` runs all the same, because that must not keep the program
    /// from reading.
    pub(crate) fn seek_by_kernel(&self, next: impl FnOnce() -> off_t) -> off_t {
        let log = self.log();
        let mut next = Some(next);
        let mut run = || next.take().map_or(-1, |next| next());
        let is_taken = log.file.is_taken().unwrap_or(false);
        let result = log.file.by_kernel(|| (run(), errno()));
        if is_taken {
            meeting::tell(log.number);
        }
        match result {
            Ok((position, error)) => {
                set_errno(error);
                position
            }
            Err(error) if log.file.is_taken().unwrap_or(true) => failed(&error) as off_t,
            Err(_) => run(),
        }
    }

    /// The length of the log. `None` if the file is not taken; then only the kernel knows the
    /// length.
    pub(crate) fn length(&self) -> Option<off_t> {
        self.log().file.length().ok().flatten().map(|length| length as off_t)
    }

    /// The file's position. `None` if the file is not taken; then only the kernel knows the
    /// position.
    pub(crate) fn position(&self) -> Option<off_t> {
        self.log().file.position().ok().flatten().map(|position| position as off_t)
    }

    /// Moves the position to the end of the log. `None` if the file is not taken; then the kernel
    /// must move the position.
    pub(crate) fn seek_end(&self) -> Option<off_t> {
        self.log().file.seek_end().ok().flatten().map(|end| end as off_t)
    }

    /// Turns the flags that the file has now into the flags with which the program opened the file.
    pub(crate) fn flags(&self, flags: c_int) -> c_int {
        self.log().file.flags_as_opened(flags)
    }
}

/// Sets errno. Returns -1, as libc's functions do when they fail.
pub(crate) fn failed(error: &io::Error) -> ssize_t {
    set_errno(error.raw_os_error().unwrap_or(libc::EIO));
    -1
}
