//! A pool of buffers for large transfers. Buffers are reused, and all of them are in one piece of
//! memory. Rings register this memory, so that the kernel need not pin a buffer's pages for each
//! transfer.

#![expect(unsafe_code, reason = "the kernel reads and writes this memory by its address")]

use std::io;
use std::ptr::NonNull;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use slimio_ring::{Errno, Memory, Ring, Width};

use crate::{Buffer, LBA_SIZE, sys};

/// Number of blocks of a pooled buffer.
pub const POOLED_LBAS: usize = 128;

/// Number of pooled buffers.
pub const POOLED_COUNT: usize = 4;

const BUFFER_SIZE: usize = POOLED_LBAS * LBA_SIZE;
const SIZE: usize = POOLED_COUNT * BUFFER_SIZE;

/// The memory of the pool's buffers, each of which is either free or taken.
#[derive(Debug)]
pub(crate) struct Pool {
    memory: NonNull<u8>,
    /// Indexes of the free buffers.
    free: Mutex<Vec<usize>>,
}

// SAFETY: this type never dereferences the pointer. The buffers have disjoint ranges of the memory.
unsafe impl Send for Pool {}
// SAFETY: a shared reference does not dereference the pointer, either.
unsafe impl Sync for Pool {}

impl Pool {
    /// # Errors
    /// When the kernel has no memory.
    pub(crate) fn new() -> io::Result<Arc<Self>> {
        let memory = sys::map_private(SIZE)?;
        Ok(Arc::new(Self { memory, free: Mutex::new((0..POOLED_COUNT).collect()) }))
    }

    fn free(&self) -> MutexGuard<'_, Vec<usize>> {
        // The lock is never poisoned, because nothing panics while the lock is held.
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A buffer of `lbas` blocks with arbitrary contents; `None` if pooled buffers are shorter than
    /// that, or if no pooled buffer is free.
    pub(crate) fn take(self: &Arc<Self>, lbas: usize) -> Option<Buffer> {
        if lbas > POOLED_LBAS {
            return None;
        }
        let index = self.free().pop()?;
        // SAFETY: the piece is within the memory, and no other buffer has the index until this
        // buffer gives the index back.
        let mut buffer = unsafe {
            let memory = self.memory.add(index * BUFFER_SIZE);
            Buffer::pooled(memory, POOLED_LBAS, self.clone(), index)
        };
        buffer.set_len_lbas(lbas);
        Some(buffer)
    }

    /// Marks the memory of a buffer as free.
    pub(crate) fn give_back(&self, index: usize) {
        self.free().push(index);
    }

    /// Lets a ring register the memory.
    ///
    /// # Errors
    /// When the kernel refuses to register the memory.
    pub(crate) fn register<T: Copy, M: Memory, W: Width>(
        self: &Arc<Self>,
        ring: &mut Ring<T, M, W>,
    ) -> Result<(), Errno> {
        // SAFETY: the memory stays mapped at the same address until the pool is dropped.
        unsafe { ring.register(self.memory, SIZE, self.clone()) }
    }
}

/// A buffer of the pool, or private memory if there is no pool or the pool can't provide the
/// buffer.
pub(crate) fn pooled_or_own(pool: Option<&Arc<Pool>>, lbas: usize) -> Buffer {
    let pooled = pool.and_then(|pool| pool.take(lbas));
    pooled.unwrap_or_else(|| Buffer::zeroed(lbas))
}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the memory was mapped in `new` with this size. No buffer is left, because each
        // buffer keeps the pool alive.
        unsafe { sys::unmap(self.memory, SIZE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_buffers_overlap_and_each_is_reused() {
        let pool = Pool::new().expect("the machine has memory for a pool");
        assert!(pool.take(POOLED_LBAS + 1).is_none(), "the buffer is longer than a pooled one");
        let mut buffers: Vec<_> = (1..=POOLED_COUNT).map_while(|lbas| pool.take(lbas)).collect();
        assert!(pool.take(1).is_none(), "the pool has more buffers than it should");
        for (index, buffer) in buffers.iter_mut().enumerate() {
            assert_eq!((buffer.len_lbas(), buffer.capacity_lbas()), (index + 1, POOLED_LBAS));
            assert_eq!(buffer.as_ptr().align_offset(LBA_SIZE), 0);
            assert_eq!((buffer.index(), buffer.outlives_process()), (None, false));
            buffer.set_len_lbas(POOLED_LBAS);
            buffer.fill(index as u8);
        }
        for (index, buffer) in buffers.iter().enumerate() {
            assert!(**buffer == vec![index as u8; buffer.len()]);
        }
        let address = buffers[2].as_ptr();
        drop(buffers.remove(2));
        let again = pool.take(3).expect("one buffer was given back");
        assert_eq!(again.as_ptr(), address);
        // A buffer must keep the memory alive after the pool's owner has dropped the pool.
        drop(pool);
        assert!(*again == vec![2; again.len()]);
    }
}
