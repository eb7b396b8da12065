//! One recording: a server with the workload on a recorded device, from an empty device to an
//! orderly stop.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slimio_ssd::Config;
use slimio_ssd::trace::{Tape, TraceEvent, TraceHeader, TraceReader};
use slimio_ssd::workload::PaperRun;

use super::claim::Claim;
use super::disk::{BLOCK_SIZE, RecordedDisk};
use super::interrupt;
use super::join::join;
use super::mounted::{FileSystemKind, Mounted};
use super::workload::Workload;
use crate::error::{BenchError, Doing, Result};
use crate::run::fresh_directory;
use crate::server::{Policy, Server, ServerConfig, ServerKind};

/// Sizes of drives that can be recorded, in bytes. SlimIO's mapped buffers take 64 MiB of a drive.
/// Even the smallest drive has enough room for the workload beside them. The largest drive is
/// limited because everything that is written to a drive is kept in a file.
const DRIVE_BYTES_MIN: u64 = 360 << 20;
const DRIVE_BYTES_MAX: u64 = 1 << 40;
/// The header's name for the kernel's version.
const KERNEL: &str = "kernel";

/// The layer between a server and the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Stock Redis on a file system.
    FileSystem {
        /// The kind of the file system.
        kind: FileSystemKind,
        /// Whether the file system tells the device which blocks hold nothing any more.
        discard: bool,
    },
    /// No layer, because SlimIO uses the device directly. Each write is in the stream of its data's
    /// *lifetime*. A lifetime is a kind of data that is deleted together, such as the log.
    Device,
}

impl Place {
    /// The workload of SlimIO's paper, scaled to a device of `device_bytes` bytes. Its data fits on
    /// the device, whether the server uses a file system or not.
    pub fn workload(self, device_bytes: u64) -> Workload {
        let workload = Workload::scaled(device_bytes);
        match self {
            Self::FileSystem { .. } => workload.on_file_system(),
            Self::Device => workload,
        }
    }
}

/// The settings of a recording.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The server's program: stock Redis on a file system, SlimIO on the device.
    pub program: PathBuf,
    /// The place of the server's data.
    pub place: Place,
    /// When a write of the log is made durable.
    pub policy: Policy,
    /// Size of the device, in bytes.
    pub device_bytes: u64,
    /// The workload of the clients.
    pub workload: Workload,
    /// Directory for the device's data. Only this recording uses the directory, which is emptied
    /// first.
    pub folder: PathBuf,
    /// Path of the trace.
    pub trace: PathBuf,
}

impl Recording {
    /// Checks that `trace` exists, is complete, and was recorded with the settings of this
    /// recording; if not, says why. Only the kernel's version may differ.
    pub fn is_there(&self) -> std::result::Result<(), String> {
        let file = File::open(&self.trace).map_err(|error| error.to_string())?;
        let mut reader = TraceReader::new(file).map_err(|error| error.to_string())?;
        let (found, wanted) = (reader.header().clone(), self.header());
        if found.device_bytes != wanted.device_bytes {
            return Err(format!("the trace is of a device of {} bytes", found.device_bytes));
        }
        let lines = wanted.about.iter().filter(|(name, _)| name != KERNEL);
        for (name, value) in lines {
            let other = found.get(name).unwrap_or("nothing");
            if other != value {
                return Err(format!("its {name} is {other}, not {value}"));
            }
        }
        reader.try_for_each(|record| record.map(drop)).map_err(|error| error.to_string())
    }

    /// Records the trace. First takes down the mounts and loop devices that a killed recording in
    /// the same folder has left. SIGINT and SIGTERM end the recording in good order. Returns how
    /// many events the trace has.
    pub fn run(&self) -> Result<u64> {
        interrupt::heed()?;
        let _claim = Claim::new(&self.folder)?;
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
        let segment_size = PaperRun::segment_bytes(self.device_bytes).to_string();
        let segments = ["--log-segment-size".into(), segment_size];
        self.serve(&disk, [volume, trace, segments].concat())?;
        disk.finish()?;
        Ok(join(&of_device, &of_server, &self.trace)?.events)
    }

    fn disk(&self, trace: &Path) -> Result<RecordedDisk> {
        let tape = File::create(trace).and_then(|file| Tape::new(file, &self.header()));
        let tape = tape.doing(format!("recording {}", trace.display()))?;
        let disk = RecordedDisk::new(&self.folder, self.device_bytes, Arc::new(tape))?;
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
            under: Vec::new(),
        };
        let server = Server::start(&config)?;
        let mark =
            |what: &str| disk.tape().record(&TraceEvent::Mark(what.into())).doing("recording");
        self.workload.drive(&server, &mark)?;
        Ok(server.stop()?)
    }

    /// The trace's header. If the server names streams, the header of the finished trace also has
    /// the names of the streams.
    pub fn header(&self) -> TraceHeader {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let mut about = match self.place {
            Place::FileSystem { kind, discard } => vec![
                line("server", format!("stock redis-server, appendfsync {}", self.policy)),
                line("file system", kind.to_string()),
                line("discard", if discard { "yes" } else { "no" }.into()),
                line("made with", Mounted::made_with(kind, self.device_bytes)),
                line("mounted with", Mounted::options(kind, discard).into()),
            ],
            Place::Device => {
                let segments = PaperRun::segment_bytes(self.device_bytes) >> 20;
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
            about.push(line(KERNEL, release.trim().to_owned()));
        }
        TraceHeader { device_bytes: self.device_bytes, about }
    }
}

/// The size in bytes of a drive of `mib` MiB. Fails if a trace of a drive of this size could not be
/// replayed on a drive like the paper's.
///
/// # Errors
/// When the drive is too small or too large, or would not consist of whole reclaim units. In the
/// last case, the error names the nearest possible sizes.
pub fn drive_bytes(mib: u64) -> Result<u64> {
    let exported = |bytes: u64| Config::scaled(bytes).lba_count * BLOCK_SIZE;
    let whole = mib.checked_mul(1 << 20).filter(|bytes| *bytes <= DRIVE_BYTES_MAX);
    let bytes = whole.ok_or_else(|| {
        BenchError::Usage(format!("a drive of {mib} MiB is too large to be recorded"))
    })?;
    if bytes < DRIVE_BYTES_MIN {
        let least = DRIVE_BYTES_MIN >> 20;
        return Err(BenchError::Usage(format!(
            "a drive of {mib} MiB is too small; the smallest has {least} MiB"
        )));
    }
    if exported(bytes) == bytes {
        return Ok(bytes);
    }
    let is_possible = |mib: &u64| exported(mib << 20) == mib << 20;
    let below = (0..mib).rev().find(is_possible).unwrap_or_default();
    let above = (mib + 1..=DRIVE_BYTES_MAX >> 20).find(is_possible).unwrap_or_default();
    Err(BenchError::Usage(format!(
        "a drive of {mib} MiB does not consist of whole reclaim units with whole pages on every die: \
         take {below} or {above}"
    )))
}

/// Turns the device's I/O scheduler off, so that requests arrive in the order in which they are
/// sent.
pub(crate) fn set_scheduler(device: &Path) -> Result<()> {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let scheduler = format!("/sys/block/{name}/queue/scheduler");
    fs::write(&scheduler, "none").doing(format!("writing {scheduler}"))
}
