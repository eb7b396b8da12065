//! A file that holds the bytes of an emulated device.

#![expect(unsafe_code, reason = "a caller that maps a range promises that nobody else writes it")]

use std::fmt;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slimio_ring::Errno;

use crate::mapped_range::{MappedRange, is_mapped};
use crate::sys::Lock;
use crate::target::DEALLOCATE;
use crate::{Contents, DeviceError, LBA_SIZE, Lba, LbaRange, MappedFile, OpenError, sys};

/// One system call writes at most this many bytes of zeros.
const ZEROS_MAX: u64 = 1 << 20;

/// A file of blocks, which is locked as long as this value or a piece of the file's mapping lives.
/// All writes are system calls on this open file, or stores to its mapping. So if the process is
/// killed, the lock lasts until the process's last write has ended.
pub struct ImageFile {
    lock: Arc<Lock>,
    path: PathBuf,
    mapped: Arc<MappedRange>,
}

impl fmt::Debug for ImageFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ImageFile").field(&self.path).finish()
    }
}

/// The descriptor is for attributes of the file. Only this type may change the file's contents.
impl AsFd for ImageFile {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file().as_fd()
    }
}

impl ImageFile {
    /// Opens the file at `path`, or makes it. Only [`sync`](Self::sync) flushes. Bytes that were
    /// written, but not flushed, outlive the process, but not a power loss.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when another `ImageFile`, in any process, has the file open.
    pub fn open(path: &Path) -> Result<Self, OpenError> {
        let opened = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(path);
        let file = opened.map_err(|error| OpenError::io("opening", path, &error))?;
        Self::take(file, path)
    }

    /// Makes a file without a name. When the process ends, the file is gone.
    ///
    /// # Errors
    /// If no file can be made in the folder.
    pub fn temporary(folder: &Path) -> Result<Self, OpenError> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let path = folder.join(format!("slimio-emulated-{}-{count}", std::process::id()));
        let made =
            OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
        let file = made.and_then(|file| std::fs::remove_file(&path).map(|()| file));
        let file = file.map_err(|error| OpenError::io("making a file in", folder, &error))?;
        Self::take(file, Path::new("a temporary file"))
    }

    fn take(file: File, path: &Path) -> Result<Self, OpenError> {
        match Lock::take(file).map_err(|error| OpenError::io("locking", path, &error))? {
            Ok(lock) => {
                let (lock, mapped) = (Arc::new(lock), Arc::default());
                Ok(Self { lock, path: path.to_path_buf(), mapped })
            }
            Err(_) => Err(OpenError::InUse { path: path.to_path_buf(), holder: None }),
        }
    }

    fn file(&self) -> &File {
        self.lock.file_ref()
    }

    /// The file's length in bytes.
    ///
    /// # Errors
    /// When the kernel can't tell the length.
    pub fn size(&self) -> Result<u64, OpenError> {
        let metadata = self.file().metadata();
        Ok(metadata.map_err(|error| OpenError::io("looking at", &self.path, &error))?.len())
    }

    /// Sets the length of an empty file to `size` bytes. The whole file is then a hole.
    ///
    /// # Errors
    /// When the file can't be that long.
    ///
    /// # Panics
    /// When the file is not empty.
    pub fn set_size(&self, size: u64) -> Result<(), OpenError> {
        assert_eq!(self.size()?, 0, "the file is not empty, so its bytes might be lost");
        self.file().set_len(size).map_err(|error| OpenError::io("making", &self.path, &error))
    }

    /// What seems to be in the file.
    ///
    /// # Errors
    /// When the file can't be read.
    pub fn contents(&self) -> Result<Contents, OpenError> {
        Contents::of_file(self.file(), self.size()?)
            .map_err(|error| OpenError::io("reading", &self.path, &error))
    }

    /// The first range of blocks at or after `at` that is not a hole, as far as the file system
    /// reports holes; `None` if there is no such range.
    ///
    /// # Errors
    /// When the kernel can't search the file.
    pub fn next_written(&self, at: Lba) -> Result<Option<LbaRange>, OpenError> {
        let size = LBA_SIZE as u64;
        let found = sys::next_data(self.file(), at.0 * size)
            .map_err(|error| OpenError::io("looking at", &self.path, &error))?;
        Ok(found.map(|(start, end)| LbaRange {
            start: Lba(start / size),
            end: Lba(end.div_ceil(size)),
        }))
    }

    /// Reads whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] if a block lies beyond the file's end; the kernel's error if the
    /// blocks can't be read.
    pub fn read(&self, lba: Lba, bytes: &mut [u8]) -> Result<(), DeviceError> {
        self.file().read_exact_at(bytes, lba.0 * LBA_SIZE as u64).map_err(|error| of_io(&error))
    }

    /// Whether one of these blocks is mapped now.
    pub fn is_mapped(&self, range: LbaRange) -> bool {
        self.mapped.check_range(range.start.0, range.end.0).is_err()
    }

    /// Writes whole blocks.
    ///
    /// # Errors
    /// [`DeviceError::OutOfRange`] if one of the blocks is mapped; the kernel's error if the blocks
    /// can't be written.
    pub fn write(&self, lba: Lba, bytes: &[u8]) -> Result<(), DeviceError> {
        self.mapped.check_range(lba.0, lba.0 + bytes.len().div_ceil(LBA_SIZE) as u64)?;
        self.file().write_all_at(bytes, lba.0 * LBA_SIZE as u64).map_err(|error| of_io(&error))
    }

    /// Makes everything durable that was written to the file or stored to its mapping.
    ///
    /// # Errors
    /// When the flush fails. It is then unknown which writes are durable.
    pub fn sync(&self) -> Result<(), DeviceError> {
        self.file().sync_data().map_err(|error| of_io(&error))
    }

    /// Returns the space of blocks to the file system, but skips mapped blocks. The returned blocks
    /// then read as zeros: if no hole can be made, for whatever reason, zeros are written instead.
    /// There are several such reasons: some file systems have no holes, XFS makes none when it is
    /// full, a quota may be used up, or a filter (seccomp) may refuse the call.
    ///
    /// # Errors
    /// The kernel's error, if neither a hole can be made nor zeros can be written. Some of the
    /// blocks may then still have their contents.
    pub fn deallocate(&self, range: LbaRange) -> Result<(), DeviceError> {
        let mapped = self.mapped.range();
        let parts = [
            (range.start.0, range.end.0.min(mapped.start)),
            (range.start.0.max(mapped.end), range.end.0),
        ];
        let parts = parts.into_iter().filter(|(start, end)| start < end);
        for (start, end) in parts {
            let (start, size) = (start * LBA_SIZE as u64, (end - start) * LBA_SIZE as u64);
            if sys::allocate(self.file(), DEALLOCATE, start, size).is_err() {
                self.write_zeros(start, size).map_err(|error| of_io(&error))?;
            }
        }
        Ok(())
    }

    /// Writes zeros, but not into holes, so the writes need no new space.
    fn write_zeros(&self, start: u64, size: u64) -> io::Result<()> {
        let end = start + size;
        let zeros = vec![0; size.min(ZEROS_MAX) as usize];
        let mut at = start;
        while at < end
            && let Some((data, data_end)) = sys::next_data(self.file(), at)?
            && data < end
        {
            let left = (data_end.min(end) - data).min(zeros.len() as u64);
            self.file().write_all_at(&zeros[..left as usize], data)?;
            at = data + left;
        }
        Ok(())
    }

    /// Reserves the space of a range, and maps the range with its contents. `offset` and `size` are
    /// in bytes.
    ///
    /// # Errors
    /// [`OpenError::Unsuitable`] while another range is mapped; another error if there is no room
    /// for the range.
    ///
    /// # Panics
    /// When `offset` or `size` is not a whole number of blocks, or `size` is zero.
    pub fn map(&self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        let taken = self.mapped.take(offset, size).ok_or_else(|| is_mapped(&self.path))?;
        // SAFETY: the lock prevents other openings of the file, and the taken range prevents writes
        // through this opening. The lock and the taken range last as long as the mapping.
        let mapped = unsafe { MappedFile::file_range(self.file(), &self.path, offset, size) }?;
        Ok(mapped.holding(Box::new((self.lock.clone(), taken))))
    }
}

fn of_io(error: &io::Error) -> DeviceError {
    match error.kind() {
        io::ErrorKind::UnexpectedEof | io::ErrorKind::WriteZero => DeviceError::OutOfRange,
        _ => Errno::of(error).into(),
    }
}

#[cfg(test)]
mod tests {
    use slimio_testing::refused::{on_a_thread, refuse};

    use super::*;

    const SIZE: usize = 8 * LBA_SIZE;

    fn range(start: u64, end: u64) -> LbaRange {
        LbaRange { start: Lba(start), end: Lba(end) }
    }

    #[test]
    fn what_is_mapped_is_changed_by_nobody_else() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let path = place.path().join("image");
        let image = ImageFile::open(&path).expect("there is room");
        image.set_size(4 * SIZE as u64).expect("the file can be that long");
        image.write(Lba(8), &[1; LBA_SIZE]).expect("nothing is mapped");
        let mut mapped = image.map(SIZE as u64, SIZE).expect("no range is mapped");
        let mut buffers = mapped.buffers(SIZE);
        let slice = &buffers[0][..];
        assert_eq!(image.write(Lba(8), &[2; LBA_SIZE]), Err(DeviceError::OutOfRange));
        assert_eq!(image.write(Lba(7), &[2; 2 * LBA_SIZE]), Err(DeviceError::OutOfRange));
        assert_eq!(image.write(Lba(15), &[2; 2 * LBA_SIZE]), Err(DeviceError::OutOfRange));
        assert!(image.is_mapped(range(15, 17)) && !image.is_mapped(range(16, 17)));
        image.write(Lba(30), &[5; LBA_SIZE]).expect("the block is outside the mapped range");
        image.deallocate(range(0, 32)).expect("the space can be given back");
        let mut beside = [1; LBA_SIZE];
        image.read(Lba(30), &mut beside).expect("the block can be read");
        assert_eq!(beside, [0; LBA_SIZE]);
        assert_eq!(slice[..LBA_SIZE], [1; LBA_SIZE], "a slice of the mapping does not change");
        let second = image.map(0, SIZE).err();
        assert!(matches!(second, Some(OpenError::Unsuitable { .. })), "{second:?}");
        let other = ImageFile::open(&path).err();
        assert!(matches!(other, Some(OpenError::InUse { .. })), "{other:?}");
        image.write(Lba(7), &[2; LBA_SIZE]).expect("the block is outside the mapped range");
        image.write(Lba(16), &[2; LBA_SIZE]).expect("the block is outside the mapped range");
        image.sync().expect("the file can be flushed");
        buffers[0].fill(3);
        drop(image);
        let other = ImageFile::open(&path).err();
        assert!(
            matches!(other, Some(OpenError::InUse { .. })),
            "buffers keep the file locked: {other:?}"
        );
        drop((mapped, buffers));
        let image = ImageFile::open(&path).expect("the file is not locked");
        let mut found = [0; LBA_SIZE];
        image.read(Lba(8), &mut found).expect("the block can be read");
        assert_eq!(found, [3; LBA_SIZE]);
        image.write(Lba(8), &[4; LBA_SIZE]).expect("the block is not mapped any more");
    }

    /// A filter, a quota or the disk refuses to make holes, but allows writes.
    #[test]
    fn where_holes_are_refused_what_is_deallocated_is_zeros() {
        let place = tempfile::tempdir().expect("a directory for the test");
        for errno in [libc::EPERM, libc::EDQUOT, libc::EIO, libc::ENOSPC, libc::ENOSYS] {
            let image =
                ImageFile::open(&place.path().join(errno.to_string())).expect("the file is new");
            image.set_size(SIZE as u64).expect("the file can be that long");
            image.write(Lba(1), &[1; 3 * LBA_SIZE]).expect("nothing is mapped");
            let result = on_a_thread(|| {
                refuse(&[(libc::SYS_fallocate, None)], errno);
                image.deallocate(range(2, 7))
            });
            assert_eq!(result, Ok(()), "{errno}");
            let mut found = [0; 3 * LBA_SIZE];
            image.read(Lba(1), &mut found).expect("the blocks can be read");
            let bytes = found.chunks(LBA_SIZE).map(|block| block[0]);
            assert_eq!(bytes.collect::<Vec<u8>>(), [1, 0, 0], "{errno}");
        }
    }

    /// The file system in this test can't make holes.
    #[test]
    fn where_there_are_no_holes_what_is_deallocated_is_zeros() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let run = |program: &str, args: &[&str]| {
            let mut command = std::process::Command::new(program);
            command.args(args).arg(place.path()).output().is_ok_and(|done| done.status.success())
        };
        if !run("mount", &["-t", "ramfs", "none"]) {
            eprintln!("SKIPPED: ramfs, a file system without holes, can't be mounted");
            return;
        }
        let tried = std::panic::catch_unwind(|| {
            let image = ImageFile::open(&place.path().join("image")).expect("there is room");
            image.set_size(4 * SIZE as u64).expect("the file can be that long");
            image.write(Lba(2), &[1; 3 * LBA_SIZE]).expect("nothing is mapped");
            image.deallocate(range(3, 4)).expect("zeros can be written");
            let mut found = [0; 3 * LBA_SIZE];
            image.read(Lba(2), &mut found).expect("the block can be read");
            [found[0], found[LBA_SIZE], found[2 * LBA_SIZE]]
        });
        assert!(run("umount", &[]), "the file system is not in use");
        assert_eq!(tried.expect("the blocks were read"), [1, 0, 1]);
    }
}
