//! An open file that a ring keeps open, even after the process has ended.

use std::os::fd::{AsFd, AsRawFd as _};

use crate::{Errno, Memory, Ring, Width};

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// Registers an open file description with the kernel. The kernel then keeps the description
    /// open until the last operation of this ring has ended, even if the process is killed or the
    /// ring is dropped earlier. If no operation is in flight when the ring is dropped, the file is
    /// released at once.
    ///
    /// # Errors
    /// The kernel's error: `ENOMEM`, or `EMFILE` if the process's limit for open files is 0.
    ///
    /// # Panics
    /// When the ring holds a file already.
    pub fn hold(&mut self, file: impl AsFd) -> Result<(), Errno> {
        assert!(!self.is_holding, "this ring already holds one file");
        let registered = self.uring.submitter().register_files(&[file.as_fd().as_raw_fd()]);
        registered.map_err(|error| Errno::of(&error))?;
        self.is_holding = true;
        Ok(())
    }
}
