//! `slimio-bench waf`: the write amplification of stock Redis and SlimIO on one drive, as a table and
//! a picture.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use slimio_plot::{Chart, Curve, Ink, Mark, Panel, write_png};
use slimio_ssd::workload::PaperRun;

use crate::args::Args;
use crate::error::{BenchError, Doing, Result};
use crate::recorder::{FileSystemKind, Place, Recording, Workload, can_record, drive_bytes};
use crate::server::{Policy, find_program};

/// Flags without a value.
pub const SWITCHES: &[&str] = &["quick", "reuse", "full"];

/// What the flags of `waf` mean.
pub const HELP: &str = "\
waf: records stock redis-server on ext4, XFS and, where the kernel has it, F2FS, with and without
discard, and SlimIO on the device, replays each trace through the drive, and writes waf.md and waf.png; needs root
  --slimio PROGRAM   SlimIO, which also replays (slimio)
  --redis PROGRAM    stock Redis (redis-server)
  --out DIRECTORY    traces, table and picture (./waf/)
  --size MIB         of the drive (1440)
  --policy P         everysec or always (both)
  --full             the paper's 180 GiB besides, in virtual time: what SlimIO's storage writes there, and
                     the recordings with every address and length as many times as large, and more keys than
                     the paper's; waf-full.md, waf-keys.md and pictures
  --reuse            replays traces that are there, whole and made with the same options, instead of
                     recording them again
  --quick            SlimIO alone, two repetitions on half the drive: fails where its WAF is above
                     1.005, or where lifetimes share addresses or reclaim units";

/// Times the paper's keys, and how rows with them are named.
const KEYS: [&str; 5] = ["1", "1.2", "1.3", "1.4", "1.5"];
const TIMES: &str = ", keys times ";
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
    // A server works in a folder of its own.
    let out = absolute(&out).doing(format!("finding {}", out.display()))?;
    let size = args.value("size", 1440u64)?;
    let only = args.text("policy").map(|name| Policy::named(&name)).transpose()?;
    let (reuse, is_quick) = (args.switch("reuse"), args.switch("quick"));
    let is_full = args.switch("full");
    args.finish()?;
    let device_bytes = drive_bytes(if is_quick { size / 2 } else { size })?;
    if is_full && !PaperRun::DRIVE_BYTES.is_multiple_of(device_bytes) {
        let text = format!("the paper's 180 GiB are no multiple of {size} MiB: --full wants one");
        return Err(BenchError::Usage(text));
    }
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
    let policies = PAPER.iter().map(|(policy, ..)| *policy);
    let policies: Vec<Policy> =
        policies.filter(|policy| only.is_none_or(|only| only == *policy)).collect();
    for policy in &policies {
        experiment.stock(&redis, *policy, 1)?;
        let trace = experiment.record(&experiment.slimio.clone(), Place::Device, *policy)?;
        experiment.slimio("SlimIO", *policy, &trace, 1)?;
    }
    let mut text = experiment.finish("waf")?;
    if is_full {
        let stretch = PaperRun::DRIVE_BYTES / device_bytes;
        experiment.rows.clear();
        experiment.reuse = true;
        for policy in &policies {
            experiment.stock(&redis, *policy, stretch)?;
            let trace = experiment.record(&experiment.slimio.clone(), Place::Device, *policy)?;
            experiment.slimio("SlimIO, as recorded", *policy, &trace, stretch)?;
            let trace = experiment.generate(*policy, PaperRun::DRIVE_BYTES, "1")?;
            experiment.slimio("SlimIO", *policy, &trace, 1)?;
        }
        text = format!("{text}\nAt 180 GiB:\n\n{}", experiment.finish("waf-full")?);
        experiment.rows.clear();
        for (policy, keys) in policies.iter().flat_map(|policy| KEYS.map(|keys| (policy, keys))) {
            let trace = experiment.generate(*policy, device_bytes, keys)?;
            experiment.slimio(&format!("SlimIO{TIMES}{keys}"), *policy, &trace, 1)?;
        }
        text = format!("{text}\nWith more keys:\n\n{}", experiment.finish("waf-keys")?);
    }
    Ok(text)
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

    /// Stock Redis on each file system, with and without discard.
    fn stock(&mut self, redis: &Path, policy: Policy, stretch: u64) -> Result<()> {
        for kind in [FileSystemKind::Ext4, FileSystemKind::Xfs, FileSystemKind::F2fs] {
            if let Err(why) = kind.is_supported() {
                eprintln!("SKIPPED: {kind}: {why}");
                continue;
            }
            for discard in [false, true] {
                let place = Place::FileSystem { kind, discard };
                let trace = self.record(redis, place, policy)?;
                let discards = if discard { ", discard" } else { "" };
                let name = format!("stock Redis, {kind}{discards}");
                let flags = ["--stretch", &stretch.to_string()];
                self.replay(&name, policy, &trace, (1, "persistent"), &flags)?;
            }
        }
        Ok(())
    }

    /// SlimIO on every drive.
    fn slimio(&mut self, name: &str, policy: Policy, trace: &Path, stretch: u64) -> Result<()> {
        for &handles in HANDLES {
            for isolation in &ISOLATIONS[..if handles == 1 { 1 } else { 2 }] {
                let name = match handles {
                    1 => format!("{name} without FDP"),
                    _ => format!("{name}, {handles} handles, {isolation}"),
                };
                let flags = ["--stretch", &stretch.to_string()];
                self.replay(&name, policy, trace, (handles, isolation), &flags)?;
            }
        }
        Ok(())
    }

    /// What SlimIO's storage writes to a drive of so many bytes, with so many times the paper's keys.
    fn generate(&self, policy: Policy, bytes: u64, keys: &str) -> Result<PathBuf> {
        let mib = bytes >> 20;
        let trace = self.out.join(format!("generated-{policy}-{mib}-{keys}.trace"));
        eprintln!("generating {}", trace.display());
        let mut generate = Command::new(&self.slimio);
        generate.args(["waf", "generate", "--policy", &policy.to_string(), "--keys", keys]);
        generate.args(["--size", &format!("{mib}M"), "--out"]).arg(&trace);
        output_of(&mut generate)?;
        Ok(trace)
    }

    fn record(&self, program: &Path, place: Place, policy: Policy) -> Result<PathBuf> {
        let name = match place {
            Place::FileSystem { kind, discard: false } => format!("{kind}-{policy}.trace"),
            Place::FileSystem { kind, discard: true } => format!("{kind}-discard-{policy}.trace"),
            Place::Device => format!("slimio-{policy}.trace"),
        };
        let trace = self.out.join(name);
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
        if self.reuse {
            match recording.is_there() {
                Ok(()) => return Ok(trace),
                Err(why) => eprintln!("{} is recorded anew: {why}", trace.display()),
            }
        }
        eprintln!("recording {}", trace.display());
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
        let points = points(&output_of(&mut replay)?)?;
        let is_slimio = name.starts_with("SlimIO");
        self.rows.push(Row { name: name.to_owned(), policy, is_slimio, points });
        Ok(())
    }

    fn finish(&self, file: &str) -> Result<String> {
        let table = self.table();
        let path = self.out.join(format!("{file}.md"));
        fs::write(&path, &table).doing(format!("writing {}", path.display()))?;
        let picture = self.out.join(format!("{file}.png"));
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
            let paper = paper.filter(|_| !row.name.contains(TIMES));
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

/// What slimio prints, if it succeeds.
fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().doing("starting slimio waf")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::Server(said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
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
