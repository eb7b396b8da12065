//! Memory for the data of commands. The memory is bounded for each connection and for all
//! connections together. Buffers are used again.
//!
//! Each connection has a share of its own. It borrows further memory from a budget that all
//! connections have in common. The share is enough for two of the longest transfers, and no command
//! needs more. So a command that waits for memory waits only for commands of its own connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use slimio_device::{Buffer, LBA_SIZE};
use slimio_planted::is_planted;

use crate::limits::{DATA_BUDGET, DATA_SIZE_MAX, IN_CAPSULE_SIZE_MAX, TRANSFER_SIZE_MAX};

const LBAS_MAX: usize = TRANSFER_SIZE_MAX / LBA_SIZE;
/// Number of different capacities of buffers: the powers of two up to the longest transfer, in
/// blocks.
const CLASSES: usize = LBAS_MAX.trailing_zeros() as usize + 1;
/// Size of a connection's own share, in blocks.
const OWN_LBAS: usize = 2 * LBAS_MAX;
/// Number of blocks that all connections together may have beyond their shares.
const BUDGET_LBAS: usize = DATA_BUDGET / LBA_SIZE;
/// Largest number of blocks that a connection keeps in free buffers.
const KEPT_LBAS_MAX: usize = 1 << 10;
/// Largest number of blocks that a connection may have taken. In-capsule data counts, too, but is
/// taken even beyond this limit.
const TAKEN_LBAS_MAX: usize = DATA_SIZE_MAX / LBA_SIZE;

const _: () = assert!(LBAS_MAX.is_power_of_two() && OWN_LBAS <= TAKEN_LBAS_MAX);

/// The memory that all connections together hold beyond their own shares.
#[derive(Debug, Default)]
pub(crate) struct Budget {
    lent_lbas: AtomicUsize,
}

impl Budget {
    fn borrow(&self, lbas: usize) -> bool {
        let lend = |lent: usize| Some(lent + lbas).filter(|lent| *lent <= BUDGET_LBAS);
        self.lent_lbas.fetch_update(Ordering::Relaxed, Ordering::Relaxed, lend).is_ok()
            || is_planted("target-memory-unbounded")
    }

    fn give_back(&self, lbas: usize) {
        self.lent_lbas.fetch_sub(lbas, Ordering::Relaxed);
    }

    /// Whether more than half of the budget is lent. If so, an idle connection should give back all
    /// memory that it has borrowed.
    fn is_short(&self) -> bool {
        self.lent_lbas.load(Ordering::Relaxed) > BUDGET_LBAS / 2
    }
}

/// The buffers of a connection.
#[derive(Debug)]
pub(crate) struct Buffers {
    budget: Arc<Budget>,
    borrowed_lbas: usize,
    free: [Vec<Buffer>; CLASSES],
    free_lbas: usize,
    taken_lbas: usize,
}

impl Buffers {
    pub(crate) fn new(budget: Arc<Budget>) -> Self {
        let free = std::array::from_fn(|_| Vec::new());
        Self { budget, borrowed_lbas: 0, free, free_lbas: 0, taken_lbas: 0 }
    }

    /// A buffer of `lbas` blocks with arbitrary contents. `None` if the memory does not suffice.
    /// The caller then tries again when some of this connection's buffers have been given back.
    pub(crate) fn take(&mut self, lbas: usize) -> Option<Buffer> {
        let capacity = capacity_of(lbas);
        let is_room = self.taken_lbas + capacity <= TAKEN_LBAS_MAX
            && (self.has_free(capacity) || self.make_room(capacity));
        is_room.then(|| self.take_anyway(lbas))
    }

    /// A buffer for in-capsule data. Such data is bounded by the queue's depth, and does not count
    /// towards the budget.
    pub(crate) fn take_in_capsule(&mut self, lbas: usize) -> Buffer {
        assert!(lbas * LBA_SIZE <= IN_CAPSULE_SIZE_MAX, "{lbas} blocks do not fit into a capsule");
        self.take_anyway(lbas)
    }

    fn take_anyway(&mut self, lbas: usize) -> Buffer {
        let capacity = capacity_of(lbas);
        self.taken_lbas += capacity;
        let free = &mut self.free[class_of(capacity)];
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

    /// Takes a buffer back from its user, and frees memory that this connection should not keep.
    pub(crate) fn give(&mut self, buffer: Buffer) {
        let capacity = buffer.capacity_lbas();
        self.taken_lbas -= capacity;
        self.free_lbas += capacity;
        self.free[class_of(capacity)].push(buffer);
        while self.free_lbas > KEPT_LBAS_MAX {
            self.drop_largest();
        }
        // In-capsule data may have taken more memory than was borrowed.
        while self.held_lbas() > OWN_LBAS + self.borrowed_lbas && self.free_lbas > 0 {
            self.drop_largest();
        }
        while self.taken_lbas == 0 && self.held_lbas() > OWN_LBAS && self.budget.is_short() {
            self.drop_largest();
        }
        let needed = self.held_lbas().saturating_sub(OWN_LBAS);
        if needed < self.borrowed_lbas {
            self.budget.give_back(self.borrowed_lbas - needed);
            self.borrowed_lbas = needed;
        }
    }

    fn has_free(&self, capacity: usize) -> bool {
        !self.free[class_of(capacity)].is_empty()
    }

    /// Borrows memory, or frees buffers, until a new buffer of this capacity fits into the share
    /// and the borrowed memory. Returns false if that is not possible.
    fn make_room(&mut self, capacity: usize) -> bool {
        loop {
            let held = self.held_lbas() + capacity;
            let missing = held.saturating_sub(OWN_LBAS + self.borrowed_lbas);
            if missing == 0 {
                return true;
            }
            if self.budget.borrow(missing) {
                self.borrowed_lbas += missing;
                return true;
            }
            if self.free_lbas == 0 {
                return false;
            }
            self.drop_largest();
        }
    }

    /// Drops the largest free buffer. Small buffers are kept longer, because they are wanted most
    /// often.
    fn drop_largest(&mut self) {
        let largest = self.free.iter_mut().rev().find_map(Vec::pop);
        self.free_lbas -= largest.expect("some buffer is free").capacity_lbas();
    }

    fn held_lbas(&self) -> usize {
        self.taken_lbas + self.free_lbas
    }
}

impl Drop for Buffers {
    fn drop(&mut self) {
        self.budget.give_back(self.borrowed_lbas);
    }
}

/// The capacity of a buffer for this many blocks.
fn capacity_of(lbas: usize) -> usize {
    assert!(
        (1..=LBAS_MAX).contains(&lbas),
        "a transfer of {lbas} blocks is not between one block and the limit"
    );
    lbas.next_power_of_two()
}

fn class_of(capacity: usize) -> usize {
    capacity.trailing_zeros() as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    fn take_all(buffers: &mut Buffers) -> Vec<Buffer> {
        std::iter::from_fn(|| buffers.take(LBAS_MAX)).collect()
    }

    fn give_all(buffers: &mut Buffers, taken: Vec<Buffer>) {
        for buffer in taken {
            buffers.give(buffer);
        }
    }

    #[test]
    fn what_is_taken_is_bounded_and_comes_back() {
        let mut buffers = Buffers::new(Arc::default());
        let taken = take_all(&mut buffers);
        assert_eq!(taken.len(), DATA_SIZE_MAX / TRANSFER_SIZE_MAX);
        assert!(buffers.take(1).is_none());
        assert_eq!(buffers.take_in_capsule(1).len(), LBA_SIZE);
        give_all(&mut buffers, taken);
        assert!(buffers.free_lbas <= KEPT_LBAS_MAX);
        let address = buffers.take(3).map(|buffer| {
            let address = buffer.as_ptr();
            buffers.give(buffer);
            address
        });
        assert_eq!(
            buffers.take(4).map(|buffer| buffer.as_ptr()),
            address,
            "the buffer must be used again"
        );
    }

    #[test]
    fn all_connections_together_are_bounded_and_each_has_two_transfers() {
        let budget = Arc::new(Budget::default());
        let mut all: Vec<Buffers> = (0..40).map(|_| Buffers::new(budget.clone())).collect();
        let mut taken: Vec<Vec<Buffer>> = all.iter_mut().map(take_all).collect();
        assert!(taken.iter().all(|taken| taken.len() >= 2));
        let held: usize = all.iter().map(Buffers::held_lbas).sum();
        assert_eq!(held, all.len() * OWN_LBAS + BUDGET_LBAS);
        // A connection's whole share is in free buffers of another size. Even so, two transfers
        // must get buffers.
        let last = all.len() - 1;
        give_all(&mut all[last], std::mem::take(&mut taken[last]));
        taken[last] = (0..16).map_while(|_| all[last].take(16)).collect();
        give_all(&mut all[last], std::mem::take(&mut taken[last]));
        assert_eq!(take_all(&mut all[last]).len(), 2);
        for (buffers, taken) in all.iter_mut().zip(taken) {
            give_all(buffers, taken);
        }
        let kept: usize = all.iter().map(Buffers::held_lbas).sum();
        assert!(kept <= all.len() * OWN_LBAS + BUDGET_LBAS / 2, "{kept}");
        drop(all);
        assert_eq!(budget.lent_lbas.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn idle_connections_keep_at_most_half_of_the_budget() {
        let budget = Arc::new(Budget::default());
        let mut all: Vec<Buffers> = (0..40).map(|_| Buffers::new(budget.clone())).collect();
        let mut taken: Vec<Vec<Buffer>> = all.iter().map(|_| Vec::new()).collect();
        for _ in 0..DATA_SIZE_MAX / TRANSFER_SIZE_MAX {
            for (buffers, taken) in all.iter_mut().zip(&mut taken) {
                taken.extend(buffers.take(LBAS_MAX));
            }
        }
        assert!(budget.is_short());
        for (buffers, taken) in all.iter_mut().zip(taken) {
            give_all(buffers, taken);
        }
        assert!(!budget.is_short());
    }

    #[test]
    fn in_capsule_data_is_in_no_budget_and_is_not_kept_beyond_it() {
        let budget = Arc::new(Budget::default());
        assert!(budget.borrow(BUDGET_LBAS));
        let mut buffers = Buffers::new(budget);
        let taken = take_all(&mut buffers);
        assert_eq!(taken.len(), 2);
        let small: Vec<Buffer> = (0..128).map(|_| buffers.take_in_capsule(2)).collect();
        give_all(&mut buffers, small);
        assert_eq!(buffers.held_lbas(), OWN_LBAS);
        give_all(&mut buffers, taken);
        assert_eq!(buffers.held_lbas(), OWN_LBAS);
        let small: Vec<Buffer> = (0..128).map(|_| buffers.take_in_capsule(2)).collect();
        assert!(buffers.take(1).is_none(), "in-capsule data fills the connection's own share");
        give_all(&mut buffers, small);
        assert!(buffers.take(1).is_some());
    }
}
