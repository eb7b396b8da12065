//! A path whose operations complete by the drive's own clock, without any thread.

use std::collections::VecDeque;
use std::os::fd::BorrowedFd;
use std::sync::Arc;
use std::time::Duration;

use slimio_device::{Completion, Device, DeviceError, Geometry, Op, Token};

use super::Shared;
use super::core::{Opened, Scratch};
use super::data::Data;
use super::queue::InFlight;

/// Each poll advances the drive's clock by this time, so that a caller that only polls makes
/// progress.
const LOOK: Duration = Duration::from_micros(1);

#[derive(Debug)]
pub(super) struct VirtualTimePath {
    core: Shared,
    data: Arc<Data>,
    geometry: Geometry,
    opened: Opened,
    /// Operations that were submitted, but that no `kick` has begun yet.
    queued: VecDeque<(Token, Op)>,
    begun: InFlight,
    scratch: Scratch,
}

impl VirtualTimePath {
    pub(super) fn new(core: Shared, data: Arc<Data>, in_flight_max: u32) -> Self {
        let (geometry, opened) = core.lock().open(in_flight_max);
        let (begun, scratch) = (InFlight::default(), Scratch::default());
        Self { core, data, geometry, opened, queued: VecDeque::new(), begun, scratch }
    }

    /// Completes the operations that are due at `now`, in the order of their due times.
    fn reap(&mut self, now: Duration, completions: &mut Vec<Completion>) {
        while let Some((token, begun)) = self.begun.take_due(now) {
            completions.push(begun.end(token, &self.core));
        }
    }
}

impl Device for VirtualTimePath {
    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if self.in_flight() >= self.geometry.in_flight_max as usize {
            return Err(op);
        }
        self.queued.push_back((token, op));
        Ok(())
    }

    fn kick(&mut self) {
        while let Some((token, op)) = self.queued.pop_front() {
            let begun = self.core.begin(op, None, &self.opened, &self.data, &mut self.scratch);
            self.begun.push(token, begun);
        }
        self.begun.settle(&self.core);
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        let mut core = self.core.lock();
        core.now += LOOK;
        let now = core.now;
        drop(core);
        self.reap(now, completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.kick();
        let Some(first) = self.begun.next_due() else { return };
        let mut core = self.core.lock();
        let latest = timeout.map_or(first, |timeout| first.min(core.now + timeout.max(LOOK)));
        core.now = core.now.max(latest);
        let now = core.now;
        drop(core);
        self.reap(now, completions);
    }

    fn in_flight(&self) -> usize {
        self.queued.len() + self.begun.count()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count <= self.geometry.lba_count { Ok(()) } else { Err(DeviceError::NoSpace) }
    }
}
