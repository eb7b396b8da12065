//! What reserves have and will not need, given back to the file system.
//!
//! A slot keeps its blocks and is written over; but after a data set has become far smaller, its
//! slots hold what nobody else can use. A reserve is shortened a piece at a time, with pauses, on the
//! snapshot thread while it writes no snapshot, so that the file system's work for it never holds up
//! the log. Only what the superblock in force does not name is ever shortened: whatever is
//! interrupted, nothing that counts was touched.

use std::time::{Duration, Instant};

use slimio_storage::{Area, SlotName, SlotPaths};

/// Time between two pieces.
const PAUSE: Duration = Duration::from_millis(200);

/// Reserves that may be too long.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Each with the blocks that a snapshot may need.
    slots: Vec<(SlotName, u64)>,
    /// When the next piece may be given back.
    next_at: Option<Instant>,
}

impl Surplus {
    /// A slot is a reserve, and the next snapshot takes about `need_lbas` blocks.
    pub(super) fn add(&mut self, slot: SlotName, need_lbas: u64) {
        self.forget(slot);
        self.slots.push((slot, need_lbas));
    }

    /// A slot is about to be written.
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
