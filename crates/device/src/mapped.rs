//! Files that are mapped into memory and cut into buffers.
//!
//! A store to a mapped buffer is at once in the kernel's page cache: the bytes outlive the process,
//! however it ends, but not a power loss. A mapped buffer may be the source of a direct write to
//! another file. It should not be the target of a direct read.

#![expect(unsafe_code, reason = "mapped memory is accessed by its address")]

use std::any::Any;
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt, OpenOptionsExt};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::Arc;

use slimio_planted::is_planted;

use crate::faults::{Faults, Watch};
use crate::mapped_range::is_mapped;
use crate::{Buffer, LBA_SIZE, OpenError, sys};

/// Number of blocks in each write when space is zeroed: 1 MiB.
const ZEROES_LBAS: usize = 256;

/// Number of blocks in each read when a whole file is checked: 128 KiB, which fit into a core's
/// cache.
const READ_LBAS: usize = 32;

/// Suffix of a file's name while the file is being made.
const NEW_SUFFIX: &str = ".new";

/// The last block of a file starts with these bytes. The size of the file without this block
/// follows, in little-endian order. A truncated file is recognised by the missing last block.
const END_MAGIC: [u8; 8] = *b"SlimIOme";

/// Memory that a file is mapped to.
#[derive(Debug)]
pub(crate) struct Mapping {
    file: File,
    /// Where in the file the mapping starts, in bytes.
    offset: u64,
    /// Length in bytes, which is a whole number of blocks.
    size: usize,
    memory: NonNull<u8>,
    outlives_process: bool,
    /// `None` if nothing is mapped. The watch must be dropped before the mapping ends.
    watch: Option<Watch>,
    held: Option<Held>,
}

/// A lock or claim that keeps other users from the mapped bytes until it is dropped.
pub(crate) type Held = Box<dyn Any + Send + Sync>;

// SAFETY: this type never dereferences the pointer. The buffers that share the memory own disjoint
// ranges of it.
unsafe impl Send for Mapping {}
// SAFETY: a shared reference does not dereference the pointer, either.
unsafe impl Sync for Mapping {}

impl Mapping {
    pub(crate) fn outlives_process(&self) -> bool {
        self.outlives_process && self.faults() == Faults::default()
    }

    pub(crate) fn faults(&self) -> Faults {
        self.watch.as_ref().map(Watch::faults).unwrap_or_default()
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // The watch must end before the mapping. Otherwise the watch could mistake a later mapping
        // at the same address for this mapping.
        self.watch = None;
        if self.size > 0 {
            // SAFETY: the memory was mapped in `MappedFile::map` with this size. Every buffer that
            // points into it holds this mapping by `Arc`, so no such buffer is left.
            unsafe { sys::unmap(self.memory, self.size) };
        }
    }
}

/// A file in a shared mapping: bytes written to its buffers outlive the process, but not a power
/// loss.
///
/// The file's space is allocated and written before the file is mapped. So on a file system that
/// overwrites blocks in place, a store can never run out of space. If the kernel can't provide a
/// page for another reason, such as a sector that can't be read, the process goes on: see
/// [`Buffer::faults`].
///
/// A [`Directory`](crate::Directory), a [`WholeDevice`](crate::WholeDevice) or an
/// [`ImageFile`](crate::ImageFile) makes this value, and protects the bytes with its lock or claim.
/// The protection lasts until this value and all its buffers are dropped. Memory without a file on
/// disk ([`anonymous`](Self::anonymous)) needs no protection.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Arc<Mapping>,
    is_cut: bool,
}

impl MappedFile {
    /// Makes a file of `size` bytes, all zero, and maps it. The file replaces an old file at
    /// `path`. The file, its length and its name are durable when this call returns. Until then,
    /// the old file is unchanged. A power loss may lose bytes that are stored in the mapping later.
    ///
    /// If `size` is zero, nothing is mapped, and the file has only its last block.
    ///
    /// # Safety
    /// As long as the returned value or one of its buffers lives, nothing else may change the
    /// file's bytes, because slices point at them. So the caller must hold a lock or claim that
    /// prevents other changes, and must pass it to [`holding`](Self::holding).
    ///
    /// # Errors
    /// [`OpenError::NoSpace`] when there is no room; the old file is then unchanged.
    ///
    /// # Panics
    /// When `size` is not a whole number of blocks.
    pub(crate) unsafe fn create(path: &Path, size: usize) -> Result<Self, OpenError> {
        assert!(size.is_multiple_of(LBA_SIZE), "{size} bytes are not whole blocks");
        let mut new = path.as_os_str().to_owned();
        new.push(NEW_SUFFIX);
        let new = Path::new(&new);
        let failed = |doing| move |error: io::Error| OpenError::io(doing, new, &error);
        // A process that died in this function may have left a file, perhaps with another mode. If
        // the removal fails, the next step reports the problem.
        drop(std::fs::remove_file(new));
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            // Only the owner may read the file, because the file holds user data.
            .mode(if is_planted("buffers-readable") { 0o644 } else { 0o600 })
            .open(new)
            .map_err(failed("making"))
            .and_then(|file| {
                write_zeroes(&file, 0, size as u64)
                    .and_then(|()| file.write_all_at(&end_block(size), size as u64))
                    .map_err(failed("filling"))?;
                file.sync_all().map_err(failed("flushing"))?;
                // SAFETY: the caller promises that nothing else changes the bytes.
                unsafe { Self::map(file, 0, size, true, new) }
            })
            .and_then(|mapped| {
                std::fs::rename(new, path).map_err(failed("naming"))?;
                let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
                File::open(directory.unwrap_or(Path::new(".")))
                    .and_then(|directory| directory.sync_all())
                    .map_err(failed("flushing the name of"))?;
                Ok(mapped)
            });
        if made.is_err() {
            // Even if the removal fails, the caller gets the first error.
            drop(std::fs::remove_file(new));
        }
        made
    }

    /// Maps a file that [`create`](Self::create) made. The contents are kept. The file may be a
    /// sparse copy, which can be read but must not be stored to.
    /// [`Directory::why_not_mapped`](crate::Directory::why_not_mapped) recognises such a copy.
    ///
    /// # Safety
    /// The same conditions as for [`create`](Self::create).
    ///
    /// # Errors
    /// [`OpenError::Incomplete`] when the file is missing, or when its length is not the length
    /// that it was made with.
    pub(crate) unsafe fn open(path: &Path) -> Result<Self, OpenError> {
        let incomplete =
            |why: &str| OpenError::Incomplete { path: path.to_path_buf(), why: why.into() };
        let opened = OpenOptions::new().read(true).write(true).open(path);
        let file = match opened {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Err(incomplete("it does not exist"));
            }
            opened => opened.map_err(|error| OpenError::io("opening", path, &error))?,
        };
        let metadata =
            file.metadata().map_err(|error| OpenError::io("looking at", path, &error))?;
        let Some(size) = (metadata.len() as usize).checked_sub(LBA_SIZE) else {
            return Err(incomplete("its end is missing"));
        };
        let mut end = vec![0; LBA_SIZE];
        file.read_exact_at(&mut end, size as u64)
            .map_err(|error| OpenError::io("reading", path, &error))?;
        if end != end_block(size) && !is_planted("buffers-end-unread") {
            return Err(incomplete("its end is missing"));
        }
        // SAFETY: the caller promises that nothing else changes the bytes.
        unsafe { Self::map(file, 0, size, true, path) }
    }

    /// Maps `size` bytes of memory, all zero, without a file on disk. The memory dies with the
    /// process. Such memory is for tests, and for volumes that have no file to map.
    ///
    /// # Errors
    /// When the kernel has no memory.
    ///
    /// # Panics
    /// When `size` is zero or not a whole number of blocks.
    pub fn anonymous(size: usize) -> Result<Self, OpenError> {
        assert_whole_blocks(size);
        let path = Path::new("memfd");
        let file =
            sys::memfd(c"slimio-buffers").map_err(|error| OpenError::io("making", path, &error))?;
        write_zeroes(&file, 0, size as u64)
            .map_err(|error| OpenError::io("filling", path, &error))?;
        // SAFETY: the file has no name, so nothing else can change its bytes.
        unsafe { Self::map(file, 0, size, false, path) }
    }

    /// Maps a range of a block device, which is opened without direct I/O. The contents are kept.
    ///
    /// # Safety
    /// The same conditions as for [`create`](Self::create).
    ///
    /// # Errors
    /// [`OpenError::Unsuitable`] when `path` is not a block device, or when the device ends before
    /// the end of the range.
    ///
    /// # Panics
    /// When `offset` or `size` is not a whole number of blocks, or `size` is zero.
    pub(crate) unsafe fn device_range(
        path: &Path,
        offset: u64,
        size: usize,
    ) -> Result<Self, OpenError> {
        assert_whole_blocks(size);
        assert!(
            offset.is_multiple_of(LBA_SIZE as u64),
            "the range must begin where a block begins"
        );
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|error| OpenError::io("opening", path, &error))?;
        let metadata =
            file.metadata().map_err(|error| OpenError::io("looking at", path, &error))?;
        if !metadata.file_type().is_block_device() {
            return Err(OpenError::unsuitable(path, "it is no block device".into()));
        }
        let device_size = sys::block_device_size(&file)
            .map_err(|error| OpenError::io("measuring", path, &error))?;
        if offset + size as u64 > device_size {
            return Err(OpenError::unsuitable(
                path,
                format!(
                    "it has {device_size} bytes, but the range ends at byte {}",
                    offset + size as u64
                ),
            ));
        }
        // SAFETY: the caller promises that nothing else changes the bytes.
        unsafe { Self::map(file, offset, size, true, path) }
    }

    /// Reserves space for a range of a file that holds an emulated device, and maps the range. The
    /// contents are kept. Errors name `path`.
    ///
    /// # Safety
    /// The same conditions as for [`create`](Self::create).
    ///
    /// # Errors
    /// When there is no room for the range.
    ///
    /// # Panics
    /// The same as those of [`device_range`](Self::device_range).
    pub(crate) unsafe fn file_range(
        file: &File,
        path: &Path,
        offset: u64,
        size: usize,
    ) -> Result<Self, OpenError> {
        assert_whole_blocks(size);
        assert!(
            offset.is_multiple_of(LBA_SIZE as u64),
            "the range must begin where a block begins"
        );
        let file = file.try_clone().map_err(|error| OpenError::io("opening", path, &error))?;
        sys::allocate(&file, 0, offset, size as u64)
            .map_err(|error| OpenError::io("making room in", path, &error))?;
        // SAFETY: the caller promises that nothing else changes the bytes.
        unsafe { Self::map(file, offset, size, true, path) }
    }

    /// # Safety
    /// The same conditions as for [`create`](Self::create).
    unsafe fn map(
        file: File,
        offset: u64,
        size: usize,
        outlives_process: bool,
        path: &Path,
    ) -> Result<Self, OpenError> {
        let failed = |error: io::Error| OpenError::io("mapping", path, &error);
        let memory = if size > 0 {
            sys::map_shared(&file, offset, size).map_err(failed)?
        } else {
            NonNull::dangling()
        };
        let (watch, held) = (None, None);
        let mut mapping = Mapping { file, offset, size, memory, outlives_process, watch, held };
        if size > 0 {
            // SAFETY: the memory was just mapped. The memory and the file live as long as
            // `mapping`.
            let watch = unsafe { Watch::begin(memory, size, &mapping.file, offset) };
            let Some(watch) = watch.map_err(failed)? else {
                return Err(is_mapped(path));
            };
            mapping.watch = Some(watch);
        }
        Ok(Self { mapping: Arc::new(mapping), is_cut: false })
    }

    /// Keeps `held`, a lock or claim of the mapped bytes, until the last buffer is dropped.
    ///
    /// # Panics
    /// When the mapping was already cut into buffers.
    pub(crate) fn holding(mut self, held: Held) -> Self {
        let mapping = Arc::get_mut(&mut self.mapping).expect("the mapping is not cut yet");
        mapping.held = Some(held);
        self
    }

    /// Length in bytes.
    pub fn size(&self) -> usize {
        self.mapping.size
    }

    /// Cuts the whole mapping into buffers of `size` bytes, in order. The buffers keep the mapping
    /// alive.
    ///
    /// # Panics
    /// When the mapping was cut before, or when `size` is not a whole number of blocks or does not
    /// divide the mapping's length.
    pub fn buffers(&mut self, size: usize) -> Vec<Buffer> {
        assert_whole_blocks(size);
        assert!(!self.is_cut, "the mapping was already cut into buffers");
        let whole = self.mapping.size;
        assert!(whole.is_multiple_of(size), "{whole} bytes can't be cut into pieces of {size}");
        self.is_cut = true;
        (0..whole / size)
            .map(|index| {
                // SAFETY: `index * size` is below the mapping's size.
                let memory = unsafe { self.mapping.memory.add(index * size) };
                // SAFETY: `memory` is block-aligned, and the mapping has `size` bytes from there
                // on. No other buffer has these bytes, because this loop visits each piece once and
                // runs only once.
                unsafe { Buffer::mapped(memory, size / LBA_SIZE, self.mapping.clone(), index) }
            })
            .collect()
    }

    /// Checks that the whole mapped range can be read, by reading it through the file's descriptor.
    /// A part that can't be read is an ordinary error here. Later, such a part would cause a
    /// [fault](Buffer::faults).
    ///
    /// # Errors
    /// The kernel's error for a part that can't be read.
    pub fn check_readable(&self, path: &Path) -> Result<(), OpenError> {
        let Mapping { file, offset, size, .. } = &*self.mapping;
        let mut piece = Buffer::zeroed(READ_LBAS);
        for at in (0..*size).step_by(piece.len()) {
            let step = piece.len().min(size - at);
            let read = file.read_exact_at(&mut piece[..step], offset + at as u64);
            read.or_else(|error| if is_planted("buffers-unread") { Ok(()) } else { Err(error) })
                .map_err(|error| OpenError::io("reading", path, &error))?;
        }
        Ok(())
    }

    /// Fills the whole mapped range with zeros, without reading the old contents.
    ///
    /// # Errors
    /// When the kernel can't write the range.
    ///
    /// # Panics
    /// When the mapping was already cut into buffers.
    pub fn clear(&mut self, path: &Path) -> Result<(), OpenError> {
        assert!(!self.is_cut, "the mapping was already cut into buffers, and they may be in use");
        write_zeroes(&self.mapping.file, self.mapping.offset, self.mapping.size as u64)
            .map_err(|error| OpenError::io("clearing", path, &error))
    }

    /// The present contents of the mapped range, read through the file's descriptor. The buffers
    /// may be in use during the read.
    ///
    /// # Errors
    /// When the kernel can't read the range.
    pub fn read_all(&self) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; self.mapping.size];
        self.mapping.file.read_exact_at(&mut bytes, self.mapping.offset)?;
        Ok(bytes)
    }
}

/// The last block of a file with `size` bytes before it.
fn end_block(size: usize) -> Vec<u8> {
    let mut block = vec![0; LBA_SIZE];
    block[..8].copy_from_slice(&END_MAGIC);
    block[8..16].copy_from_slice(&(size as u64).to_le_bytes());
    block
}

fn assert_whole_blocks(size: usize) {
    assert!(size > 0 && size.is_multiple_of(LBA_SIZE), "{size} bytes are not whole blocks");
}

/// Writes zeros, so that the space is allocated and the file system marks the blocks as written.
/// Each write is a whole number of blocks from aligned memory, because the file may be open for
/// direct I/O.
pub(crate) fn write_zeroes(file: &File, offset: u64, size: u64) -> io::Result<()> {
    let zeroes = Buffer::zeroed(ZEROES_LBAS);
    let mut done = 0;
    while done < size {
        let step = (zeroes.len() as u64).min(size - done);
        file.write_all_at(&zeroes[..step as usize], offset + done)?;
        done += step;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
