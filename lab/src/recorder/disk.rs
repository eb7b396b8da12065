//! The recorded device: its files and its loop device, and how they are taken down.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread::JoinHandle;

use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{UnmountFlags, unmount};
use slimio_ssd::trace::{ByteRange, Tape, TraceEvent};

use super::fuse::{self, OneFile};
use crate::error::{BenchError, Doing, Result};

/// Name of the file over which this process mounts the file that it serves.
pub(super) const MOUNT_POINT: &str = "disk";
/// Name of the file with the device's data.
const DATA: &str = "disk.data";
/// Size of the device's logical and physical blocks, in bytes, as on the drives that the device
/// stands for.
pub const BLOCK_SIZE: u64 = 4096;

/// Checks whether devices can be recorded on this machine; if not, says why.
pub fn can_record() -> std::result::Result<(), String> {
    for node in ["/dev/fuse", "/dev/loop-control"] {
        let opened = File::options().read(true).write(true).open(node);
        opened.map_err(|error| format!("{node} can't be opened: {error}"))?;
    }
    Ok(())
}

/// A loop device over a file that this process serves; removed on drop.
#[derive(Debug)]
pub(super) struct LoopDisk {
    device: PathBuf,
    mount_point: PathBuf,
    data: PathBuf,
    /// The thread that answers the kernel's requests; `None` once it has ended.
    thread: Option<JoinHandle<io::Result<()>>>,
    is_attached: bool,
}

impl LoopDisk {
    /// Makes a device of `size` bytes, all zeros. Its data is in `folder`, in a sparse file that is
    /// removed when the device is dropped. `over` turns the sparse file into the file that this
    /// process serves. Needs root, FUSE and loop devices.
    pub(super) fn new<F: OneFile + Send + 'static>(
        folder: &Path,
        size: u64,
        over: impl FnOnce(File) -> F,
    ) -> Result<Self> {
        let (mount_point, data) = (folder.join(MOUNT_POINT), folder.join(DATA));
        File::create(&mount_point).doing(format!("making {}", mount_point.display()))?;
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&data);
        let file = file.doing(format!("making {}", data.display()))?;
        file.set_len(size).doing("making the device's data")?;
        let fuse = fuse::mount_over(&mount_point)?;
        let mut over = over(file);
        let serve = move || fuse::serve(fuse, &mut over);
        let thread = std::thread::Builder::new().name("recorder".into()).spawn(serve);
        let thread = Some(thread.doing("starting the recorder")?);
        // From here on, dropping `disk` unmounts the file.
        let mut disk =
            Self { device: PathBuf::new(), mount_point, data, thread, is_attached: false };
        let block_size = BLOCK_SIZE.to_string();
        let mut losetup = Command::new("losetup");
        losetup.args(["--find", "--show", "--sector-size", &block_size]).arg(&disk.mount_point);
        disk.device = run(&mut losetup)?.trim().into();
        disk.is_attached = true;
        Ok(disk)
    }

    pub(super) fn device(&self) -> &Path {
        &self.device
    }

    /// Detaches the device, and ends the thread. Nothing may use the device any more.
    pub(super) fn finish(mut self) -> Result<()> {
        self.detach()?;
        // The unmount is lazy, because a program that looks at all loop devices may hold this one
        // for a moment. The file is served until the last such program has closed the device.
        unmount(&self.mount_point, UnmountFlags::DETACH).doing("unmounting the device's file")?;
        let thread = self.thread.take().expect("the thread is joined only once");
        thread.join().expect("the thread does not panic").doing("serving the device's file")
    }

    fn detach(&mut self) -> Result<()> {
        if std::mem::take(&mut self.is_attached) {
            run(Command::new("losetup").arg("--detach").arg(&self.device))?;
        }
        Ok(())
    }
}

impl Drop for LoopDisk {
    fn drop(&mut self) {
        if self.thread.is_some()
            && let Err(error) = self.detach()
        {
            eprintln!("cannot detach {}: {error}", self.device.display());
        }
        if let Some(thread) = self.thread.take() {
            // The thread is not joined: the unmount is lazy, so a process that still has the device
            // open would keep the thread running.
            if unmount(&self.mount_point, UnmountFlags::DETACH).is_ok() {
                drop(thread);
            }
        }
        for path in [&self.mount_point, &self.data] {
            drop(std::fs::remove_file(path));
        }
    }
}

/// A loop device that records every request except reads; removed on drop.
#[derive(Debug)]
pub struct RecordedDisk {
    disk: LoopDisk,
    tape: Arc<Tape>,
}

impl RecordedDisk {
    /// Makes a device of `size` bytes, all zeros. Its data is in `folder`, in a sparse file that is
    /// removed at the end. Needs root, FUSE and loop devices.
    pub fn new(folder: &Path, size: u64, tape: Arc<Tape>) -> Result<Self> {
        let recorded = |file| Recorded { size, file, tape: Arc::clone(&tape) };
        Ok(Self { disk: LoopDisk::new(folder, size, recorded)?, tape })
    }

    /// The block device: `/dev/loopN`.
    pub fn device(&self) -> &Path {
        self.disk.device()
    }

    /// The trace.
    pub fn tape(&self) -> &Tape {
        &self.tape
    }

    /// Detaches the device, and ends the trace. Nothing may use the device any more. Returns how
    /// many events the trace has.
    pub fn finish(self) -> Result<u64> {
        self.disk.finish()?;
        self.tape.finish().doing("ending the trace")
    }
}

/// Runs a program of the system to its end. Returns the program's standard output.
pub(super) fn run(command: &mut Command) -> Result<String> {
    let name = command.get_program().to_string_lossy().into_owned();
    let output = command.output().doing(format!("starting {name}"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(BenchError::Server(format!("{name}: {}", said.trim())))
}

/// The file with the device's data, as this process serves it: every request except reads is
/// recorded.
struct Recorded {
    size: u64,
    file: File,
    tape: Arc<Tape>,
}

impl OneFile for Recorded {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let range = ByteRange::new(offset, bytes.len() as u64);
        self.tape.record(&TraceEvent::Write { stream: 0, range })?;
        self.file.write_all_at(bytes, offset)
    }

    fn zero(&mut self, offset: u64, size: u64, is_hole: bool) -> io::Result<()> {
        let range = ByteRange::new(offset, size);
        let event = if is_hole {
            TraceEvent::Deallocate { range }
        } else {
            TraceEvent::WriteZeros { range }
        };
        self.tape.record(&event)?;
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, size)?)
    }

    /// Only records the request. The file is not flushed to a disk, because the data need not
    /// survive a crash of this machine.
    fn flush(&mut self) -> io::Result<()> {
        Ok(self.tape.record(&TraceEvent::Flush)?)
    }
}
