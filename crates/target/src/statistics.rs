//! The statistics of a served drive, for its operator.

use std::sync::PoisonError;
use std::sync::atomic::Ordering;

use slimio_device::LBA_SIZE;
use slimio_ssd::{HandleCounters, Owner, UnitState};

use crate::subsystem::Subsystem;

/// Counts of a drive and its hosts at one moment. If the drive is kept in a file, the drive's
/// counts continue across restarts. The counts of commands and errors begin anew with each process.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statistics {
    /// Size that the drive exports, in bytes.
    pub size_bytes: u64,
    /// Bytes that hold data.
    pub mapped_bytes: u64,
    /// Bytes that hosts wrote.
    pub host_bytes: u64,
    /// Bytes that were written to the media.
    pub media_bytes: u64,
    /// Bytes among `media_bytes` that the collector copied.
    pub copied_bytes: u64,
    /// Bytes that were erased.
    pub erased_bytes: u64,
    /// Size of a reclaim unit, in bytes.
    pub unit_bytes: u64,
    /// Number of reclaim units.
    pub units: u32,
    /// Number of units that are erased and not in use.
    pub units_free: u32,
    /// Number of units that are being filled.
    pub units_open: u32,
    /// Counts of each handle, in order.
    pub handles: Vec<HandleStatistics>,
    /// Counts of the units in which the collector has mixed data of several handles.
    pub mixed: HandleStatistics,
    /// Read commands that were successful.
    pub read_commands: u64,
    /// Bytes that successful read commands have read.
    pub read_bytes: u64,
    /// Write commands that were successful.
    pub write_commands: u64,
    /// Number of errors that were ever added to the error log.
    pub errors: u64,
    /// All controllers: the number of the controller, and its host's name.
    pub controllers: Vec<(u16, String)>,
}

/// Counts of one handle.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct HandleStatistics {
    /// Bytes that hosts wrote.
    pub host_bytes: u64,
    /// Bytes that the collector copied.
    pub copied_bytes: u64,
    /// Bytes of padding that were written when a host moved the handle to a fresh unit.
    pub padded_bytes: u64,
    /// Units that were erased.
    pub units_erased: u64,
    /// Units that the handle fills or has filled.
    pub units: u32,
    /// Bytes in these units that hold data.
    pub valid_bytes: u64,
}

impl HandleStatistics {
    fn of(counters: &HandleCounters) -> Self {
        let bytes = |pages: u64| pages * LBA_SIZE as u64;
        Self {
            host_bytes: bytes(counters.host_pages),
            copied_bytes: bytes(counters.copied_pages),
            padded_bytes: bytes(counters.padded_pages),
            units_erased: counters.erased_units,
            units: 0,
            valid_bytes: 0,
        }
    }
}

impl Statistics {
    /// Write amplification: media bytes divided by host bytes. `None` before the first write.
    pub fn waf(&self) -> Option<f64> {
        (self.host_bytes > 0).then(|| self.media_bytes as f64 / self.host_bytes as f64)
    }
}

impl Subsystem {
    /// The counts at this moment. The drive is locked while all its reclaim units are counted, so
    /// the more units it has, the longer it is locked.
    pub fn statistics(&self) -> Statistics {
        let load = |count: &std::sync::atomic::AtomicU64| count.load(Ordering::Relaxed);
        let mut all = self.watch.with_ftl(|ftl| {
            let counters = ftl.counters();
            let mut all = Statistics {
                size_bytes: self.size(),
                mapped_bytes: ftl.mapped_count() * LBA_SIZE as u64,
                host_bytes: counters.host_bytes(),
                media_bytes: counters.media_bytes(),
                copied_bytes: counters.copied_bytes(),
                erased_bytes: counters.erased_bytes(),
                unit_bytes: ftl.config().geometry.unit_size(),
                units_free: ftl.free_units(),
                handles: counters.handles().iter().map(HandleStatistics::of).collect(),
                mixed: HandleStatistics::of(counters.mixed()),
                ..Statistics::default()
            };
            for unit in ftl.units() {
                all.units += 1;
                all.units_open += u32::from(unit.state == UnitState::Open);
                let owner = match unit.owner {
                    Some(Owner::Handle(handle)) => all.handles.get_mut(usize::from(handle)),
                    Some(Owner::Mixed) => Some(&mut all.mixed),
                    None => None,
                };
                if let Some(owner) = owner {
                    owner.units += 1;
                    owner.valid_bytes += u64::from(unit.valid) * LBA_SIZE as u64;
                }
            }
            all
        });
        all.read_commands = load(&self.counts.read_commands);
        all.read_bytes = load(&self.counts.read_bytes);
        all.write_commands = load(&self.counts.write_commands);
        all.errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner).count();
        all.controllers = self.hosts();
        all
    }
}
