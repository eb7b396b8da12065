//! Asynchronous reading and writing (aio(7)). libc serves these calls in threads of its own, which
//! call the kernel directly. So before such a call, this library gives a log back for good. A file
//! that is written in whole blocks is not given back. Instead, from then on, each of its syncs
//! calls the kernel.

#![expect(unsafe_code, reason = "the caller's pointers are raw")]

use std::ffi::c_int;

use libc::{aiocb, sigevent};

use crate::next::hooks;
use crate::open_logs::give_up;
use crate::whole_files::owe_for_good;

/// If the file of an asynchronous call is a log, gives it back for good. If the file is written in
/// whole blocks, makes each later sync of the file call the kernel.
///
/// # Safety
/// `control` is null or points to an `aiocb` that can be read.
unsafe fn leave(control: *const aiocb) {
    // SAFETY: as the caller promises.
    if let Some(control) = unsafe { control.as_ref() } {
        give_up(control.aio_fildes);
        owe_for_good(control.aio_fildes);
    }
}

hooks! {
    /// aio_read(3)
    fn aio_read(control: *mut aiocb) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { leave(control) };
        next()
    }

    /// aio_read(3)
    fn aio_read64(control: *mut aiocb) -> c_int [next] {
        // SAFETY: as the caller promises; on 64-bit machines, the structs are the same.
        unsafe { leave(control) };
        next()
    }

    /// aio_write(3)
    fn aio_write(control: *mut aiocb) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { leave(control) };
        next()
    }

    /// aio_write(3)
    fn aio_write64(control: *mut aiocb) -> c_int [next] {
        // SAFETY: as the caller promises; on 64-bit machines, the structs are the same.
        unsafe { leave(control) };
        next()
    }

    /// aio_fsync(3)
    fn aio_fsync(operation: c_int, control: *mut aiocb) -> c_int [next] {
        // SAFETY: as the caller promises.
        unsafe { leave(control) };
        next()
    }

    /// aio_fsync(3)
    fn aio_fsync64(operation: c_int, control: *mut aiocb) -> c_int [next] {
        // SAFETY: as the caller promises; on 64-bit machines, the structs are the same.
        unsafe { leave(control) };
        next()
    }

    /// lio_listio(3)
    fn lio_listio(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int [next] {
        for number in 0..count.max(0) as usize {
            // SAFETY: as the caller promises.
            unsafe { leave(*list.add(number)) };
        }
        next()
    }

    /// lio_listio(3)
    fn lio_listio64(mode: c_int, list: *const *mut aiocb, count: c_int, event: *mut sigevent) -> c_int [next] {
        for number in 0..count.max(0) as usize {
            // SAFETY: as the caller promises; on 64-bit machines, the structs are the same.
            unsafe { leave(*list.add(number)) };
        }
        next()
    }
}
