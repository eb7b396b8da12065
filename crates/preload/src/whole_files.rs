//! The open files that the program overwrites in whole blocks, and how a descriptor leads to its
//! file. This library makes such an overwrite by the *short path*: one direct write, which is
//! durable when it returns.
//!
//! These files share the table of descriptors with the logs. In that table, their numbers begin
//! after those of the logs. This module uses no locks. So a forked child can go on, whatever the
//! threads of its parent were doing.
//!
//! A file has a *debt* while it has changes that only the kernel can make durable.

#![expect(unsafe_code, reason = "files are shared by threads that may close them")]

use std::cell::UnsafeCell;
use std::ffi::{CStr, c_int};
use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{off_t, ssize_t};
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use slimio_planted::is_planted;
use slimio_shortcut::{Debts, Identity, Kind, WholeFile, open_direct};

use crate::meeting::{self, Process};
use crate::next::{errno, set_errno};
use crate::open_logs::{LOGS, OWN, TABLE, failed};

/// The largest number of open files that this library can keep track of. Writes to further files
/// are left to the kernel.
const FILES: usize = OWN as usize - 1 - LOGS;
/// Writes by a descriptor with one of these flags are left to the kernel. With `O_APPEND`, each
/// write goes to the end of the file, whatever the write's offset (see pwrite(2)). With `O_DIRECT`,
/// the program can already make its next write while the last one is flushed. It could not if each
/// write took the short path, because a write by the short path returns only when it is durable.
const OTHERS: OFlags = OFlags::APPEND.union(OFlags::DIRECT);
/// The bit of a slot's `users` that is set unless the slot is free.
const BUSY: usize = 1 << 63;

static SLOTS: [Slot; FILES] = [const { Slot::new() }; FILES];
/// The table of debts. The cell is empty before the first use. Later, it holds `None` if this
/// process could not get the table from the keeper, the process `slimio shortcut run`.
static DEBTS: OnceLock<Option<Debts>> = OnceLock::new();
/// Whether a sync that this library made by itself has failed. It makes such syncs only if there is
/// no table of debts: then it syncs each write at once.
static HAS_FAILED: AtomicBool = AtomicBool::new(false);

/// Room for an open file.
struct Slot {
    /// Zero if the slot is free. Otherwise [`BUSY`], plus one while the file is open, plus one for
    /// each thread that uses the file. The last user closes the file.
    users: AtomicUsize,
    /// In a slot that is not free, `None` means that there is no table of debts.
    file: UnsafeCell<Option<WholeFile<'static>>>,
}

// SAFETY: only two threads change the file. The thread that has taken the free slot does so before
// the slot has users, and the last user does so after all other users have left. Only users read
// the file.
unsafe impl Sync for Slot {}

impl Slot {
    const fn new() -> Self {
        Self { users: AtomicUsize::new(0), file: UnsafeCell::new(None) }
    }
}

/// A file that this thread is using.
pub(crate) struct Using {
    slot: &'static Slot,
    descriptor: c_int,
}

/// Maps the table of debts when the library is loaded. So every process that the program forks
/// later has the table, even if the keeper has ended by then.
#[used]
#[unsafe(link_section = ".init_array")]
static LOAD: extern "C" fn() = load;

extern "C" fn load() {
    if meeting::is_kind_told(Kind::WholeBlocks) {
        let error = errno();
        let _ = debts();
        set_errno(error);
    }
}

fn debts() -> Option<&'static Debts> {
    let found = DEBTS.get_or_init(|| Debts::open(&meeting::debts()?).ok());
    found.as_ref()
}

fn number_of(descriptor: c_int) -> Option<usize> {
    let number = usize::from(TABLE.get(descriptor as usize)?.load(Ordering::Acquire));
    (number > LOGS && number != usize::from(OWN)).then(|| number - LOGS - 1)
}

/// The file of a descriptor; `None` if the descriptor is not for a file of whole blocks.
pub(crate) fn of(descriptor: c_int) -> Option<Using> {
    let number = number_of(descriptor)?;
    let slot = &SLOTS[number];
    let more = |users: usize| (users > BUSY).then(|| users + 1);
    slot.users.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more).ok()?;
    let using = Using { slot, descriptor };
    // Another thread may have closed the file meanwhile, and the slot may hold another file now.
    (number_of(descriptor) == Some(number)).then_some(using)
}

impl Drop for Using {
    fn drop(&mut self) {
        self.slot.leave();
    }
}

impl Slot {
    /// Removes one user.
    fn leave(&self) {
        if self.users.fetch_sub(1, Ordering::SeqCst) != BUSY + 1 {
            return;
        }
        // SAFETY: the slot has no users now, and can't get any until it is free.
        let file = unsafe { (*self.file.get()).take() };
        if let Some(direct) = file.as_ref().and_then(WholeFile::direct) {
            TABLE[direct.as_raw_fd() as usize].store(0, Ordering::SeqCst);
        }
        drop(file);
        self.users.store(0, Ordering::SeqCst);
    }
}

/// Called when the program has opened a file of whole blocks for writing.
pub(crate) fn opened(descriptor: c_int, flags: c_int) {
    meeting::is_own_memory();
    // SAFETY: the descriptor is open, and the program can't close it yet, because the program does
    // not know its number.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let debts = debts();
    let debt = debts.and_then(|debts| Some(debts.of(Identity::of(file).ok()?)));
    let is_free = |slot: &&Slot| {
        let taken = slot.users.compare_exchange(0, BUSY, Ordering::SeqCst, Ordering::SeqCst);
        taken.is_ok()
    };
    let found = SLOTS.iter().enumerate().find(|(_, slot)| is_free(slot));
    let (Some((number, slot)), Some(entry)) = (found, TABLE.get(descriptor as usize)) else {
        // There is no room for this descriptor, so this library will not see the writes through the
        // descriptor.
        if let Some((_, slot)) = found {
            slot.users.store(0, Ordering::SeqCst);
        }
        return debt.into_iter().for_each(|debt| debt.owe_for_good());
    };
    let whole = debt.map(|debt| {
        if debt.is_new() {
            meeting::prepare(file);
        }
        // To get a direct descriptor with a high number, `direct` opens, copies and closes another
        // descriptor. This must not happen if the process has locks on the file: when a process
        // closes any descriptor of a file, it loses its locks on the file (F_SETLK).
        let is_locked = is_locked_here(file) && !is_planted("locks-not-looked-for");
        let is_left = OTHERS.intersects(OFlags::from_bits_retain(flags as u32));
        let is_ours = !is_left && !is_locked && !meeting::is_limited();
        let direct = is_ours.then(|| direct(file).ok()).flatten();
        WholeFile::new(debt, direct)
    });
    // SAFETY: only this thread uses the slot, because the slot was free and has no users yet.
    unsafe { *slot.file.get() = whole };
    slot.users.store(BUSY + 1, Ordering::SeqCst);
    entry.store((LOGS + 1 + number) as u8, Ordering::SeqCst);
}

/// Whether this process has a record lock on the file, through any descriptor. If the kernel does
/// not list the locks, the answer is `true`.
fn is_locked_here(file: BorrowedFd<'_>) -> bool {
    let Ok(status) = rustix::fs::fstat(file) else { return true };
    let Ok(locks) = std::fs::read_to_string("/proc/locks") else { return true };
    let inode = format!(":{}", status.st_ino);
    let process = meeting::process().to_string();
    locks.lines().any(|line| {
        let words: Vec<&str> = line.split_whitespace().collect();
        words.get(1) == Some(&"POSIX")
            && words.get(4) == Some(&process.as_str())
            && words.get(5).is_some_and(|place| place.ends_with(&inode))
    })
}

fn direct(file: BorrowedFd<'_>) -> io::Result<File> {
    Ok(meeting::out_of_the_way(open_direct(file)?)?.into())
}

/// Called when the program closes a descriptor.
pub(crate) fn close(descriptor: c_int) {
    let Some(number) = number_of(descriptor) else { return };
    // A child of vfork(2) shares this memory with its parent, but has descriptors of its own. So
    // what the child closes changes nothing here.
    if meeting::process_here(0) != Process::Borrower
        && usize::from(TABLE[descriptor as usize].swap(0, Ordering::SeqCst)) == LOGS + 1 + number
    {
        SLOTS[number].leave();
    }
}

/// Runs `next`, a system call that may change the files of these descriptors and move their blocks.
/// Notes a debt for each of these files.
pub(crate) fn around<const N: usize, T>(descriptors: [c_int; N], next: impl FnOnce() -> T) -> T {
    if descriptors.iter().all(|descriptor| number_of(*descriptor).is_none()) {
        return next();
    }
    let files = descriptors.map(of);
    let debts = || files.iter().flatten().filter_map(|file| file.file().map(WholeFile::debt));
    debts().for_each(|debt| debt.begin());
    let result = next();
    let error = errno();
    for debt in debts() {
        debt.move_blocks();
        debt.end();
    }
    files.iter().flatten().for_each(Using::sync_without_table);
    set_errno(error);
    result
}

/// Called when the program has opened a file by a stream. Notes a debt for good, because this
/// library does not see writes through a stream.
pub(crate) fn opened_by_stream(descriptor: c_int) {
    // SAFETY: the program has just opened the descriptor, and can't have closed it yet.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    if let (Some(debts), Ok(identity)) = (debts(), Identity::of(file)) {
        debts.of(identity).owe_for_good();
    }
}

/// Called when the program has changed a file by its path. Notes a debt only if some process has
/// opened the file.
pub(crate) fn changed_at(path: &CStr) {
    let Some(Some(debts)) = DEBTS.get() else { return };
    let error = errno();
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    if let Ok(file) = rustix::fs::open(path, flags, Mode::empty())
        && let Some(debt) = Identity::of(file).ok().and_then(|file| debts.known(file))
    {
        debt.move_blocks();
        debt.owe();
    }
    set_errno(error);
}

/// Lets the kernel write to the file of a descriptor.
pub(crate) fn write<T>(descriptor: c_int, next: impl FnOnce() -> T) -> T {
    match of(descriptor) {
        Some(file) => file.by_kernel(next),
        None => next(),
    }
}

/// Makes a file durable. If the table of debts shows that the file has no debt, calls the kernel
/// only if `is_forced` is set.
pub(crate) fn sync(descriptor: c_int, is_forced: bool, next: impl FnOnce() -> c_int) -> c_int {
    match of(descriptor) {
        Some(file) => file.sync(is_forced, next),
        None => next(),
    }
}

/// Notes a debt for good, because the file may from now on be changed in ways that this library
/// does not see.
pub(crate) fn owe_for_good(descriptor: c_int) {
    if let Some(file) = of(descriptor).as_ref().and_then(Using::file) {
        file.debt().owe_for_good();
    }
}

impl Using {
    fn file(&self) -> Option<&WholeFile<'static>> {
        // SAFETY: the slot's file is changed only while the slot has no users.
        unsafe { (*self.slot.file.get()).as_ref() }
    }

    fn descriptor(&self) -> BorrowedFd<'_> {
        // SAFETY: the program is in the middle of a call for the descriptor, so the descriptor is
        // open.
        unsafe { BorrowedFd::borrow_raw(self.descriptor) }
    }

    /// Writes at an offset. If the write can't take the short path, lets the kernel write.
    pub(crate) fn write_at(
        &self,
        pieces: &[IoSlice<'_>],
        offset: off_t,
        next: impl FnOnce() -> ssize_t,
    ) -> ssize_t {
        let Some(file) = self.file().filter(|file| file.direct().is_some() && offset >= 0) else {
            return self.by_kernel(next);
        };
        // Another process that has a copy of the descriptor may have changed the flags.
        let flags = rustix::fs::fcntl_getfl(self.descriptor());
        if flags.map_or(true, |flags| flags.intersects(OTHERS)) {
            return self.by_kernel(next);
        }
        match file.write(pieces, offset as u64) {
            Ok(Some(written)) => written as ssize_t,
            Ok(None) => self.by_kernel(next),
            Err(error) => failed(&error),
        }
    }

    /// Lets the kernel write to the file.
    pub(crate) fn by_kernel<T>(&self, next: impl FnOnce() -> T) -> T {
        if let Some(file) = self.file() {
            return file.debt().around(next);
        }
        let result = next();
        let error = errno();
        self.sync_without_table();
        set_errno(error);
        result
    }

    /// Syncs the file if there is no table of debts. Without the table, this process can't tell
    /// other processes of a debt, so it must leave no debt.
    fn sync_without_table(&self) {
        let is_alone = self.file().is_none() && !is_planted("table-not-missed");
        if is_alone && rustix::fs::fdatasync(self.descriptor()).is_err() {
            HAS_FAILED.store(true, Ordering::SeqCst);
        }
    }

    fn sync(&self, is_forced: bool, next: impl FnOnce() -> c_int) -> c_int {
        let by_kernel = || if next() == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
        let result = match self.file() {
            Some(file) => file.sync(is_forced, by_kernel),
            None if HAS_FAILED.load(Ordering::SeqCst) => Err(Errno::IO.into()),
            None => by_kernel(),
        };
        match result {
            Ok(()) => 0,
            Err(error) => failed(&error) as c_int,
        }
    }
}
