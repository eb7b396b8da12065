//! The configuration that a drive was made with, as the state file stores it.

use std::ops::Range;
use std::path::Path;
use std::time::Duration;

use super::state_file::StateFile;
use super::{Deallocated, DriveOptions, Size};
use crate::Geometry;
use crate::config::{Config, Frontiers, Isolation, Thresholds, Timing, Victims};

/// [`SavedConfig::numbers`] may return up to this many numbers.
pub(super) const NUMBERS_MAX: usize = 40;

/// A drive's configuration. Some of it may change from one start to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedConfig {
    pub(crate) config: Config,
    pub(crate) has_fdp: bool,
    pub(crate) cache_lbas: u32,
    pub(crate) deallocate_latency: Duration,
    pub(crate) deallocated: Deallocated,
    pub(crate) is_sync: bool,
    /// Blocks that were mapped into memory. Stores to this memory do not pass through the drive.
    pub(crate) mapped: Range<u64>,
}

impl SavedConfig {
    pub(crate) fn of(options: &DriveOptions) -> Self {
        Self {
            config: options.config.clone(),
            has_fdp: options.has_fdp,
            cache_lbas: options.cache_lbas,
            deallocate_latency: options.deallocate_latency,
            deallocated: options.deallocated,
            is_sync: options.is_sync,
            mapped: 0..0,
        }
    }

    /// The configuration of the drive whose bytes are in the file at `path`, if a valid state file
    /// is beside that file.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        StateFile::of(path).ok()?.read_made()
    }

    /// The first difference between this configuration and `wanted`, as a sentence without a full
    /// stop. Values that may change from one start to the next are not compared.
    pub(super) fn difference(&self, wanted: &Self) -> Option<String> {
        let both = self.facts().into_iter().zip(wanted.facts());
        let mut different = both.filter(|(was, is)| was != is);
        let ((name, was), (_, is)) = different.next()?;
        Some(format!("the drive in this file was made with {name}{was}, not {is}"))
    }

    /// The properties of a drive that never change: the name and the value of each, in words.
    fn facts(&self) -> [(&'static str, String); 9] {
        let Config { geometry, isolation, .. } = &self.config;
        let isolation = match isolation {
            Isolation::Initial => "initial",
            Isolation::Persistent => "persistent",
        };
        [
            ("size=", Size(self.config.exported_size()).to_string()),
            ("reclaim units of ru=", Size(geometry.unit_size()).to_string()),
            ("a count of reclaim units (spare=) of ", geometry.unit_count().to_string()),
            ("fdp=", if self.has_fdp { "on" } else { "off" }.to_owned()),
            ("handles=", self.config.handles.to_string()),
            ("isolation=", isolation.to_owned()),
            ("groups=", self.config.groups.to_string()),
            ("a binary handle mask (initial=) of ", format!("{:b}", self.config.initial_handles)),
            ("the dies and frontiers ", format!("{:?}", (geometry, self.config.frontiers))),
        ]
    }

    /// The configuration as numbers. Newer versions of this program store more numbers. In each
    /// number that was added later, 0 stands for the value that all older drives have.
    pub(super) fn numbers(&self) -> impl Iterator<Item = u64> {
        let Self { config, has_fdp, cache_lbas, deallocate_latency, mapped, .. } = self;
        let Config { geometry, lba_count, handles, thresholds, timing, .. } = config;
        let victims = match config.victims {
            Victims::Greedy => 0,
            Victims::Fifo => 1,
            Victims::CostBenefit => 2,
        };
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        [
            *lba_count,
            geometry.channels.into(),
            geometry.dies_per_channel.into(),
            geometry.blocks_per_die.into(),
            geometry.pages_per_block.into(),
            geometry.dies_per_unit.map_or(0, |dies| dies.get().into()),
            (*handles).into(),
            (*has_fdp).into(),
            (config.isolation == Isolation::Persistent).into(),
            (config.frontiers == Frontiers::Shared).into(),
            victims,
            thresholds.foreground_units.into(),
            thresholds.background_units.into(),
            thresholds.background_invalid_permille.into(),
            nanos(timing.read),
            nanos(timing.program),
            nanos(timing.erase),
            nanos(timing.transfer),
            (*cache_lbas).into(),
            nanos(*deallocate_latency),
            mapped.start,
            mapped.end,
            (self.deallocated == Deallocated::Pattern).into(),
            self.is_sync.into(),
            u64::from(config.groups) - 1,
            config.initial_handles as u64,
            (config.initial_handles >> 64) as u64,
        ]
        .into_iter()
    }

    pub(super) fn from_numbers(mut numbers: impl Iterator<Item = u64>) -> Option<Self> {
        let mut next = || numbers.next();
        let lba_count = next()?;
        let narrow = |number: u64| u32::try_from(number).ok();
        let geometry = Geometry {
            channels: narrow(next()?)?,
            dies_per_channel: narrow(next()?)?,
            blocks_per_die: narrow(next()?)?,
            pages_per_block: narrow(next()?)?,
            dies_per_unit: std::num::NonZeroU32::new(narrow(next()?)?),
        };
        let (handles, has_fdp) = (u16::try_from(next()?).ok()?, next()? != 0);
        let isolation = if next()? == 0 { Isolation::Initial } else { Isolation::Persistent };
        let frontiers = if next()? == 0 { Frontiers::Separate } else { Frontiers::Shared };
        let victims = match next()? {
            0 => Victims::Greedy,
            1 => Victims::Fifo,
            2 => Victims::CostBenefit,
            _ => return None,
        };
        let thresholds = Thresholds {
            foreground_units: narrow(next()?)?,
            background_units: narrow(next()?)?,
            background_invalid_permille: narrow(next()?)?,
        };
        let timing = Timing {
            read: Duration::from_nanos(next()?),
            program: Duration::from_nanos(next()?),
            erase: Duration::from_nanos(next()?),
            transfer: Duration::from_nanos(next()?),
        };
        let cache_lbas = narrow(next()?)?;
        let deallocate_latency = Duration::from_nanos(next()?);
        let mapped = next()?..next()?;
        let deallocated = if next()? == 0 { Deallocated::Zeros } else { Deallocated::Pattern };
        let is_sync = next()? != 0;
        let groups = u16::try_from(next()?).ok()?.checked_add(1)?;
        let initial_handles = u128::from(next()?) | u128::from(next()?) << 64;
        let config = Config {
            geometry,
            lba_count,
            handles,
            groups,
            isolation,
            initial_handles,
            victims,
            frontiers,
            thresholds,
            timing,
        };
        Some(Self { config, has_fdp, cache_lbas, deallocate_latency, deallocated, is_sync, mapped })
    }
}
