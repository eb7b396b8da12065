//! Memory to which a read moves bytes, or from which a write moves bytes.

#![expect(unsafe_code, reason = "the kernel is told of memory by address")]

/// Memory that a file operation may read or fill while the ring owns it.
///
/// # Safety
/// [`address`](Self::address) points at [`size`](Self::size) initialised bytes that belong to the
/// value alone. Until the value is dropped, the address stays the same, even if the value moves.
pub unsafe trait Memory: 'static {
    /// Where the bytes are.
    fn address(&mut self) -> *mut u8;

    /// How many bytes there are.
    fn size(&self) -> usize;
}

// SAFETY: a vector's bytes are on the heap, belong to the vector alone, and are initialised up to
// the vector's length.
unsafe impl Memory for Vec<u8> {
    fn address(&mut self) -> *mut u8 {
        self.as_mut_ptr()
    }

    fn size(&self) -> usize {
        self.len()
    }
}
