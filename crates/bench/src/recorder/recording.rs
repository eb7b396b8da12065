//! One recording: a server with the workload on a recorded device, from an empty one to a good end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slimio_ssd::trace::{TraceEvent, TraceHeader};

use super::disk::{BLOCK_SIZE, RecordedDisk};
use super::join::join;
use super::mounted::{FileSystemKind, Mounted};
use super::tape::Tape;
use super::workload::Workload;
use crate::error::{Doing, Result};
use crate::run::fresh_directory;
use crate::server::{Policy, Server, ServerConfig, ServerKind};

/// What lies between a server and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Stock Redis on a file system.
    FileSystem {
        /// Which one.
        kind: FileSystemKind,
        /// Whether it tells the device what holds nothing any more.
        discard: bool,
    },
    /// Nothing: SlimIO has the device to itself. Each write has its lifetime as the stream.
    Device,
}

/// What is recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The server's program: stock Redis on a file system, SlimIO on the device.
    pub program: PathBuf,
    /// Where it has its data.
    pub place: Place,
    /// When a write of the log is made durable.
    pub policy: Policy,
    /// Size of the device, in bytes.
    pub device_bytes: u64,
    /// What clients do.
    pub workload: Workload,
    /// Directory of its own, made anew; the device's data lie here meanwhile.
    pub folder: PathBuf,
    /// Where the trace goes.
    pub trace: PathBuf,
}

impl Recording {
    /// Records it. Returns how many events the trace has.
    pub fn run(&self) -> Result<u64> {
        fresh_directory(&self.folder)?;
        let events = match self.place {
            Place::FileSystem { kind, discard } => self.on_file_system(kind, discard)?,
            Place::Device => self.on_device()?,
        };
        fs::remove_dir_all(&self.folder).doing(format!("removing {}", self.folder.display()))?;
        Ok(events)
    }

    fn on_file_system(&self, kind: FileSystemKind, discard: bool) -> Result<u64> {
        let disk = self.disk(&self.trace)?;
        let point = self.folder.join("mounted");
        let mounted = Mounted::new(kind, disk.device(), self.device_bytes, discard, &point)?;
        self.serve(&disk, vec!["--dir".into(), point.display().to_string()])?;
        mounted.finish()?;
        disk.finish()
    }

    fn on_device(&self) -> Result<u64> {
        let [of_device, of_server] =
            ["device.trace", "server.trace"].map(|name| self.folder.join(name));
        let disk = self.disk(&of_device)?;
        let volume = ["--volume".into(), disk.device().display().to_string()];
        let trace = ["--volume-trace".into(), of_server.display().to_string()];
        let segment_size = segment_size(self.device_bytes).to_string();
        let segments = ["--log-segment-size".into(), segment_size];
        self.serve(&disk, [volume, trace, segments].concat())?;
        disk.finish()?;
        Ok(join(&of_device, &of_server, &self.trace)?.events)
    }

    fn disk(&self, trace: &Path) -> Result<RecordedDisk> {
        let tape = Arc::new(Tape::new(trace, &self.header())?);
        let disk = RecordedDisk::new(&self.folder, self.device_bytes, tape)?;
        set_scheduler(disk.device())?;
        Ok(disk)
    }

    fn serve(&self, disk: &RecordedDisk, extra: Vec<String>) -> Result<()> {
        let kind = match self.place {
            Place::FileSystem { .. } => ServerKind::Stock,
            Place::Device => ServerKind::SlimIO,
        };
        let config = ServerConfig {
            kind,
            program: self.program.clone(),
            directory: self.folder.join("server"),
            policy: self.policy,
            extra,
        };
        let server = Server::start(&config)?;
        let mark =
            |what: &str| disk.tape().record(&TraceEvent::Mark(what.into())).doing("recording");
        self.workload.drive(&server, &mark)?;
        server.stop()
    }

    fn header(&self) -> TraceHeader {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let mut about = match self.place {
            Place::FileSystem { kind, discard } => vec![
                line("server", format!("stock redis-server, appendfsync {}", self.policy)),
                line("file system", kind.to_string()),
                line("discard", if discard { "yes" } else { "no" }.into()),
                line("made with", Mounted::made_with(kind, self.device_bytes)),
                line("mounted with", Mounted::options(discard).into()),
            ],
            Place::Device => {
                let segments = segment_size(self.device_bytes) >> 20;
                vec![
                    line("server", format!("SlimIO, appendfsync {}", self.policy)),
                    line("log", format!("segments of {segments} MiB")),
                ]
            }
        };
        let device = format!("loop over FUSE, blocks of {BLOCK_SIZE} bytes, scheduler none");
        about.push(line("device", device));
        about.push(line("preconditioning", "none: the device holds nothing".into()));
        about.extend(self.workload.about());
        if let Ok(release) = fs::read_to_string("/proc/sys/kernel/osrelease") {
            about.push(line("kernel", release.trim().to_owned()));
        }
        TraceHeader { device_bytes: self.device_bytes, about }
    }
}

/// Of the log's segments: the share that the default of 64 MiB has of a drive of 180 GiB, at least
/// the smallest that there is.
pub fn segment_size(device_bytes: u64) -> u64 {
    (device_bytes / 2880).next_power_of_two().clamp(1 << 20, 64 << 20)
}

/// The order in which requests are sent is the order in which they arrive.
pub(crate) fn set_scheduler(device: &Path) -> Result<()> {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let scheduler = format!("/sys/block/{name}/queue/scheduler");
    fs::write(&scheduler, "none").doing(format!("writing {scheduler}"))
}
