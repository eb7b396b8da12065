//! The functions of libc that read a file. A file is *taken* while this library writes it in place
//! of the kernel. The library itself serves read(2) and pread(2) of a taken file. Before any other
//! call that reads the file, the library gives the file back: from then on, the kernel writes it
//! again.

#![expect(unsafe_code, reason = "the caller's pointers are raw")]

use std::ffi::{c_int, c_void};

use libc::{iovec, off_t, size_t, ssize_t};

use crate::next::{hooks, hooks_that_give_up};
use crate::open_logs::of;

/// The kernel never reads more bytes than this in one call.
const BYTES_MAX: usize = 0x7fff_f000;

/// # Safety
/// As for read(2): the `count` bytes at `bytes` can be written.
unsafe fn read_next(
    fd: c_int,
    bytes: *mut c_void,
    count: size_t,
    next: impl Fn() -> ssize_t,
) -> ssize_t {
    match of(fd) {
        Some(log) if (1..=BYTES_MAX).contains(&count) && !bytes.is_null() => log.read(
            // SAFETY: as the caller promises.
            |log| log.read(unsafe { std::slice::from_raw_parts_mut(bytes.cast(), count) }),
            next,
        ),
        Some(log) if count > 0 => log.by_kernel(next),
        _ => next(),
    }
}

/// # Safety
/// As for pread(2): the `count` bytes at `bytes` can be written.
unsafe fn read_at(
    fd: c_int,
    bytes: *mut c_void,
    count: size_t,
    offset: off_t,
    next: impl Fn() -> ssize_t,
) -> ssize_t {
    match (of(fd), u64::try_from(offset)) {
        (Some(log), Ok(offset)) if (1..=BYTES_MAX).contains(&count) && !bytes.is_null() => log
            .read(
                |log| {
                    // SAFETY: as the caller promises.
                    let bytes = unsafe { std::slice::from_raw_parts_mut(bytes.cast(), count) };
                    log.read_at(bytes, offset)
                },
                next,
            ),
        (Some(log), Ok(_)) if count > 0 => log.by_kernel(next),
        _ => next(),
    }
}

hooks! {
    /// read(2)
    fn read(fd: c_int, bytes: *mut c_void, count: size_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { read_next(fd, bytes, count, next) }
    }

    /// pread(2)
    fn pread(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { read_at(fd, bytes, count, offset, next) }
    }

    /// pread(2)
    fn pread64(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { read_at(fd, bytes, count, offset, next) }
    }
}

hooks_that_give_up! {
    /// readv(2)
    fn readv(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t: fd;

    /// preadv(2)
    fn preadv(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t: fd;

    /// preadv(2)
    fn preadv64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t: fd;

    /// preadv2(2)
    fn preadv2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t: fd;

    /// preadv2(2)
    fn preadv64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t: fd;

    /// read(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __read_chk(fd: c_int, bytes: *mut c_void, count: size_t, size: size_t) -> ssize_t: fd;

    /// pread(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __pread_chk(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t, size: size_t) -> ssize_t: fd;

    /// pread(2), as programs that were built with `_FORTIFY_SOURCE` call it.
    fn __pread64_chk(fd: c_int, bytes: *mut c_void, count: size_t, offset: off_t, size: size_t) -> ssize_t: fd;
}
