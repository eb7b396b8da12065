//! What an administrator asks of a drive, beside reading and writing.

use std::time::Duration;

use slimio_device::PlacementId;

use super::core::Core;
use super::request::Request;
use crate::{EventKind, FtlError};

impl Core {
    /// Moves handles to fresh units, at `now`: all of them, or none if one is unknown.
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

    /// Says which kinds of events a handle records.
    pub(super) fn enable_events(
        &mut self,
        now: Duration,
        handle: u16,
        kinds: &[EventKind],
        is_enabled: bool,
    ) -> Result<(), FtlError> {
        // This is an error if there is no such handle.
        self.drive.ftl().enabled_events(handle)?;
        let of_kind = |kind: &EventKind| Request::Enable { handle, kind: kind.code(), is_enabled };
        self.journal_all(now, kinds.iter().map(of_kind))?;
        self.drive.ftl_mut().enable_events(handle, kinds, is_enabled)
    }

    /// Journals requests that can't fail, which the caller applies then. Sets the time of their
    /// events.
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
