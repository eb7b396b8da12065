//! `slimio waf TRACE...`: replays recorded traces on simulated drives.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, ValueEnum};
use slimio_ssd::replay::{Outcome, Point, Precondition, Replay};
use slimio_ssd::trace::{TraceError, TraceHeader, TraceReader};
use slimio_ssd::{Config, Isolation, Thresholds, Victims};

use crate::tools::say;

/// Number of rows of a table over time.
const ROWS: u64 = 10;
/// The first line that `--points` prints: the names of the values in each of the lines after it.
const POINT_FIELDS: &str = "handles,seconds,host_bytes,media_bytes,utilization,mixed_units";
const MIB: f64 = (1 << 20) as f64;

/// Default spare factor of a drive: that of the SlimIO paper.
const SPARE: f64 = 0.25;

/// Traces and the drives to replay them on.
#[derive(Debug, Args)]
#[command(next_help_heading = "Replaying traces")]
pub(super) struct Traces {
    /// Traces of a device's writes and deallocations, as `cargo x trace` records them
    #[arg(value_name = "TRACE")]
    files: Vec<PathBuf>,
    /// Number of reclaim unit handles of the drive; 1 is a drive without data placement. Several
    /// numbers give several drives, each with a row in the table
    #[arg(long, value_delimiter = ',', default_values_t = [8])]
    handles: Vec<u16>,
    /// Where the collector copies pages: to units of the pages' own handle (persistent), or to
    /// units that all handles share (initial)
    #[arg(long, value_enum, default_value_t = IsolationName::Persistent)]
    isolation: IsolationName,
    /// Rule by which the collector picks the next reclaim unit
    #[arg(long, value_enum, default_value_t = VictimsName::Greedy)]
    victims: VictimsName,
    /// While at most this share of the reclaim units is free, the collector works in the background
    /// of the host's writes. With 0, it works only when it must
    #[arg(long, default_value_t = 0.25)]
    background: f64,
    /// Number of reclaim units that the drive exports: the more units, the smaller each unit
    /// [default: 180, as in the SlimIO paper]
    #[arg(long, value_parser = clap::value_parser!(u64).range(1..=1 << 20))]
    exported_units: Option<u64>,
    /// Factor by which every address and length is multiplied, to repeat the experiment on a larger
    /// drive
    #[arg(long, default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..=4096))]
    stretch: u64,
    /// Begin with a drive on which every block was written once, instead of an empty drive
    #[arg(long)]
    written: bool,
    /// Fail unless the trace is complete, has writes of every lifetime, and keeps the lifetimes
    /// apart. No two lifetimes may share reclaim units or addresses, but the two kinds of snapshots
    /// may share slots
    #[arg(long)]
    separate: bool,
    /// Instead of tables, print the values at every recorded time, separated by commas. The trace
    /// must be complete
    #[arg(long)]
    points: bool,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum IsolationName {
    Initial,
    Persistent,
}

#[derive(Clone, Copy, Debug, ValueEnum)]
enum VictimsName {
    Greedy,
    Fifo,
    CostBenefit,
}

impl Traces {
    /// Whether no trace is named.
    pub(super) fn is_empty(&self) -> bool {
        self.files.is_empty()
    }

    /// Replays all traces on all drives.
    ///
    /// # Errors
    /// If an option is out of range, or a trace can't be replayed or fails the check of
    /// `--separate`. The error is a sentence for the user, which names the trace if there is a
    /// trace to blame.
    pub(super) fn run(&self, spare: Option<f64>) -> Result<(), String> {
        let spare = spare.unwrap_or(SPARE);
        if !(0.0..1.0).contains(&spare) || spare == 0.0 {
            return Err("--spare must be greater than 0 and less than 1".into());
        }
        if !(0.0..1.0).contains(&self.background) {
            return Err("--background must be at least 0 and less than 1".into());
        }
        for trace in &self.files {
            self.replay(trace, spare).map_err(|why| format!("{}: {why}", trace.display()))?;
        }
        Ok(())
    }

    fn replay(&self, path: &Path, spare: f64) -> Result<(), String> {
        let mut outcomes = Vec::new();
        let header = open(path)?.header().clone();
        for &handles in &self.handles {
            let trace = open(path)?;
            let replay = self.replay_on(&header, handles, spare)?;
            let outcome = replay.run(trace).map_err(|error| error.to_string())?;
            if let Some(events) = outcome.cut_after {
                let why = TraceError::Cut { events };
                // A program that reads the points does not read warnings.
                if self.separate || self.points {
                    return Err(why.to_string());
                }
                log::warn!("{}: {why}. Only these events are replayed", path.display());
            }
            if self.separate {
                check_separation(&header, handles, &outcome)?;
            }
            outcomes.push((handles, outcome));
        }
        if self.points {
            for (handles, outcome) in &outcomes {
                put_points(*handles, outcome);
            }
            return Ok(());
        }
        say(&format!("# {}\n", path.display()));
        for (name, value) in &header.about {
            say(&format!("* {name}: {value}"));
        }
        let config = self.config(&header, self.handles[0], spare)?;
        say(&format!("* drive: {}\n", describe(&config)));
        put_totals(&outcomes);
        for (handles, outcome) in &outcomes {
            put_over_time(*handles, outcome);
        }
        Ok(())
    }

    fn replay_on(&self, header: &TraceHeader, handles: u16, spare: f64) -> Result<Replay, String> {
        let has_streams = header.get("streams").is_some();
        let placements = slimio_volume::placements_of_lifetimes(handles);
        Ok(Replay {
            config: self.config(header, handles, spare)?,
            handles: if has_streams { placements.to_vec() } else { Vec::new() },
            precondition: if self.written { Precondition::Written } else { Precondition::Empty },
            stretch: self.stretch,
        })
    }

    /// The drive of the SlimIO paper, scaled to the size of the recorded device.
    fn config(&self, header: &TraceHeader, handles: u16, spare: f64) -> Result<Config, String> {
        let device_bytes = header.device_bytes.saturating_mul(self.stretch);
        let mut config = match self.exported_units {
            None => Config::scaled(device_bytes),
            Some(units) => Config::sized(device_bytes, Some(device_bytes / units), 0),
        };
        let exported = config.lba_count / u64::from(config.geometry.unit_pages());
        config.geometry.blocks_per_die = (exported as f64 / (1.0 - spare)).round() as u32;
        let units = config.geometry.unit_count();
        config.thresholds = Thresholds::paper(units).in_background_below(self.background, units);
        config.handles = handles;
        config.isolation = match self.isolation {
            IsolationName::Initial => Isolation::Initial,
            IsolationName::Persistent => Isolation::Persistent,
        };
        config.victims = match self.victims {
            VictimsName::Greedy => Victims::Greedy,
            VictimsName::Fifo => Victims::Fifo,
            VictimsName::CostBenefit => Victims::CostBenefit,
        };
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }
}

fn open(path: &Path) -> Result<TraceReader<File>, String> {
    let file = File::open(path).map_err(|error| format!("it can't be opened: {error}"))?;
    TraceReader::new(file).map_err(|error| error.to_string())
}

fn check_separation(header: &TraceHeader, handles: u16, outcome: &Outcome) -> Result<(), String> {
    let names = header.get("streams").ok_or("it names no lifetimes")?;
    // The two kinds of snapshots may share addresses, because a snapshot may be written into a slot
    // that held a snapshot of the other kind.
    let is_snapshot = |(_, name): &(u8, &str)| name.to_lowercase().contains("snapshot");
    let snapshots = (0..).zip(names.split(", ")).filter(is_snapshot);
    let snapshots: Vec<u8> = snapshots.map(|(stream, _)| stream).collect();
    let checked = outcome.separation.check(names.split(", ").count(), &snapshots);
    checked.map_err(|why| {
        format!("on a drive of {handles} handles, lifetimes do not stay apart: {why} ({names})")
    })
}

fn describe(config: &Config) -> String {
    let geometry = config.geometry;
    format!(
        "{} reclaim units of {:.1} MiB, {} of them exported, on {} channels of {} dies; {:?} isolation, \
         {:?} victims, collected in the background at {} free units, in the foreground at {}",
        geometry.unit_count(),
        geometry.unit_size() as f64 / MIB,
        config.lba_count / u64::from(geometry.unit_pages()),
        geometry.channels,
        geometry.dies_per_channel,
        config.isolation,
        config.victims,
        config.thresholds.background_units,
        config.thresholds.foreground_units,
    )
}

fn put_totals(outcomes: &[(u16, Outcome)]) {
    say("| handles | host MiB | media MiB | erased MiB | WAF | WAF of the second half | \
         largest number of units with several lifetimes |");
    say("|---|---|---|---|---|---|---|");
    for (handles, outcome) in outcomes {
        let Some(last) = outcome.points.last() else { continue };
        let mib = |bytes: u64| format!("{:.0}", bytes as f64 / MIB);
        say(&format!(
            "| {handles} | {} | {} | {} | {} | {} | {} |",
            mib(last.host_bytes),
            mib(last.media_bytes),
            mib(outcome.erased_bytes),
            number(outcome.waf()),
            number(outcome.waf_of_second_half()),
            outcome.separation.mixed_units_max,
        ));
    }
}

fn put_over_time(handles: u16, outcome: &Outcome) {
    say(&format!("\nOver time, {handles} handles:\n"));
    say(
        "| host MiB | seconds | utilization | WAF since the row before | WAF since the beginning |",
    );
    say("|---|---|---|---|---|");
    let [first, .., last] = outcome.points.as_slice() else { return };
    let mut before = first;
    for row in 1..=ROWS {
        let wanted = last.host_bytes * row / ROWS;
        let Some(point) = outcome.points.iter().find(|point| point.host_bytes >= wanted) else {
            continue;
        };
        say(&format!(
            "| {:.0} | {:.1} | {:.2} | {} | {} |",
            point.host_bytes as f64 / MIB,
            point.time_ns as f64 / 1e9,
            point.utilization,
            number(point.waf_since(before)),
            number(point.waf_since(first)),
        ));
        before = point;
    }
    say("");
}

fn put_points(handles: u16, outcome: &Outcome) {
    say(POINT_FIELDS);
    for Point { time_ns, host_bytes, media_bytes, utilization, mixed_units } in &outcome.points {
        let seconds = *time_ns as f64 / 1e9;
        say(&format!(
            "{handles},{seconds:.6},{host_bytes},{media_bytes},{utilization:.6},{mixed_units}"
        ));
    }
}

fn number(waf: Option<f64>) -> String {
    waf.map_or_else(|| "-".into(), |waf| format!("{waf:.4}"))
}
