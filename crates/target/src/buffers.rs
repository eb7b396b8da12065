//! Memory for the data of one connection's commands: bounded, and used again.

use slimio_device::{Buffer, LBA_SIZE};

use crate::limits::{DATA_SIZE_MAX, IN_CAPSULE_SIZE_MAX, TRANSFER_SIZE_MAX};

const LBAS_MAX: usize = TRANSFER_SIZE_MAX / LBA_SIZE;
/// Capacities of buffers, in blocks: powers of two up to the longest transfer.
const CLASSES: usize = LBAS_MAX.trailing_zeros() as usize + 1;
/// Blocks of free buffers that are kept.
const KEPT_LBAS_MAX: usize = 1 << 10;
/// Blocks that may be taken, beside those of in-capsule data.
const TAKEN_LBAS_MAX: usize = DATA_SIZE_MAX / LBA_SIZE;

const _: () = assert!(LBAS_MAX.is_power_of_two() && LBAS_MAX <= TAKEN_LBAS_MAX);

/// The buffers of a connection.
#[derive(Debug, Default)]
pub(crate) struct Buffers {
    free: [Vec<Buffer>; CLASSES],
    free_lbas: usize,
    taken_lbas: usize,
}

impl Buffers {
    /// A buffer of that many blocks with arbitrary contents; `None` if too many are taken.
    pub(crate) fn take(&mut self, lbas: usize) -> Option<Buffer> {
        let is_room = self.taken_lbas + lbas.next_power_of_two() <= TAKEN_LBAS_MAX;
        is_room.then(|| self.take_anyway(lbas))
    }

    /// A buffer for in-capsule data, which is bounded by the queue's depth.
    pub(crate) fn take_in_capsule(&mut self, lbas: usize) -> Buffer {
        assert!(lbas * LBA_SIZE <= IN_CAPSULE_SIZE_MAX, "{lbas} blocks are beyond a capsule");
        self.take_anyway(lbas)
    }

    fn take_anyway(&mut self, lbas: usize) -> Buffer {
        assert!((1..=LBAS_MAX).contains(&lbas), "a transfer of {lbas} blocks is beyond the limit");
        let capacity = lbas.next_power_of_two();
        self.taken_lbas += capacity;
        let free = &mut self.free[capacity.trailing_zeros() as usize];
        let mut buffer = match free.pop() {
            Some(buffer) => {
                self.free_lbas -= capacity;
                buffer
            }
            None => Buffer::zeroed(capacity),
        };
        buffer.set_len_lbas(lbas);
        buffer
    }

    /// Takes a buffer back.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity_lbas();
        self.taken_lbas -= capacity;
        let class = capacity.trailing_zeros() as usize;
        // Small buffers are wanted most often, so a large one makes way.
        while self.free_lbas + capacity > KEPT_LBAS_MAX {
            let Some(large) = self.free[class + 1..].iter_mut().rev().find_map(Vec::pop) else {
                return;
            };
            self.free_lbas -= large.capacity_lbas();
        }
        self.free_lbas += capacity;
        self.free[class].push(buffer);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_taken_is_bounded_and_comes_back() {
        let mut buffers = Buffers::default();
        let taken: Vec<Buffer> = std::iter::from_fn(|| buffers.take(LBAS_MAX)).collect();
        assert_eq!(taken.len(), DATA_SIZE_MAX / TRANSFER_SIZE_MAX);
        assert!(buffers.take(1).is_none());
        assert_eq!(buffers.take_in_capsule(1).len(), LBA_SIZE);
        for buffer in taken {
            buffers.give(buffer);
        }
        assert!(buffers.free_lbas <= KEPT_LBAS_MAX);
        let address = buffers.take(3).map(|buffer| {
            let address = buffer.as_ptr();
            buffers.give(buffer);
            address
        });
        assert_eq!(buffers.take(4).map(|buffer| buffer.as_ptr()), address, "it is used again");
    }
}
