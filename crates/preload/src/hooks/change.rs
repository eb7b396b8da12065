//! Calls that seek in a file, truncate, allocate, map or copy a file, ask for a file's size, advise
//! the kernel about a file, or sync all files.
//!
//! A log is *taken* while this library writes it in place of the kernel. *Giving back* a log makes
//! the kernel write it again. The *keeper* is a process that fills a taken log's file with zeros
//! ahead of the records.

#![expect(unsafe_code, reason = "the caller's pointers are raw")]

use std::ffi::{CStr, c_char, c_int, c_uint, c_ulong, c_void};

use libc::{off_t, size_t, ssize_t};

use crate::next::{hooks, hooks_that_give_up};
use crate::open_logs::{failed, give_up, of, sync_all};
use crate::whole_files::{around, changed_at, owe_for_good};

const FICLONE: c_ulong = 0x4004_9409;
const FICLONERANGE: c_ulong = 0x4020_940d;
const FIDEDUPERANGE: c_ulong = 0xc018_9436;

fn seek(fd: c_int, offset: off_t, whence: c_int, next: impl FnOnce() -> off_t) -> off_t {
    let Some(log) = of(fd) else { return next() };
    // If a log is taken, this library knows the log's position and end. So it can answer the two
    // kinds of calls below without the kernel.
    let answer = match (whence, offset) {
        (libc::SEEK_CUR, 0) => log.position(),
        (libc::SEEK_END, 0) => log.seek_end(),
        _ => None,
    };
    answer.unwrap_or_else(|| log.seek_by_kernel(next))
}

fn cut(fd: c_int, next: impl FnOnce() -> c_int) -> c_int {
    match of(fd) {
        Some(log) => log.by_kernel(next),
        None => around([fd], next),
    }
}

/// Truncates the file that a path names. If the file is a taken log, the kernel first breaks the
/// lease that the keeper process has on the log, so the keeper gives the log back.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn cut_at(path: *const c_char, next: impl FnOnce() -> c_int) -> c_int {
    let result = next();
    if result == 0 {
        // SAFETY: the path is not null, because the call has succeeded; the caller promises that a
        // path that is not null is a C string.
        changed_at(unsafe { CStr::from_ptr(path) });
    }
    result
}

/// The descriptor of the file that a call with a path asks about: `fd` if the path is empty and the
/// flags allow an empty path, otherwise -1.
///
/// # Safety
/// `path` is null or a C string.
unsafe fn without_path(fd: c_int, path: *const c_char, flags: c_int) -> c_int {
    // SAFETY: as the caller promises.
    let is_empty = path.is_null() || unsafe { *path } == 0;
    if is_empty && flags & libc::AT_EMPTY_PATH != 0 { fd } else { -1 }
}

/// Called before a request that makes files share blocks with another file if their bytes are the
/// same. Gives the files back if they are logs. If the files are written in whole blocks, each of
/// their syncs calls the kernel from now on.
///
/// # Safety
/// `range` points to a `file_dedupe_range`, which ends with an array of `file_dedupe_range_info`.
unsafe fn deduplicate(range: *const u8) {
    const COUNT: usize = 16;
    const INFOS: usize = 24;
    const INFO_SIZE: usize = 32;
    /// The kernel refuses a request that is longer than a page.
    const COUNT_MAX: u16 = ((4096 - INFOS) / INFO_SIZE) as u16;
    // SAFETY: as the caller promises.
    let count = unsafe { range.add(COUNT).cast::<u16>().read_unaligned() };
    if count > COUNT_MAX {
        return;
    }
    for at in 0..usize::from(count) {
        // SAFETY: as the caller promises. An element of the array begins with the file's descriptor.
        let fd = unsafe { range.add(INFOS + at * INFO_SIZE).cast::<i64>().read_unaligned() };
        give_up(fd as c_int);
        owe_for_good(fd as c_int);
    }
}

/// Passes advice on to the kernel. Drops advice to read ahead in a log, because a taken file must
/// have nothing in the page cache.
fn advise(fd: c_int, advice: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if advice == libc::POSIX_FADV_WILLNEED && of(fd).is_some() { 0 } else { next() }
}

/// Maps a file. If the file is a log, gives the log back for good first, because this library does
/// not see stores to mapped memory.
fn map(fd: c_int, flags: c_int, next: impl FnOnce() -> *mut c_void) -> *mut c_void {
    give_up(fd);
    let mapped = next();
    if mapped != libc::MAP_FAILED && flags & libc::MAP_SHARED != 0 {
        owe_for_good(fd);
    }
    mapped
}

/// Corrects the size of a log in `status`. fstat(2) gives the size of the file, which includes the
/// zeros that the keeper has written after the log's end.
///
/// # Safety
/// If `result` is zero, fstat(2) has filled `status`.
unsafe fn sized(fd: c_int, result: c_int, status: *mut libc::stat) -> c_int {
    if result == 0
        && let Some(length) = of(fd).and_then(|log| log.length())
    {
        // SAFETY: as the caller promises.
        unsafe { (*status).st_size = length };
    }
    result
}

/// Allocates blocks of a file. If the file is a log, first gives the log back for good. There is
/// one exception: if `mode` keeps the file's size, no byte of the log changes, so the log stays
/// taken.
fn allocate(fd: c_int, mode: c_int, next: impl FnOnce() -> c_int) -> c_int {
    if mode != libc::FALLOC_FL_KEEP_SIZE {
        give_up(fd);
    }
    around([fd], next)
}

hooks! {
    /// fallocate(2)
    fn fallocate(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int [next] {
        allocate(fd, mode, next)
    }

    /// fallocate(2)
    fn fallocate64(fd: c_int, mode: c_int, offset: off_t, length: off_t) -> c_int [next] {
        allocate(fd, mode, next)
    }

    /// lseek(2)
    fn lseek(fd: c_int, offset: off_t, whence: c_int) -> off_t [next] {
        seek(fd, offset, whence, next)
    }

    /// lseek(2)
    fn lseek64(fd: c_int, offset: off_t, whence: c_int) -> off_t [next] {
        seek(fd, offset, whence, next)
    }

    /// truncate(2)
    fn truncate(path: *const c_char, length: off_t) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { cut_at(path, next) }
    }

    /// truncate(2)
    fn truncate64(path: *const c_char, length: off_t) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { cut_at(path, next) }
    }

    /// ftruncate(2)
    fn ftruncate(fd: c_int, length: off_t) -> c_int [next] {
        cut(fd, next)
    }

    /// ftruncate(2)
    fn ftruncate64(fd: c_int, length: off_t) -> c_int [next] {
        cut(fd, next)
    }

    /// fstat(2)
    fn fstat(fd: c_int, status: *mut libc::stat) -> c_int [next] {
        // SAFETY: if `next` returns zero, libc has filled `status`.
        unsafe { sized(fd, next(), status) }
    }

    /// fstat(2)
    fn fstat64(fd: c_int, status: *mut libc::stat) -> c_int [next] {
        // SAFETY: if `next` returns zero, libc has filled `status`; on 64-bit machines, the structs
        // are the same.
        unsafe { sized(fd, next(), status) }
    }

    /// fstat(2), as called by programs that were built with glibc before 2.33.
    fn __fxstat(version: c_int, fd: c_int, status: *mut libc::stat) -> c_int [next] {
        // SAFETY: if `next` returns zero, libc has filled `status`.
        unsafe { sized(fd, next(), status) }
    }

    /// fstat(2), as called by programs that were built with glibc before 2.33.
    fn __fxstat64(version: c_int, fd: c_int, status: *mut libc::stat) -> c_int [next] {
        // SAFETY: if `next` returns zero, libc has filled `status`; on 64-bit machines, the structs
        // are the same.
        unsafe { sized(fd, next(), status) }
    }

    /// fstatat(2)
    fn fstatat(fd: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int [next] {
        // SAFETY: if `next` returns zero, libc has filled `status`; the caller promises a path that
        // is a C string or null.
        unsafe { sized(without_path(fd, path, flags), next(), status) }
    }

    /// fstatat(2)
    fn fstatat64(fd: c_int, path: *const c_char, status: *mut libc::stat, flags: c_int) -> c_int [next] {
        // SAFETY: if `next` returns zero, libc has filled `status`; the caller promises a path that
        // is a C string or null.
        unsafe { sized(without_path(fd, path, flags), next(), status) }
    }

    /// statx(2)
    fn statx(fd: c_int, path: *const c_char, flags: c_int, mask: c_uint, status: *mut libc::statx) -> c_int [next] {
        let result = next();
        // SAFETY: the caller promises that the path is a C string or null.
        let of_fd = unsafe { without_path(fd, path, flags) };
        if result == 0
            && let Some(length) = of(of_fd).and_then(|log| log.length())
        {
            // SAFETY: libc has filled `status`.
            unsafe { (*status).stx_size = length as u64 };
        }
        result
    }

    /// sync(2)
    fn sync() -> () [next] {
        // sync(2) reports no failure. The next sync of the log itself does.
        let _ = sync_all();
        next();
    }

    /// syncfs(2). Fails also if a log on another file system can't be made durable.
    fn syncfs(fd: c_int) -> c_int [next] {
        let synced = sync_all();
        match (next(), synced) {
            (0, Err(error)) => failed(&error) as c_int,
            (result, _) => result,
        }
    }

    /// posix_fadvise(2)
    fn posix_fadvise(fd: c_int, offset: off_t, length: off_t, advice: c_int) -> c_int [next] {
        advise(fd, advice, next)
    }

    /// posix_fadvise(2)
    fn posix_fadvise64(fd: c_int, offset: off_t, length: off_t, advice: c_int) -> c_int [next] {
        advise(fd, advice, next)
    }

    /// mmap(2)
    fn mmap(at: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void [next] {
        map(fd, flags, next)
    }

    /// mmap(2)
    fn mmap64(at: *mut c_void, length: size_t, protection: c_int, flags: c_int, fd: c_int, offset: off_t) -> *mut c_void [next] {
        map(fd, flags, next)
    }

    /// ioctl(2). A request that makes two files share blocks reads one file and changes the other
    /// file.
    fn ioctl(fd: c_int, request: c_ulong, argument: usize) -> c_int [next] {
        // The kernel looks only at the lower half. A program may have sign-extended it.
        match request & 0xffff_ffff {
            FICLONE => {
                give_up(fd);
                give_up(argument as c_int);
            }
            FICLONERANGE if argument != 0 => {
                give_up(fd);
                // SAFETY: the argument points to a struct that begins with the source's descriptor,
                // as ioctl_ficlonerange(2) says.
                give_up(unsafe { *(argument as *const i64) } as c_int);
            }
            FIDEDUPERANGE if argument != 0 => {
                give_up(fd);
                // SAFETY: the argument is as ioctl_fideduperange(2) says.
                unsafe { deduplicate(argument as *const u8) };
            }
            _ => return next(),
        }
        around([fd], next)
    }
}

hooks_that_give_up! {

    /// sendfile(2)
    fn sendfile(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t: out, input;

    /// sendfile(2)
    fn sendfile64(out: c_int, input: c_int, offset: *mut off_t, count: size_t) -> ssize_t: out, input;

    /// copy_file_range(2)
    fn copy_file_range(input: c_int, from: *mut off_t, out: c_int, to: *mut off_t, count: size_t, flags: c_uint) -> ssize_t: out, input;

    /// splice(2)
    fn splice(input: c_int, from: *mut off_t, out: c_int, to: *mut off_t, count: size_t, flags: c_uint) -> ssize_t: out, input;

    /// posix_fallocate(3)
    fn posix_fallocate(fd: c_int, offset: off_t, length: off_t) -> c_int: fd;

    /// posix_fallocate(3)
    fn posix_fallocate64(fd: c_int, offset: off_t, length: off_t) -> c_int: fd;
}
