//! Calls that close, copy or hand on descriptors.

#![expect(unsafe_code, reason = "the functions replace libc's functions of the same names")]

use std::ffi::{c_char, c_int, c_uint, c_void};

use libc::{FILE, mmsghdr, msghdr, pid_t, rlimit, ssize_t};
use rustix::io::Errno;

use crate::next::hooks;
use crate::open_logs::{
    DESCRIPTORS, close as close_log, failed, give_all_up, give_up, give_up_before_exec, is_own, of,
};
use crate::whole_files;

/// `CLOSE_RANGE_CLOEXEC`: the kernel closes the descriptors only at the process's next exec.
const CLOSE_RANGE_CLOEXEC: c_int = 4;

/// Leaves the file of a descriptor to the kernel. From now on, another process or a stream of libc
/// may write to the file, and this library does not see those writes.
pub(super) fn hand_on(fd: c_int) {
    give_up(fd);
    whole_files::owe_for_good(fd);
}

/// Closes a descriptor with `next`. If some bytes of a log could not be made durable, returns the
/// error as close(2) does.
fn close_by(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    let left = close_log(fd);
    whole_files::close(fd);
    if is_own(fd) {
        return failed(&Errno::BADF.into()) as c_int;
    }
    let closed = next();
    match left {
        Some(Err(error)) if closed == 0 => failed(&error) as c_int,
        _ => closed,
    }
}

/// Closes a range of descriptors, except this library's own.
fn close_all(first: c_uint, last: c_uint, next: impl Fn(c_uint, c_uint) -> c_int) -> c_int {
    if first > last {
        return next(first, last);
    }
    let mut start = first;
    for fd in first..=last.min(DESCRIPTORS as c_uint) {
        close_log(fd as c_int);
        whole_files::close(fd as c_int);
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

/// Makes `other` a copy of `fd`.
fn copy_to(fd: c_int, other: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if is_own(other) {
        // dup2(2) itself returns this error if another thread is just taking the number `other`.
        return failed(&Errno::BUSY.into()) as c_int;
    }
    hand_on(fd);
    if fd != other {
        close_log(other);
        whole_files::close(other);
    }
    next()
}

/// Leaves files to the kernel if a message hands their descriptors to another process.
///
/// # Safety
/// As for sendmsg(2).
unsafe fn give_up_sent(message: *const msghdr) {
    // SAFETY: as the caller promises, the message and its ancillary data can be read.
    unsafe {
        if message.is_null() || (*message).msg_controllen == 0 {
            return;
        }
        let mut part = libc::CMSG_FIRSTHDR(message);
        while !part.is_null() {
            if ((*part).cmsg_level, (*part).cmsg_type) == (libc::SOL_SOCKET, libc::SCM_RIGHTS) {
                let bytes = (*part).cmsg_len - libc::CMSG_LEN(0) as usize;
                let descriptors = libc::CMSG_DATA(part).cast::<[u8; size_of::<c_int>()]>();
                for number in 0..bytes / size_of::<c_int>() {
                    hand_on(c_int::from_ne_bytes(*descriptors.add(number)));
                }
            }
            part = libc::CMSG_NXTHDR(message, part);
        }
    }
}

/// Gives all logs back to the kernel for good before the program limits the size of its files.
/// Otherwise, the limit would also apply to zeros that this process writes after a log's end: zeros
/// fill up the log's last block, and if the keeper (the process that looks after the logs) is too
/// slow, this process adds further zeros itself.
///
/// # Safety
/// `limit` is null or points to an `rlimit` that can be read.
unsafe fn before_limit(resource: c_uint, limit: *const rlimit) {
    // SAFETY: as the caller promises.
    let is_limit = !limit.is_null() && unsafe { (*limit).rlim_cur } != libc::RLIM_INFINITY;
    if resource == libc::RLIMIT_FSIZE && is_limit {
        give_all_up();
    }
}

fn close_range_by_kernel(first: c_uint, last: c_uint, flags: c_int) -> c_int {
    // SAFETY: the call takes only numbers, and the caller wants these descriptors closed.
    unsafe { libc::syscall(libc::SYS_close_range, first, last, flags) as c_int }
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

    /// dup2(2)
    fn dup2(fd: c_int, other: c_int) -> c_int [next] {
        copy_to(fd, other, next)
    }

    /// dup3(2)
    fn dup3(fd: c_int, other: c_int, flags: c_int) -> c_int [next] {
        copy_to(fd, other, next)
    }

    /// fcntl(2)
    fn fcntl(fd: c_int, command: c_int, argument: usize) -> c_int [next] {
        control(fd, command, next)
    }

    /// fcntl(2)
    fn fcntl64(fd: c_int, command: c_int, argument: usize) -> c_int [next] {
        control(fd, command, next)
    }

    /// sendmsg(2)
    fn sendmsg(socket: c_int, message: *const msghdr, flags: c_int) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { give_up_sent(message) };
        next()
    }

    /// sendmmsg(2)
    fn sendmmsg(socket: c_int, messages: *mut mmsghdr, count: c_uint, flags: c_int) -> c_int [next] {
        for number in 0..count as usize {
            // SAFETY: as the caller promises.
            unsafe { give_up_sent(&raw const (*messages.add(number)).msg_hdr) };
        }
        next()
    }

    /// posix_spawn(3)
    fn posix_spawn(
        pid: *mut pid_t, path: *const c_char, actions: *const c_void, attributes: *const c_void,
        words: *const *mut c_char, environment: *const *mut c_char,
    ) -> c_int [next] {
        give_up_before_exec(false);
        next()
    }

    /// posix_spawn(3)
    fn posix_spawnp(
        pid: *mut pid_t, file: *const c_char, actions: *const c_void, attributes: *const c_void,
        words: *const *mut c_char, environment: *const *mut c_char,
    ) -> c_int [next] {
        give_up_before_exec(false);
        next()
    }

    /// system(3)
    fn system(command: *const c_char) -> c_int [next] {
        give_up_before_exec(false);
        next()
    }

    /// popen(3)
    fn popen(command: *const c_char, mode: *const c_char) -> *mut FILE [next] {
        give_up_before_exec(false);
        next()
    }

    /// vdprintf(3). On x86-64, `arguments` (a `va_list`) is passed as a pointer.
    #[cfg(target_arch = "x86_64")]
    fn vdprintf(fd: c_int, format: *const c_char, arguments: *mut c_void) -> c_int [next] {
        hand_on(fd);
        next()
    }

    /// backtrace_symbols_fd(3)
    fn backtrace_symbols_fd(addresses: *const *mut c_void, count: c_int, fd: c_int) -> () [next] {
        hand_on(fd);
        next();
    }

    /// setrlimit(2)
    fn setrlimit(resource: c_uint, limit: *const rlimit) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { before_limit(resource, limit) };
        next()
    }

    /// setrlimit(2)
    fn setrlimit64(resource: c_uint, limit: *const rlimit) -> c_int [next] {
        // SAFETY: as the caller promises; on 64-bit machines, the structs are the same.
        unsafe { before_limit(resource, limit) };
        next()
    }

    /// prlimit(2)
    fn prlimit(pid: pid_t, resource: c_uint, limit: *const rlimit, old: *mut rlimit) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { before_limit(resource, limit) };
        next()
    }

    /// prlimit(2)
    fn prlimit64(pid: pid_t, resource: c_uint, limit: *const rlimit, old: *mut rlimit) -> c_int [next] {
        // SAFETY: as the caller promises; on 64-bit machines, the structs are the same.
        unsafe { before_limit(resource, limit) };
        next()
    }

    /// execve(2)
    fn execve(path: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int [next] {
        give_up_before_exec(true);
        next()
    }

    /// execv(3)
    fn execv(path: *const c_char, words: *const *const c_char) -> c_int [next] {
        give_up_before_exec(true);
        next()
    }

    /// execvp(3)
    fn execvp(file: *const c_char, words: *const *const c_char) -> c_int [next] {
        give_up_before_exec(true);
        next()
    }

    /// fexecve(3)
    fn fexecve(fd: c_int, words: *const *const c_char, environment: *const *const c_char) -> c_int [next] {
        give_up_before_exec(true);
        next()
    }

    /// execveat(2)
    fn execveat(
        folder: c_int, path: *const c_char, words: *const *const c_char,
        environment: *const *const c_char, flags: c_int,
    ) -> c_int [next] {
        give_up_before_exec(true);
        next()
    }

    /// execvpe(3)
    fn execvpe(file: *const c_char, words: *const *const c_char, environment: *const *const c_char) -> c_int [next] {
        give_up_before_exec(true);
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
        libc::F_DUPFD | libc::F_DUPFD_CLOEXEC => {
            hand_on(fd);
            next()
        }
        libc::F_SETFL => {
            give_up(fd);
            next()
        }
        _ => next(),
    }
}

hooks! {
    /// dup(2)
    fn dup(fd: c_int) -> c_int [next] {
        hand_on(fd);
        next()
    }

    /// fdopen(3)
    fn fdopen(fd: c_int, mode: *const c_char) -> *mut FILE [next] {
        hand_on(fd);
        next()
    }

    /// posix_spawn_file_actions_adddup2(3)
    fn posix_spawn_file_actions_adddup2(actions: *mut c_void, fd: c_int, other: c_int) -> c_int [next] {
        hand_on(fd);
        next()
    }
}
