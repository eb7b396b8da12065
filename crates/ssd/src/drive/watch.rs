//! A way to look at a drive without a path to it, and to run an administrator's requests.

use slimio_device::PlacementId;

use super::Shared;
use crate::{EventKind, FdpEventRecord, Ftl, FtlError};

/// Lets a caller look at a drive, and manage its handles, while other code uses the drive.
#[derive(Clone, Debug)]
pub struct DriveWatch(pub(super) Shared);

impl DriveWatch {
    /// Calls `look` with the mapping as it is now. The drive is locked while `look` runs.
    pub fn with_ftl<T>(&self, look: impl FnOnce(&Ftl) -> T) -> T {
        look(self.0.lock().drive.ftl())
    }

    /// Moves a placement's handle to a fresh reclaim unit, now. This is NVMe's Reclaim Unit Handle
    /// Update.
    ///
    /// # Errors
    /// If there is no such placement. Then nothing has changed.
    pub fn update_handle(&self, placement: PlacementId) -> Result<(), FtlError> {
        self.update_handles(&[placement])
    }

    /// Like [`update_handle`](Self::update_handle), but for several placements: all of their
    /// handles are moved, or none.
    ///
    /// # Errors
    /// If one of the placements does not exist. Then nothing has changed.
    pub fn update_handles(&self, placements: &[PlacementId]) -> Result<(), FtlError> {
        let mut core = self.0.lock();
        let now = core.drive_now(&self.0);
        core.update_handles(now, placements)
    }

    /// The log of the events that hosts caused, oldest first, at most
    /// [`EVENTS_MAX`](crate::EVENTS_MAX) of them.
    pub fn host_events(&self) -> Vec<FdpEventRecord> {
        self.with_ftl(|ftl| ftl.host_events().copied().collect())
    }

    /// The log of the events that the controller caused without being asked, oldest first, at most
    /// [`EVENTS_MAX`](crate::EVENTS_MAX) of them.
    pub fn controller_events(&self) -> Vec<FdpEventRecord> {
        self.with_ftl(|ftl| ftl.controller_events().copied().collect())
    }

    /// For each kind of event that the drive knows, its code and whether `handle` records events of
    /// this kind (FDP Events, feature 1Eh). Empty if there is no such handle.
    pub fn enabled_events(&self, handle: u16) -> Vec<(u8, bool)> {
        self.with_ftl(|ftl| ftl.enabled_events(handle).unwrap_or_default())
    }

    /// Turns the recording of kinds of events on or off for a handle. The kinds are given by their
    /// codes. Codes that the drive does not know are ignored.
    ///
    /// # Errors
    /// If there is no such handle. Then nothing has changed.
    pub fn enable_events(
        &self,
        handle: u16,
        kinds: &[u8],
        is_enabled: bool,
    ) -> Result<(), FtlError> {
        let kinds: Vec<_> = kinds.iter().filter_map(|kind| EventKind::of_code(*kind)).collect();
        let mut core = self.0.lock();
        let now = core.drive_now(&self.0);
        core.enable_events(now, handle, &kinds, is_enabled)
    }
}
