//! The state file beside a drive's data file. It holds the drive's configuration, and its state
//! when it was last closed.
//!
//! ```text
//! | magic | checksum | numbers of the head, zeros | mapping, once the drive was closed |
//! 0       8          16                           256
//! ```
//!
//! All integers are little-endian. The checksum (XXH3) covers the rest of the head; the mapping has
//! a checksum of its own. The head is written when the drive is made, and survives a kill of the
//! process. The mapping exists only while no process has the drive open.

use std::fmt::{self, Display};
use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::time::Duration;

use twox_hash::XxHash3_64;

use super::{DriveOptions, Size};
use crate::config::{Config, Frontiers, Isolation, Thresholds, Timing, Victims};
use crate::{Ftl, Geometry};

const MAGIC: [u8; 8] = *b"SLIMSSD2";

const HEAD_SIZE: usize = 256;

/// The checksum covers the part of the head from this offset on.
const CHECKED_FROM: usize = 16;

/// A drive's configuration. Some of it may change from one start to the next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SavedConfig {
    pub(crate) config: Config,
    pub(crate) has_fdp: bool,
    pub(crate) cache_lbas: u32,
    pub(crate) deallocate_latency: Duration,
    /// Blocks that were mapped into memory. Stores to them do not pass through the drive.
    pub(crate) mapped: Range<u64>,
}

impl SavedConfig {
    pub(crate) fn of(options: &DriveOptions) -> Self {
        Self {
            config: options.config.clone(),
            has_fdp: options.has_fdp,
            cache_lbas: options.cache_lbas,
            deallocate_latency: options.deallocate_latency,
            mapped: 0..0,
        }
    }

    /// The configuration of the drive whose bytes are in the file at `path`, if a valid state file
    /// is beside that file.
    pub(crate) fn read(path: &Path) -> Option<Self> {
        StateFile::of(path).ok()?.read_head()
    }

    /// The first difference between this configuration and `wanted`, as a sentence without a full
    /// stop. Values that may change from one start to the next are not compared.
    pub(super) fn difference(&self, wanted: &Self) -> Option<String> {
        let both = self.facts().into_iter().zip(wanted.facts());
        let mut different = both.filter(|(was, is)| was != is);
        let ((name, was), (_, is)) = different.next()?;
        Some(format!("the drive in it was made with {name}{was}, not {is}"))
    }

    /// The properties of a drive that never change: the name and the value of each, in words.
    fn facts(&self) -> [(&'static str, String); 7] {
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
            ("dies ", format!("{:?}", (geometry, self.config.frontiers))),
        ]
    }

    fn numbers(&self) -> impl Iterator<Item = u64> {
        let Self { config, has_fdp, cache_lbas, deallocate_latency, mapped } = self;
        let Config { geometry, lba_count, handles, thresholds, timing, .. } = config;
        let victims = match config.victims {
            Victims::Greedy => 0,
            Victims::Fifo => 1,
            Victims::CostBenefit => 2,
        };
        let nanos = |time: Duration| time.as_nanos() as u64;
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
        ]
        .into_iter()
    }

    fn from_numbers(mut numbers: impl Iterator<Item = u64>) -> Option<Self> {
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
        let config = Config {
            geometry,
            lba_count,
            handles,
            isolation,
            victims,
            frontiers,
            thresholds,
            timing,
        };
        Some(Self {
            config,
            has_fdp,
            cache_lbas: narrow(next()?)?,
            deallocate_latency: Duration::from_nanos(next()?),
            mapped: next()?..next()?,
        })
    }

    fn encode(&self) -> [u8; HEAD_SIZE] {
        let mut bytes = [0; HEAD_SIZE];
        bytes[..8].copy_from_slice(&MAGIC);
        let places = bytes[CHECKED_FROM..].chunks_exact_mut(8);
        for (place, number) in places.zip(self.numbers()) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = XxHash3_64::oneshot(&bytes[CHECKED_FROM..]);
        bytes[8..CHECKED_FROM].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    fn decode(bytes: &[u8; HEAD_SIZE]) -> Option<Self> {
        let checksum = XxHash3_64::oneshot(&bytes[CHECKED_FROM..]).to_le_bytes();
        if bytes[..8] != MAGIC || bytes[8..CHECKED_FROM] != checksum {
            return None;
        }
        let numbers = bytes[CHECKED_FROM..].as_chunks::<8>().0.iter();
        Self::from_numbers(numbers.map(|number| u64::from_le_bytes(*number)))
    }
}

/// The file beside a drive's data file.
#[derive(Debug)]
pub(super) struct StateFile {
    path: PathBuf,
}

/// Why the mapping could not be restored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lost {
    /// There is no valid state file beside the data file.
    All,
    /// The state file has no valid mapping, because the drive was not closed properly.
    Mapping,
}

impl Display for Lost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::All => "the file beside it whose name ends in .mapping is missing or damaged",
            Self::Mapping => "the process that had it last was killed, or could not write it",
        })?;
        f.write_str(
            ": the drive's data counts as written by the first handle, and the counters begin at 0",
        )
    }
}

impl StateFile {
    /// The state file beside the data file at `path`, which must exist. Links are resolved, so all
    /// links to a data file have the same state file.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let mut name = path.canonicalize()?.into_os_string();
        name.push(".mapping");
        Ok(Self { path: name.into() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    fn read_head(&self) -> Option<SavedConfig> {
        let mut head = [0; HEAD_SIZE];
        File::open(&self.path).ok()?.read_exact_at(&mut head, 0).ok()?;
        SavedConfig::decode(&head)
    }

    /// What the drive's last process left: the head, and the mapping if it is valid.
    pub(super) fn read(&self, config: &Config) -> (Option<SavedConfig>, Result<Ftl, Lost>) {
        let Some(head) = self.read_head() else { return (None, Err(Lost::All)) };
        let mapping = std::fs::read(&self.path).ok().and_then(|bytes| {
            let (_, mapping) = bytes.split_at_checked(HEAD_SIZE)?;
            Ftl::decode(config.clone(), mapping)
        });
        (Some(head), mapping.ok_or(Lost::Mapping))
    }

    /// Writes the head and removes the mapping, so that no later process uses the outdated mapping
    /// if this process is killed.
    pub(super) fn begin(&self, made: &SavedConfig) -> io::Result<()> {
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let opened = options.open(&self.path)?;
        opened.write_all_at(&made.encode(), 0)?;
        opened.set_len(HEAD_SIZE as u64)
    }

    /// Writes the mapping for the next process that opens the drive.
    pub(super) fn end(&self, mapping: &[u8]) -> io::Result<()> {
        let opened = OpenOptions::new().write(true).open(&self.path)?;
        opened.write_all_at(mapping, HEAD_SIZE as u64)
    }
}
