//! A model of an emulated drive whose contents are in a file. The model has a mapping, which says
//! which NAND page each block is on. The model applies the drive's requests to this mapping, and is
//! never interrupted.

use std::collections::HashMap;

use slimio_device::PlacementId;
use slimio_sim::Random;
use slimio_ssd::{Config, EventKind, FdpEventRecord, Ftl};

/// A request of a host.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Ask {
    Write { lba: u64, count: u64, placement: u16 },
    Deallocate { lba: u64, count: u64 },
    Update { placement: u16 },
    Enable { handle: u16, kind: EventKind, is_enabled: bool },
}

impl Ask {
    /// A random request for a drive of `lba_count` blocks with eight handles. Some of the named
    /// placements do not exist.
    pub(crate) fn random(random: &mut Random, lba_count: u64) -> Self {
        let count = 1 + random.below(16);
        let lba = random.below(lba_count - 64);
        match random.below(32) {
            0 => Self::Update { placement: random.below(8) as u16 },
            1 => {
                let kind = EventKind::ALL[random.below(5) as usize];
                let handle = random.below(8) as u16;
                Self::Enable { handle, kind, is_enabled: random.coin() }
            }
            2..=4 => Self::Deallocate { lba, count: 4 * count },
            _ => Self::Write { lba, count, placement: random.below(9) as u16 },
        }
    }
}

/// The state that a drive must have after some requests.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) ftl: Ftl,
    /// For each block, the stamp of its last write. A write fills its blocks with its stamp.
    pub(crate) stamps: HashMap<u64, u64>,
}

impl Model {
    pub(crate) fn new(config: Config) -> Self {
        Self { ftl: Ftl::new(config).expect("the configuration is valid"), stamps: HashMap::new() }
    }

    pub(crate) fn apply(&mut self, ask: Ask, stamp: u64) {
        match ask {
            Ask::Write { lba, count, placement } => {
                let handles = self.ftl.config().handles;
                if placement >= handles {
                    self.ftl.note_invalid_placement(placement);
                }
                let handle = if placement < handles { placement } else { 0 };
                for lba in lba..lba + count {
                    self.ftl.write(lba, handle).expect("the block is within the drive");
                    self.stamps.insert(lba, stamp);
                }
            }
            Ask::Deallocate { lba, count } => {
                self.ftl.deallocate(lba, count).expect("the range is within the drive");
                self.stamps.retain(|at, _| !(lba..lba + count).contains(at));
            }
            Ask::Update { placement } => {
                self.ftl.start_fresh_unit(placement, &mut ()).expect("the handle exists");
            }
            Ask::Enable { handle, kind, is_enabled } => {
                self.ftl.enable_events(handle, &[kind], is_enabled).expect("the handle exists");
            }
        }
    }
}

/// Whether two mappings are the same in everything that is visible from outside. The times of
/// events are not compared.
pub(crate) fn are_same(one: &Ftl, other: &Ftl) -> bool {
    let lbas = one.config().lba_count;
    let events = |ftl: &Ftl| {
        let without_time = |event: &FdpEventRecord| FdpEventRecord { time_ms: 0, ..*event };
        ftl.host_events().chain(ftl.controller_events()).map(without_time).collect::<Vec<_>>()
    };
    let enabled = |ftl: &Ftl| (0..8).map(|handle| ftl.enabled_events(handle)).collect::<Vec<_>>();
    one.counters() == other.counters()
        && (0..lbas).all(|lba| one.page_of(lba) == other.page_of(lba))
        && one.units().eq(other.units())
        && events(one) == events(other)
        && enabled(one) == enabled(other)
}

/// A list of placements that has only this one, as `update_handles` takes it.
pub(crate) fn placements(placement: u16) -> [PlacementId; 1] {
    [PlacementId(placement)]
}
