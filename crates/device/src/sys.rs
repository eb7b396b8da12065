//! The system calls of this crate that the standard library does not have, each as a safe function
//! where it can be.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::ffi::CStr;
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd, FromRawFd};
use std::ptr::NonNull;

/// `BLKGETSIZE64`: size of a block device in bytes.
const BLKGETSIZE64: libc::Ioctl = 0x8008_1272_u32 as libc::Ioctl;

/// Turns the result of a call that says -1 and sets `errno` into a result.
fn check(returned: libc::c_int) -> io::Result<libc::c_int> {
    if returned == -1 { Err(io::Error::last_os_error()) } else { Ok(returned) }
}

/// Memory with a file descriptor and no name.
pub(crate) fn memfd(name: &CStr) -> io::Result<File> {
    // SAFETY: `name` is a C string that lives during the call.
    let fd = check(unsafe { libc::memfd_create(name.as_ptr(), libc::MFD_CLOEXEC) })?;
    // SAFETY: the descriptor is new and nobody else's.
    Ok(unsafe { File::from_raw_fd(fd) })
}

/// Size in bytes of a block device.
pub(crate) fn block_device_size(file: &File) -> io::Result<u64> {
    let mut size: u64 = 0;
    // SAFETY: BLKGETSIZE64 stores one u64 where the pointer says.
    check(unsafe { libc::ioctl(file.as_raw_fd(), BLKGETSIZE64, &raw mut size) })?;
    Ok(size)
}

/// Maps `size` bytes of `file` from `offset` on, shared with the kernel's copy of the file, and
/// makes them present.
pub(crate) fn map_shared(file: &File, offset: u64, size: usize) -> io::Result<NonNull<u8>> {
    // SAFETY: the kernel chooses the address, so no existing mapping is touched.
    let memory = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            size,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED | libc::MAP_POPULATE,
            file.as_raw_fd(),
            offset as libc::off_t,
        )
    };
    if memory == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    NonNull::new(memory.cast()).ok_or_else(|| io::Error::from_raw_os_error(libc::ENOMEM))
}

/// Ends a mapping of [`map_shared`].
///
/// # Safety
/// `memory` and `size` are those of one `map_shared`, and nothing points into it any more.
pub(crate) unsafe fn unmap(memory: NonNull<u8>, size: usize) {
    // SAFETY: the caller's promise.
    let result = check(unsafe { libc::munmap(memory.as_ptr().cast(), size) });
    debug_assert!(result.is_ok(), "unmapping what was mapped: {result:?}");
}
