//! Leases on files (`F_SETLEASE`, fcntl(2)). A process that opens a leased file waits until the
//! lease ends.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::io;
use std::os::fd::{AsFd, AsRawFd};

use crate::sys::check;

/// `F_SETSIG`
const F_SETSIG: libc::c_int = 10;

/// A write lease on a file, which ends when this value is dropped. As long as the lease lasts, no
/// other process has the file open. A process that tries to open the file waits until the lease
/// ends, but at most as many seconds as `/proc/sys/fs/lease-break-time` says. A process that opens
/// the file without blocking gets `WouldBlock` at once. Both kinds of attempt send SIGURG to the
/// process with the lease. By default, a process ignores this signal.
#[derive(Debug)]
pub struct WriteLease<F: AsFd>(F);

impl<F: AsFd> WriteLease<F> {
    /// Leases a file. Returns `None` if the file is open elsewhere, too.
    ///
    /// # Errors
    /// If the file belongs to another user (`PermissionDenied`), or if its file system has no
    /// leases.
    pub fn take(file: F) -> io::Result<Option<Self>> {
        let fd = file.as_fd().as_raw_fd();
        // SAFETY: the call takes a number and touches no memory. Without this call, an attempt to
        // open the file would send SIGIO, which ends a program that has no handler for it.
        check(unsafe { libc::fcntl(fd, F_SETSIG, libc::SIGURG) })?;
        // SAFETY: the call takes a number and touches no memory.
        match check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }) {
            Ok(_) => Ok(Some(Self(file))),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether another process has tried to open the file, with or without waiting.
    pub fn is_wanted(&self) -> bool {
        // SAFETY: the call touches no memory. After such an attempt, it returns the kind that the
        // lease must be lowered to.
        let kind = unsafe { libc::fcntl(self.0.as_fd().as_raw_fd(), libc::F_GETLEASE) };
        kind != libc::F_WRLCK
    }
}

impl<F: AsFd> Drop for WriteLease<F> {
    fn drop(&mut self) {
        end_lease(&self.0);
    }
}

/// Ends the lease on a file, if there is one. The lease belongs to the open file description, so
/// every process that has this description can end the lease.
pub fn end_lease(file: impl AsFd) {
    // SAFETY: the call takes a number and touches no memory. It fails only if there is no lease, or
    // if the kernel has already ended the lease.
    let _ = unsafe { libc::fcntl(file.as_fd().as_raw_fd(), libc::F_SETLEASE, libc::F_UNLCK) };
}
