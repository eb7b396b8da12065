//! Returns space that reserves will not need to the file system.
//!
//! A slot keeps its blocks and is overwritten; but after a data set has become far smaller, its
//! slots hold space that nobody else can use. A reserve is shortened a piece at a time, with
//! pauses, on the snapshot thread while it writes no snapshot, so that the file system's work for
//! it never holds up the log. Only a slot that the superblock in force does not name is ever
//! shortened: an interruption touches nothing that counts.

use std::time::{Duration, Instant};

use slimio_storage::{Area, SlotName, SlotPaths};

/// Time between two pieces.
const PAUSE: Duration = Duration::from_millis(200);

/// Reserves that may be too long.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Each with the LBAs that a snapshot may need.
    slots: Vec<(SlotName, u64)>,
    /// When the next piece may be given back.
    next_at: Option<Instant>,
}

impl Surplus {
    /// Adds a reserve; the next snapshot takes about `need_lbas` LBAs.
    pub(super) fn add(&mut self, slot: SlotName, need_lbas: u64) {
        self.forget(slot);
        self.slots.push((slot, need_lbas));
    }

    /// Forgets a slot that is about to be written.
    pub(super) fn forget(&mut self, slot: SlotName) {
        self.slots.retain(|(known, _)| *known != slot);
    }

    /// How long to wait before the next [`step`](Self::step); `None` when there is none.
    pub(super) fn pause(&self) -> Option<Duration> {
        let since = |at: Instant| at.saturating_duration_since(Instant::now());
        (!self.slots.is_empty()).then(|| self.next_at.map_or(Duration::ZERO, since))
    }

    /// Gives back a piece.
    pub(super) fn step(&mut self, paths: &mut SlotPaths) {
        let Some((slot, need_lbas)) = self.slots.pop() else { return };
        match paths.give_back(slot, need_lbas) {
            Ok(true) => {
                self.slots.push((slot, need_lbas));
                self.next_at = Some(Instant::now() + PAUSE);
            }
            Ok(false) => {}
            Err(error) => {
                log::warn!("{} stays as long as it is: {error}", Area::Snapshot(slot).name());
            }
        }
    }
}
