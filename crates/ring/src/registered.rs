//! Memory whose pages the kernel keeps pinned for a ring, so that the kernel need not pin them for
//! each transfer.

#![expect(unsafe_code, reason = "the kernel is told of memory by address")]

use std::any::Any;
use std::ptr::NonNull;
use std::sync::Arc;

use slimio_planted::is_planted;

use crate::{Errno, Memory, Ring, Width};

/// Index of the only entry in a ring's table of registered buffers.
pub(crate) const INDEX: u16 = 0;

/// The memory that a ring has registered.
pub(crate) struct Registered {
    start: usize,
    size: usize,
    /// Keeps the memory mapped.
    _keeper: Arc<dyn Any + Send + Sync>,
}

impl Registered {
    /// Returns `address` if the `size` bytes that begin there lie within the registered memory.
    pub(crate) fn find(&self, address: *mut u8, size: usize) -> Option<*mut u8> {
        let offset = address.addr().checked_sub(self.start)?;
        let is_within = size <= self.size.checked_sub(offset)?;
        let address =
            if is_planted("registered-start") { address.wrapping_sub(offset) } else { address };
        is_within.then_some(address)
    }
}

impl<T: Copy, M: Memory, W: Width> Ring<T, M, W> {
    /// Registers memory with the kernel. Then the kernel need not pin pages for reads, writes and
    /// NVMe commands whose bytes lie in this memory. A ring can register only one range, which
    /// stays registered until the ring is dropped.
    ///
    /// # Errors
    /// The kernel's error: `ENOMEM` when no more memory may be locked (`ulimit -l`), `EFAULT` for
    /// memory that a file is mapped to. After an error, transfers still work, but without this
    /// advantage.
    ///
    /// # Safety
    /// The `size` bytes at `start` stay mapped to the same pages until `keeper` is dropped.
    ///
    /// # Panics
    /// When this ring has already registered memory.
    pub unsafe fn register(
        &mut self,
        start: NonNull<u8>,
        size: usize,
        keeper: Arc<dyn Any + Send + Sync>,
    ) -> Result<(), Errno> {
        assert!(self.registered.is_none(), "a ring can register only one range");
        let range = libc::iovec { iov_base: start.as_ptr().cast(), iov_len: size };
        // SAFETY: the bytes stay mapped until the keeper is dropped. The keeper is dropped after
        // the ring is closed, or never.
        let registered = unsafe { self.uring.submitter().register_buffers(&[range]) };
        registered.map_err(|error| Errno::of(&error))?;
        self.registered = Some(Registered { start: start.addr().get(), size, _keeper: keeper });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_lies_within_is_found() {
        let registered = Registered { start: 0x2000, size: 0x3000, _keeper: Arc::new(()) };
        let find = |address, size| {
            let address = std::ptr::without_provenance_mut(address);
            registered.find(address, size).map(|found| found == address)
        };
        for (address, size) in [(0x2000, 0x3000), (0x2000, 1), (0x4000, 0x1000), (0x4fff, 1)] {
            assert_eq!(find(address, size), Some(true), "{size:#x} at {address:#x}");
        }
        for (address, size) in
            [(0x1fff, 1), (0x1fff, 2), (0x2000, 0x3001), (0x4000, 0x1001), (0x5000, 1), (0x9000, 1)]
        {
            assert_eq!(find(address, size), None, "{size:#x} at {address:#x}");
        }
    }
}
