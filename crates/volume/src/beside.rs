//! A volume that another process has open, read beside it.
//!
//! Only the superblock, whose copies say themselves whether they are whole, and snapshot slots,
//! which that process must have promised to leave alone meanwhile. No lock is taken, nothing is
//! written, and the kernel's cache is used.

use std::fs::File;
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use slimio_device::{
    Buffer, Completion, Device, DeviceError, Geometry, LBA_SIZE, Op, OpenError, Token, WriteCache,
};
use slimio_storage::{Area, Media};

/// Longest transfer, in blocks.
const TRANSFER_LBAS_MAX: u32 = (1 << 20) / LBA_SIZE as u32;

/// Opens the volume in a directory for reading beside the process that has it.
///
/// # Errors
/// When there is no volume there, or it is not in a directory: a block device's slots cannot be
/// found beside its owner.
pub fn open_beside(path: &Path) -> Result<Box<dyn Media>, OpenError> {
    if !path.is_dir() {
        let why = "only a volume in a directory can be read while a server has it".into();
        return Err(OpenError::Unsuitable { path: path.to_path_buf(), why });
    }
    Ok(Box::new(Beside { folder: path.to_path_buf() }))
}

struct Beside {
    folder: PathBuf,
}

impl Beside {
    fn refuse<T>(&self) -> Result<T, OpenError> {
        let why = "another process has it: only snapshots are read beside it".into();
        Err(OpenError::Unsuitable { path: self.folder.clone(), why })
    }
}

impl Media for Beside {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        if area == Area::Wal {
            return self.refuse();
        }
        let path = self.folder.join(area.name());
        let file = File::open(&path).and_then(|file| Ok((file.metadata()?.len(), file)));
        let (size, file) = file.map_err(|error| OpenError::Io {
            doing: "opening",
            path,
            errno: error.raw_os_error().unwrap_or_default(),
        })?;
        Ok(Box::new(ReadOnly { file, lba_count: size / LBA_SIZE as u64, done: Vec::new() }))
    }

    fn create(&mut self, _: u64, _: u64) -> Result<(), OpenError> {
        self.refuse()
    }

    fn open_buffers(&mut self, _: usize) -> Result<Vec<Buffer>, OpenError> {
        self.refuse()
    }

    fn make_buffers(&mut self, _: usize, _: usize) -> Result<Vec<Buffer>, OpenError> {
        self.refuse()
    }

    fn buffers_outlive_process(&self) -> bool {
        false
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        false
    }
}

/// A file that is only read, at once when that is submitted.
struct ReadOnly {
    file: File,
    lba_count: u64,
    done: Vec<Completion>,
}

/// What the kernel says when a file is open for reading only.
const NOT_FOR_WRITING: DeviceError = DeviceError::Io { errno: 9 };

impl Device for ReadOnly {
    fn geometry(&self) -> Geometry {
        Geometry {
            lba_count: self.lba_count,
            transfer_lbas_max: TRANSFER_LBAS_MAX,
            in_flight_max: 1,
            write_cache: WriteCache::Unknown,
        }
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        if !self.done.is_empty() {
            return Err(op);
        }
        let (buffer, result) = match op {
            Op::Read { lba, mut buffer } => {
                let read = self.file.read_exact_at(&mut buffer, lba.0 * LBA_SIZE as u64);
                let result = read.map_err(|error| match error.raw_os_error() {
                    Some(errno) => DeviceError::Io { errno },
                    None => DeviceError::OutOfRange,
                });
                (Some(buffer), result)
            }
            Op::Write { buffer, .. } => (Some(buffer), Err(NOT_FOR_WRITING)),
            Op::Flush | Op::Deallocate { .. } => (None, Err(NOT_FOR_WRITING)),
        };
        self.done.push(Completion { token, buffer, result });
        Ok(())
    }

    fn kick(&mut self) {}

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        completions.append(&mut self.done);
    }

    fn wait(&mut self, _: Option<Duration>, completions: &mut Vec<Completion>) {
        self.poll(completions);
    }

    fn in_flight(&self) -> usize {
        self.done.len()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        None
    }

    fn grow(&mut self, _: u64) -> Result<(), DeviceError> {
        Err(NOT_FOR_WRITING)
    }
}
