//! Buffers for received data. The kernel picks a buffer only when data arrives, so an idle
//! connection holds no buffer.
//!
//! Each buffer is either free or handed out as a [`Provided`]. Free buffers belong to the kernel
//! and are in a ring of buffers. If the kernel does not support such rings, free buffers are in a
//! list of our own. `is_out` says whether a buffer is handed out. We read the bytes of a buffer
//! only while it is handed out.

#![expect(unsafe_code, reason = "the kernel writes to this memory")]

use std::alloc::{Layout, alloc_zeroed, dealloc, handle_alloc_error};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU16, Ordering};

use io_uring::Submitter;
use io_uring::types::BufRingEntry;

use crate::Errno;

/// The largest number of buffers in a pool (the kernel's own limit).
pub const PROVIDED_BUFFERS_MAX: u16 = 32_768;

/// The id of a ring's only group of buffers.
pub(crate) const GROUP: u16 = 0;

/// Alignment of the buffers, and of the ring of buffers that is shared with the kernel.
const PAGE_SIZE: usize = 4096;

/// A buffer with received bytes. Give the buffer back to its ring as soon as the bytes are not
/// needed any more, because until then the ring has one buffer less.
#[derive(Debug, PartialEq, Eq)]
#[must_use = "a buffer that is not given back is lost to the ring"]
pub struct Provided {
    index: u16,
    size: u32,
}

impl Provided {
    /// Number of bytes that were received.
    pub fn size(&self) -> usize {
        self.size as usize
    }
}

/// All buffers of a ring.
pub(crate) struct Pool {
    memory: NonNull<u8>,
    buffer_size: usize,
    is_out: Vec<bool>,
    out_count: usize,
    source: Source,
}

/// Where the free buffers are.
enum Source {
    /// The free buffers are in a ring that is shared with the kernel. The kernel takes buffers from
    /// the head of this ring.
    Kernel { entries: NonNull<BufRingEntry>, tail: u16 },
    /// The free buffers are in a list of our own.
    List(Vec<u16>),
}

// SAFETY: the pool owns the memory that it points to.
unsafe impl Send for Pool {}
// SAFETY: through a shared reference, only buffers that are handed out are read, and nothing writes
// to such buffers.
unsafe impl Sync for Pool {}

fn layout(count: usize, item_size: usize) -> Layout {
    Layout::from_size_align(count * item_size, PAGE_SIZE)
        .expect("the pool fits in the address space")
}

fn allocate(layout: Layout) -> NonNull<u8> {
    // SAFETY: the layout's size is not zero, because the callers' counts and sizes are not zero.
    NonNull::new(unsafe { alloc_zeroed(layout) }).unwrap_or_else(|| handle_alloc_error(layout))
}

impl Pool {
    /// Makes `count` buffers of `buffer_size` bytes. With a `submitter`, the buffers are in a ring
    /// that is shared with the kernel.
    pub(crate) fn new(
        count: u16,
        buffer_size: u32,
        submitter: Option<&Submitter<'_>>,
    ) -> Result<Self, Errno> {
        assert!(count.is_power_of_two() && count <= PROVIDED_BUFFERS_MAX, "{count} buffers");
        assert!(buffer_size > 0 && i32::try_from(buffer_size).is_ok(), "{buffer_size} bytes each");
        let buffer_size = buffer_size as usize;
        let memory = allocate(layout(count.into(), buffer_size));
        let mut pool = Self {
            memory,
            buffer_size,
            is_out: vec![false; count.into()],
            out_count: 0,
            source: Source::List((0..count).rev().collect()),
        };
        if let Some(submitter) = submitter {
            let entries = allocate(layout(count.into(), size_of::<BufRingEntry>()));
            pool.source = Source::Kernel { entries: entries.cast(), tail: 0 };
            // SAFETY: there are `count` entries. They are not freed while they are registered.
            let registered = unsafe {
                let address = entries.as_ptr() as u64;
                submitter.register_buf_ring_with_flags(address, count, GROUP, 0)
            };
            registered.map_err(|error| Errno::of(&error))?;
            for index in 0..count {
                pool.put(index);
            }
        }
        Ok(pool)
    }

    /// Whether a buffer is free.
    pub(crate) fn has_some(&self) -> bool {
        self.out_count < self.is_out.len()
    }

    /// Notes that the kernel has filled a buffer, and hands it out.
    pub(crate) fn filled(&mut self, index: u16, size: usize) -> Provided {
        assert!(size <= self.buffer_size, "the kernel has written past a buffer");
        let is_out = &mut self.is_out[usize::from(index)];
        assert!(!*is_out, "the kernel does not own buffer {index}");
        *is_out = true;
        self.out_count += 1;
        Provided { index, size: size as u32 }
    }

    /// Takes a free buffer, and calls `fill` with its address and length. `fill` returns the number
    /// of bytes that it has put into the buffer. Returns `None` if no buffer is free. This is only
    /// for a pool whose free buffers are in a list of our own.
    pub(crate) fn fill(
        &mut self,
        fill: impl FnOnce(*mut u8, usize) -> Result<usize, Errno>,
    ) -> Option<Result<Option<Provided>, Errno>> {
        let Source::List(list) = &mut self.source else {
            unreachable!("the free buffers belong to the kernel")
        };
        let index = list.pop()?;
        // SAFETY: the index is below the count.
        let address = unsafe { self.memory.as_ptr().add(usize::from(index) * self.buffer_size) };
        Some(match fill(address, self.buffer_size) {
            Ok(size) if size > 0 => Ok(Some(self.filled(index, size))),
            other => {
                self.put(index);
                other.map(|_| None)
            }
        })
    }

    /// The bytes that were received into a buffer.
    pub(crate) fn bytes(&self, provided: &Provided) -> &[u8] {
        let index = usize::from(provided.index);
        // The index and the size are checked, because a caller could pass a buffer of another ring.
        assert!(self.is_out[index], "buffer {index} is not handed out");
        assert!(provided.size() <= self.buffer_size, "buffer {index} is not that long");
        // SAFETY: the buffer is within the memory, initialised, and handed out. Neither the kernel
        // nor we write to it before it is given back, and giving it back takes `&mut self`.
        unsafe {
            let address = self.memory.as_ptr().add(index * self.buffer_size);
            std::slice::from_raw_parts(address, provided.size())
        }
    }

    /// Takes a buffer back.
    pub(crate) fn give_back(&mut self, provided: &Provided) {
        let is_out = &mut self.is_out[usize::from(provided.index)];
        assert!(std::mem::take(is_out), "buffer {} is not handed out", provided.index);
        self.out_count -= 1;
        self.put(provided.index);
    }

    /// Adds a buffer to the free buffers.
    fn put(&mut self, index: u16) {
        match &mut self.source {
            Source::List(list) => list.push(index),
            Source::Kernel { entries, tail } => {
                let mask = self.is_out.len() - 1;
                // SAFETY: the masked index is within the entries. The kernel reads the entry only
                // after the tail has passed it. The tail is a part of the first entry, but the
                // setters do not change the tail.
                unsafe {
                    let entry = &mut *entries.as_ptr().add(usize::from(*tail) & mask);
                    let address = self.memory.as_ptr().add(usize::from(index) * self.buffer_size);
                    entry.set_addr(address as u64);
                    entry.set_len(self.buffer_size as u32);
                    entry.set_bid(index);
                }
                *tail = tail.wrapping_add(1);
                // SAFETY: the entries are initialised and page-aligned. The kernel only reads the
                // tail, and we write the tail only through this atomic.
                let published =
                    unsafe { AtomicU16::from_ptr(BufRingEntry::tail(entries.as_ptr()).cast_mut()) };
                published.store(*tail, Ordering::Release);
            }
        }
    }

    /// Ends the kernel's use of the buffers. No operation that can take a buffer may be in flight.
    pub(crate) fn unregister(&mut self, submitter: &Submitter<'_>) {
        if matches!(self.source, Source::Kernel { .. })
            && submitter.unregister_buf_ring(GROUP).is_err()
        {
            // The kernel may still access the entries, so they are never freed.
            self.source = Source::List(Vec::new());
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        let count = self.is_out.len();
        if let Source::Kernel { entries, .. } = &self.source {
            let layout = layout(count, size_of::<BufRingEntry>());
            // SAFETY: allocated in `new` with this layout.
            unsafe { dealloc(entries.as_ptr().cast(), layout) };
        }
        // SAFETY: allocated in `new` with this layout. No operation that could write to the buffers
        // is in flight, because otherwise the ring leaks the pool.
        unsafe { dealloc(self.memory.as_ptr(), layout(count, self.buffer_size)) };
    }
}
