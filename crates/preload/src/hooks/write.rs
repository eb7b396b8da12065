//! Calls that write and sync.

#![expect(unsafe_code, reason = "the caller's pointers are raw")]

use std::ffi::{c_int, c_uint, c_void};
use std::io::IoSlice;

use libc::{iovec, off_t, size_t, ssize_t};

use crate::next::hooks;
use crate::open_logs::{give_up, of};
use crate::whole_files;

/// The kernel never writes more bytes than this in one call.
const BYTES_MAX: usize = 0x7fff_f000;
const BUFFERS_MAX: c_int = 1024;

/// The caller's buffers. `None` if there are no buffers, if the kernel would not take all of them
/// in one call, or if a buffer's pointer is null.
///
/// # Safety
/// As for writev(2): each of the `count` buffers can be read.
unsafe fn slices<'a>(buffers: *const iovec, count: c_int) -> Option<&'a [IoSlice<'a>]> {
    if !(1..=BUFFERS_MAX).contains(&count) {
        return None;
    }
    // SAFETY: as the caller promises.
    let lengths = unsafe { std::slice::from_raw_parts(buffers, count as usize) };
    // The pointer of a slice must not be null, even if the slice is empty.
    if lengths.iter().any(|buffer| buffer.iov_base.is_null()) {
        return None;
    }
    lengths
        .iter()
        .try_fold(0_usize, |sum, buffer| sum.checked_add(buffer.iov_len))
        .filter(|sum| *sum <= BYTES_MAX)?;
    // SAFETY: an `IoSlice` is an `iovec` that can be read, as the caller promises.
    Some(unsafe { std::slice::from_raw_parts(buffers.cast(), count as usize) })
}

/// Writes at an offset.
///
/// # Safety
/// As for pwrite(2): the `count` bytes at `bytes` can be read.
unsafe fn write_at(
    fd: c_int,
    bytes: *const c_void,
    count: size_t,
    offset: off_t,
    next: impl Fn() -> ssize_t,
) -> ssize_t {
    let buffer = iovec { iov_base: bytes.cast_mut(), iov_len: count };
    // SAFETY: as the caller promises.
    unsafe { write_all_at(fd, &raw const buffer, 1, offset, 0, next) }
}

/// Writes several buffers at an offset. If the offset is -1, writes them at the file's position.
///
/// # Safety
/// As for pwritev2(2): each of the `count` buffers can be read.
unsafe fn write_all(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    (offset, flags): (off_t, c_int),
    next: impl Fn() -> ssize_t,
) -> ssize_t {
    if offset != -1 || flags != 0 {
        // SAFETY: as the caller promises.
        return unsafe { write_all_at(fd, buffers, count, offset, flags, next) };
    }
    match of(fd) {
        // SAFETY: as the caller promises.
        Some(log) => match unsafe { slices(buffers, count) } {
            Some(buffers) => log.write(buffers, next),
            None => log.by_kernel(next),
        },
        None => whole_files::write(fd, next),
    }
}

/// Writes several buffers at an offset.
///
/// # Safety
/// As for pwritev2(2): each of the `count` buffers can be read.
unsafe fn write_all_at(
    fd: c_int,
    buffers: *const iovec,
    count: c_int,
    offset: off_t,
    flags: c_int,
    next: impl Fn() -> ssize_t,
) -> ssize_t {
    // SAFETY: as the caller promises.
    let pieces = || unsafe { slices(buffers, count) }.filter(|_| flags == 0);
    if let Some(log) = of(fd) {
        if let Some(pieces) = pieces() {
            return log.write_at(pieces, offset, next);
        }
        give_up(fd);
        return next();
    }
    let Some(file) = whole_files::of(fd) else { return next() };
    match pieces() {
        Some(pieces) => file.write_at(pieces, offset, next),
        None => file.by_kernel(next),
    }
}

hooks! {
    /// write(2)
    fn write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t [next] {
        match of(fd) {
            Some(log) if (1..=BYTES_MAX).contains(&count) && !bytes.is_null() => {
                // SAFETY: the caller's bytes can be read, as write(2) demands.
                let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), count) };
                log.write(&[IoSlice::new(bytes)], next)
            }
            Some(log) if count > 0 => log.by_kernel(next),
            _ => whole_files::write(fd, next),
        }
    }

    /// writev(2)
    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_all(fd, buffers, count, (-1, 0), next) }
    }

    /// fsync(2)
    fn fsync(fd: c_int) -> c_int [next] {
        match of(fd) {
            Some(log) => log.sync(next),
            None => whole_files::sync(fd, true, next),
        }
    }

    /// fdatasync(2)
    fn fdatasync(fd: c_int) -> c_int [next] {
        match of(fd) {
            Some(log) => log.sync(next),
            None => whole_files::sync(fd, false, next),
        }
    }

    /// sync_file_range(2). Syncs a log as a whole, although the program asked only for a range.
    fn sync_file_range(fd: c_int, offset: off_t, count: off_t, flags: c_uint) -> c_int [next] {
        if let Some(log) = of(fd)
            && log.sync(|| 0) != 0
        {
            return -1;
        }
        next()
    }

    /// pwrite(2)
    fn pwrite(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_at(fd, bytes, count, offset, next) }
    }

    /// pwrite(2)
    fn pwrite64(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_at(fd, bytes, count, offset, next) }
    }

    /// pwritev(2)
    fn pwritev(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_all_at(fd, buffers, count, offset, 0, next) }
    }

    /// pwritev(2)
    fn pwritev64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_all_at(fd, buffers, count, offset, 0, next) }
    }

    /// pwritev2(2)
    fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_all(fd, buffers, count, (offset, flags), next) }
    }

    /// pwritev2(2)
    fn pwritev64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t [next] {
        // SAFETY: as the caller promises.
        unsafe { write_all(fd, buffers, count, (offset, flags), next) }
    }
}
