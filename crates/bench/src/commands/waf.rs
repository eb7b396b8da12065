//! `slimio-bench waf`: the write amplification of stock Redis and SlimIO on one drive, as a table and
//! a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use slimio_plot::{Chart, Curve, Ink, Mark, Panel, write_png};

use crate::args::Args;
use crate::error::{BenchError, Doing, Result};
use crate::recorder::{FileSystemKind, Place, Recording, Workload, can_record};
use crate::server::{Policy, find_program};

/// Flags without a value.
pub const SWITCHES: &[&str] = &["quick", "reuse"];

/// What the flags of `waf` mean.
pub const HELP: &str = "\
waf: records stock redis-server on ext4 and XFS, with and without discard, and SlimIO on the device,
replays each trace through the drive, and writes waf.md and waf.png; needs root
  --slimio PROGRAM   SlimIO, which also replays (slimio)
  --redis PROGRAM    stock Redis (redis-server)
  --out DIRECTORY    traces, table and picture (./waf/)
  --size MIB         of the drive (1440)
  --policy P         everysec or always (both)
  --reuse            replays traces that are there instead of recording them again
  --quick            SlimIO alone, two repetitions on half the drive: fails where its WAF is above
                     1.005, or where lifetimes share addresses or reclaim units";

/// Of the paper.
const REPETITIONS: u32 = 5;
/// What SlimIO with data placement must reach.
const WAF_MAX: f64 = 1.005;
/// Handles of the drives that SlimIO is replayed on; the first is one without data placement.
const HANDLES: &[u16] = &[1, 2, 4, 8];
const ISOLATIONS: &[&str] = &["persistent", "initial"];
/// What the paper reports of the whole run, by `appendfsync`: its baseline is F2FS.
const PAPER: &[(Policy, &str, &str)] =
    &[(Policy::EverySec, "1.14", "1.00"), (Policy::Always, "1.24", "1.00")];

/// Runs what `args` describe; the result is the text to print.
pub fn run(mut args: Args) -> Result<String> {
    let program = |given: Option<String>, name: &str| {
        let missing = || BenchError::Usage(format!("{name} is not installed; name one"));
        given.map(PathBuf::from).or_else(|| find_program(name)).ok_or_else(missing)
    };
    let slimio = program(args.text("slimio"), "slimio")?;
    let redis = args.text("redis");
    let out = PathBuf::from(args.value("out", "./waf".to_owned())?);
    let device_bytes = args.value("size", 1440u64)? << 20;
    let only = args.text("policy").map(|name| Policy::named(&name)).transpose()?;
    let (reuse, is_quick) = (args.switch("reuse"), args.switch("quick"));
    args.finish()?;
    if let Err(why) = can_record() {
        return Ok(format!("SKIPPED: no device can be recorded here: {why}\n"));
    }
    fs::create_dir_all(&out).doing(format!("making {}", out.display()))?;
    let repetitions = REPETITIONS;
    let rows = Vec::new();
    let mut experiment = Experiment { slimio, out, device_bytes, repetitions, reuse, rows };
    if is_quick {
        return experiment.quick();
    }
    let redis = program(redis, "redis-server")?;
    for (policy, ..) in PAPER.iter().filter(|(policy, ..)| only.is_none_or(|only| only == *policy))
    {
        for kind in [FileSystemKind::Ext4, FileSystemKind::Xfs] {
            for discard in [false, true] {
                let place = Place::FileSystem { kind, discard };
                let trace = experiment.record(&redis, place, *policy)?;
                let discards = if discard { ", discard" } else { "" };
                let name = format!("stock Redis, {kind}{discards}");
                experiment.replay(&name, *policy, &trace, (1, "persistent"), &[])?;
            }
        }
        let slimio = experiment.slimio.clone();
        let trace = experiment.record(&slimio, Place::Device, *policy)?;
        for &handles in HANDLES {
            for isolation in &ISOLATIONS[..if handles == 1 { 1 } else { 2 }] {
                let name = match handles {
                    1 => "SlimIO without FDP".to_owned(),
                    _ => format!("SlimIO, {handles} handles, {isolation}"),
                };
                experiment.replay(&name, *policy, &trace, (handles, isolation), &[])?;
            }
        }
    }
    experiment.finish()
}

struct Experiment {
    slimio: PathBuf,
    out: PathBuf,
    device_bytes: u64,
    repetitions: u32,
    reuse: bool,
    rows: Vec<Row>,
}

struct Row {
    name: String,
    policy: Policy,
    is_slimio: bool,
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    host_bytes: f64,
    media_bytes: f64,
    /// Reclaim units that hold blocks of several lifetimes.
    mixed_units: f64,
}

impl Row {
    fn waf(&self) -> f64 {
        self.points.last().map_or(f64::NAN, |last| last.media_bytes / last.host_bytes)
    }

    /// Of the second half of what the host wrote.
    fn waf_late(&self) -> f64 {
        let Some(last) = self.points.last() else { return f64::NAN };
        let middle = self.points.iter().find(|point| point.host_bytes * 2.0 >= last.host_bytes);
        middle.map_or(f64::NAN, |middle| {
            (last.media_bytes - middle.media_bytes) / (last.host_bytes - middle.host_bytes)
        })
    }
}

impl Row {
    /// Most reclaim units at one time that held several lifetimes; nothing is known of the lifetimes of
    /// what a file system writes.
    fn mixed_units_max(&self) -> String {
        if !self.is_slimio {
            return "unknown".into();
        }
        let most = self.points.iter().map(|point| point.mixed_units).fold(0.0, f64::max);
        format!("{most}")
    }
}

impl Experiment {
    /// SlimIO with data placement, once, on a drive of half the size.
    fn quick(&mut self) -> Result<String> {
        self.device_bytes /= 2;
        self.repetitions = 2;
        self.reuse = false;
        let slimio = self.slimio.clone();
        let trace = self.record(&slimio, Place::Device, Policy::EverySec)?;
        self.replay("SlimIO", Policy::EverySec, &trace, (8, "persistent"), &["--separate"])?;
        let waf = self.rows[0].waf();
        fs::remove_file(&trace).doing("removing the trace")?;
        if waf <= WAF_MAX {
            return Ok(format!(
                "WAF of SlimIO with data placement: {waf:.4}, each lifetime in reclaim units of its own\n"
            ));
        }
        let text = format!("the WAF of SlimIO with data placement is {waf:.4}, above {WAF_MAX}");
        Err(BenchError::Broken(text))
    }

    fn record(&self, program: &Path, place: Place, policy: Policy) -> Result<PathBuf> {
        let name = match place {
            Place::FileSystem { kind, discard: false } => format!("{kind}-{policy}.trace"),
            Place::FileSystem { kind, discard: true } => format!("{kind}-discard-{policy}.trace"),
            Place::Device => format!("slimio-{policy}.trace"),
        };
        let trace = self.out.join(name);
        if self.reuse && trace.exists() {
            return Ok(trace);
        }
        eprintln!("recording {}", trace.display());
        let recording = Recording {
            program: program.to_owned(),
            place,
            policy,
            device_bytes: self.device_bytes,
            workload: Workload {
                repetitions: self.repetitions,
                ..Workload::scaled(self.device_bytes)
            },
            folder: self.out.join("recording"),
            trace: trace.clone(),
        };
        recording.run()?;
        Ok(trace)
    }

    fn replay(
        &mut self,
        name: &str,
        policy: Policy,
        trace: &Path,
        (handles, isolation): (u16, &str),
        flags: &[&str],
    ) -> Result<()> {
        let mut replay = Command::new(&self.slimio);
        replay.arg("waf").arg(trace).args(["--points", "--isolation", isolation]);
        replay.args(["--handles", &handles.to_string()]).args(flags);
        let output = replay.output().doing("starting slimio waf")?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(BenchError::Server(said));
        }
        let text = String::from_utf8_lossy(&output.stdout);
        let points = points(&text)?;
        let is_slimio = name.starts_with("SlimIO");
        self.rows.push(Row { name: name.to_owned(), policy, is_slimio, points });
        Ok(())
    }

    fn finish(&self) -> Result<String> {
        let table = self.table();
        let path = self.out.join("waf.md");
        fs::write(&path, &table).doing(format!("writing {}", path.display()))?;
        let picture = self.out.join("waf.png");
        write_png(&self.chart().draw(), &picture)
            .doing(format!("writing {}", picture.display()))?;
        Ok(table)
    }

    fn table(&self) -> String {
        let mut text = "| on the drive | `appendfsync` | host GiB | media GiB | WAF | WAF of the \
                        second half | most units of several lifetimes | in the paper |\n\
                        |---|---|---:|---:|---:|---:|---:|---|\n"
            .to_owned();
        for row in &self.rows {
            let Some(last) = row.points.last() else { continue };
            let gib = |bytes: f64| format!("{:.2}", bytes / f64::from(1 << 30));
            let paper = PAPER.iter().find(|(policy, ..)| *policy == row.policy);
            let paper = match (paper, row.is_slimio, row.name.contains("without")) {
                (Some((_, stock, _)), false, _) => format!("{stock} (F2FS)"),
                (Some((_, _, slimio)), true, false) => (*slimio).to_owned(),
                _ => "not reported".to_owned(),
            };
            let _ = writeln!(
                text,
                "| {} | {} | {} | {} | {:.3} | {:.3} | {} | {paper} |",
                row.name,
                row.policy,
                gib(last.host_bytes),
                gib(last.media_bytes),
                row.waf(),
                row.waf_late(),
                row.mixed_units_max(),
            );
        }
        text
    }

    /// WAF since the beginning over what the host has written, a panel for each policy.
    fn chart(&self) -> Chart {
        const INKS: [Ink; 6] =
            [Ink::Grey, Ink::Orange, Ink::Red, Ink::Violet, Ink::Green, Ink::Blue];
        let panel = |policy: Policy| {
            // SlimIO once: with and without data placement.
            let rows = self.rows.iter().filter(|row| row.policy == policy);
            let rows = rows.filter(|row| {
                !row.is_slimio || row.name.contains("without") || row.name.contains("8 handles, p")
            });
            let curves = rows.zip(INKS.into_iter().cycle()).map(|(row, ink)| {
                let waf = |point: &Point| {
                    let gib = point.host_bytes / f64::from(1 << 30);
                    (gib, point.media_bytes / point.host_bytes)
                };
                let points = row.points.iter().map(waf).collect();
                let name = row.name.trim_start_matches("stock Redis, ").to_owned();
                Curve { name, ink, mark: Mark::Line, points }
            });
            Panel {
                title: format!("appendfsync {policy}"),
                x_title: "GiB written by the host".into(),
                y_min: 1.0,
                curves: curves.collect(),
                ..Panel::default()
            }
        };
        let title = "write amplification since the beginning".into();
        let policies = PAPER.iter().map(|(policy, ..)| *policy);
        let shown = policies.filter(|policy| self.rows.iter().any(|row| row.policy == *policy));
        Chart { title, panels: shown.map(panel).collect() }
    }
}

/// Fields of a point, as `slimio waf --points` prints them, one point a line.
const POINT_FIELDS: &str = "handles,seconds,host_bytes,media_bytes,utilization,mixed_units";

/// Reads them all.
fn points(text: &str) -> Result<Vec<Point>> {
    let mut lines = text.lines();
    if lines.next() != Some(POINT_FIELDS) {
        return Err(BenchError::Server(format!("slimio waf does not print {POINT_FIELDS}")));
    }
    let unreadable = |line| BenchError::Server(format!("slimio waf prints no point: {line}"));
    lines.map(|line| point(line).ok_or_else(|| unreadable(line))).collect()
}

fn point(line: &str) -> Option<Point> {
    let fields: Vec<f64> =
        line.split(',').map(str::parse).collect::<std::result::Result<_, _>>().ok()?;
    let [_, _, host_bytes, media_bytes, _, mixed_units] = fields[..] else { return None };
    Some(Point { host_bytes, media_bytes, mixed_units })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_point_that_can_not_be_read_is_an_error() {
        let line = "8,1.5,4096,8192,0.25,3";
        let read = points(&format!("{POINT_FIELDS}\n{line}\n")).expect("it is as printed");
        assert_eq!(read, [Point { host_bytes: 4096.0, media_bytes: 8192.0, mixed_units: 3.0 }]);
        for bad in ["8,1.5,4096,8192", "8,1.5,4096,much,0.25,3", "", "error"] {
            let refused = points(&format!("{POINT_FIELDS}\n{line}\n{bad}\n")).unwrap_err();
            assert_eq!(refused.to_string(), format!("slimio waf prints no point: {bad}"));
        }
        points(line).expect_err("the fields have no names");
        points("").expect_err("there is nothing");
    }
}
