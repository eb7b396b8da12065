//! A counter in the kernel that another thread can raise and a ring can poll.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::Arc;

use crate::Errno;

/// Wakes a thread that waits in a ring (or in `poll`). The waiting thread polls the counter for
/// reading. Any other thread can [`raise`](Self::raise) the counter. The woken thread then
/// [`lower`](Self::lower)s it. Clones share one counter.
#[derive(Clone, Debug)]
pub struct EventFd(Arc<OwnedFd>);

impl EventFd {
    /// A new counter, which is not raised.
    ///
    /// # Errors
    /// When the process is out of file descriptors.
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: no pointer is passed.
        let fd = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if fd < 0 {
            return Err(Errno::last());
        }
        // SAFETY: the descriptor is new, and nothing else owns it.
        Ok(Self(Arc::new(unsafe { OwnedFd::from_raw_fd(fd) })))
    }

    /// Makes the counter readable. Never blocks. If the counter is raised again before it is
    /// lowered, nothing changes.
    pub fn raise(&self) {
        let one = 1_u64;
        // SAFETY: the call reads eight bytes from `one`. It fails only if the counter is full, and
        // a full counter is already readable.
        unsafe { libc::write(self.0.as_raw_fd(), (&raw const one).cast(), size_of::<u64>()) };
    }

    /// Makes the counter unreadable until it is raised again. Returns whether it was raised.
    pub fn lower(&self) -> bool {
        let mut count = 0_u64;
        // SAFETY: the call writes eight bytes to `count`. It fails only if the counter is zero.
        let moved =
            unsafe { libc::read(self.0.as_raw_fd(), (&raw mut count).cast(), size_of::<u64>()) };
        moved > 0
    }
}

impl AsFd for EventFd {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn raised_until_lowered() {
        let event = EventFd::new().expect("the process has a free descriptor");
        assert!(!event.lower());
        event.clone().raise();
        event.raise();
        assert!(event.lower());
        assert!(!event.lower());
    }
}
