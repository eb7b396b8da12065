//! Writing and syncing.

#![expect(unsafe_code, reason = "the caller's pointers are raw")]

use std::ffi::{c_int, c_uint, c_void};
use std::io::IoSlice;

use libc::{iovec, off_t, size_t, ssize_t};

use crate::next::hooks;
use crate::open_logs::{leave, of};

/// The caller's buffers.
///
/// # Safety
/// As for writev(2): each of the `count` buffers can be read.
unsafe fn slices<'a>(buffers: *const iovec, count: c_int) -> &'a [IoSlice<'a>] {
    if count <= 0 {
        return &[];
    }
    // SAFETY: an `IoSlice` is an `iovec` that can be read, as the caller promises.
    unsafe { std::slice::from_raw_parts(buffers.cast(), count as usize) }
}

hooks! {
    /// write(2)
    fn write(fd: c_int, bytes: *const c_void, count: size_t) -> ssize_t [next] {
        match of(fd) {
            Some(log) if count > 0 => {
                // SAFETY: the caller's bytes can be read, as write(2) wants it.
                let bytes = unsafe { std::slice::from_raw_parts(bytes.cast(), count) };
                log.write(&[IoSlice::new(bytes)], next)
            }
            _ => next(),
        }
    }

    /// writev(2)
    fn writev(fd: c_int, buffers: *const iovec, count: c_int) -> ssize_t [next] {
        match of(fd) {
            // SAFETY: as the caller promises.
            Some(log) => log.write(unsafe { slices(buffers, count) }, next),
            None => next(),
        }
    }

    /// pwrite(2)
    fn pwrite(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t [next] {
        leave(fd);
        next()
    }

    /// pwrite(2)
    fn pwrite64(fd: c_int, bytes: *const c_void, count: size_t, offset: off_t) -> ssize_t [next] {
        leave(fd);
        next()
    }

    /// pwritev(2)
    fn pwritev(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t [next] {
        leave(fd);
        next()
    }

    /// pwritev(2)
    fn pwritev64(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t) -> ssize_t [next] {
        leave(fd);
        next()
    }

    /// pwritev2(2)
    fn pwritev2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t [next] {
        leave(fd);
        next()
    }

    /// pwritev2(2)
    fn pwritev64v2(fd: c_int, buffers: *const iovec, count: c_int, offset: off_t, flags: c_int) -> ssize_t [next] {
        leave(fd);
        next()
    }

    /// fsync(2)
    fn fsync(fd: c_int) -> c_int [next] {
        match of(fd) {
            Some(log) => log.sync(next),
            None => next(),
        }
    }

    /// fdatasync(2)
    fn fdatasync(fd: c_int) -> c_int [next] {
        match of(fd) {
            Some(log) => log.sync(next),
            None => next(),
        }
    }

    /// sync_file_range(2): a hint, which a sync more than fulfils.
    fn sync_file_range(fd: c_int, offset: off_t, count: off_t, flags: c_uint) -> c_int [next] {
        match of(fd) {
            Some(log) => log.sync(next),
            None => next(),
        }
    }
}
