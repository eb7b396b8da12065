//! How a user names an emulated drive.
//!
//! ```text
//! emulated:4G                                    in memory's stead, gone with the process
//! emulated:/data/drive,size=4G,ru=64M            in a file, there again at the next start
//! emulated:/data/drive,size=4G,ru=64M,fdp=off    the same without data placement
//! ```

use std::fmt;
use std::path::PathBuf;
use std::time::Duration;

use slimio_device::LBA_SIZE;

use crate::config::SPARE_PERCENT_DEFAULT;
use crate::{Clock, Config, DataPlace, DriveOptions, Isolation, Timing, Victims, size_of_drive_in};

/// What the name of an emulated drive begins with.
pub const PREFIX: &str = "emulated:";

/// Options by name, with what they take.
const OPTIONS: &str = "size=SIZE, ru=SIZE, spare=PERCENT, fdp=on|off, handles=COUNT, \
                       isolation=persistent|initial, victims=greedy|fifo|cost-benefit, \
                       timing=paper|channels|none, cache=SIZE, deallocate=MILLISECONDS";

/// What is wrong with the name of a drive, as a sentence without a full stop.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpecError(String);

impl fmt::Display for SpecError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for SpecError {}

impl DriveOptions {
    /// The drive that `spec` names: what stands behind [`PREFIX`], a size or a file, then options, all
    /// separated by commas.
    ///
    /// # Errors
    /// When something of it is not known or can't be.
    pub fn parse(spec: &str, clock: Clock) -> Result<Self, SpecError> {
        let mut parts = spec.split(',');
        let first = parts.next().unwrap_or_default();
        let mut given = Given::default();
        let mut data = DataPlace::Temporary;
        if first.contains('=') {
            given.set(first)?;
        } else if let Ok(size) = parse_size(first) {
            given.size = Some(size);
        } else if first.is_empty() {
            return Err(SpecError(format!("a drive has a size or a file: {PREFIX}4G")));
        } else {
            data = DataPlace::File(PathBuf::from(first));
        }
        for part in parts {
            given.set(part)?;
        }
        if let DataPlace::File(path) = &data
            && given.size.is_none()
        {
            given.size = size_of_drive_in(path).filter(|size| *size > 0);
        }
        let Some(size) = given.size else {
            return Err(SpecError(format!("{first} is not there yet: say how large with size=")));
        };
        let mut config = Config::sized(size, given.unit_size, given.spare_percent);
        if size < (LBA_SIZE as u64) || (given.unit_size.is_none() && size < config.exported_size())
        {
            let least = Config::scaled(0).exported_size() >> 10;
            return Err(SpecError(format!("a drive has {least} KiB or more unless ru= says less")));
        }
        config.isolation = given.isolation;
        config.victims = given.victims;
        config.timing = given.timing;
        config.handles = if given.has_fdp { given.handles } else { 1 };
        config.check().map_err(|error| SpecError(error.to_string()))?;
        let cache_lbas = given.cache_size.div_ceil(LBA_SIZE as u64);
        Ok(Self {
            has_fdp: given.has_fdp,
            data,
            cache_lbas: u32::try_from(cache_lbas).unwrap_or(u32::MAX),
            deallocate_latency: given.deallocate_latency,
            ..Self::new(config, clock)
        })
    }
}

/// What the options say.
struct Given {
    size: Option<u64>,
    unit_size: Option<u64>,
    spare_percent: u32,
    has_fdp: bool,
    handles: u16,
    isolation: Isolation,
    victims: Victims,
    timing: Timing,
    cache_size: u64,
    deallocate_latency: Duration,
}

impl Default for Given {
    fn default() -> Self {
        let paper = Config::paper();
        Self {
            size: None,
            unit_size: None,
            spare_percent: SPARE_PERCENT_DEFAULT,
            has_fdp: true,
            handles: paper.handles,
            isolation: paper.isolation,
            victims: paper.victims,
            timing: paper.timing,
            cache_size: 0,
            deallocate_latency: Duration::ZERO,
        }
    }
}

impl Given {
    fn set(&mut self, part: &str) -> Result<(), SpecError> {
        let unknown = || SpecError(format!("there is no option {part}: there are {OPTIONS}"));
        let (name, value) = part.split_once('=').ok_or_else(unknown)?;
        match (name, value) {
            ("size", size) => self.size = Some(parse_size(size)?),
            ("ru", size) => self.unit_size = Some(unit_size(size)?),
            ("spare", percent) => {
                let number = parse_number(percent.trim_end_matches('%'))?;
                self.spare_percent =
                    u32::try_from(number).ok().filter(|percent| *percent < 100).ok_or_else(
                        || SpecError(format!("spare={percent} leaves nothing to export")),
                    )?;
            }
            ("fdp", "on") => self.has_fdp = true,
            ("fdp", "off") => self.has_fdp = false,
            ("handles", count) => {
                self.handles = u16::try_from(parse_number(count)?).unwrap_or(u16::MAX);
            }
            ("isolation", "persistent") => self.isolation = Isolation::Persistent,
            ("isolation", "initial") => self.isolation = Isolation::Initial,
            ("victims", "greedy") => self.victims = Victims::Greedy,
            ("victims", "fifo") => self.victims = Victims::Fifo,
            ("victims", "cost-benefit") => self.victims = Victims::CostBenefit,
            ("timing", "paper") => self.timing = Timing::PAPER,
            ("timing", "channels") => self.timing = Timing::PAPER_EMULATOR,
            ("timing", "none") => self.timing = Timing::NONE,
            ("cache", size) => self.cache_size = parse_size(size)?,
            ("deallocate", millis) => {
                self.deallocate_latency = Duration::from_millis(parse_number(millis)?);
            }
            _ => return Err(unknown()),
        }
        Ok(())
    }
}

fn unit_size(text: &str) -> Result<u64, SpecError> {
    let size = parse_size(text)?;
    let is_whole = size > 0 && size.is_multiple_of(LBA_SIZE as u64);
    let why = || SpecError(format!("a reclaim unit is whole blocks of {LBA_SIZE}, not {text}"));
    is_whole.then_some(size).ok_or_else(why)
}

/// A size in bytes: a number, and one of the powers of 1024 by its letter.
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
    size.ok_or_else(|| SpecError(format!("{text} is no size: 4G, 64M and such are")))
}

fn parse_number(text: &str) -> Result<u64, SpecError> {
    text.parse().map_err(|_| SpecError(format!("{text} is no number")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(spec: &str) -> DriveOptions {
        DriveOptions::parse(spec, Clock::Virtual).expect("it names a drive")
    }

    fn refused(spec: &str) -> String {
        let refused = DriveOptions::parse(spec, Clock::Virtual);
        refused.map(drop).expect_err("it names no drive").to_string()
    }

    #[test]
    fn a_size_is_enough() {
        let drive = parse("4G");
        assert_eq!(drive.config, Config::scaled(4 << 30));
        assert!(drive.has_fdp && drive.config.handles == 8 && drive.cache_lbas == 0);
        assert_eq!(drive.data, DataPlace::Temporary);
        assert_eq!(parse("size=4096MiB").config, drive.config);
        assert_eq!(parse("4294967296").config, drive.config);
    }

    #[test]
    fn everything_can_be_said() {
        let drive = parse(
            "/data/drive,size=4G,ru=64M,spare=10%,handles=2,isolation=initial,\
             victims=cost-benefit,timing=channels,cache=1M,deallocate=20",
        );
        assert_eq!(drive.data, DataPlace::File("/data/drive".into()));
        let config = &drive.config;
        assert_eq!((config.exported_size(), config.geometry.unit_size()), (4 << 30, 64 << 20));
        assert_eq!(config.geometry.unit_count(), 72, "64 and 10 % of all");
        assert_eq!((config.handles, config.isolation), (2, Isolation::Initial));
        assert_eq!((config.victims, config.timing), (Victims::CostBenefit, Timing::PAPER_EMULATOR));
        assert_eq!((drive.cache_lbas, drive.deallocate_latency.as_millis()), (256, 20));
        let conventional = parse("4G,fdp=off,timing=none");
        assert!(!conventional.has_fdp && conventional.config.handles == 1);
        assert_eq!(conventional.config.timing, Timing::NONE);
    }

    #[test]
    fn what_can_not_be_is_refused_with_a_sentence() {
        assert!(refused("").contains("emulated:4G"));
        assert!(refused("/no/such/file").contains("say how large with size="));
        assert!(refused("4G,colour=red").contains("no option colour=red: there are size=SIZE"));
        assert!(refused("4G,fdp").contains("no option fdp"));
        assert!(refused("4G,fdp=maybe").contains("no option fdp=maybe"));
        assert!(refused("4G,spare=100").contains("nothing to export"));
        assert!(refused("4G,cache=much").contains("much is no size"));
        assert!(refused("4G,ru=5000").contains("whole blocks of 4096, not 5000"));
        assert!(refused("size=4G,ru=60M").contains("not whole reclaim units"));
        assert!(refused("1G,ru=64M").contains("no spare: 6 of 22"));
        assert!(refused("1G,ru=256M").contains("8 handles can't fill"));
        assert!(refused("1G,handles=500").contains("1 to 128 handles"));
        assert!(refused("1M").contains("11520 KiB or more"));
        assert!(refused("17T").contains("16 TiB"));
    }
}
