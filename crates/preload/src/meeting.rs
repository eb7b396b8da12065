//! The connection to the keeper.
//!
//! Its state is in a page that the kernel fills with zeros in a forked child (`MADV_WIPEONFORK`), so
//! that a child neither uses its parent's connection nor waits for a lock that a thread of its parent
//! holds. A child of vfork(2) has the page of its parent.

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

/// Descriptors of this library have the last numbers that are possible, so that they do not take those
/// that a program expects for its own. There is room for this many.
const DESCRIPTORS_OURS: i32 = 160;
/// A program that may have fewer descriptors is left alone.
const DESCRIPTORS_MIN: u64 = 512;
const PAGE: usize = 4096;
const LOCK_PAUSE: Duration = Duration::from_micros(50);

/// Where to meet the keeper, and which files are meant.
struct Told {
    meeting: Meeting,
    patterns: Vec<(Kind, CString)>,
    state: &'static State,
}

/// What a forked child finds as zeros.
struct State {
    is_locked: AtomicBool,
    /// The socket's descriptor, plus one.
    socket: AtomicI32,
    /// The process whose memory this is.
    process: AtomicI32,
    /// A bit for each slot whose stage this process has locked.
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

/// Maps the page.
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

/// Where the page is, for [`after_fork`].
static STATE: AtomicPtr<State> = AtomicPtr::new(null_mut());

/// A forked child says whose memory this is now, before it can have a child by vfork(2).
extern "C" fn after_fork() {
    // SAFETY: the page is there for good.
    if let Some(state) = unsafe { STATE.load(Ordering::Acquire).as_ref() } {
        state.process.store(process(), Ordering::Relaxed);
    }
}

/// How files of this path are written, if they are meant.
pub(crate) fn meant(path: &std::ffi::CStr) -> Option<Kind> {
    let is_match = |pattern: &CString| {
        // SAFETY: both are C strings.
        unsafe { libc::fnmatch(pattern.as_ptr(), path.as_ptr(), 0) == 0 }
    };
    let found = told()?.patterns.iter().find(|(_, pattern)| is_match(pattern));
    found.map(|(kind, _)| *kind)
}

/// Whether files of a kind are meant.
pub(crate) fn is_kind_told(kind: Kind) -> bool {
    told().is_some_and(|told| told.patterns.iter().any(|(of_pattern, _)| *of_pattern == kind))
}

/// Whether any file could be meant.
pub(crate) fn is_told() -> bool {
    told().is_some()
}

/// What this process has to do with a log in its table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Process {
    /// It has opened the log.
    Taker,
    /// It has a copy of the memory and of the descriptors of the one that has.
    Child,
    /// It uses the memory of the one that has, as a child of vfork(2) does, and has a copy of its
    /// descriptors.
    Borrower,
}

/// What this process has to do with a log that the process `taker` has opened.
pub(crate) fn process_here(taker: i32) -> Process {
    match process() {
        here if here == taker => Process::Taker,
        here if here == of_memory() => Process::Child,
        _ => Process::Borrower,
    }
}

/// This process opens a file, so this is its memory, and not borrowed.
pub(crate) fn is_own_memory() {
    if let Some(told) = told() {
        told.state.process.store(process(), Ordering::Relaxed);
    }
}

/// The process whose memory this is.
fn of_memory() -> i32 {
    told().map_or(0, |told| told.state.process.load(Ordering::Relaxed))
}

/// Has a stage's file locked by this process, whose number in the table is `slot`. This makes a system
/// call only once.
pub(crate) fn lock(slot: usize, stage: &File) {
    let Some(told) = told() else { return };
    let bit = 1 << slot;
    // A child of vfork(2) lets the process that it borrows the memory from do it.
    if is_planted("borrowed-taken-for-own") {
        told.state.process.store(process(), Ordering::Relaxed);
    }
    if told.state.locked.load(Ordering::Relaxed) & bit == 0 && process() == of_memory() {
        // Nobody mends a log that is in use.
        let _ = slimio_shortcut::lock_stage(stage);
        told.state.locked.fetch_or(bit, Ordering::Relaxed);
    }
}

/// A slot is free again.
pub(crate) fn unlock(slot: usize) {
    if let Some(told) = told() {
        told.state.locked.fetch_and(!(1 << slot), Ordering::Relaxed);
    }
}

/// The number of this process.
pub(crate) fn process() -> i32 {
    rustix::process::getpid().as_raw_nonzero().get()
}

/// Whether the program has so few descriptors, or so short files, that it may count on the limit. Ours
/// would be too much.
pub(crate) fn is_limited() -> bool {
    let files = getrlimit(Resource::Nofile).current;
    let bytes = getrlimit(Resource::Fsize).current;
    files.is_some_and(|files| files < DESCRIPTORS_MIN) || bytes.is_some()
}

/// A descriptor of this library for the same open file. Its number is out of the program's way.
pub(crate) fn out_of_the_way(file: impl AsFd) -> io::Result<OwnedFd> {
    let files = getrlimit(Resource::Nofile).current.unwrap_or(u64::MAX);
    let first = files.min(DESCRIPTORS as u64) as i32 - DESCRIPTORS_OURS;
    let own = fcntl_dupfd_cloexec(&file, first).or_else(|_| fcntl_dupfd_cloexec(&file, 3))?;
    open_logs::keep(own.as_raw_fd());
    Ok(own)
}

/// Asks the keeper to take a file. Returns its number there and the stage's file, or `None` if it is
/// left to the kernel.
///
/// # Errors
/// If the keeper is gone: the file may be taken in part.
pub(crate) fn take(file: BorrowedFd<'_>, is_self_ending: bool) -> io::Result<Option<(u32, File)>> {
    let Some(told) = told() else { return Ok(None) };
    let _lock = Lock::take(told.state);
    let Some(socket) = told.socket(true) else { return Ok(None) };
    // If this fails, the keeper has not got it.
    let take = Message::Take { token: told.meeting.token.clone(), is_self_ending };
    if take.send(socket, &[file], true).is_err() {
        return Ok(None);
    }
    match Message::receive(socket, true)? {
        Some((Message::Yes(number), stage)) if !stage.is_empty() => {
            let stage = stage.into_iter().next().expect("there is one");
            told.state.process.store(process(), Ordering::Relaxed);
            Ok(Some((number, out_of_the_way(stage)?.into())))
        }
        Some((Message::No, _)) => Ok(None),
        _ => Err(io::ErrorKind::UnexpectedEof.into()),
    }
}

/// Asks the keeper for the table of debts.
pub(crate) fn debts() -> Option<File> {
    let told = told()?;
    // The connection is closed again: most programs that are started open no such file.
    let socket = told.connected()?;
    Message::Debts(told.meeting.token.clone()).send(&socket, &[], true).ok()?;
    match Message::receive(&socket, true) {
        Ok(Some((Message::Yes(_), table))) => table.into_iter().next().map(File::from),
        _ => None,
    }
}

/// Has the keeper prepare a file that is written in whole blocks, and waits for it.
pub(crate) fn prepare(file: BorrowedFd<'_>) {
    let Some(told) = told() else { return };
    let _lock = Lock::take(told.state);
    let Some(socket) = told.socket(true) else { return };
    if Message::Whole(told.meeting.token.clone()).send(socket, &[file], true).is_ok() {
        // If the keeper is gone, the file is as it is.
        let _ = Message::receive(socket, true);
    }
}

/// Tells the keeper that something was appended, or that there is something to do.
pub(crate) fn tell(number: u32) {
    let Some(told) = told() else { return };
    // A forked child has no connection yet.
    let lock = (told.state.socket.load(Ordering::Relaxed) == 0).then(|| Lock::take(told.state));
    let socket = told.socket(true);
    drop(lock);
    if let Some(socket) = socket {
        // If it takes no more now, it is busy with what it was told, and looks at everything.
        let _ = Message::Appended(number).send(socket, &[], false);
    }
}

/// Tells the keeper that a file is closed, and waits until it has closed it, too.
pub(crate) fn close(number: u32) {
    let Some(told) = told() else { return };
    let _lock = Lock::take(told.state);
    let Some(socket) = told.socket(false) else { return };
    if Message::Closed(number).send(socket, &[], true).is_ok() {
        // If the keeper is gone, its descriptors are closed, too.
        let _ = Message::receive(socket, true);
    }
}

impl Told {
    /// A new connection.
    fn connected(&self) -> Option<OwnedFd> {
        let address = SocketAddrUnix::new_abstract_name(self.meeting.name.as_bytes()).ok()?;
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None).ok()?;
        rustix::net::connect(&socket, &address).ok()?;
        Some(socket)
    }

    /// The socket. If this process has none yet, it may connect.
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
        // SAFETY: it is never closed, and the program can't close it.
        Some(unsafe { BorrowedFd::borrow_raw(number) })
    }
}

/// One thread at a time asks and waits for the answer.
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
