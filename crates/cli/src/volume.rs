//! Concrete volumes: what `--volume` names, made into what storage works on.

use std::io::Read as _;
use std::os::fd::BorrowedFd;
use std::path::Path;
use std::time::Duration;

use slimio_device::{
    Buffer, Completion, Device, DeviceError, Directory, EngineChoice, Geometry, LBA_SIZE,
    LOCK_FILE_NAME, MappedFile, Op, OpenError, PathOptions, Token,
};
use slimio_server::Storage;
use slimio_storage::{Area, Media};

/// Bytes at the start of a file that are looked at to see whether it was ever written.
const LOOK_SIZE: usize = 64 << 10;

/// The file with the log's buffers.
const BUFFERS: &str = "buffers";

/// Opens the volume that `spec` names, making a directory that is missing if `create`.
///
/// # Errors
/// A sentence with a remedy.
///
/// The log's area does not grow beyond `wal_size_max` bytes.
pub(crate) fn open(
    spec: &str,
    engine: EngineChoice,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, String> {
    let path = Path::new(spec);
    let options = PathOptions { engine, ..PathOptions::default() };
    let storage = if crate::block::is_block_device(path) {
        crate::block::open(path, options, wal_size_max)
    } else {
        open_directory(path, options, create, wal_size_max)
    };
    storage.map_err(|error| explain(&error, spec))
}

/// A sentence with a remedy.
fn explain(error: &OpenError, spec: &str) -> String {
    let remedy = match error {
        OpenError::InUse { .. } => "stop the program that has it, or choose another --volume",
        OpenError::Missing { .. } => "check --volume, or make one with slimio format",
        OpenError::NoSpace { .. } => "make room on the file system, or choose another --volume",
        OpenError::Unsuitable { .. } => "choose another --volume",
        OpenError::Io { .. } => "check its permissions and its device",
    };
    format!("cannot open the volume {spec}: {error}; {remedy}")
}

fn open_directory(
    path: &Path,
    options: PathOptions,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    // Nothing is left behind in a directory that is somebody else's.
    check_directory(path)?;
    let directory = if create {
        Directory::open_or_create(path, options)?
    } else {
        Directory::open(path, options)?
    };
    let exists = directory.has_file(Area::Superblock.name()) && !is_unfinished(&directory);
    let name = directory.path().display().to_string();
    let mut media = DirectoryMedia { directory, outlives_process: true, wal_size_max };
    let (io_path, why_not_better) = media.describe_io(exists);
    Ok(Storage { media: Box::new(media), exists, name, io_path, why_not_better })
}

/// Refuses a directory that holds something else, or only a part of a volume.
fn check_directory(path: &Path) -> Result<(), OpenError> {
    let Ok(entries) = std::fs::read_dir(path) else { return Ok(()) };
    let names: Vec<_> = entries.flatten().map(|entry| entry.file_name()).collect();
    let has = |wanted: &str| names.iter().any(|name| name == wanted);
    let refuse =
        |why: &str| Err(OpenError::Unsuitable { path: path.to_path_buf(), why: why.into() });
    if has(Area::Superblock.name()) {
        return Ok(());
    }
    if has(Area::Wal.name()) || has(BUFFERS) {
        return refuse("it holds a volume whose file super is missing");
    }
    if names.iter().any(|name| name != LOCK_FILE_NAME) {
        return refuse("it is not empty and holds no SlimIO volume");
    }
    Ok(())
}

/// Whether making the volume was interrupted before anything was written to it.
fn is_unfinished(directory: &Directory) -> bool {
    let is_zero = |name: &str| {
        let Ok(mut file) = std::fs::File::open(directory.file_path(name)) else { return true };
        let mut start = vec![0; LOOK_SIZE];
        let mut filled = 0;
        while let Ok(count) = file.read(&mut start[filled..])
            && count > 0
        {
            filled += count;
        }
        start.iter().all(|byte| *byte == 0)
    };
    is_zero(Area::Superblock.name()) && is_zero(Area::Wal.name())
}

/// A path that does not let its file grow beyond a limit.
struct Limited {
    path: Box<dyn Device + Send>,
    lbas_max: u64,
}

impl Device for Limited {
    fn geometry(&self) -> Geometry {
        self.path.geometry()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        self.path.submit(token, op)
    }

    fn kick(&mut self) {
        self.path.kick();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.path.poll(completions);
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.path.wait(timeout, completions);
    }

    fn in_flight(&self) -> usize {
        self.path.in_flight()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        self.path.readiness()
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count > self.lbas_max {
            return Err(DeviceError::NoSpace);
        }
        self.path.grow(lba_count)
    }
}

/// A directory with a file for each area.
struct DirectoryMedia {
    directory: Directory,
    outlives_process: bool,
    wal_size_max: u64,
}

impl DirectoryMedia {
    /// How files are reached here, which is known for certain once one was opened.
    fn describe_io(&mut self, exists: bool) -> (String, String) {
        if exists {
            // Errors are for recovery to report.
            drop(self.directory.open_path(Area::Superblock.name()));
        }
        (self.directory.describe(), self.directory.notes().join("; "))
    }
}

impl Media for DirectoryMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.directory.open_path(area.name())?;
        Ok(match area {
            Area::Superblock => path,
            Area::Wal => Box::new(Limited { path, lbas_max: self.wal_size_max / LBA_SIZE as u64 }),
        })
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        // The superblock's file comes first: without it, what is there is no volume.
        for (area, lbas) in [(Area::Superblock, super_lbas), (Area::Wal, wal_lbas)] {
            if !self.directory.has_file(area.name()) {
                self.directory.create_file(area.name(), lbas)?;
            }
        }
        Ok(())
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if !self.directory.has_file(BUFFERS) {
            return Ok(Vec::new());
        }
        let mut file = self.directory.open_mapped(BUFFERS)?;
        if !file.size().is_multiple_of(size) {
            return Err(OpenError::Unsuitable {
                path: self.directory.file_path(BUFFERS),
                why: format!("its length is no multiple of {size}"),
            });
        }
        Ok(file.buffers(size))
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        let (mut file, outlives) = match self.directory.create_mapped(BUFFERS, count * size) {
            Ok(file) => (file, true),
            Err(error @ OpenError::NoSpace { .. }) => return Err(error),
            Err(error) => {
                log::warn!("the log's buffers are in private memory: {error}");
                (MappedFile::anonymous(count * size)?, false)
            }
        };
        self.outlives_process = outlives;
        Ok(file.buffers(size))
    }

    fn buffers_outlive_process(&self) -> bool {
        self.outlives_process
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        true
    }
}
