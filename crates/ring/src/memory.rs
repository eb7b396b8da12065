//! The memory that reads and writes of files use.

#![expect(unsafe_code, reason = "the kernel is told of memory by address")]

/// Memory that a file operation writes from or reads into. The ring owns the memory until the
/// operation has completed.
///
/// # Safety
/// [`address`](Self::address) points at [`size`](Self::size) initialised bytes that belong to the
/// value alone. Until the value is dropped, the address stays the same, even if the value moves.
pub unsafe trait Memory: 'static {
    /// Address of the bytes.
    fn address(&mut self) -> *mut u8;

    /// Number of bytes.
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
