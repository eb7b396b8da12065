//! Leases (`F_SETLEASE`, fcntl(2)): who opens the file while it is leased waits.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::sys::check;

/// `F_SETSIG`
const F_SETSIG: libc::c_int = 10;

/// A write lease on a file, until it is dropped. Nobody else has the file open, and who opens it waits
/// until then, at most for the seconds in `/proc/sys/fs/lease-break-time`, or gets `WouldBlock`. This
/// process gets SIGURG then, which is ignored by default.
#[derive(Debug)]
pub struct WriteLease<F: AsFd>(F);

impl<F: AsFd> WriteLease<F> {
    /// Leases a file. Returns `None` if somebody else has it open.
    ///
    /// # Errors
    /// If the file belongs to somebody else (`PermissionDenied`), or its file system has no leases.
    pub fn take(file: F) -> io::Result<Option<Self>> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: the call takes a number and touches no memory. By default, somebody's `open` would
        // send SIGIO, which ends a program that does not expect it.
        check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) })?;
        // SAFETY: as above.
        match check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }) {
            Ok(_) => Ok(Some(Self(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether somebody waits for the lease to end, or did not want to wait.
    pub fn is_wanted(&self) -> bool {
        // SAFETY: as above. It returns what the lease is to become.
        let kind = unsafe { libc::fcntl(self.0.as_fd().as_raw_fd(), libc::F_GETLEASE) };
        kind != libc::F_WRLCK
    }
}

impl<F: AsFd> Drop for WriteLease<F> {
    fn drop(&mut self) {
        end_lease(&self.0);
    }
}

/// Ends the lease on a file, if there is one. It belongs to the open file, so any process that has this
/// can end it.
pub fn end_lease(file: impl AsFd) {
    // SAFETY: as above. This fails only if there is no lease, or the kernel has taken it away.
    let _ = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}
