//! The bytes of an emulated drive.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use slimio_device::{
    Contents, DeviceError, ImageFile, LBA_SIZE, Lba, LbaRange, MappedFile, OpenError,
};

use rustix::fs::{XattrFlags, fgetxattr, fremovexattr, fsetxattr, fsync};

use super::DataPlace;
use super::state_file::StateFile;

/// An extended attribute of a data file. Its value is the id of the state file that belongs to the
/// data file, as a little-endian number of eight bytes. A copy of the data file may lack the
/// attribute. On a file system without extended attributes, every data file lacks it.
pub(super) const ID_ATTRIBUTE: &str = "user.slimio.drive";

#[derive(Debug)]
pub(super) enum Data {
    File {
        file: ImageFile,
        /// The file's path, and the state file beside it; `None` if the file has no name.
        named: Option<(PathBuf, StateFile)>,
    },
    Dropped,
}

impl fmt::Display for Data {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::File { named: Some((path, _)), .. } => write!(f, "{}", path.display()),
            Self::File { named: None, .. } => f.write_str("a temporary file"),
            Self::Dropped => f.write_str("no file: the data is dropped"),
        }
    }
}

impl Data {
    /// Opens the bytes of a drive of `lba_count` blocks. Also returns whether the bytes are new. If
    /// so, their file stays empty until [`make_room`](Self::make_room) is called.
    pub(super) fn open(place: &DataPlace, lba_count: u64) -> Result<(Self, bool), OpenError> {
        let size = lba_count * LBA_SIZE as u64;
        match place {
            DataPlace::Dropped => Ok((Self::Dropped, true)),
            DataPlace::Temporary => {
                let file = ImageFile::temporary(&std::env::temp_dir())?;
                Ok((Self::File { file, named: None }, true))
            }
            DataPlace::File(path) => {
                let file = ImageFile::open(path)?;
                let length = file.size()?;
                if ![0, size].contains(&length) {
                    let why = format!("it has {length} bytes, but the drive has {size} bytes");
                    return Err(OpenError::Unsuitable { path: path.clone(), why });
                }
                let beside =
                    StateFile::of(path).map_err(|error| failed("looking at", path, &error))?;
                let named = Some((path.clone(), beside));
                Ok((Self::File { file, named }, length == 0))
            }
        }
    }

    /// Gives new bytes their length. For a file with a name, this is the last step of making a
    /// drive: an empty file means that there is no drive yet.
    pub(super) fn make_room(&self, lba_count: u64) -> Result<(), OpenError> {
        match self {
            Self::File { file, .. } => file.set_size(lba_count * LBA_SIZE as u64),
            Self::Dropped => Ok(()),
        }
    }

    pub(super) fn contents(&self) -> Result<Contents, OpenError> {
        let Self::File { file, named: Some(_) } = self else {
            return Ok(Contents::Nothing);
        };
        file.contents()
    }

    /// Maps a range into memory. Offset and size are in bytes.
    pub(super) fn map(&self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        match self {
            Self::File { file, .. } => file.map(offset, size),
            Self::Dropped => {
                let why = "the drive drops its data".into();
                Err(OpenError::Unsuitable { path: "emulated".into(), why })
            }
        }
    }

    /// The state file beside the data file, if the data file has a name.
    pub(super) fn beside(&self) -> Option<&StateFile> {
        let Self::File { named: Some((_, beside)), .. } = self else { return None };
        Some(beside)
    }

    /// The id of the state file that belongs to these bytes, if it is known.
    pub(super) fn id(&self) -> Option<u64> {
        let Self::File { file, named: Some(_) } = self else { return None };
        let mut id = [0; 8];
        let size = fgetxattr(file, ID_ATTRIBUTE, &mut id).ok()?;
        (size == id.len()).then_some(u64::from_le_bytes(id))
    }

    /// Notes the id of the state file that belongs to these bytes, if the file system can store it.
    pub(super) fn set_id(&self, id: u64) {
        if let Self::File { file, named: Some(_) } = self
            && self.id() != Some(id)
        {
            // The drive also works without the id. Then it does not notice if the state file
            // belongs to another drive.
            let _ = fsetxattr(file, ID_ATTRIBUTE, &id.to_le_bytes(), XattrFlags::empty());
        }
    }

    /// Removes the id, because these bytes get another state file now. If `is_sync` is set, the
    /// removal is durable when this returns. So a failure of the machine can't leave the old id
    /// together with the new state file.
    pub(super) fn remove_id(&self, is_sync: bool) -> Result<(), OpenError> {
        let Self::File { file, named: Some((path, _)) } = self else { return Ok(()) };
        if self.id().is_none() {
            return Ok(());
        }
        let removed = fremovexattr(file, ID_ATTRIBUTE);
        let removed = removed.and_then(|()| if is_sync { fsync(file) } else { Ok(()) });
        removed.map_err(|error| failed("marking", path, &error.into()))
    }

    /// Calls `see`, in order, for each of these blocks that is not in a hole of the file.
    pub(super) fn each_written_in(
        &self,
        blocks: Range<u64>,
        see: impl FnMut(u64),
    ) -> Result<(), OpenError> {
        let Self::File { file, named: Some(_) } = self else { return Ok(()) };
        let (mut at, mut see) = (blocks.start, see);
        while at < blocks.end
            && let Some(range) = file.next_written(Lba(at))?
        {
            (range.start.0..range.end.0.min(blocks.end)).for_each(&mut see);
            at = range.end.0;
        }
        Ok(())
    }

    pub(super) fn read(&self, lba: u64, bytes: &mut [u8]) -> Result<(), DeviceError> {
        match self {
            Self::File { file, .. } => file.read(Lba(lba), bytes),
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
            Self::File { file, .. } => file.write(Lba(lba), bytes),
            Self::Dropped => Ok(()),
        }
    }

    /// Whether one of these blocks is mapped into memory now.
    pub(super) fn is_mapped(&self, range: LbaRange) -> bool {
        matches!(self, Self::File { file, .. } if file.is_mapped(range))
    }

    /// Syncs the file. Everything that was written is then durable.
    pub(super) fn sync(&self) -> Result<(), DeviceError> {
        match self {
            Self::File { file, .. } => file.sync(),
            Self::Dropped => Ok(()),
        }
    }

    /// Gives the space of blocks back to the file system. From then on, the file reads as zeros
    /// there.
    pub(super) fn deallocate(&self, range: LbaRange) -> Result<(), DeviceError> {
        match self {
            Self::File { file, .. } => file.deallocate(range),
            Self::Dropped => Ok(()),
        }
    }
}

fn failed(doing: &'static str, path: &Path, error: &io::Error) -> OpenError {
    let errno = error.raw_os_error().unwrap_or_default();
    OpenError::Io { doing, path: path.to_path_buf(), errno }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_is_that_of_the_open_file_whatever_has_its_name_now() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let (path, moved) = (folder.path().join("drive"), folder.path().join("moved"));
        let (data, _) =
            Data::open(&DataPlace::File(path.clone()), 8).expect("the data file can be made");
        std::fs::rename(&path, &moved).expect("the data file can be renamed");
        std::fs::write(&path, b"another").expect("another file can be made");
        data.set_id(7);
        let id_of = |path| rustix::fs::getxattr(path, ID_ATTRIBUTE, &mut [0; 8]).ok();
        assert_eq!(id_of(&path), None);
        if id_of(&moved).is_none() {
            eprintln!("SKIPPED: {folder:?} has no extended attributes, so no id was noted");
            return;
        }
        assert_eq!((data.id(), id_of(&moved)), (Some(7), Some(8)));
        data.remove_id(true).expect("the id is there");
        assert_eq!((data.id(), id_of(&moved)), (None, None));
        data.remove_id(true).expect("a missing id is no error");
    }
}
