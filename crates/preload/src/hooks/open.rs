//! Calls that open files.

#![expect(unsafe_code, reason = "the caller's pointers are raw")]

use std::ffi::{CStr, CString, c_char, c_int};
use std::os::fd::BorrowedFd;

use libc::{FILE, mode_t};
use rustix::fs::OFlags;
use slimio_shortcut::Kind;

use crate::next::{errno, hooks, set_errno};
use crate::{meeting, open_logs, whole_files};

/// A descriptor that is opened with one of these flags is not for writing.
const OTHERS: c_int = libc::O_PATH | libc::O_DIRECTORY;
/// If the program opens a log with one of these flags, the log's writes do not take the short path
/// (direct overwrites of blocks that were written before), because the writes are already direct or
/// durable.
const OTHER_LOGS: c_int = libc::O_DIRECT | libc::O_DSYNC;

/// Called when the program has opened a descriptor. If the file is open for writing, and is a log
/// or a file that is written in whole blocks, starts to serve the file by the short path.
fn opened(descriptor: c_int, flags: c_int) -> c_int {
    let is_for_writing = flags & libc::O_ACCMODE != libc::O_RDONLY;
    if descriptor >= 0 && is_for_writing && flags & OTHERS == 0 && meeting::is_told() {
        let error = errno();
        // A stream of libc may have closed an earlier file with the same descriptor number. This
        // library does not see that, so it still has the earlier file.
        open_logs::close(descriptor);
        whole_files::close(descriptor);
        match meant(descriptor) {
            Some(Kind::WholeBlocks) => whole_files::opened(descriptor, flags),
            Some(kind @ (Kind::Log | Kind::SelfEnding))
                if flags & OTHER_LOGS == 0 && !meeting::is_limited() =>
            {
                let kept = OFlags::APPEND | OFlags::NONBLOCK;
                open_logs::opened(descriptor, flags & kept.bits() as c_int, kind);
            }
            _ => {}
        }
        set_errno(error);
    }
    descriptor
}

/// Called when the program has opened a stream. If the stream may write to a file of whole blocks,
/// notes that this library does not see the stream's writes.
///
/// # Safety
/// `mode` is a C string, and fopen(3) has returned `stream` for it.
unsafe fn opened_by_stream(stream: *mut FILE, mode: *const c_char) -> *mut FILE {
    // SAFETY: as the caller promises.
    let is_for_writing = !stream.is_null() && unsafe { CStr::from_ptr(mode) } != c"r";
    if is_for_writing && meeting::is_kind_told(Kind::WholeBlocks) {
        let error = errno();
        // SAFETY: as the caller promises.
        let descriptor = unsafe { libc::fileno(stream) };
        if meant(descriptor) == Some(Kind::WholeBlocks) {
            whole_files::opened_by_stream(descriptor);
        }
        set_errno(error);
    }
    stream
}

/// How the program writes to the file that it has opened. `None` if no pattern in the program's
/// environment matches the file's path, or if the file is not a regular file.
fn meant(descriptor: c_int) -> Option<Kind> {
    // SAFETY: the descriptor was opened just now.
    let file = unsafe { BorrowedFd::borrow_raw(descriptor) };
    let is_regular = rustix::fs::fstat(file).is_ok_and(|found| {
        rustix::fs::FileType::from_raw_mode(found.st_mode) == rustix::fs::FileType::RegularFile
    });
    let link = format!("/proc/self/fd/{descriptor}");
    let path = is_regular.then(|| std::fs::read_link(link).ok()).flatten();
    let path = path.and_then(|path| CString::new(path.into_os_string().into_encoded_bytes()).ok());
    path.and_then(|path| meeting::meant(&path))
}

// A program passes `mode` only if its call may create a file. In all other calls, the functions
// below pass on whatever the argument's register contains.
hooks! {
    /// open(2)
    fn open(path: *const c_char, flags: c_int, mode: mode_t) -> c_int [next] {
        opened(next(), flags)
    }

    /// open(2)
    fn open64(path: *const c_char, flags: c_int, mode: mode_t) -> c_int [next] {
        opened(next(), flags)
    }

    /// openat(2)
    fn openat(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int [next] {
        opened(next(), flags)
    }

    /// openat(2)
    fn openat64(folder: c_int, path: *const c_char, flags: c_int, mode: mode_t) -> c_int [next] {
        opened(next(), flags)
    }

    /// fopen(3)
    fn fopen(path: *const c_char, mode: *const c_char) -> *mut FILE [next] {
        // SAFETY: as the caller promises.
        unsafe { opened_by_stream(next(), mode) }
    }

    /// fopen(3)
    fn fopen64(path: *const c_char, mode: *const c_char) -> *mut FILE [next] {
        // SAFETY: as the caller promises.
        unsafe { opened_by_stream(next(), mode) }
    }

    /// creat(2)
    fn creat(path: *const c_char, mode: mode_t) -> c_int [next] {
        opened(next(), libc::O_WRONLY)
    }

    /// creat(2)
    fn creat64(path: *const c_char, mode: mode_t) -> c_int [next] {
        opened(next(), libc::O_WRONLY)
    }

    /// open(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __open_2(path: *const c_char, flags: c_int) -> c_int [next] {
        opened(next(), flags)
    }

    /// open(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __open64_2(path: *const c_char, flags: c_int) -> c_int [next] {
        opened(next(), flags)
    }

    /// openat(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __openat_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int [next] {
        opened(next(), flags)
    }

    /// openat(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __openat64_2(folder: c_int, path: *const c_char, flags: c_int) -> c_int [next] {
        opened(next(), flags)
    }
}
