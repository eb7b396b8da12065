//! Shortens the reserves, which are the slots that wait for the next snapshots. The space that the
//! next snapshots will not need goes back to the file system or, if the volume is a device, to the
//! device's pool of extents.
//!
//! When a slot becomes a reserve, it keeps its space, and a later snapshot overwrites it. But if
//! the data set has become far smaller, the reserve holds space that nobody else can use. Therefore
//! the snapshot thread shortens reserves when it has no snapshot to write. The thread returns one
//! piece at a time, with pauses, so that the file system's work never holds up the log. Only slots
//! that the current superblock does not name are shortened, so an interruption cannot damage a
//! snapshot.

use std::time::{Duration, Instant};

use slimio_storage::{Area, SlotName, SlotPaths};

/// Time between two pieces.
const PAUSE: Duration = Duration::from_millis(200);

/// Reserves that may be too long.
#[derive(Debug, Default)]
pub(super) struct Surplus {
    /// Each slot with the number of LBAs that the next snapshot may need.
    slots: Vec<(SlotName, u64)>,
    /// When the next piece may be returned.
    next_at: Option<Instant>,
}

impl Surplus {
    /// Adds a reserve. The next snapshot takes about `need_lbas` LBAs.
    pub(super) fn add(&mut self, slot: SlotName, need_lbas: u64) {
        self.forget(slot);
        self.slots.push((slot, need_lbas));
    }

    /// Forgets a slot that is about to be written.
    pub(super) fn forget(&mut self, slot: SlotName) {
        self.slots.retain(|(known, _)| *known != slot);
    }

    /// How long to wait before the next [`step`](Self::step); `None` if no reserve is left to
    /// shorten.
    pub(super) fn pause(&self) -> Option<Duration> {
        let since = |at: Instant| at.saturating_duration_since(Instant::now());
        (!self.slots.is_empty()).then(|| self.next_at.map_or(Duration::ZERO, since))
    }

    /// Shortens a reserve by one piece.
    pub(super) fn step(&mut self, paths: &mut SlotPaths) {
        let Some((slot, need_lbas)) = self.slots.pop() else { return };
        match paths.give_back(slot, need_lbas) {
            Ok(true) => {
                self.slots.push((slot, need_lbas));
                self.next_at = Some(Instant::now() + PAUSE);
            }
            Ok(false) => {}
            Err(error) => {
                log::warn!("{} cannot be shortened: {error}", Area::Snapshot(slot).name());
            }
        }
    }
}
