//! Throughput over time on an emulated SSD, and the bytes that the SSD's collector writes
//! meanwhile.
//!
//! ```text
//!  clients ──► server ──► emulated drive: mapping, collector, a clock for each die
//!                │             │
//!                └── INFO ─────┴──► samples: requests, host bytes, media bytes, snapshots
//! ```
//!
//! SlimIO has the drive to itself (`--volume emulated:…`); stock Redis has a file system on a loop
//! device with the same timing. The clients run the [`Workload`] that `slimio-lab trace` runs, too.

mod chart;
mod samples;
mod table;

use std::fmt;
use std::path::{Path, PathBuf};

use slimio_ssd::Config;
use slimio_ssd::workload::PaperRun;

use crate::error::{Doing as _, Result};
use crate::recorder::{
    Driven, EmulatedDisk, FileSystemKind, Mounted, Workload, heed_interrupts, set_scheduler,
};
use crate::run::fresh_directory;
use crate::server::{Policy, Server, ServerConfig, ServerKind};

pub use chart::chart;
pub use samples::{Meter, Sample, Sampler, Samples};
pub use table::{middle_rounds, table};

/// Number of handles of a drive with data placement: one handle for each lifetime (kind of data
/// that is deleted together) that SlimIO knows. More handles would need more spare reclaim units,
/// because each handle fills a unit of its own.
const HANDLES: u16 = 4;

/// The server that uses the drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Host {
    /// SlimIO on a drive with data placement.
    WithPlacement,
    /// SlimIO on a conventional drive.
    WithoutPlacement,
    /// Stock Redis on a file system on a conventional drive.
    Stock {
        /// The file system.
        file_system: FileSystemKind,
        /// Whether the file system is mounted with `discard`. With it, the file system tells the
        /// drive which blocks were freed.
        discard: bool,
    },
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WithPlacement => f.pad("SlimIO with FDP"),
            Self::WithoutPlacement => f.pad("SlimIO without FDP"),
            Self::Stock { file_system, discard: false } => {
                f.pad(&format!("stock Redis, {file_system}"))
            }
            Self::Stock { file_system, discard: true } => {
                f.pad(&format!("stock Redis, {file_system} with discard"))
            }
        }
    }
}

impl Host {
    /// Whether the host is stock Redis.
    pub fn is_stock(self) -> bool {
        matches!(self, Self::Stock { .. })
    }
}

/// How the drive differs from the drive in the SlimIO paper, and how full it gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Drive {
    /// The drive's name in the table.
    pub name: &'static str,
    /// Bytes that the drive exports. If `unit_bytes` is `None`, the drive may export a little less.
    pub size_bytes: u64,
    /// Size of a reclaim unit; `None` for a 180th of the drive, rounded down to whole pages of each
    /// die.
    pub unit_bytes: Option<u64>,
    /// Share of the NAND that the drive does not export, in percent.
    pub spare_percent: u32,
    /// The collector begins to work in the background when fewer than this many percent of the
    /// units are free.
    pub background_percent: u32,
    /// Data, log and snapshots are scaled as if the drive had only this many percent of its size.
    pub fill_percent: u64,
}

/// The settings of one run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Setup {
    /// The server that uses the drive.
    pub host: Host,
    /// Value of `appendfsync`.
    pub policy: Policy,
    /// The drive.
    pub drive: Drive,
    /// Number of on-demand snapshots. During each of them, clients send SETs.
    pub repetitions: u32,
    /// SlimIO's `snapshot-rate`; `None` for its default.
    pub snapshot_rate: Option<String>,
}

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The settings of the run.
    pub setup: Setup,
    /// Number of requests, elapsed time and latency, as the clients measured them.
    pub driven: Driven,
    /// Samples over time, from the first repetition to the last SET.
    pub samples: Samples,
}

impl Outcome {
    /// Media bytes per host byte, counted from an empty drive.
    pub fn waf(&self) -> f64 {
        let last = self.samples.last;
        last.map_or(f64::NAN, |last| last.media_bytes as f64 / last.host_bytes as f64)
    }
}

impl Setup {
    fn config(&self) -> Config {
        let handles = if self.host == Host::WithPlacement { HANDLES } else { 1 };
        let Drive { size_bytes, unit_bytes, spare_percent, background_percent, .. } = self.drive;
        let config = Config::sized(size_bytes, unit_bytes, spare_percent);
        let share = f64::from(background_percent) / 100.0;
        let thresholds = config.thresholds.in_background_below(share, config.geometry.unit_count());
        Config { handles, thresholds, ..config }
    }

    fn workload(&self) -> Workload {
        let Drive { size_bytes, fill_percent, .. } = self.drive;
        let repetitions = self.repetitions;
        let workload = Workload::scaled(size_bytes / 100 * fill_percent);
        let workload = if self.host.is_stock() { workload.on_file_system() } else { workload };
        Workload { repetitions, ..workload }
    }

    /// Carries out the run with the server's program at `program`. The data is in `folder`, which
    /// is emptied first and not removed. On SIGINT and SIGTERM, the run takes down its mounts and
    /// loop devices, and ends.
    pub fn run(&self, program: &Path, folder: &Path) -> Result<Outcome> {
        heed_interrupts()?;
        fresh_directory(folder)?;
        // Other programs' dirty data is written back now, so that it is not written back during the
        // run.
        rustix::fs::sync();
        let (driven, samples) = match self.host {
            Host::WithPlacement | Host::WithoutPlacement => self.on_drive(program, folder)?,
            Host::Stock { file_system, discard } => {
                self.on_file_system(program, folder, file_system, discard)?
            }
        };
        Ok(Outcome { setup: self.clone(), driven, samples })
    }

    fn on_drive(&self, program: &Path, folder: &Path) -> Result<(Driven, Samples)> {
        let fdp = match self.host {
            Host::WithPlacement => format!("handles={HANDLES}"),
            _ => "fdp=off".to_owned(),
        };
        let config = self.config();
        let volume = format!(
            "emulated:{},size={},ru={},spare={}%,background={}%,{fdp}",
            folder.join("drive").display(),
            config.exported_size(),
            config.geometry.unit_size(),
            self.drive.spare_percent,
            self.drive.background_percent
        );
        let segment_size = PaperRun::segment_bytes(config.exported_size()).to_string();
        let mut extra = vec!["--volume", &volume, "--log-segment-size", &segment_size];
        extra.extend(self.snapshot_rate.iter().flat_map(|rate| ["--snapshot-rate", rate]));
        let server = self.start(ServerKind::SlimIO, program, folder, &extra)?;
        self.serve(server, Meter::Info)
    }

    fn on_file_system(
        &self,
        program: &Path,
        folder: &Path,
        kind: FileSystemKind,
        discard: bool,
    ) -> Result<(Driven, Samples)> {
        let config = self.config();
        let size = config.exported_size();
        let disk = EmulatedDisk::new(folder, config)?;
        set_scheduler(disk.device())?;
        let point = folder.join("mounted");
        let mounted = Mounted::new(kind, disk.device(), size, discard, &point)?;
        let extra = ["--dir", &point.display().to_string()];
        let server = self.start(ServerKind::Stock, program, folder, &extra)?;
        let done = self.serve(server, Meter::Drive(disk.meter()))?;
        mounted.finish()?;
        disk.finish()?;
        Ok(done)
    }

    fn start(
        &self,
        kind: ServerKind,
        program: &Path,
        folder: &Path,
        extra: &[&str],
    ) -> Result<Server> {
        Ok(Server::start(&ServerConfig {
            kind,
            program: program.to_owned(),
            directory: folder.join("server"),
            policy: self.policy,
            extra: extra.iter().map(|&word| word.to_owned()).collect(),
            under: Vec::new(),
        })?)
    }

    fn serve(&self, server: Server, meter: Meter) -> Result<(Driven, Samples)> {
        let sampler = Sampler::start(&server, meter)?;
        let mark = |what: &str| {
            sampler.mark(what);
            Ok(())
        };
        let driven = self.workload().drive(&server, &mark)?;
        let samples = sampler.finish()?;
        server.stop()?;
        Ok((driven, samples))
    }
}

/// Folder for the data of a run. The folder is in memory if possible, so that no real disk affects
/// the results.
pub fn folder_in_memory() -> PathBuf {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() { memory.to_owned() } else { std::env::temp_dir() }
}

/// Removes the folder of a run.
pub fn remove(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).doing(format!("removing {}", folder.display()))
}
