//! Requests of an administrator, which neither read nor write blocks.

use std::time::Duration;

use slimio_device::PlacementId;

use super::core::Core;
use super::request::Request;
use crate::{EventKind, FtlError};

impl Core {
    /// Moves the handles of these placements to fresh reclaim units at the time `now`. If one of
    /// the placements is unknown, no handle is moved.
    pub(super) fn update_handles(
        &mut self,
        now: Duration,
        placements: &[PlacementId],
    ) -> Result<(), FtlError> {
        let config = self.drive.ftl().config();
        let handles = if self.has_fdp { config.handles } else { 0 };
        let is_known = |at: &PlacementId| self.has_fdp && config.parse_placement(*at).is_some();
        if let Some(unknown) = placements.iter().find(|at| !is_known(at)) {
            return Err(FtlError::UnknownHandle { handle: unknown.0, handles });
        }
        let requests = placements.iter().map(|at| Request::FreshUnit { placement: at.0 });
        self.journal_all(now, requests)?;
        placements.iter().try_for_each(|placement| self.drive.start_fresh_unit(now, placement.0))
    }

    /// Turns the recording of these kinds of events on or off for a handle.
    pub(super) fn enable_events(
        &mut self,
        now: Duration,
        handle: u16,
        kinds: &[EventKind],
        is_enabled: bool,
    ) -> Result<(), FtlError> {
        // This call fails if there is no such handle.
        self.drive.ftl().enabled_events(handle)?;
        let of_kind = |kind: &EventKind| Request::Enable { handle, kind: kind.code(), is_enabled };
        self.journal_all(now, kinds.iter().map(of_kind))?;
        self.drive.ftl_mut().enable_events(handle, kinds, is_enabled)
    }

    /// Stores requests in the journal, and sets the time for the events that they cause. The caller
    /// applies the requests afterwards. Applying them must not be able to fail.
    fn journal_all(
        &mut self,
        now: Duration,
        requests: impl ExactSizeIterator<Item = Request>,
    ) -> Result<(), FtlError> {
        let time = self.wall_ms(now);
        self.drive.ftl_mut().set_time(time);
        let not_stored = |_| FtlError::NotStored;
        self.make_ready(requests.len() as u64).map_err(not_stored)?;
        let Some(journal) = &mut self.journal else { return Ok(()) };
        for request in requests {
            journal.append(request, time).map_err(not_stored)?;
        }
        Ok(())
    }
}
