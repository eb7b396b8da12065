//! Bytes in one stretch of memory, which grows and shrinks at both ends without moving its
//! contents.

use std::ops::{Deref, DerefMut, Range};

use crate::memory::allocated;

/// Up to this size in bytes, a stretch doubles its memory when it grows. A larger stretch allocates
/// only what it needs.
const DOUBLED_SIZE_MAX: usize = 4096;

/// Smallest size in bytes of the memory of a stretch that holds something.
const SIZE_MIN: usize = 32;

/// If a stretch has more memory than this, in bytes, and is less than a quarter full, it frees a
/// part of the memory.
const KEPT_SIZE_MAX: usize = 512;

/// Bytes in one allocation, with room before and behind them.
#[derive(Debug, Default)]
pub(super) struct Stretch {
    /// The room before the contents, and then the contents. The spare capacity of the `Vec` is the
    /// room behind the contents.
    memory: Vec<u8>,
    start: usize,
}

impl Clone for Stretch {
    /// The clone has the contents only, without the room around them.
    fn clone(&self) -> Self {
        Self { memory: self.to_vec(), start: 0 }
    }
}

impl Deref for Stretch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.memory[self.start..]
    }
}

impl DerefMut for Stretch {
    fn deref_mut(&mut self) -> &mut [u8] {
        &mut self.memory[self.start..]
    }
}

impl Stretch {
    /// Bytes that the stretch takes in memory.
    pub(super) fn memory(&self) -> usize {
        allocated(self.memory.capacity())
    }

    /// Makes room for `size` bytes at offset `at`, and returns this room. The room may hold any
    /// bytes. Moves either the contents before `at` or the contents behind it: the shorter part.
    pub(super) fn open(&mut self, at: usize, size: usize) -> &mut [u8] {
        let len = self.len();
        if at * 2 < len {
            if self.start < size {
                self.make_room(size, true);
            }
            let (from, to) = (self.start, self.start - size);
            self.memory.copy_within(from..from + at, to);
            self.start = to;
        } else {
            if self.memory.capacity() - self.memory.len() < size {
                self.make_room(size, false);
            }
            let (from, end) = (self.start + at, self.memory.len());
            self.memory.resize(end + size, 0);
            self.memory.copy_within(from..end, from + size);
        }
        let from = self.start + at;
        &mut self.memory[from..from + size]
    }

    /// Removes a range.
    pub(super) fn close(&mut self, range: Range<usize>) {
        let (len, size) = (self.len(), range.len());
        if range.start < len - range.end {
            let from = self.start;
            self.memory.copy_within(from..from + range.start, from + size);
            self.start += size;
        } else {
            let (from, to) = (self.start + range.end, self.start + range.start);
            self.memory.copy_within(from.., to);
            self.memory.truncate(self.memory.len() - size);
        }
        let left = len - size;
        if left == 0 {
            self.memory.clear();
            self.start = 0;
        }
        if self.memory.capacity() > KEPT_SIZE_MAX && left < self.memory.capacity() / 4 {
            self.move_to(allocated((2 * left).max(SIZE_MIN)), false);
        }
    }

    /// Removes the contents from offset `at` on, and returns them. Afterwards, neither part has
    /// room around its contents, except what the allocator's rounding adds.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        let mut second = Vec::with_capacity(allocated(self.len() - at));
        second.extend_from_slice(&self[at..]);
        self.memory.truncate(self.start + at);
        self.fit();
        Self { memory: second, start: 0 }
    }

    /// Frees the room, except what the allocator's rounding adds.
    pub(super) fn fit(&mut self) {
        let wanted = allocated(self.len());
        if self.memory.capacity() > wanted {
            self.move_to(wanted, false);
        }
    }

    /// Gets at least `size` bytes of room: before the contents if `is_before`, otherwise behind
    /// them. If the memory has this much room on both sides together, only moves the contents, and
    /// splits the room that is not needed evenly between the two sides.
    fn make_room(&mut self, size: usize, is_before: bool) {
        let (len, capacity) = (self.len(), self.memory.capacity());
        let needed = len + size;
        if needed > capacity {
            let doubled = (2 * capacity).clamp(SIZE_MIN, DOUBLED_SIZE_MAX);
            return self.move_to(allocated(needed.max(doubled)), is_before);
        }
        let other = (capacity - needed) / 2;
        let to = if is_before { capacity - len - other } else { other };
        let from = self.start;
        if to > from {
            self.memory.resize(to + len, 0);
            self.memory.copy_within(from..from + len, to);
        } else {
            self.memory.copy_within(from..from + len, to);
            self.memory.truncate(to + len);
        }
        self.start = to;
    }

    /// Moves the contents to memory of another size. All room is then before the contents if
    /// `is_before`, otherwise behind them.
    fn move_to(&mut self, capacity: usize, is_before: bool) {
        if !is_before && self.start == 0 {
            // The allocator may be able to grow the memory in place.
            if capacity < self.memory.capacity() {
                self.memory.shrink_to(capacity);
            } else {
                self.memory.reserve_exact(capacity - self.memory.len());
            }
            return;
        }
        let mut memory = Vec::with_capacity(capacity);
        let start = if is_before { capacity - self.len() } else { 0 };
        memory.resize(start, 0);
        memory.extend_from_slice(self);
        (self.memory, self.start) = (memory, start);
    }
}
