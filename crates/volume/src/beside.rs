//! Reads a volume while another process has the volume open.
//!
//! Only the superblock and snapshot slots are read. The other process may be writing the
//! superblock, but each copy of the superblock shows whether the copy is whole. A slot may be read
//! only while the other process has promised not to change the slot. This module takes no lock and
//! writes nothing.
//!
//! Files are read through the kernel's cache. A block device is read with direct I/O, because the
//! other process writes it with direct I/O.

use std::fs::{File, OpenOptions};
use std::io::{self, Seek as _, SeekFrom};
use std::os::fd::BorrowedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::OFlags;
use slimio_device::{
    Buffer, Completion, Device, DeviceError, Geometry, LBA_SIZE, Op, OpenError, Token, WriteCache,
    block_device_of,
};
use slimio_storage::{Area, Media, Pool, SlotName};

use crate::block;

/// Longest transfer, in blocks.
const TRANSFER_LBAS_MAX: u32 = (1 << 20) / LBA_SIZE as u32;

/// Opens a volume for reading only, while another process has the volume open. The path must name a
/// directory, a block device or an NVMe generic device.
///
/// # Errors
/// When the path is neither a directory nor a device, or the device can't hold a volume.
pub fn open_beside(path: &Path) -> Result<Box<dyn Media>, OpenError> {
    let (path, place) = if path.is_dir() {
        (path.to_path_buf(), Place::Directory)
    } else if block::is_device(path) {
        let path = block_device_of(path)?;
        let file = ReadOnly::open(&path, OFlags::DIRECT)?;
        let place = Place::BlockDevice(block::pool(&path, file.lba_count, u64::MAX)?);
        (path, place)
    } else {
        let why =
            "while a server has this volume open, the volume can be exported only if it is a \
                   directory or a device; to export this volume, stop the server first"
                .into();
        return Err(OpenError::Unsuitable { path: path.to_path_buf(), why });
    };
    Ok(Box::new(Beside { path, place }))
}

/// Where the areas are.
enum Place {
    /// Each area is a file in the directory.
    Directory,
    /// Each area is made of extents of the device.
    BlockDevice(Pool),
}

struct Beside {
    path: PathBuf,
    place: Place,
}

impl Beside {
    fn refuse<T>(&self) -> Result<T, OpenError> {
        let why = "another process has the volume open, so only the snapshots can be read".into();
        Err(OpenError::Unsuitable { path: self.path.clone(), why })
    }
}

impl Media for Beside {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        if area == Area::Wal {
            return self.refuse();
        }
        match &self.place {
            Place::Directory => {
                Ok(Box::new(ReadOnly::open(&self.path.join(area.name()), OFlags::empty())?))
            }
            Place::BlockDevice(pool) => {
                Ok(pool.path(area, Box::new(ReadOnly::open(&self.path, OFlags::DIRECT)?)))
            }
        }
    }

    fn pool(&self) -> Option<&Pool> {
        match &self.place {
            Place::Directory => None,
            Place::BlockDevice(pool) => Some(pool),
        }
    }

    fn make_slot(&mut self, _: SlotName) -> Result<(), OpenError> {
        self.refuse()
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

/// A file or a block device opened for reading. A read completes when it is submitted.
struct ReadOnly {
    file: File,
    lba_count: u64,
    done: Vec<Completion>,
}

impl ReadOnly {
    fn open(path: &Path, flags: OFlags) -> Result<Self, OpenError> {
        let open = || -> io::Result<Self> {
            let flags = flags.bits().cast_signed();
            let mut file = OpenOptions::new().read(true).custom_flags(flags).open(path)?;
            // The size is found by seeking, because a block device's metadata does not tell the
            // size.
            let size = file.seek(SeekFrom::End(0))?;
            Ok(Self { file, lba_count: size / LBA_SIZE as u64, done: Vec::new() })
        };
        open().map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => OpenError::Missing { path: path.to_path_buf() },
            _ => OpenError::Io {
                doing: "opening",
                path: path.to_path_buf(),
                errno: error.raw_os_error().unwrap_or_default(),
            },
        })
    }
}

/// The kernel's error (`EBADF`) for a write to a file that is open for reading only.
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
