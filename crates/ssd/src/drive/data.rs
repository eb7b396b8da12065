//! The bytes of an emulated drive.

use std::fmt;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use slimio_device::{Contents, DeviceError, LBA_SIZE, LbaRange, MappedFile, OpenError};

use super::DataPlace;
use super::made::{Beside, Made};

#[derive(Debug)]
pub(super) enum Data {
    File {
        file: File,
        /// Where it is, and what is beside it; `None` where it has no name.
        named: Option<(PathBuf, Beside)>,
    },
    Dropped,
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { named: Some((path, _)), .. } => write!(f, "{}", path.display()),
            Self::File { named: None, .. } => f.write_str("a temporary file"),
            Self::Dropped => f.write_str("no file: it is dropped"),
        }
    }
}

impl Data {
    /// Opens the bytes of a drive with so many blocks, and says whether they are new.
    pub(super) fn open(place: &DataPlace, lba_count: u64) -> Result<(Self, bool), OpenError> {
        let size = lba_count * LBA_SIZE as u64;
        match place {
            DataPlace::Dropped => Ok((Self::Dropped, true)),
            DataPlace::Temporary => {
                let folder = std::env::temp_dir();
                let file = temporary(&folder).and_then(|file| file.set_len(size).map(|()| file));
                let file = file.map_err(|error| failed("making a file in", &folder, &error))?;
                Ok((Self::File { file, named: None }, true))
            }
            DataPlace::File(path) => {
                let file = open_alone(path)?;
                let length = file.metadata().map_err(|error| failed("looking at", path, &error))?;
                match length.len() {
                    0 => file.set_len(size).map_err(|error| failed("making", path, &error))?,
                    same if same == size => {}
                    other => {
                        let why = format!("it has {other} bytes, the drive {size}");
                        return Err(OpenError::Unsuitable { path: path.clone(), why });
                    }
                }
                let beside =
                    Beside::of(path).map_err(|error| failed("looking at", path, &error))?;
                let named = Some((path.clone(), beside));
                Ok((Self::File { file, named }, length.len() == 0))
            }
        }
    }

    pub(super) fn contents(&self) -> Result<Contents, OpenError> {
        let Self::File { file, named: Some((path, _)) } = self else {
            return Ok(Contents::Nothing);
        };
        let look = file.metadata().and_then(|metadata| Contents::of_file(file, metadata.len()));
        look.map_err(|error| failed("reading", path, &error))
    }

    /// Maps a range, in bytes.
    pub(super) fn map(&self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        match self {
            Self::File { file, named } => {
                let path = named.as_ref().map_or(Path::new("a temporary file"), |(path, _)| path);
                MappedFile::file_range(file, path, offset, size)
            }
            Self::Dropped => {
                let why = "its data are dropped".into();
                Err(OpenError::Unsuitable { path: "emulated".into(), why })
            }
        }
    }

    /// What is beside the file, if that has a name.
    pub(super) fn beside(&self) -> Option<&Beside> {
        let Self::File { named: Some((_, beside)), .. } = self else { return None };
        Some(beside)
    }

    /// Keeps what the drive is made with beside its bytes, where these have a name.
    pub(super) fn keep(&self, made: &Made) -> Result<(), OpenError> {
        let Some(beside) = self.beside() else { return Ok(()) };
        beside.begin(made).map_err(|error| failed("writing", beside.path(), &error))
    }

    /// Calls `see` with each block that is not a hole of the file, in order.
    pub(super) fn each_written(&self, mut see: impl FnMut(u64)) -> Result<(), OpenError> {
        let Self::File { file, named: Some((path, _)) } = self else { return Ok(()) };
        let failed = |error: Errno| failed("looking at", path, &error.into());
        let mut at = 0;
        loop {
            let start = match seek(file, SeekFrom::Data(at)) {
                // There is nothing behind it.
                Err(Errno::NXIO) => return Ok(()),
                start => start.map_err(failed)?,
            };
            at = seek(file, SeekFrom::Hole(start)).map_err(failed)?;
            let lbas = start / LBA_SIZE as u64..at.div_ceil(LBA_SIZE as u64);
            lbas.for_each(&mut see);
        }
    }

    pub(super) fn read(&self, lba: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            Self::File { file, .. } => {
                file.read_exact_at(bytes, lba * LBA_SIZE as u64).map_err(|error| of_io(&error))
            }
            Self::Dropped => {
                for (lba, block) in (lba..).zip(bytes.chunks_exact_mut(LBA_SIZE)) {
                    for word in block.chunks_exact_mut(8) {
                        word.copy_from_slice(&lba.to_le_bytes());
                    }
                }
                Ok(())
            }
        }
    }

    pub(super) fn write(&self, lba: u64, bytes: &[u8]) -> Result<(), DeviceError> {
        match self {
            Self::File { file, .. } => {
                file.write_all_at(bytes, lba * LBA_SIZE as u64).map_err(|error| of_io(&error))
            }
            Self::Dropped => Ok(()),
        }
    }

    /// Gives the room of blocks back, where the file system can.
    pub(super) fn deallocate(&self, range: LbaRange) {
        let Self::File { file, .. } = self else { return };
        let (start, end) = (range.start.0 * LBA_SIZE as u64, range.end.0 * LBA_SIZE as u64);
        if start < end {
            let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            // Where it can't, the blocks just stay: the mapping knows that they hold nothing.
            let _ = fallocate(file, flags, start, end - start);
        }
    }
}

/// A file without a name.
fn temporary(folder: &Path) -> io::Result<File> {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    let path = folder.join(format!("slimio-emulated-{}-{count}", std::process::id()));
    let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
    std::fs::remove_file(path)?;
    Ok(file)
}

/// Opens or makes a file that no other drive has. All is written through this one opening, by system
/// calls and a mapping: those keep a killed process, and with it the lock, until they are over.
fn open_alone(path: &Path) -> Result<File, OpenError> {
    let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path);
    let file = opened.map_err(|error| failed("opening", path, &error))?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            Err(OpenError::InUse { path: path.to_path_buf(), holder: None })
        }
        Err(TryLockError::Error(error)) => Err(failed("locking", path, &error)),
    }
}

fn failed(doing: &'static str, path: &Path, error: &io::Error) -> OpenError {
    let errno = error.raw_os_error().unwrap_or_default();
    OpenError::Io { doing, path: path.to_path_buf(), errno }
}

fn of_io(error: &io::Error) -> DeviceError {
    match Errno::from_io_error(error) {
        Some(Errno::NOSPC | Errno::DQUOT) => DeviceError::NoSpace,
        Some(errno) => DeviceError::Io { errno: errno.raw_os_error() },
        None => DeviceError::OutOfRange,
    }
}
