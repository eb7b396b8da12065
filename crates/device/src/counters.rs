//! Numbers that several processes share. Every change of a number is one atomic operation.
//!
//! Unlike [`SharedMemory`](crate::SharedMemory), the numbers need no locks: a process that dies
//! leaves every number valid.

#![expect(unsafe_code, reason = "mapped memory is accessed by its address")]

use std::fs::File;
use std::io;
use std::ops::Deref;
use std::ptr::NonNull;
use std::sync::atomic::AtomicU64;

use crate::sys;

/// Numbers in a file that is mapped into memory.
#[derive(Debug)]
pub struct SharedCounters {
    memory: NonNull<u8>,
    count: usize,
}

// SAFETY: the memory is mapped until this value is dropped, and is used only as atomic numbers.
unsafe impl Send for SharedCounters {}
// SAFETY: the memory is mapped until this value is dropped, and is used only as atomic numbers.
unsafe impl Sync for SharedCounters {}

impl SharedCounters {
    /// Makes `count` numbers in a file, all zero. The old contents of the file are lost. This must
    /// not be called while another process uses the file.
    ///
    /// # Errors
    /// If the file can't get the needed length, or can't be mapped.
    pub fn create(file: &File, count: usize) -> io::Result<Self> {
        file.set_len(0)?;
        // Space is allocated now, so a lack of space is an error here. Otherwise a later store to
        // the mapping would end the process.
        sys::allocate(file, 0, 0, Self::size(count))?;
        Self::open(file, count)
    }

    /// Maps a file that [`create`](Self::create) has made with the same count.
    ///
    /// # Errors
    /// If the file has another size (`InvalidData`), or can't be mapped.
    pub fn open(file: &File, count: usize) -> io::Result<Self> {
        assert!(count > 0, "there must be at least one number");
        if file.metadata()?.len() != Self::size(count) {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "the file has an unexpected size",
            ));
        }
        let memory = sys::map_shared(file, 0, count * size_of::<AtomicU64>())?;
        Ok(Self { memory, count })
    }

    fn size(count: usize) -> u64 {
        (count * size_of::<AtomicU64>()) as u64
    }
}

impl Deref for SharedCounters {
    type Target = [AtomicU64];

    fn deref(&self) -> &[AtomicU64] {
        // SAFETY: as long as `self` lives, `count` numbers are mapped, and the first one is at the
        // start of a page. Any bits are a valid number, and every process changes the numbers only
        // by atomic operations.
        unsafe { std::slice::from_raw_parts(self.memory.cast().as_ptr(), self.count) }
    }
}

impl Drop for SharedCounters {
    fn drop(&mut self) {
        // SAFETY: nobody has a reference to the memory any more.
        unsafe { sys::unmap(self.memory, self.count * size_of::<AtomicU64>()) };
    }
}
