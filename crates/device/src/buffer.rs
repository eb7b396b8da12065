//! Memory for transfers. It is aligned for direct I/O, and its length is a whole number of blocks.

#![expect(unsafe_code, reason = "the kernel reads and writes this memory by its address")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::sync::Arc;

use crate::faults::Faults;
use crate::mapped::Mapping;
use crate::pool::Pool;
use crate::{LBA_SIZE, sys};

/// DMA-aligned memory whose length is a whole number of LBAs, at least one LBA.
///
/// The memory is either private or a piece of a [`MappedFile`](crate::MappedFile). Private memory
/// is allocated for the buffer alone, or comes from the pool that
/// [`Device::buffer`](crate::Device::buffer) uses. The length may be set to anything from one block
/// to the capacity, so that a part of a large buffer can be transferred. The bytes after the length
/// do not change.
pub struct Buffer {
    memory: NonNull<u8>,
    len_lbas: usize,
    capacity_lbas: usize,
    owner: Owner,
}

/// Private memory of at least this many blocks (1 MiB) comes directly from the kernel, and goes
/// back to the kernel as soon as the buffer is dropped. An allocator would keep such memory for
/// later buffers.
const OWN_PAGES_LBAS_MIN: usize = 256;

/// Who frees the memory, and how.
enum Owner {
    /// The buffer returns the memory to the allocator, with [`layout`].
    Heap,
    /// The buffer returns the memory to the kernel.
    Pages,
    /// The mapping returns the memory to the kernel when the mapping's last buffer is dropped.
    Mapped { mapping: Arc<Mapping>, index: usize },
    /// The buffer returns the memory to the pool, which reuses it.
    Pooled { pool: Arc<Pool>, index: usize },
}

// SAFETY: nothing else points at a buffer's bytes. The allocator or the pool gave them to this
// buffer alone, and a mapping is cut only once, into ranges that do not overlap.
unsafe impl Send for Buffer {}
// SAFETY: nothing else points at the bytes, and a shared reference only reads them.
unsafe impl Sync for Buffer {}

fn layout(lbas: usize) -> Layout {
    let size = lbas.checked_mul(LBA_SIZE).expect("a buffer is smaller than the address space");
    Layout::from_size_align(size, LBA_SIZE).expect("a buffer is smaller than the address space")
}

impl Buffer {
    /// Private memory of `lbas` blocks, all zero.
    ///
    /// # Panics
    /// When `lbas` is zero.
    pub fn zeroed(lbas: usize) -> Self {
        assert!(lbas > 0, "a buffer must have at least one block");
        let layout = layout(lbas);
        let (memory, owner) = if lbas >= OWN_PAGES_LBAS_MIN {
            (sys::map_private(layout.size()).ok(), Owner::Pages)
        } else {
            // SAFETY: the layout's size is not zero, because `lbas` is not zero.
            (NonNull::new(unsafe { alloc_zeroed(layout) }), Owner::Heap)
        };
        let Some(memory) = memory else { handle_alloc_error(layout) };
        Self { memory, len_lbas: lbas, capacity_lbas: lbas, owner }
    }

    /// A piece of a mapping.
    ///
    /// # Safety
    /// `memory` is block-aligned and points at `lbas` blocks inside `mapping`. No other buffer has
    /// these blocks.
    pub(crate) unsafe fn mapped(
        memory: NonNull<u8>,
        lbas: usize,
        mapping: Arc<Mapping>,
        index: usize,
    ) -> Self {
        assert!(lbas > 0, "a buffer must have at least one block");
        let owner = Owner::Mapped { mapping, index };
        Self { memory, len_lbas: lbas, capacity_lbas: lbas, owner }
    }

    /// A piece of a pool.
    ///
    /// # Safety
    /// `memory` is block-aligned and points at `lbas` blocks inside `pool`. No other buffer has
    /// these blocks until `index` is given back.
    pub(crate) unsafe fn pooled(
        memory: NonNull<u8>,
        lbas: usize,
        pool: Arc<Pool>,
        index: usize,
    ) -> Self {
        let owner = Owner::Pooled { pool, index };
        Self { memory, len_lbas: lbas, capacity_lbas: lbas, owner }
    }

    /// Length in blocks. A transfer moves this many blocks.
    pub fn len_lbas(&self) -> usize {
        self.len_lbas
    }

    /// The largest length, in blocks, that [`set_len_lbas`](Self::set_len_lbas) accepts.
    pub fn capacity_lbas(&self) -> usize {
        self.capacity_lbas
    }

    /// Sets the length, which may be anything from one block to the capacity. No byte changes.
    ///
    /// # Panics
    /// When `lbas` is zero or above the capacity.
    pub fn set_len_lbas(&mut self, lbas: usize) {
        assert!(
            (1..=self.capacity_lbas).contains(&lbas),
            "a buffer of {} blocks can't be {lbas} long",
            self.capacity_lbas
        );
        self.len_lbas = lbas;
    }

    /// Index of this piece in its [`MappedFile`](crate::MappedFile), counted from zero at the
    /// file's start; `None` for private memory.
    pub fn index(&self) -> Option<usize> {
        match &self.owner {
            Owner::Heap | Owner::Pages | Owner::Pooled { .. } => None,
            Owner::Mapped { index, .. } => Some(*index),
        }
    }

    /// Whether bytes written to this buffer outlive the process. After a [fault](Self::faults)
    /// anywhere in the mapping, this is `false`, although bytes written before the fault still
    /// outlive the process.
    pub fn outlives_process(&self) -> bool {
        match &self.owner {
            Owner::Heap | Owner::Pages | Owner::Pooled { .. } => false,
            Owner::Mapped { mapping, .. } => mapping.outlives_process(),
        }
    }

    /// All faults so far in the mapping that this buffer is a piece of. A fault counts as soon as
    /// the store that caused it is over. Private memory has no faults.
    pub fn faults(&self) -> Faults {
        match &self.owner {
            Owner::Heap | Owner::Pages | Owner::Pooled { .. } => Faults::default(),
            Owner::Mapped { mapping, .. } => mapping.faults(),
        }
    }

    /// If this buffer is a piece of a mapped file without faults, unmaps the buffer's pages from
    /// the process until they are used again. The kernel keeps the contents of the pages, and the
    /// process uses less memory. Does nothing to private memory.
    pub fn let_go(&mut self) {
        if let Owner::Mapped { mapping, .. } = &self.owner
            && mapping.faults() == Faults::default()
        {
            // SAFETY: `memory` points at `capacity_lbas` blocks of a shared mapping, and none of
            // the mapping's pages was replaced. If pages are no larger than a block, a block is a
            // whole number of pages. If pages are larger, the kernel refuses the call.
            unsafe { sys::let_go(self.memory, self.capacity_lbas * LBA_SIZE) };
        }
    }
}

impl Deref for Buffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: `memory` points at `capacity_lbas` blocks of initialised memory that live as long
        // as `self`, and only a `&mut self` writes to them.
        unsafe { std::slice::from_raw_parts(self.memory.as_ptr(), self.len_lbas * LBA_SIZE) }
    }
}

impl DerefMut for Buffer {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as in `deref`, and `&mut self` is the only reference to this buffer.
        unsafe { std::slice::from_raw_parts_mut(self.memory.as_ptr(), self.len_lbas * LBA_SIZE) }
    }
}

impl Drop for Buffer {
    fn drop(&mut self) {
        match &self.owner {
            // SAFETY: `zeroed` allocated the memory with this layout; nothing else frees it.
            Owner::Heap => unsafe { dealloc(self.memory.as_ptr(), layout(self.capacity_lbas)) },
            // SAFETY: `zeroed` mapped the memory with this size; nothing else points to it.
            Owner::Pages => unsafe { sys::unmap(self.memory, layout(self.capacity_lbas).size()) },
            Owner::Mapped { .. } => {}
            Owner::Pooled { pool, index } => pool.give_back(*index),
        }
    }
}

impl fmt::Debug for Buffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffer")
            .field("len_lbas", &self.len_lbas)
            .field("capacity_lbas", &self.capacity_lbas)
            .field("index", &self.index())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares whole slices. Under Miri, which checks each step, a loop over the bytes would be
    /// slow.
    fn is_full_of(bytes: &[u8], byte: u8) -> bool {
        *bytes == vec![byte; bytes.len()]
    }

    #[test]
    fn is_aligned_and_zero() {
        for lbas in [1, 2, 64, OWN_PAGES_LBAS_MIN, OWN_PAGES_LBAS_MIN + 1] {
            let buffer = Buffer::zeroed(lbas);
            assert_eq!(buffer.as_ptr().align_offset(LBA_SIZE), 0);
            assert_eq!(buffer.len(), lbas * LBA_SIZE);
            assert!(is_full_of(&buffer, 0));
        }
    }

    #[test]
    fn a_shorter_length_keeps_the_bytes_behind_it() {
        let mut buffer = Buffer::zeroed(3);
        buffer.fill(7);
        buffer.let_go();
        buffer.set_len_lbas(1);
        assert_eq!(buffer.len(), LBA_SIZE);
        buffer.fill(8);
        buffer.set_len_lbas(3);
        assert!(is_full_of(&buffer[..LBA_SIZE], 8));
        assert!(is_full_of(&buffer[LBA_SIZE..], 7));
    }

    #[test]
    #[should_panic(expected = "can't be 3 long")]
    fn a_length_above_the_capacity_is_a_bug() {
        Buffer::zeroed(2).set_len_lbas(3);
    }

    #[test]
    fn may_be_filled_on_another_thread() {
        let mut buffer = Buffer::zeroed(1);
        let buffer = std::thread::spawn(move || {
            buffer.fill(1);
            buffer
        });
        assert!(is_full_of(&buffer.join().expect("the thread ends"), 1));
    }
}
