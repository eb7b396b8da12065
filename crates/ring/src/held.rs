//! An open file that a ring keeps open, whatever becomes of the process.

use std::os::fd::{AsFd, AsRawFd as _};

use crate::{Errno, Memory, Ring, Width};

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// Registers an open file description with the kernel, which keeps it until the last operation of
    /// this ring is over: also when the process is killed, and when the ring is dropped before. A ring
    /// that is dropped with nothing in flight lets go of it at once.
    ///
    /// # Errors
    /// The kernel's error: `ENOMEM`, or `EMFILE` where no file may be open.
    ///
    /// # Panics
    /// When it holds one already.
    pub fn hold(&mut self, file: impl AsFd) -> Result<(), Errno> {
        assert!(!self.is_holding, "a ring holds one file");
        let registered = self.uring.submitter().register_files(&[file.as_fd().as_raw_fd()]);
        registered.map_err(|error| Errno::of(&error))?;
        self.is_holding = true;
        Ok(())
    }
}
