//! The report of an emulated drive about its data placement. An NVMe drive with FDP reports the
//! same.

use slimio_device::{
    DeviceError, FdpAccount, FdpEvent, FdpStatistics, PlacementHandle, PlacementId,
};

use super::Shared;

#[derive(Debug)]
pub(super) struct Account {
    core: Shared,
    /// Number of handles that hosts see.
    handles: u16,
}

impl Account {
    pub(super) fn new(core: Shared, handles: u16) -> Self {
        Self { core, handles }
    }
}

impl FdpAccount for Account {
    fn unit_blocks(&self) -> Option<u64> {
        Some(u64::from(self.core.lock().drive.ftl().config().geometry.unit_pages()))
    }

    fn statistics(&self) -> Result<FdpStatistics, DeviceError> {
        let core = self.core.lock();
        let counters = core.drive.ftl().counters();
        Ok(FdpStatistics {
            host_bytes: counters.host_bytes().into(),
            media_bytes: counters.media_bytes().into(),
            erased_bytes: counters.erased_bytes().into(),
        })
    }

    fn has_statistics_at_hand(&self) -> bool {
        true
    }

    fn host_events(&self) -> Result<Vec<FdpEvent>, DeviceError> {
        let core = self.core.lock();
        let events = core.drive.ftl().host_events().map(|event| FdpEvent {
            kind: event.kind.code(),
            placement: event.placement.map(|placement| placement.0),
        });
        Ok(events.collect())
    }

    fn handles_used(&self) -> Result<usize, DeviceError> {
        Ok(usize::from(self.handles))
    }

    fn handles(&self) -> Result<Vec<PlacementHandle>, DeviceError> {
        let core = self.core.lock();
        let ftl = core.drive.ftl();
        let of_placement = |placement: PlacementId| PlacementHandle {
            placement: placement.0,
            handle: ftl.config().parse_placement(placement).map_or(0, |(_, handle)| handle),
            unit_blocks_left: ftl.handle_pages_left(placement.0).map_or(0, u64::from),
        };
        let all = ftl.config().placements().filter(|_| self.handles > 0);
        Ok(all.map(of_placement).collect())
    }

    fn start_fresh_unit(&self, placement: PlacementId) -> Result<(), DeviceError> {
        let mut core = self.core.lock();
        let now = core.drive_now(&self.core);
        core.update_handles(now, &[placement]).map_err(|_| DeviceError::OutOfRange)
    }
}
