//! `slimio-lab waf`: measures the write amplification of stock Redis and SlimIO on one drive, as a
//! table and a picture.

mod table;

use std::fs;
use std::path::{Path, PathBuf, absolute};
use std::process::Command;

use clap::Args;
use slimio_ssd::workload::PaperRun;

use self::table::{DriveRow, Row, chart, drives_table, points, table};
use crate::error::{BenchError, Doing, Result};
use crate::recorder::{FileSystemKind, Place, Recording, Workload, can_record, drive_bytes};
use crate::server::{Policy, find_program};

/// The help text of `slimio-lab waf`.
pub const HELP: &str = include_str!("../../help/waf.txt");

/// Factors for the number of keys: 1 stands for the SlimIO paper's number. The largest factor is
/// limited by the drive's size, and depends on how fast the log grows.
const KEYS: &[(Policy, &[&str])] = &[
    (Policy::EverySec, &["1", "1.2", "1.3", "1.4", "1.5"]),
    (Policy::Always, &["1", "1.4", "1.5", "1.6"]),
];
/// Number of repetitions of the workload, as in the paper.
const REPETITIONS: u32 = 5;
/// The highest WAF that SlimIO with data placement may have.
const WAF_MAX: f64 = 1.005;
/// Traces of SlimIO are replayed on drives with these numbers of handles. The drive with one handle
/// has no data placement.
const HANDLES: &[u16] = &[1, 2, 4, 8];
const ISOLATIONS: &[&str] = &["persistent", "initial"];
/// The WAF that the paper reports for the whole run, by `appendfsync`: first the WAF of the paper's
/// baseline, which is Redis on F2FS, then the WAF of SlimIO.
const PAPER: &[(Policy, &str, &str)] =
    &[(Policy::EverySec, "1.14", "1.00"), (Policy::Always, "1.24", "1.00")];
/// Drives that differ in their spare NAND, and in the share of free units below which the collector
/// works in the background. The first drive is the paper's.
const DRIVES: &[Drive] = &[
    Drive { spare: "0.25", background: "0.25" },
    Drive { spare: "0.25", background: "0.1" },
    Drive { spare: "0.25", background: "0" },
    Drive { spare: "0.1", background: "0.05" },
    Drive { spare: "0.1", background: "0" },
];
/// Numbers of handles of the drives in [`DRIVES`]. No number is above 4, because the drives with a
/// tenth of spare NAND have too few units for five handles.
const DRIVES_HANDLES: &[u16] = &[1, 4];

/// A drive, as values for the flags of `slimio waf`.
struct Drive {
    spare: &'static str,
    background: &'static str,
}

/// A trace, and facts about its origin.
#[derive(Clone)]
struct Subject {
    name: String,
    policy: Policy,
    is_slimio: bool,
    /// Whether the paper reports a WAF for this subject.
    is_in_paper: bool,
    trace: PathBuf,
    /// Every address and length of the trace is multiplied by this factor.
    stretch: u64,
}

impl Subject {
    fn new(name: &str, policy: Policy, trace: PathBuf) -> Self {
        let is_slimio = name.starts_with("SlimIO");
        Self { name: name.to_owned(), policy, is_slimio, is_in_paper: true, trace, stretch: 1 }
    }

    /// Numbers of handles of the drives on which the trace is replayed. A trace of SlimIO is
    /// replayed with each number in `of_slimio`, a trace of stock Redis only with the first.
    fn handles<'a>(&self, of_slimio: &'a [u16]) -> &'a [u16] {
        if self.is_slimio { of_slimio } else { &of_slimio[..1] }
    }

    /// The name of the trace when it is replayed on a drive with this number of handles and this
    /// isolation.
    fn on(&self, handles: u16, isolation: Option<&str>) -> String {
        let name = &self.name;
        match (self.is_slimio, handles, isolation) {
            (false, ..) => name.clone(),
            (true, 1, _) => format!("{name}, without FDP"),
            (true, _, None) => format!("{name}, {handles} handles"),
            (true, _, Some(isolation)) => format!("{name}, {handles} handles, {isolation}"),
        }
    }
}

/// The flags.
#[derive(Debug, Args)]
pub struct Waf {
    #[arg(long)]
    slimio: Option<PathBuf>,
    #[arg(long)]
    redis: Option<PathBuf>,
    #[arg(long, default_value = "./waf")]
    out: PathBuf,
    #[arg(long, default_value_t = 1440)]
    size: u64,
    #[arg(long, value_parser = Policy::named)]
    policy: Option<Policy>,
    #[arg(long)]
    full: bool,
    #[arg(long)]
    reuse: bool,
    #[arg(long)]
    quick: bool,
}

/// Runs the experiment. Returns the text to print.
pub fn run(args: &Waf) -> Result<String> {
    let program = |given: &Option<PathBuf>, name: &str| {
        let missing = || BenchError::Usage(format!("{name} is not installed; give its path"));
        given.clone().or_else(|| find_program(name)).ok_or_else(missing)
    };
    let slimio = program(&args.slimio, "slimio")?;
    // A server's current directory is its own folder, so paths must be absolute.
    let out = absolute(&args.out).doing(format!("finding {}", args.out.display()))?;
    let &Waf { size, policy: only, full: is_full, reuse, quick: is_quick, .. } = args;
    let device_bytes = drive_bytes(if is_quick { size / 2 } else { size })?;
    if is_full && !PaperRun::DRIVE_BYTES.is_multiple_of(device_bytes) {
        let text = format!(
            "--full needs a --size that divides the paper's 180 GiB evenly; {size} MiB does not"
        );
        return Err(BenchError::Usage(text));
    }
    if let Err(why) = can_record() {
        return Ok(format!("SKIPPED: no device can be recorded on this machine: {why}\n"));
    }
    fs::create_dir_all(&out).doing(format!("making {}", out.display()))?;
    let repetitions = if is_quick { 2 } else { REPETITIONS };
    let reuse = reuse && !is_quick;
    let experiment = Experiment { slimio, out, device_bytes, repetitions, reuse };
    if is_quick {
        return experiment.quick();
    }
    let redis = program(&args.redis, "redis-server")?;
    let is_wanted = |policy: &Policy| only.is_none_or(|only| only == *policy);
    let policies: Vec<Policy> =
        PAPER.iter().map(|(policy, ..)| *policy).filter(is_wanted).collect();
    let mut recorded = Vec::new();
    for policy in &policies {
        recorded.extend(experiment.stock(&redis, *policy)?);
        recorded.push(experiment.on_device(*policy)?);
    }
    let text = experiment.replay_all("waf", &recorded)?;
    if !is_full {
        return Ok(format!("{text}\n{}", experiment.drives(&recorded)?));
    }

    let stretch = PaperRun::DRIVE_BYTES / device_bytes;
    let mut paper = recorded.clone();
    for subject in &mut paper {
        subject.name = format!("{}, stretched", subject.name);
        subject.stretch = stretch;
    }
    for policy in &policies {
        paper.push(experiment.generate(*policy, PaperRun::DRIVE_BYTES, "1")?);
    }
    let at_paper_size = experiment.replay_all("waf-full", &paper)?;

    let mut more_keys = Vec::new();
    for (policy, factors) in KEYS.iter().filter(|(policy, _)| is_wanted(policy)) {
        for keys in *factors {
            let mut subject = experiment.generate(*policy, device_bytes, keys)?;
            subject.name = format!("{}, keys times {keys}", subject.name);
            subject.is_in_paper = false;
            more_keys.push(subject);
        }
    }
    let with_more_keys = experiment.replay_all("waf-keys", &more_keys)?;
    let drives = experiment.drives(&[recorded, more_keys].concat())?;
    Ok(format!(
        "{text}\nAt 180 GiB:\n\n{at_paper_size}\nWith more keys:\n\n{with_more_keys}\n{drives}"
    ))
}

struct Experiment {
    slimio: PathBuf,
    out: PathBuf,
    device_bytes: u64,
    repetitions: u32,
    reuse: bool,
}

impl Experiment {
    /// Records SlimIO on a drive of half the usual size, and replays the trace once, with data
    /// placement.
    fn quick(&self) -> Result<String> {
        let subject = self.on_device(Policy::EverySec)?;
        let row = self.replay(&subject, 8, "persistent", &["--separate"])?;
        let waf = row.waf();
        fs::remove_file(&subject.trace).doing("removing the trace")?;
        if waf <= WAF_MAX {
            return Ok(format!(
                "WAF of SlimIO with data placement: {waf:.4}; data of different lifetimes share no reclaim unit\n"
            ));
        }
        let text = format!("the WAF of SlimIO with data placement is {waf:.4}, above {WAF_MAX}");
        Err(BenchError::Broken(text))
    }

    /// Records stock Redis on each file system, with and without discard.
    fn stock(&self, redis: &Path, policy: Policy) -> Result<Vec<Subject>> {
        let mut subjects = Vec::new();
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
                subjects.push(Subject::new(&name, policy, trace));
            }
        }
        Ok(subjects)
    }

    /// Records SlimIO with the whole device as its volume.
    fn on_device(&self, policy: Policy) -> Result<Subject> {
        let trace = self.record(&self.slimio, Place::Device, policy)?;
        Ok(Subject::new("SlimIO", policy, trace))
    }

    /// Generates a trace: the writes of SlimIO's storage to a drive of `bytes` bytes, with `keys`
    /// times the paper's number of keys.
    fn generate(&self, policy: Policy, bytes: u64, keys: &str) -> Result<Subject> {
        let mib = bytes >> 20;
        let trace = self.out.join(format!("generated-{policy}-{mib}-{keys}.trace"));
        eprintln!("generating {}", trace.display());
        let mut generate = Command::new(&self.slimio);
        generate.args(["waf", "generate", "--policy", &policy.to_string(), "--keys", keys]);
        generate.args(["--size", &format!("{mib}M"), "--out"]).arg(&trace);
        output_of(&mut generate)?;
        Ok(Subject::new("SlimIO, generated", policy, trace))
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
                ..place.workload(self.device_bytes)
            },
            folder: self.out.join("recording"),
            trace: trace.clone(),
        };
        if self.reuse {
            match recording.is_there() {
                Ok(()) => return Ok(trace),
                Err(why) => eprintln!("{} can't be reused: {why}", trace.display()),
            }
        }
        eprintln!("recording {}", trace.display());
        recording.run()?;
        Ok(trace)
    }

    /// Replays each trace on the paper's drive, with each number of handles and each isolation.
    /// Writes a table and a picture.
    fn replay_all(&self, file: &str, subjects: &[Subject]) -> Result<String> {
        let mut rows = Vec::new();
        for subject in subjects {
            for &handles in subject.handles(HANDLES) {
                for isolation in &ISOLATIONS[..if handles == 1 { 1 } else { 2 }] {
                    rows.push(self.replay(subject, handles, isolation, &[])?);
                }
            }
        }
        let picture = self.out.join(format!("{file}.svg"));
        fs::write(&picture, chart(&rows).svg()).doing(format!("writing {}", picture.display()))?;
        self.write(file, table(&rows))
    }

    /// Replays each trace on each of [`DRIVES`], which differ in spare NAND and in the moment at
    /// which the collector begins.
    fn drives(&self, subjects: &[Subject]) -> Result<String> {
        let mut rows = Vec::new();
        for subject in subjects {
            for &handles in subject.handles(DRIVES_HANDLES) {
                let on = |drive: &Drive| {
                    let flags = ["--spare", drive.spare, "--background", drive.background];
                    self.replay(subject, handles, ISOLATIONS[0], &flags)
                };
                let drives = DRIVES.iter().map(on).collect::<Result<_>>()?;
                let name = subject.on(handles, None);
                rows.push(DriveRow { name, policy: subject.policy, drives });
            }
        }
        self.write("waf-drives", drives_table(&rows))
    }

    fn replay(
        &self,
        subject: &Subject,
        handles: u16,
        isolation: &str,
        flags: &[&str],
    ) -> Result<Row> {
        let mut replay = Command::new(&self.slimio);
        replay.arg("waf").arg(&subject.trace).args(["--points", "--isolation", isolation]);
        replay.args(["--handles", &handles.to_string()]);
        replay.args(["--stretch", &subject.stretch.to_string()]).args(flags);
        Ok(Row {
            name: subject.on(handles, Some(isolation)),
            subject: subject.clone(),
            handles,
            is_persistent: isolation == ISOLATIONS[0],
            points: points(&output_of(&mut replay)?)?,
        })
    }

    fn write(&self, file: &str, table: String) -> Result<String> {
        let path = self.out.join(format!("{file}.md"));
        fs::write(&path, &table).doing(format!("writing {}", path.display()))?;
        Ok(table)
    }
}

/// The standard output of a command, if the command succeeds.
fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().doing("starting slimio waf")?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        return Err(BenchError::Server(said));
    }
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}
