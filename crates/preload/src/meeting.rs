//! The connection to the keeper, the process that looks after the logs of this program.
//!
//! The connection's state is in a page that the kernel fills with zeros in a forked child
//! (`MADV_WIPEONFORK`). So the child does not use its parent's connection, and does not wait for a
//! lock that a thread of its parent holds. A child of vfork(2) shares the page with its parent.

#![expect(unsafe_code, reason = "the page is raw memory")]

use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, IntoRawFd as _, OwnedFd};
use std::ptr::null_mut;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicPtr, AtomicU64, Ordering};
use std::time::Duration;

use rustix::io::fcntl_dupfd_cloexec;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Resource, getrlimit};
use slimio_planted::is_planted;
use slimio_shortcut::Kind;
use slimio_shortcut::protocol::{Meeting, Message, VARIABLE};

use crate::open_logs::{self, DESCRIPTORS};

/// How many descriptors this library may have in a process. The library's descriptors get the
/// highest possible numbers, because a program may count on low numbers for its own descriptors.
const DESCRIPTORS_OURS: i32 = 160;
/// If a program's limit on open descriptors is lower than this, its writes do not take the short
/// path.
const DESCRIPTORS_MIN: u64 = 512;
const PAGE: usize = 4096;
const LOCK_PAUSE: Duration = Duration::from_micros(50);

/// How to reach the keeper, and which files are written by the short path.
struct Told {
    meeting: Meeting,
    patterns: Vec<(Kind, CString)>,
    state: &'static State,
}

/// The connection's state. In a forked child, the state begins with zeros.
struct State {
    is_locked: AtomicBool,
    /// The socket's descriptor, plus one.
    socket: AtomicI32,
    /// The id of the process that owns this memory.
    process: AtomicI32,
    /// A bit for each slot of the table of logs. The bit is set if this process has locked the
    /// log's stage, the file in memory with the bytes that are not in the log file yet.
    locked: AtomicU64,
}

fn told() -> Option<&'static Told> {
    static TOLD: OnceLock<Option<Told>> = OnceLock::new();
    let found = TOLD.get_or_init(|| {
        let meeting = Meeting::of_text(&std::env::var(VARIABLE).ok()?)?;
        let patterns = meeting
            .patterns
            .iter()
            .map(|pattern| CString::new(pattern.text.as_str()).map(|text| (pattern.kind, text)));
        let patterns = patterns.collect::<Result<_, _>>().ok()?;
        Some(Told { meeting, patterns, state: state()? })
    });
    found.as_ref()
}

/// Maps the page with the state.
fn state() -> Option<&'static State> {
    const { assert!(size_of::<State>() <= PAGE) };
    let (protection, flags) =
        (libc::PROT_READ | libc::PROT_WRITE, libc::MAP_PRIVATE | libc::MAP_ANONYMOUS);
    // SAFETY: the kernel chooses the address, so no existing mapping is touched. The page is never
    // unmapped. Zeros are a valid state.
    unsafe {
        let page = libc::mmap(null_mut(), PAGE, protection, flags, -1, 0);
        if page == libc::MAP_FAILED || libc::madvise(page, PAGE, libc::MADV_WIPEONFORK) != 0 {
            return None;
        }
        let state = &*page.cast::<State>();
        STATE.store(std::ptr::from_ref(state).cast_mut(), Ordering::Release);
        if libc::pthread_atfork(None, None, Some(after_fork)) != 0 {
            return None;
        }
        Some(state)
    }
}

/// The address of the page, for [`after_fork`].
static STATE: AtomicPtr<State> = AtomicPtr::new(null_mut());

/// Called in a forked child, before the child can itself call vfork(2). Notes that the child owns
/// its memory.
extern "C" fn after_fork() {
    // SAFETY: the page is never unmapped.
    if let Some(state) = unsafe { STATE.load(Ordering::Acquire).as_ref() } {
        state.process.store(process(), Ordering::Relaxed);
    }
}

/// How the program writes to a file with this path; `None` if no pattern matches the path.
pub(crate) fn meant(path: &std::ffi::CStr) -> Option<Kind> {
    let is_match = |pattern: &CString| {
        // SAFETY: the pattern and the path are C strings.
        unsafe { libc::fnmatch(pattern.as_ptr(), path.as_ptr(), 0) == 0 }
    };
    let found = told()?.patterns.iter().find(|(_, pattern)| is_match(pattern));
    found.map(|(kind, _)| *kind)
}

/// Whether the environment of this process has a pattern for files of this kind.
pub(crate) fn is_kind_told(kind: Kind) -> bool {
    told().is_some_and(|told| told.patterns.iter().any(|(of_pattern, _)| *of_pattern == kind))
}

/// Whether the environment of this process names a keeper.
pub(crate) fn is_told() -> bool {
    told().is_some()
}

/// How this process is related to a log in its table of descriptors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// This process has opened the log.
    Taker,
    /// This process is a forked child: it has a copy of the memory and descriptors of the process
    /// that opened the log.
    Child,
    /// This process is a child of vfork(2): it uses the memory of the process that opened the log,
    /// and has a copy of its descriptors.
    Borrower,
}

/// How this process is related to a log that the process `taker` has opened.
pub(crate) fn process_here(taker: i32) -> Process {
    match process() {
        here if here == taker => Process::Taker,
        here if here == of_memory() => Process::Child,
        _ => Process::Borrower,
    }
}

/// Called when this process opens a file, which a child of vfork(2) does not do. Notes that this
/// process owns its memory.
pub(crate) fn is_own_memory() {
    if let Some(told) = told() {
        told.state.process.store(process(), Ordering::Relaxed);
    }
}

/// The id of the process that owns this memory.
fn of_memory() -> i32 {
    told().map_or(0, |told| told.state.process.load(Ordering::Relaxed))
}

/// Locks the file of a stage for this process. `slot` is the number of the slot that holds the
/// stage's log. Only the first call for a log makes the system call.
pub(crate) fn lock(slot: usize, stage: &File) {
    let Some(told) = told() else { return };
    let bit = 1 << slot;
    // A child of vfork(2) does not lock the file, because the process that owns the memory has
    // already locked it.
    if is_planted("borrowed-taken-for-own") {
        told.state.process.store(process(), Ordering::Relaxed);
    }
    if told.state.locked.load(Ordering::Relaxed) & bit == 0 && process() == of_memory() {
        // The result does not matter, because nobody mends a log while a process uses it.
        let _ = slimio_shortcut::lock_stage(stage);
        told.state.locked.fetch_or(bit, Ordering::Relaxed);
    }
}

/// Notes that the slot has no locked stage any more.
pub(crate) fn unlock(slot: usize) {
    if let Some(told) = told() {
        told.state.locked.fetch_and(!(1 << slot), Ordering::Relaxed);
    }
}

/// The process id of this process.
pub(crate) fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether the program has a low limit on open descriptors, or any limit on the size of its files.
/// This library's descriptors could exceed the first limit. The zeros that the keeper writes after
/// a log's end could exceed the second limit.
pub(crate) fn is_limited() -> bool {
    let files = getrlimit(Resource::Nofile).current;
    let bytes = getrlimit(Resource::Fsize).current;
    files.is_some_and(|files| files < DESCRIPTORS_MIN) || bytes.is_some()
}

/// Copies a descriptor for this library. If possible, the copy gets a high number, which is out of
/// the program's way.
pub(crate) fn out_of_the_way(file: impl AsFd) -> io::Result<OwnedFd> {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let first = files.min(DESCRIPTORS as u64) as i32 - DESCRIPTORS_OURS;
    let own = fcntl_dupfd_cloexec(&file, first).or_else(|_| fcntl_dupfd_cloexec(&file, 3))?;
    open_logs::keep(own.as_raw_fd());
    Ok(own)
}

/// What became of a file that this process has asked the keeper to take.
pub(crate) enum Answer {
    /// The file is left to the kernel.
    Left,
    /// The keeper has taken the file, or will take it later. Contains the number by which the
    /// keeper knows the log, and the file of the log's stage.
    Taken(u32, File),
    /// The keeper has ended while it was taking the file. The stage of this file says what has to
    /// be undone.
    Broken(OwnedFd),
}

/// Asks the keeper to take a file.
pub(crate) fn take(file: BorrowedFd<'_>, is_self_ending: bool) -> Answer {
    let Some(told) = told() else { return Answer::Left };
    let _lock = Lock::take(told.state);
    let Some(socket) = told.socket(true) else { return Answer::Left };
    let take = Message::Take { token: told.meeting.token.clone(), is_self_ending };
    if take.send(socket, &[file], true).is_err() {
        return Answer::Left;
    }
    // The keeper sends the stage before it changes the file. So if the keeper has ended without
    // sending the stage, the file is as it was.
    let Ok(Some((Message::Stage(number), stage))) = Message::receive(socket, true) else {
        return Answer::Left;
    };
    // If this process can have no further descriptor, the stage's descriptor is lost.
    let stage = stage.into_iter().next();
    match (Message::receive(socket, true), stage) {
        (Ok(Some((Message::Yes(_), _))), stage) => {
            told.state.process.store(process(), Ordering::Relaxed);
            if let Some(Ok(own)) = stage.map(out_of_the_way) {
                return Answer::Taken(number, own.into());
            }
            // Without the stage, this process can't write the log, so the keeper must give the file
            // back before the program writes to it. If the keeper has ended, its guard does that.
            if !is_planted("stage-lost-unnoticed")
                && Message::Closed(number).send(socket, &[], true).is_ok()
            {
                let _ = Message::receive(socket, true);
            }
            Answer::Left
        }
        (Ok(Some(_)), _) | (_, None) => Answer::Left,
        (_, Some(stage)) => Answer::Broken(stage),
    }
}

/// Asks the keeper for the file with the table of debts. The table says which files have changes
/// that only the kernel can make durable.
pub(crate) fn debts() -> Option<File> {
    let told = told()?;
    // This connection is closed again, because most programs open no file of whole blocks and need
    // no connection later.
    let socket = told.connected()?;
    Message::Debts(told.meeting.token.clone()).send(&socket, &[], true).ok()?;
    match Message::receive(&socket, true) {
        Ok(Some((Message::Yes(_), table))) => table.into_iter().next().map(File::from),
        _ => None,
    }
}

/// Asks the keeper to prepare a file that is written in whole blocks, and waits for the answer.
pub(crate) fn prepare(file: BorrowedFd<'_>) {
    let Some(told) = told() else { return };
    let _lock = Lock::take(told.state);
    let Some(socket) = told.socket(true) else { return };
    if Message::Whole(told.meeting.token.clone()).send(socket, &[file], true).is_ok() {
        // If the keeper has ended, nobody prepares the file.
        let _ = Message::receive(socket, true);
    }
}

/// Tells the keeper that something was appended, or that other work is due.
pub(crate) fn tell(number: u32) {
    let Some(told) = told() else { return };
    // A forked child has no connection yet. Only a thread with the lock may make a connection.
    let lock = (told.state.socket.load(Ordering::Relaxed) == 0).then(|| Lock::take(told.state));
    let socket = told.socket(true);
    drop(lock);
    if let Some(socket) = socket {
        // If the socket is full, the message is dropped. That does no harm: the keeper handles the
        // messages that fill the socket, and then looks at all logs anyway.
        let _ = Message::Appended(number).send(socket, &[], false);
    }
}

/// Tells the keeper that a file is closed, and waits until the keeper has closed the file too.
pub(crate) fn close(number: u32) {
    let Some(told) = told() else { return };
    let _lock = Lock::take(told.state);
    let Some(socket) = told.socket(false) else { return };
    if Message::Closed(number).send(socket, &[], true).is_ok() {
        // If the keeper has ended, the kernel has closed the keeper's descriptors.
        let _ = Message::receive(socket, true);
    }
}

impl Told {
    /// A new connection to the keeper.
    fn connected(&self) -> Option<OwnedFd> {
        let address = SocketAddrUnix::new_abstract_name(self.meeting.name.as_bytes()).ok()?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        Some(socket)
    }

    /// The socket to the keeper. If this process has no socket yet, `connects` decides: if it is
    /// true, this function connects to the keeper, otherwise it returns `None`.
    fn socket(&self, connects: bool) -> Option<BorrowedFd<'static>> {
        let number = match self.state.socket.load(Ordering::Acquire) {
            0 if connects => {
                let socket = out_of_the_way(self.connected()?).ok()?.into_raw_fd();
                self.state.socket.store(socket + 1, Ordering::Release);
                socket
            }
            0 => return None,
            socket => socket - 1,
        };
        // SAFETY: the socket is never closed, and the program can't close it.
        Some(unsafe { BorrowedFd::borrow_raw(number) })
    }
}

/// A lock. Only the thread that holds it may connect to the keeper, or ask the keeper and wait for
/// the answer.
struct Lock(&'static State);

impl Lock {
    fn take(state: &'static State) -> Self {
        while state.is_locked.swap(true, Ordering::Acquire) {
            std::thread::sleep(LOCK_PAUSE);
        }
        Self(state)
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        self.0.is_locked.store(false, Ordering::Release);
    }
}
