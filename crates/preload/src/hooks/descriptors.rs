//! Closing, copying and handing on descriptors.

#![expect(unsafe_code, reason = "they have the names of libc's functions")]

use std::ffi::{c_char, c_int, c_uint};

use libc::FILE;

use crate::next::hooks;
use crate::open_logs::{failed, is_own, leave, leave_all, of};

/// `CLOSE_RANGE_CLOEXEC`: nothing is closed yet.
const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// Closes what `next` closes. A write that has failed is told as close(2) tells it.
fn close_by(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let left = leave(fd);
    if is_own(fd) {
        return 0;
    }
    let closed = next();
    match left {
        Some(Err(error)) if closed == 0 => failed(&error) as c_int,
        _ => closed,
    }
}

/// Closes a range of descriptors but for those of this library.
fn close_all(first: c_uint, last: c_uint, next: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    let mut start = first;
    for fd in first..=last.min(1 << 16) {
        leave(fd as c_int);
        if is_own(fd as c_int) {
            if start < fd {
                let closed = next(start, fd - 1);
                if closed != 0 {
                    return closed;
                }
            }
            start = fd + 1;
        }
    }
    if start <= last { next(start, last) } else { 0 }
}

fn close_range_by_kernel(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the call takes numbers; the caller wants these descriptors closed.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
}

/// Gives all logs back before the process becomes another program. A child of vfork(2), which shares
/// this process's memory, leaves them alone.
fn before_exec() {
    if crate::meeting::is_process_of_taker() {
        leave_all();
    }
}

hooks! {
    /// close(2)
    fn close(fd: c_int) -> c_int [next] {
        close_by(fd, next)
    }

    /// close_range(2)
    fn close_range(first: c_uint, last: c_uint, flags: c_int) -> c_int {
        if flags & CLOSE_RANGE_CLOEXEC != 0 {
            return close_range_by_kernel(first, last, flags);
        }
        close_all(first, last, |first, last| close_range_by_kernel(first, last, flags))
    }

    /// closefrom(3)
    fn closefrom(first: c_int) -> () {
        close_all(first.max(0) as c_uint, c_uint::MAX, |first, last| {
            close_range_by_kernel(first, last, 0)
        });
    }

    /// dup(2)
    fn dup(fd: c_int) -> c_int [next] {
        leave(fd);
        next()
    }

    /// dup2(2)
    fn dup2(fd: c_int, other: c_int) -> c_int [next] {
        leave(fd);
        leave(other);
        next()
    }

    /// dup3(2)
    fn dup3(fd: c_int, other: c_int, flags: c_int) -> c_int [next] {
        leave(fd);
        leave(other);
        next()
    }

    /// fcntl(2)
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int [next] {
        control(fd, command, next)
    }

    /// fcntl(2)
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int [next] {
        control(fd, command, next)
    }

    /// fdopen(3)
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE [next] {
        leave(fd);
        next()
    }

    /// execve(2)
    fn execve(path: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int [next] {
        before_exec();
        next()
    }

    /// execv(3)
    fn execv(path: *const c_char, words: *const *const c_char) -> c_int [next] {
        before_exec();
        next()
    }

    /// execvp(3)
    fn execvp(file: *const c_char, words: *const *const c_char) -> c_int [next] {
        before_exec();
        next()
    }

    /// execvpe(3)
    fn execvpe(file: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int [next] {
        before_exec();
        next()
    }
}

fn control(fd: c_int, command: c_int, next: impl FnOnce() -> c_int) -> c_int {
    match command {
        libc::F_GETFL => {
            let log = of(fd);
            let flags = next();
            log.map_or(flags, |log| if flags < 0 { flags } else { log.flags(flags) })
        }
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC | libc::F_SETFL => {
            leave(fd);
            next()
        }
        _ => next(),
    }
}
