//! Why a drive can't work with a configuration.

use std::fmt;

use super::{Config, GROUPS_MAX, HANDLES_MAX};

/// Why a drive can't be made with a configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ConfigError {
    /// A count that must be at least 1 is 0.
    Nothing {
        /// The things that the drive has none of.
        what: &'static str,
    },
    /// There are more pages than can be numbered.
    TooLarge,
    /// The number of dies is not a multiple of the number of dies of a unit.
    UnevenUnits {
        /// Number of dies of the drive.
        dies: u32,
        /// Number of dies of each unit.
        unit_dies: u32,
    },
    /// The exported capacity ends inside a reclaim unit.
    NotWholeUnits {
        /// Number of blocks to export.
        lba_count: u64,
        /// Number of pages of a unit.
        unit_pages: u64,
    },
    /// There are no handles, or more than [`HANDLES_MAX`].
    Handles {
        /// The requested number of handles.
        handles: u16,
    },
    /// There are fewer units than handles, although each handle needs a unit.
    MoreHandlesThanUnits {
        /// The requested number of handles.
        handles: u16,
        /// Number of units of the drive.
        units: u32,
    },
    /// There are no reclaim groups, or more than [`GROUPS_MAX`], or a group has too few units for
    /// the handles.
    Groups {
        /// The requested number of groups.
        groups: u16,
        /// Number of units of the drive.
        units: u32,
    },
    /// There are several handles, although the collector shares the host's frontier, that is, fills
    /// the same unit as the host.
    SharedFrontier {
        /// The requested number of handles.
        handles: u16,
    },
    /// No unit is kept free, so the collector has no unit to copy into.
    NothingKeptFree,
    /// There is too little NAND beyond the exported part.
    NoSpare {
        /// Number of units of the drive.
        units: u32,
        /// How many of these units are not exported.
        spare: u32,
        /// At least this many units must not be exported.
        needed: u32,
        /// The drive's configuration.
        config: Box<Config>,
    },
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { what } => write!(f, "the drive has no {what}"),
            Self::TooLarge => {
                write!(f, "the drive has 16 TiB of NAND or more, so its pages can't be numbered")
            }
            Self::UnevenUnits { dies, unit_dies } => {
                write!(
                    f,
                    "{dies} dies can't be shared out among reclaim units of {unit_dies} dies each"
                )
            }
            Self::NotWholeUnits { lba_count, unit_pages } => {
                let below = lba_count / unit_pages;
                write!(
                    f,
                    "{lba_count} blocks are not whole reclaim units of {unit_pages} blocks: \
                     export {} or {}",
                    below * unit_pages,
                    (below + 1) * unit_pages
                )
            }
            Self::Handles { handles } => {
                write!(f, "a drive has 1 to {HANDLES_MAX} handles, not {handles}")
            }
            Self::MoreHandlesThanUnits { handles, units } => {
                write!(f, "{handles} handles need a reclaim unit each, but there are {units} units")
            }
            Self::Groups { groups, units } => write!(
                f,
                "{units} reclaim units can't be shared out among {groups} reclaim groups: a drive \
                 has 1 to {GROUPS_MAX} groups, and each group needs enough units for the handles and \
                 its collector"
            ),
            Self::SharedFrontier { handles } => write!(
                f,
                "the collector can share a frontier with only one handle, but there are \
                 {handles} handles"
            ),
            Self::NothingKeptFree => {
                write!(
                    f,
                    "the foreground threshold is 0, but the collector needs at least 1 free unit"
                )
            }
            Self::NoSpare { units, spare, needed, config } => write!(
                f,
                "no spare: {spare} of {units} reclaim units are not exported, but {needed} are \
                 needed for {} handles and {} units that are kept free: export less, or use fewer \
                 handles or smaller units",
                config.handles, config.thresholds.foreground_units
            ),
        }
    }
}

impl std::error::Error for ConfigError {}
