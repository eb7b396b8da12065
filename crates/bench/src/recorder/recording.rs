//! One recording: a server with the workload on a recorded device, from an empty one to a good end.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use slimio_ssd::trace::TraceHeader;

use super::disk::{BLOCK_SIZE, RecordedDisk};
use super::mounted::{FileSystemKind, Mounted};
use super::tape::Tape;
use super::workload::Workload;
use crate::error::{Doing, Result};
use crate::run::fresh_directory;
use crate::server::{Policy, Server, ServerConfig, ServerKind};

/// What is recorded.
#[derive(Clone, Debug)]
pub struct Recording {
    /// The server's program.
    pub program: PathBuf,
    /// What lies between it and the device.
    pub file_system: FileSystemKind,
    /// Whether that tells the device what holds nothing any more.
    pub discard: bool,
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
    /// Records stock Redis on its file system. Returns how many events the trace has.
    pub fn run(&self) -> Result<u64> {
        fresh_directory(&self.folder)?;
        let tape = Arc::new(Tape::new(&self.trace, &self.header())?);
        let disk = RecordedDisk::new(&self.folder, self.device_bytes, Arc::clone(&tape))?;
        set_scheduler(disk.device())?;
        let point = self.folder.join("mounted");
        let mounted =
            Mounted::new(self.file_system, disk.device(), self.device_bytes, self.discard, &point)?;
        let server = Server::start(&self.server(&point))?;
        self.workload.drive(&server, &tape)?;
        server.stop()?;
        mounted.finish()?;
        let events = disk.finish()?;
        fs::remove_dir_all(&self.folder).doing(format!("removing {}", self.folder.display()))?;
        Ok(events)
    }

    fn server(&self, point: &Path) -> ServerConfig {
        ServerConfig {
            kind: ServerKind::Stock,
            program: self.program.clone(),
            directory: self.folder.join("server"),
            policy: self.policy,
            extra: vec!["--dir".into(), point.display().to_string()],
        }
    }

    fn header(&self) -> TraceHeader {
        let line = |name: &str, value: String| (name.to_owned(), value);
        let mut about = vec![
            line("server", format!("stock redis-server, appendfsync {}", self.policy)),
            line("file system", self.file_system.to_string()),
            line("discard", if self.discard { "yes" } else { "no" }.into()),
            line("made with", Mounted::made_with(self.file_system, self.device_bytes)),
            line("mounted with", Mounted::options(self.discard).into()),
            line("device", format!("loop over FUSE, blocks of {BLOCK_SIZE} bytes, scheduler none")),
            line("preconditioning", "none: the device holds nothing".into()),
        ];
        about.extend(self.workload.about());
        about.extend(fs::read_to_string("/proc/sys/kernel/osrelease").map_or_else(
            |_| Vec::new(),
            |release| vec![line("kernel", release.trim().to_owned())],
        ));
        TraceHeader { device_bytes: self.device_bytes, about }
    }
}

/// The order in which requests are sent is the order in which they arrive.
fn set_scheduler(device: &Path) -> Result<()> {
    let name = device.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let scheduler = format!("/sys/block/{name}/queue/scheduler");
    fs::write(&scheduler, "none").doing(format!("writing {scheduler}"))
}
