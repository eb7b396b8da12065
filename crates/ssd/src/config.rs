//! A drive's configuration, and the check that a drive can work with it.

mod error;

pub use error::ConfigError;

use std::time::Duration;

use slimio_device::{LBA_SIZE, PlacementId};

use crate::Geometry;

/// The most handles that a drive may have. Common NVMe drives have no more than this in one
/// endurance group.
pub const HANDLES_MAX: u16 = 128;

/// The most reclaim groups that a drive may have.
pub const GROUPS_MAX: u16 = 32;

/// The most NAND pages that a drive may have. Page numbers have 32 bits, and one of the numbers
/// means "none".
const PAGES_MAX: u64 = u32::MAX as u64;

/// The share of the NAND that the drive of the SlimIO paper does not export, in percent.
pub(crate) const SPARE_PERCENT_DEFAULT: u32 = 25;

/// The number of units that a drive exports if no unit size is given. The paper's drive exports the
/// same number.
const UNITS_DEFAULT: u64 = 180;

/// The numbers of dies from which [`Config::sized`] chooses. The paper's drive has 64.
const DIES: [u64; 7] = [64, 32, 16, 8, 4, 2, 1];

/// Where the collector puts the data that it copies. The NVMe base specification calls this the
/// type of a handle (version 2.1, 3.2.4, "Flexible Data Placement").
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Isolation {
    /// Copies of different handles' data may share a unit, because one frontier (a unit that is
    /// being filled) takes all copies.
    Initial,
    /// Data of different handles never shares a unit, because the collector has a separate frontier
    /// for the copies of each handle.
    Persistent,
}

/// Which unit is collected next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Victims {
    /// The unit with the lowest valid count.
    Greedy,
    /// The unit that was filled first. The [analytic models](crate::model) call this LRU cleaning.
    Fifo,
    /// The unit with the highest product of age and (1 - u) / (1 + u). Here u is the valid share of
    /// the unit, and the age is the time since the unit became full. Source: Rosenblum and
    /// Ousterhout, "The Design and Implementation of a Log-Structured File System", 1992, 3.6.
    CostBenefit,
}

/// Whether the collector has its own frontiers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Frontiers {
    /// The collector has its own frontiers, so copies and new host writes are in different units.
    Separate,
    /// The collector writes to the host's frontier, as in the analytic models. The drive can have
    /// only one handle.
    Shared,
}

/// When the collector works, depending on how many reclaim units are free.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// With this many free units or fewer, a write that needs a new unit waits until the collector
    /// has freed more units. The value is at least 1, because the collector itself needs a free
    /// unit.
    pub foreground_units: u32,
    /// With this many free units or fewer, the collector also works between the host's writes, on
    /// units that are worth collecting. 0 means never.
    pub background_units: u32,
    /// A unit is worth collecting in the background if at least this share of its pages is not
    /// valid. The share is in thousandths.
    pub background_invalid_permille: u32,
}

impl Thresholds {
    /// The drive collects only when a write has to wait for the collector, as the analytic models
    /// assume.
    pub const LAST_MOMENT: Self =
        Self { foreground_units: 1, background_units: 0, background_invalid_permille: 1000 };

    /// The thresholds of the paper's drive. Background collection starts when at most a quarter of
    /// the units is free, and takes units in which at least an eighth of the pages is not valid.
    /// Foreground collection starts when at most a twentieth of the units is free.
    ///
    /// Source: lass-lab/ConfFDP, `hw/femu/fdp/fdpftl.c`.
    pub const fn paper(unit_count: u32) -> Self {
        let foreground_units = if unit_count < 40 { 1 } else { unit_count / 20 };
        Self {
            foreground_units,
            background_units: unit_count / 4,
            background_invalid_permille: 125,
        }
    }

    /// The same thresholds, but background collection starts when at most `share` of the
    /// `unit_count` units is free. A `share` of 0 means never.
    #[must_use]
    pub fn in_background_below(self, share: f64, unit_count: u32) -> Self {
        Self { background_units: (f64::from(unit_count) * share).round() as u32, ..self }
    }
}

/// How long each operation of the NAND takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Reading a page from a die.
    pub read: Duration,
    /// Programming a page of a die.
    pub program: Duration,
    /// Erasing a block of a die.
    pub erase: Duration,
    /// Moving a page over a channel.
    pub transfer: Duration,
}

impl Timing {
    /// The latencies that the paper gives. Transfers take no time.
    pub const PAPER: Self = Self {
        read: Duration::from_micros(40),
        program: Duration::from_micros(200),
        erase: Duration::from_millis(2),
        transfer: Duration::ZERO,
    };

    /// No operation takes time. This is enough if only the drive's counters matter.
    pub const NONE: Self = Self {
        read: Duration::ZERO,
        program: Duration::ZERO,
        erase: Duration::ZERO,
        transfer: Duration::ZERO,
    };

    /// The timing of the paper's emulator, in which transferring a page over its channel takes 25
    /// µs.
    ///
    /// Source: lass-lab/ConfFDP, `femu-scripts/run-fdp.sh`.
    pub const PAPER_EMULATOR: Self = Self { transfer: Duration::from_micros(25), ..Self::PAPER };
}

/// A drive's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The drive's NAND.
    pub geometry: Geometry,
    /// Number of logical blocks that the drive exports.
    pub lba_count: u64,
    /// Number of reclaim unit handles. With 1, the drive is a conventional one, without data
    /// placement.
    pub handles: u16,
    /// Number of reclaim groups. Unit `u` belongs to group `u % groups`. In each group, each handle
    /// fills a unit of its own, and the group has its own collector.
    pub groups: u16,
    /// Where the collector puts copies of the handles' data.
    pub isolation: Isolation,
    /// Exceptions to `isolation`: a handle whose bit is set is initially isolated, even if
    /// `isolation` is persistent.
    pub initial_handles: u128,
    /// Which unit is collected next.
    pub victims: Victims,
    /// Whether the collector has its own frontiers.
    pub frontiers: Frontiers,
    /// When the collector works.
    pub thresholds: Thresholds,
    /// How long each operation of the NAND takes.
    pub timing: Timing,
}

impl Config {
    /// The drive of SlimIO's paper: 180 GiB with 8 persistently isolated handles.
    pub fn paper() -> Self {
        let geometry = Geometry::PAPER;
        Self {
            geometry,
            lba_count: geometry.page_count() / 4 * 3,
            handles: 8,
            groups: 1,
            isolation: Isolation::Persistent,
            initial_handles: 0,
            victims: Victims::Greedy,
            frontiers: Frontiers::Separate,
            thresholds: Thresholds::paper(geometry.unit_count()),
            timing: Timing::PAPER,
        }
    }

    /// A drive that exports about `size` bytes, with the ratios of the paper's drive. It has 240
    /// reclaim units, and exports 180 of them. If the units are large enough, the drive has 8
    /// channels of 8 dies. `size` is rounded down so that each unit has the same number of pages on
    /// every die. The smallest size is 11.25 MiB.
    pub fn scaled(size: u64) -> Self {
        Self::sized(size, None, SPARE_PERCENT_DEFAULT)
    }

    /// Like the paper's drive, but this drive exports `size` bytes, and keeps `spare_percent` of
    /// its NAND as spare space. Its reclaim units have `unit_size` bytes. If `unit_size` is `None`,
    /// a unit has a 180th of `size`, and `size` is rounded down as in [`scaled`](Self::scaled).
    pub fn sized(size: u64, unit_size: Option<u64>, spare_percent: u32) -> Self {
        let pages = size / LBA_SIZE as u64;
        let unit_pages = if let Some(unit_size) = unit_size {
            (unit_size / LBA_SIZE as u64).max(1)
        } else {
            let about = (pages / UNITS_DEFAULT).max(16);
            // A unit spans all dies only if it has a few pages on each of them.
            let dies = DIES.into_iter().find(|dies| about >= dies * 4).unwrap_or(1);
            about / dies * dies
        };
        let dies = DIES
            .into_iter()
            .find(|dies| unit_pages.is_multiple_of(*dies) && unit_pages >= dies * 4 || *dies == 1);
        let dies = dies.unwrap_or(1);
        let (lba_count, exported) = match unit_size {
            Some(_) => (pages, pages.div_ceil(unit_pages)),
            None => (UNITS_DEFAULT * unit_pages, UNITS_DEFAULT),
        };
        let units = (exported * 100).div_ceil(u64::from(100 - spare_percent.min(99)));
        let narrow = |number: u64| u32::try_from(number).unwrap_or(u32::MAX);
        let geometry = Geometry {
            channels: dies.min(8) as u32,
            dies_per_channel: dies.div_ceil(8) as u32,
            blocks_per_die: narrow(units),
            pages_per_block: narrow(unit_pages / dies),
            dies_per_unit: None,
        };
        let thresholds = Thresholds::paper(geometry.blocks_per_die);
        Self { geometry, lba_count, thresholds, ..Self::paper() }
    }

    /// A drive like that of the analytic models. It has `unit_count` units of `unit_pages` pages
    /// each for data, and exports `user_units` of them. It has one frontier, and collects at the
    /// last moment. In addition, one unit is kept free for the collector.
    pub fn model(user_units: u32, unit_count: u32, unit_pages: u32, victims: Victims) -> Self {
        let geometry = Geometry {
            channels: 1,
            dies_per_channel: 1,
            blocks_per_die: unit_count + 1,
            pages_per_block: unit_pages,
            dies_per_unit: None,
        };
        Self {
            geometry,
            lba_count: u64::from(user_units) * u64::from(unit_pages),
            handles: 1,
            groups: 1,
            isolation: Isolation::Persistent,
            initial_handles: 0,
            victims,
            frontiers: Frontiers::Shared,
            thresholds: Thresholds::LAST_MOMENT,
            timing: Timing::PAPER,
        }
    }

    /// How many bytes the drive exports.
    pub fn exported_size(&self) -> u64 {
        self.lba_count * LBA_SIZE as u64
    }

    /// The type of a handle: where the collector puts copies of its data.
    pub fn isolation_of(&self, handle: u16) -> Isolation {
        let is_initial = self.initial_handles.checked_shr(handle.into()).unwrap_or(0) & 1 == 1;
        if is_initial { Isolation::Initial } else { self.isolation }
    }

    /// Number of persistently isolated handles.
    fn persistent_handles(&self) -> u32 {
        let is_persistent = |handle: &u16| self.isolation_of(*handle) == Isolation::Persistent;
        (0..self.handles).filter(is_persistent).count() as u32
    }

    /// How many units are filled at the same time in each group: one for each handle, and the units
    /// that the collector fills.
    pub fn frontier_count(&self) -> u32 {
        let handles = u32::from(self.handles);
        let persistent = self.persistent_handles();
        let of_collector = match self.frontiers {
            Frontiers::Shared => 0,
            Frontiers::Separate => persistent + u32::from(persistent < handles),
        };
        handles + of_collector
    }

    /// With this many free units or fewer in a group, a write that needs a new unit of that group
    /// waits.
    pub(crate) fn foreground_units_of_group(&self) -> u32 {
        (self.thresholds.foreground_units / u32::from(self.groups)).max(1)
    }

    /// With this many free units or fewer in a group, the group's collector works in the
    /// background.
    pub(crate) fn background_units_of_group(&self) -> u32 {
        self.thresholds.background_units / u32::from(self.groups)
    }

    /// How many units the drive needs beyond those that its exported blocks fill. In each group, it
    /// needs one unit for each frontier, because a frontier may be half empty. It also needs the
    /// units that are kept free. And it needs one more unit, so that there is always a unit with
    /// pages that are not valid.
    pub fn spare_units_min(&self) -> u32 {
        let of_group = self.frontier_count() + self.foreground_units_of_group() + 1;
        u32::from(self.groups) * of_group
    }

    /// The number of bits in a placement id for the reclaim group. They are the upper bits of the
    /// id. NVMe calls this number RGIF.
    pub fn group_bits(&self) -> u32 {
        u16::BITS - (self.groups.max(1) - 1).leading_zeros()
    }

    /// The placement id of a handle in a group.
    pub fn placement(&self, group: u16, handle: u16) -> PlacementId {
        let group = u32::from(group) << (u16::BITS - self.group_bits());
        PlacementId(group as u16 | handle)
    }

    /// The group and the handle of a placement id. `None` if there is no such group or handle.
    pub fn parse_placement(&self, placement: PlacementId) -> Option<(u16, u16)> {
        let shift = u16::BITS - self.group_bits();
        let group = (u32::from(placement.0) >> shift) as u16;
        let handle = (u32::from(placement.0) & ((1 << shift) - 1)) as u16;
        (group < self.groups && handle < self.handles).then_some((group, handle))
    }

    /// All placement ids, group by group.
    pub fn placements(&self) -> impl Iterator<Item = PlacementId> {
        let of_group =
            move |group| (0..self.handles).map(move |handle| self.placement(group, handle));
        (0..self.groups).flat_map(of_group)
    }

    /// Checks that a drive can work with this configuration.
    ///
    /// # Errors
    /// If a drive can't work with this configuration. The error is the reason.
    pub fn check(&self) -> Result<(), ConfigError> {
        let Geometry { channels, dies_per_channel, blocks_per_die, pages_per_block, .. } =
            self.geometry;
        let counts = [
            ("channels", channels),
            ("dies per channel", dies_per_channel),
            ("blocks per die", blocks_per_die),
            ("pages per block", pages_per_block),
        ];
        if let Some((what, _)) = counts.into_iter().find(|(_, count)| *count == 0) {
            return Err(ConfigError::Nothing { what });
        }
        let pages = counts.iter().try_fold(1_u64, |all, (_, n)| all.checked_mul(u64::from(*n)));
        let pages = pages.filter(|pages| *pages <= PAGES_MAX).ok_or(ConfigError::TooLarge)?;
        let (dies, unit_dies) = (self.geometry.die_count(), self.geometry.unit_dies());
        if unit_dies > dies || !dies.is_multiple_of(unit_dies) {
            return Err(ConfigError::UnevenUnits { dies, unit_dies });
        }
        if self.lba_count == 0 {
            return Err(ConfigError::Nothing { what: "blocks to export" });
        }
        let unit_pages = u64::from(self.geometry.unit_pages());
        if !self.lba_count.is_multiple_of(unit_pages) {
            return Err(ConfigError::NotWholeUnits { lba_count: self.lba_count, unit_pages });
        }
        let units = self.geometry.unit_count();
        if self.handles == 0 || self.handles > HANDLES_MAX {
            return Err(ConfigError::Handles { handles: self.handles });
        }
        if u32::from(self.handles) > units {
            return Err(ConfigError::MoreHandlesThanUnits { handles: self.handles, units });
        }
        let groups = u32::from(self.groups);
        if groups == 0 || self.groups > GROUPS_MAX || units / groups < self.frontier_count() + 2 {
            return Err(ConfigError::Groups { groups: self.groups, units });
        }
        if self.frontiers == Frontiers::Shared && self.handles > 1 {
            return Err(ConfigError::SharedFrontier { handles: self.handles });
        }
        if self.thresholds.foreground_units == 0 {
            return Err(ConfigError::NothingKeptFree);
        }
        let spare = u64::from(units).saturating_sub(self.lba_count / unit_pages) as u32;
        if self.lba_count > pages || spare < self.spare_units_min() {
            let needed = self.spare_units_min();
            return Err(ConfigError::NoSpare {
                units,
                spare,
                needed,
                config: Box::new(self.clone()),
            });
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(change: impl FnOnce(&mut Config)) -> String {
        let mut config = Config::scaled(64 << 20);
        config.check().expect("the unchanged configuration can work");
        change(&mut config);
        config.check().expect_err("the changed configuration can't work").to_string()
    }

    #[test]
    fn what_is_offered_can_work() {
        Config::paper().check().expect("the paper's drive can work");
        for shift in 20..44 {
            let config = Config::scaled(1 << shift);
            assert_eq!(config.check(), Ok(()), "a drive of 2^{shift} bytes");
        }
        for victims in [Victims::Greedy, Victims::Fifo, Victims::CostBenefit] {
            Config::model(900, 1000, 128, victims).check().expect("the models' drive can work");
        }
    }

    #[test]
    fn a_drive_that_can_not_work_is_refused_with_a_sentence() {
        let unit = u64::from(Config::scaled(64 << 20).geometry.unit_pages());
        assert!(refused(|config| config.geometry.channels = 0).contains("no channels"));
        assert!(refused(|config| config.geometry.pages_per_block = u32::MAX).contains("16 TiB"));
        let uneven = refused(|config| config.geometry.dies_per_unit = std::num::NonZeroU32::new(3));
        assert!(uneven.contains("can't be shared out among reclaim units of 3"), "{uneven}");
        let not_whole = refused(|config| config.lba_count = 3 * unit + 1);
        let offers = format!("export {} or {}", 3 * unit, 4 * unit);
        assert!(not_whole.contains("not whole reclaim units") && not_whole.ends_with(&offers));
        assert!(refused(|config| config.handles = 0).contains("1 to 128 handles, not 0"));
        assert!(refused(|config| config.handles = 129).contains("not 129"));
        let few = refused(|config| config.geometry.blocks_per_die = 4);
        assert!(few.contains("8 handles need a reclaim unit each, but there are 4"), "{few}");
        let shared = refused(|config| config.frontiers = Frontiers::Shared);
        assert!(shared.contains("there are 8"), "{shared}");
        assert!(refused(|config| config.thresholds.foreground_units = 0).contains("1 free unit"));
        let none = refused(|config| config.lba_count = 240 * unit);
        assert!(none.starts_with("no spare: 0 of 240 reclaim units"), "{none}");
        let more = refused(|config| config.lba_count = 1000 * unit);
        assert!(more.starts_with("no spare: 0 of 240 reclaim units"), "{more}");
        assert!(refused(|config| config.lba_count = 0).contains("no blocks to export"));
    }

    #[test]
    fn spare_is_enough_to_the_unit() {
        let mut config = Config::scaled(64 << 20);
        let unit = u64::from(config.geometry.unit_pages());
        let needed = u64::from(config.spare_units_min());
        config.lba_count = (240 - needed) * unit;
        assert_eq!(config.check(), Ok(()));
        config.lba_count += unit;
        assert!(matches!(config.check(), Err(ConfigError::NoSpare { .. })));
    }
}
