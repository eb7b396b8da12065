//! The text by which a user names an emulated drive.
//!
//! ```text
//! emulated:4G                                    in a temporary file, until the process ends
//! emulated:/data/drive,size=4G,ru=64M            in a file, opened again at the next start
//! emulated:/data/drive,size=4G,ru=64M,fdp=off    the same without data placement
//! ```

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use slimio_device::LBA_SIZE;

use crate::config::{HANDLES_MAX, SPARE_PERCENT_DEFAULT};
use crate::drive::{SavedConfig, size_of_drive_in};
use crate::{Clock, Config, DataPlace, Deallocated, DriveOptions, Isolation, Timing, Victims};

/// The beginning of the name of every emulated drive.
pub const PREFIX: &str = "emulated:";

/// The longest time after which a deallocation may take effect.
const DEALLOCATE_MAX: Duration = Duration::from_secs(3600);

/// The names of the options, and their values.
const OPTIONS: &str = "size=SIZE, ru=SIZE, spare=PERCENT, fdp=on|off, handles=COUNT, \
                       isolation=persistent|initial, initial=HANDLE|FIRST-LAST, groups=COUNT, victims=greedy|fifo|cost-benefit, \
                       background=PERCENT, timing=paper|channels|none, cache=SIZE, \
                       deallocate=MILLISECONDS, deallocated=zeros|pattern, sync=yes|no";

/// The mistake in the name of a drive, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

impl DriveOptions {
    /// Parses the text after [`PREFIX`]: a size or a file, followed by options, all separated by
    /// commas. Instead of a size in front, `size=` may be among the options.
    ///
    /// # Errors
    /// If an option is unknown, or a value is impossible.
    pub fn parse(spec: &str, clock: Clock) -> Result<Self, SpecError> {
        let mut parts = spec.split(',');
        let first = parts.next().unwrap_or_default();
        let mut given = Given::default();
        let mut data = DataPlace::Temporary;
        if first.contains('=') {
            given.set(first)?;
        } else if let Ok(size) = parse_size(first) {
            given.size = Some(size);
        } else if !first.is_empty() {
            data = DataPlace::File(PathBuf::from(first));
        }
        for part in parts {
            given.set(part)?;
        }
        if let DataPlace::File(path) = &data
            && let Some(size) = size_of_drive_in(path).filter(|size| *size > 0)
        {
            if let Some(made) = SavedConfig::read(path) {
                return Ok(given.over(made, data, clock));
            }
            given.size.get_or_insert(size);
        }
        let Some(size) = given.size else {
            return Err(SpecError(match data {
                DataPlace::File(_) => {
                    format!("{first} does not exist yet: give its size with size=")
                }
                _ => format!("a drive needs a size or a file, as in {PREFIX}4G"),
            }));
        };
        let config = Config::sized(size, given.unit_size, given.spare());
        if size < (LBA_SIZE as u64) || (given.unit_size.is_none() && size < config.exported_size())
        {
            let least = Config::scaled(0).exported_size() >> 10;
            return Err(SpecError(format!("a drive has at least {least} KiB unless ru= is given")));
        }
        let made = SavedConfig::of(&Self::new(config, clock));
        let options = given.rest_over(made, data, clock);
        options.config.check().map_err(|error| SpecError(error.to_string()))?;
        Ok(options)
    }
}

/// The options that the user gave. An option that was not given is `None`.
#[derive(Default)]
struct Given {
    size: Option<u64>,
    unit_size: Option<u64>,
    spare_percent: Option<u32>,
    has_fdp: Option<bool>,
    handles: Option<u16>,
    isolation: Option<Isolation>,
    initial_handles: Option<u128>,
    groups: Option<u16>,
    victims: Option<Victims>,
    background_percent: Option<u32>,
    timing: Option<Timing>,
    cache_lbas: Option<u32>,
    deallocate_latency: Option<Duration>,
    deallocated: Option<Deallocated>,
    is_sync: Option<bool>,
}

impl Given {
    fn spare(&self) -> u32 {
        self.spare_percent.unwrap_or(SPARE_PERCENT_DEFAULT)
    }

    /// The options for opening an existing drive that was `made` this way. If the user's options
    /// describe a different drive, the result describes that different drive, so that opening it
    /// fails.
    fn over(&self, mut made: SavedConfig, data: DataPlace, clock: Clock) -> DriveOptions {
        let config = &made.config;
        let (size, unit_size) = (config.exported_size(), config.geometry.unit_size());
        // If the user gave no unit size when the drive was made, the drive's size was rounded.
        let is_rounded =
            |given| self.unit_size.is_none() && Config::scaled(given).exported_size() == size;
        let given_size = self.size.filter(|given| !is_rounded(*given)).unwrap_or(size);
        let given_unit_size = self.unit_size.unwrap_or(unit_size);
        let of_spare = |spare| Config::sized(given_size, Some(given_unit_size), spare);
        let is_other_spare =
            |spare| of_spare(spare).geometry.unit_count() != config.geometry.unit_count();
        if (given_size, given_unit_size) != (size, unit_size)
            || self.spare_percent.is_some_and(is_other_spare)
        {
            let Config { geometry, lba_count, .. } = of_spare(self.spare());
            made.config = Config { geometry, lba_count, ..made.config };
        }
        self.rest_over(made, data, clock)
    }

    /// A drive that was `made` this way, with the user's options applied, except for the sizes and
    /// the spare space.
    fn rest_over(&self, made: SavedConfig, data: DataPlace, clock: Clock) -> DriveOptions {
        let SavedConfig { mut config, .. } = made;
        let has_fdp = self.has_fdp.unwrap_or(made.has_fdp || self.handles.is_some());
        let handles = if made.has_fdp { config.handles } else { Config::paper().handles };
        config.handles = if has_fdp { self.handles.unwrap_or(handles) } else { 1 };
        config.isolation = self.isolation.unwrap_or(config.isolation);
        config.initial_handles = self.initial_handles.unwrap_or(config.initial_handles);
        config.groups = self.groups.unwrap_or(config.groups);
        config.victims = self.victims.unwrap_or(config.victims);
        config.timing = self.timing.unwrap_or(config.timing);
        if let Some(percent) = self.background_percent {
            let unit_count = config.geometry.unit_count();
            let share = f64::from(percent) / 100.0;
            config.thresholds = config.thresholds.in_background_below(share, unit_count);
        }
        DriveOptions {
            has_fdp,
            data,
            cache_lbas: self.cache_lbas.unwrap_or(made.cache_lbas),
            deallocate_latency: self.deallocate_latency.unwrap_or(made.deallocate_latency),
            deallocated: self.deallocated.unwrap_or(made.deallocated),
            is_sync: self.is_sync.unwrap_or(made.is_sync),
            ..DriveOptions::new(config, clock)
        }
    }

    fn set(&mut self, part: &str) -> Result<(), SpecError> {
        let unknown = || SpecError(format!("there is no option {part}; the options are {OPTIONS}"));
        let (name, value) = part.split_once('=').ok_or_else(unknown)?;
        match (name, value) {
            ("size", size) => self.size = Some(parse_size(size)?),
            ("ru", size) => self.unit_size = Some(unit_size(size)?),
            ("spare", percent) => {
                let nothing = || SpecError(format!("spare={percent} leaves nothing to export"));
                self.spare_percent = Some(parse_percent(percent)?.ok_or_else(nothing)?);
            }
            ("background", percent) => {
                let always = || SpecError(format!("background={percent} is not below 100 %"));
                self.background_percent = Some(parse_percent(percent)?.ok_or_else(always)?);
            }
            ("fdp", "on") => self.has_fdp = Some(true),
            ("fdp", "off") => self.has_fdp = Some(false),
            ("handles", count) => {
                self.handles = Some(u16::try_from(parse_number(count)?).unwrap_or(u16::MAX));
            }
            ("initial", handles) => self.initial_handles = Some(parse_handles(handles)?),
            ("groups", count) => {
                self.groups = Some(u16::try_from(parse_number(count)?).unwrap_or(u16::MAX));
            }
            ("isolation", "persistent") => self.isolation = Some(Isolation::Persistent),
            ("isolation", "initial") => self.isolation = Some(Isolation::Initial),
            ("victims", "greedy") => self.victims = Some(Victims::Greedy),
            ("victims", "fifo") => self.victims = Some(Victims::Fifo),
            ("victims", "cost-benefit") => self.victims = Some(Victims::CostBenefit),
            ("timing", "paper") => self.timing = Some(Timing::PAPER),
            ("timing", "channels") => self.timing = Some(Timing::PAPER_EMULATOR),
            ("timing", "none") => self.timing = Some(Timing::NONE),
            ("cache", size) => {
                let lbas = parse_size(size)?.div_ceil(LBA_SIZE as u64);
                self.cache_lbas = Some(u32::try_from(lbas).unwrap_or(u32::MAX));
            }
            ("deallocate", millis) => {
                let latency = Duration::from_millis(parse_number(millis)?);
                if latency > DEALLOCATE_MAX {
                    let most = DEALLOCATE_MAX.as_millis();
                    return Err(SpecError(format!(
                        "deallocate={millis} is more than {most} milliseconds"
                    )));
                }
                self.deallocate_latency = Some(latency);
            }
            ("deallocated", "zeros") => self.deallocated = Some(Deallocated::Zeros),
            ("deallocated", "pattern") => self.deallocated = Some(Deallocated::Pattern),
            ("sync", "yes") => self.is_sync = Some(true),
            ("sync", "no") => self.is_sync = Some(false),
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn unit_size(text: &str) -> Result<u64, SpecError> {
    let size = parse_size(text)?;
    let is_whole = size > 0 && size.is_multiple_of(LBA_SIZE as u64);
    let why = || SpecError(format!("ru= must be whole blocks of {LBA_SIZE} bytes, not {text}"));
    is_whole.then_some(size).ok_or_else(why)
}

/// Parses a size in bytes: a number, which may end with K, M, G or T for a power of 1024.
fn parse_size(text: &str) -> Result<u64, SpecError> {
    let lower = text.to_ascii_lowercase();
    let short = lower.trim_end_matches("ib").trim_end_matches('b');
    let shift = match short.chars().last() {
        Some('k') => 10,
        Some('m') => 20,
        Some('g') => 30,
        Some('t') => 40,
        _ => 0,
    };
    let digits = if shift > 0 { &short[..short.len() - 1] } else { short };
    let size = digits.parse::<u64>().ok().and_then(|number| number.checked_mul(1 << shift));
    size.ok_or_else(|| SpecError(format!("{text} is not a size such as 4G or 64M")))
}

/// Parses one handle, or the first and the last of several. Returns a bit for each handle.
fn parse_handles(text: &str) -> Result<u128, SpecError> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let (first, last) = (parse_number(first)?, parse_number(last)?);
    if first > last || last >= u64::from(HANDLES_MAX) {
        return Err(SpecError(format!("initial={text} names no handles such as 3 or 0-3")));
    }
    Ok((first..=last).fold(0, |bits, handle| bits | 1 << handle))
}

/// Parses a percentage. `None` if it is 100 or more.
fn parse_percent(text: &str) -> Result<Option<u32>, SpecError> {
    let number = parse_number(text.trim_end_matches('%'))?;
    Ok(u32::try_from(number).ok().filter(|percent| *percent < 100))
}

fn parse_number(text: &str) -> Result<u64, SpecError> {
    text.parse().map_err(|_| SpecError(format!("{text} is not a number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &str) -> DriveOptions {
        DriveOptions::parse(spec, Clock::Virtual).expect("the text names a drive")
    }

    fn refused(spec: &str) -> String {
        let refused = DriveOptions::parse(spec, Clock::Virtual);
        refused.map(drop).expect_err("the text names no drive").to_string()
    }

    #[test]
    fn a_size_is_enough() {
        let drive = parse("4G");
        assert_eq!(drive.config, Config::scaled(4 << 30));
        assert!(drive.has_fdp && drive.config.handles == 8 && drive.cache_lbas == 0);
        assert!(drive.deallocated == Deallocated::Zeros && !drive.is_sync);
        assert_eq!(drive.data, DataPlace::Temporary);
        assert_eq!(parse("size=4096MiB").config, drive.config);
        assert_eq!(parse("4294967296").config, drive.config);
    }

    #[test]
    fn everything_can_be_said() {
        let drive = parse(
            "/data/drive,size=4G,ru=64M,spare=10%,handles=2,isolation=initial,\
             victims=cost-benefit,background=10%,timing=channels,cache=1M,deallocate=20,\
             deallocated=pattern,sync=yes",
        );
        assert_eq!(drive.data, DataPlace::File("/data/drive".into()));
        let config = &drive.config;
        assert_eq!((config.exported_size(), config.geometry.unit_size()), (4 << 30, 64 << 20));
        assert_eq!(
            config.geometry.unit_count(),
            72,
            "64 exported units, and 10 % of all units as spare units"
        );
        assert_eq!((config.handles, config.isolation), (2, Isolation::Initial));
        assert_eq!((config.victims, config.timing), (Victims::CostBenefit, Timing::PAPER_EMULATOR));
        assert_eq!(
            (config.thresholds.background_units, config.thresholds.foreground_units),
            (7, 3)
        );
        assert_eq!(parse("4G,background=0").config.thresholds.background_units, 0);
        assert_eq!((drive.cache_lbas, drive.deallocate_latency.as_millis()), (256, 20));
        assert_eq!((drive.deallocated, drive.is_sync), (Deallocated::Pattern, true));
        let grouped = parse("4G,handles=4,groups=3,initial=1-2").config;
        assert_eq!((grouped.groups, grouped.initial_handles), (3, 0b110));
        let conventional = parse("4G,fdp=off,timing=none");
        assert!(!conventional.has_fdp && conventional.config.handles == 1);
        assert_eq!(conventional.config.timing, Timing::NONE);
    }

    #[test]
    fn what_can_not_be_is_refused_with_a_sentence() {
        assert!(refused("").contains("emulated:4G"));
        assert!(refused("ru=64M").contains("needs a size or a file, as in emulated:4G"));
        assert!(refused("/no/such/file").contains("give its size with size="));
        assert!(refused("4G,colour=red").contains("no option colour=red; the options are size"));
        assert!(refused("4G,fdp").contains("no option fdp"));
        assert!(refused("4G,initial=3-2").contains("no handles such as"));
        assert!(refused("4G,initial=128").contains("no handles such as"));
        assert!(refused("4G,groups=0").contains("among 0 reclaim groups"));
        assert!(refused("4G,groups=33").contains("among 33 reclaim groups"));
        assert!(refused("4G,handles=100,groups=2").contains("among 2 reclaim groups"));
        assert!(refused("4G,groups=4").contains("no spare: 60 of 240"));
        assert!(refused("4G,sync=maybe").contains("no option sync=maybe"));
        assert!(refused("4G,deallocated=ones").contains("no option deallocated=ones"));
        assert!(refused("4G,deallocate=3600001").contains("is more than 3600000"));
        assert!(refused("4G,fdp=maybe").contains("no option fdp=maybe"));
        assert!(refused("4G,spare=100").contains("nothing to export"));
        assert!(refused("4G,background=100%").contains("background=100% is not below 100 %"));
        assert!(refused("4G,cache=much").contains("much is not a size"));
        assert!(refused("4G,ru=5000").contains("whole blocks of 4096 bytes, not 5000"));
        assert!(refused("size=4G,ru=60M").contains("not whole reclaim units"));
        assert!(refused("1G,ru=64M").contains("no spare: 6 of 22"));
        assert!(refused("1G,ru=256M").contains("8 handles need a reclaim unit each"));
        assert!(refused("1G,handles=500").contains("1 to 128 handles"));
        assert!(refused("1M").contains("at least 11520 KiB"));
        assert!(refused("17T").contains("16 TiB"));
    }
}
