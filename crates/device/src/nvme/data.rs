//! The memory that a command reads into or writes from: a whole buffer, or a part of a buffer.

#![expect(unsafe_code, reason = "the trait `Memory` is unsafe to implement")]

use std::sync::Arc;

use slimio_planted::is_planted;
use slimio_ring::Memory;

use crate::{Buffer, LBA_SIZE};

/// The memory of one command.
#[derive(Debug)]
pub(crate) enum Data {
    Whole(Buffer),
    Part(Part),
}

/// A part of a buffer that several commands transfer. Each command transfers one part.
#[derive(Debug)]
pub(crate) struct Part {
    whole: Arc<Buffer>,
    address: *mut u8,
    size: usize,
}

// SAFETY: parts do not overlap, and nothing touches the buffer itself until the last part is gone.
unsafe impl Send for Part {}

/// Cuts a buffer into parts of at most `lbas_max` blocks, in order.
pub(crate) fn cut(mut buffer: Buffer, lbas_max: usize) -> Vec<Part> {
    let size = buffer.len();
    let start = buffer.as_mut_ptr();
    let whole = Arc::new(buffer);
    let end = if is_planted("nvme-split-loses-tail") {
        size - size % (lbas_max * LBA_SIZE)
    } else {
        size
    };
    (0..end)
        .step_by(lbas_max * LBA_SIZE)
        .map(|offset| Part {
            whole: whole.clone(),
            // SAFETY: `offset` is below the buffer's length.
            address: unsafe { start.add(offset) },
            size: (size - offset).min(lbas_max * LBA_SIZE),
        })
        .collect()
}

impl Part {
    /// Ends the use of the part. If this was the last part, returns the whole buffer.
    pub(crate) fn end(self) -> Option<Buffer> {
        Arc::into_inner(self.whole)
    }
}

// SAFETY: a buffer's bytes are initialised, belong to this buffer alone, and do not move when the
// buffer moves. A part's bytes belong to no other part, and the part's `Arc` keeps the buffer
// alive.
unsafe impl Memory for Data {
    fn address(&mut self) -> *mut u8 {
        match self {
            Self::Whole(buffer) => buffer.as_mut_ptr(),
            Self::Part(part) => part.address,
        }
    }

    fn size(&self) -> usize {
        match self {
            Self::Whole(buffer) => buffer.len(),
            Self::Part(part) => part.size,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_part_brings_the_buffer_back() {
        let mut buffer = Buffer::zeroed(8);
        buffer.set_len_lbas(5);
        let address = buffer.as_ptr();
        let mut parts = cut(buffer, 2);
        let sizes: Vec<_> = parts.iter().map(|part| part.size / LBA_SIZE).collect();
        assert_eq!(sizes, [2, 2, 1]);
        for (index, part) in parts.iter().enumerate() {
            assert_eq!(part.address.cast_const(), address.wrapping_add(2 * index * LBA_SIZE));
        }
        let last = parts.swap_remove(1);
        assert!(parts.into_iter().all(|part| part.end().is_none()));
        let buffer = last.end().expect("all parts of the buffer have ended");
        assert_eq!((buffer.as_ptr(), buffer.len_lbas(), buffer.capacity_lbas()), (address, 5, 8));
    }
}
