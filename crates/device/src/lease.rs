//! Leases (`F_SETLEASE`, fcntl(2)): who opens the file while it is leased waits.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::sys::check;

/// `F_SETSIG`
const F_SETSIG: libc::c_int = 10;

/// A write lease on a file, until it is dropped. Nobody else has the file open, and who opens it waits
/// until then, at most for the seconds in `/proc/sys/fs/lease-break-time`, or gets `WouldBlock`.
#[derive(Debug)]
pub struct WriteLease<'a>(&'a File);

impl<'a> WriteLease<'a> {
    /// Leases a file. Returns `None` if somebody else has it open.
    ///
    /// # Errors
    /// If the file belongs to somebody else (`PermissionDenied`), or its file system has no leases.
    pub fn take(file: &'a File) -> io::Result<Option<Self>> {
        let fd = file.as_raw_fd();
        // SAFETY: the call takes a number and touches no memory. By default, somebody's `open` would
        // send SIGIO, which ends a program that does not expect it; SIGURG is ignored.
        check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) })?;
        // SAFETY: as above.
        match check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }) {
            Ok(_) => Ok(Some(Self(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }
}

impl Drop for WriteLease<'_> {
    fn drop(&mut self) {
        // SAFETY: as above. This fails only if the kernel has taken the lease away.
        let _ = unsafe { libc::fcntl(self.0.as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
    }
}
