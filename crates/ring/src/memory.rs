//! Memory that a read or write may move bytes from and to.

#![expect(unsafe_code, reason = "the kernel is told of memory by address")]

/// Memory that a file operation may read or fill while the ring owns it.
///
/// # Safety
/// [`address`](Self::address) points at [`size`](Self::size) initialised bytes that belong to the
/// value alone, at an address that stays when the value moves, until the value is dropped.
pub unsafe trait Memory: 'static {
    /// Where the bytes are.
    fn address(&mut self) -> *mut u8;

    /// How many there are.
    fn size(&self) -> usize;
}

// SAFETY: a vector's bytes are on the heap, its own, and initialised up to its length.
unsafe impl Memory for Vec<u8> {
    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}
