//! Checks of the pool's invariants, extent by extent.

use super::Pool;

impl Pool {
    /// Walks over all extents. Panics with a message if an invariant is broken.
    pub(crate) fn check(&self) {
        let state = self.state();
        let mut owners = vec![0; state.free.len()];
        for pieces in &state.areas {
            assert!(pieces.last().is_none_or(Option::is_some), "an area ends with a hole");
            for extent in pieces.iter().flatten() {
                owners[*extent as usize] += 1;
            }
        }
        for (extent, (owners, is_free)) in owners.iter().zip(&state.free).enumerate() {
            let wanted = usize::from(!is_free);
            assert_eq!(*owners, wanted, "extent {extent} has the wrong number of owners");
        }
        let end = state.first_lba + state.free.len() as u64 * state.extent_lbas;
        assert!(end <= state.device_lbas, "the last extent is not on the device");
        drop(state);
        let usage = self.usage();
        let all = usage.wal + usage.slots.iter().sum::<u64>() + usage.free;
        assert_eq!(all, usage.total, "the used and the free blocks do not add up");
    }
}
