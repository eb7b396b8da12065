//! Files mapped into memory, cut into buffers.
//!
//! Bytes stored in a mapped buffer belong to the kernel at once: they outlive the process, however
//! it ends, but not a power loss. The same memory may be the source of a direct write to another
//! file. It should not be the target of a direct read.

#![expect(unsafe_code, reason = "mapped memory is raw")]

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

/// Blocks written at once when space is zeroed: 1 MiB.
const ZEROES_LBAS: usize = 256;

/// Blocks read at once to check whether a file can be read: 128 KiB, which stay in a core's cache.
const READ_LBAS: usize = 32;

/// Suffix of the name of a file that is being made.
const NEW_SUFFIX: &str = ".new";

/// The last block of a file starts with this and the number of bytes before it, little-endian: so a
/// truncated file is noticed.
const END_MAGIC: [u8; 8] = *b"SlimIOme";

/// Memory that a file is mapped to.
#[derive(Debug)]
pub(crate) struct Mapping {
    file: File,
    /// Where in the file the mapping starts, in bytes.
    offset: u64,
    /// Length in bytes: whole blocks.
    size: usize,
    memory: NonNull<u8>,
    outlives_process: bool,
    /// `None` where nothing is mapped. Ends before the mapping does.
    watch: Option<Watch>,
    /// Keeps others from the bytes.
    held: Option<Held>,
}

/// A lock or claim that keeps others from the mapped bytes, until it is dropped.
pub(crate) type Held = Box<dyn Any + Send + Sync>;

// SAFETY: the pointer is never dereferenced here; the buffers that share the memory own disjoint
// ranges of it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
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
        // Nobody uses the mapping any more; a later one at its address is not to be taken for it.
        self.watch = None;
        if self.size > 0 {
            // SAFETY: mapped in `MappedFile::map` with this size; every buffer that points into it
            // holds this mapping by `Arc`, so none is left.
            unsafe { sys::unmap(self.memory, self.size) };
        }
    }
}

/// A file mapped shared: bytes written to its buffers outlive the process, but not a power loss.
///
/// Its space is allocated and written before it is mapped: where blocks are overwritten in place, a
/// store then never finds the file system full. The mapping survives any other fault: see
/// [`Buffer::faults`].
///
/// Made by a [`Directory`](crate::Directory), a [`WholeDevice`](crate::WholeDevice) or an
/// [`ImageFile`](crate::ImageFile), which keep everybody else from the bytes as long as a piece of the
/// mapping lives.
#[derive(Debug)]
pub struct MappedFile {
    mapping: Arc<Mapping>,
    is_cut: bool,
}

impl MappedFile {
    /// Makes the file with `size` zero bytes, replacing an old one, and maps it. Bytes stored in it
    /// later need not survive a power loss, but file, length and name do: they are durable when
    /// this returns. Until then an old file is there, untouched.
    ///
    /// With `size` zero, nothing is mapped: the file only says that it is empty.
    ///
    /// # Safety
    /// As long as this or one of its buffers lives, nothing else changes the file's bytes: slices
    /// point at them. The caller holds what keeps others away (a lock, a claim), and passes it to
    /// [`holding`](Self::holding).
    ///
    /// # Errors
    /// [`OpenError::NoSpace`] when there is no room; an old file is then as it was.
    ///
    /// # Panics
    /// When `size` is not a whole number of blocks.
    pub(crate) unsafe fn create(path: &Path, size: usize) -> Result<Self, OpenError> {
        assert!(size.is_multiple_of(LBA_SIZE), "{size} bytes are not whole blocks");
        let mut new = path.as_os_str().to_owned();
        new.push(NEW_SUFFIX);
        let new = Path::new(&new);
        let failed = |doing| move |error: io::Error| OpenError::io(doing, new, &error);
        // A file left by a process that died while making one has its own mode. If it can't be
        // removed, it can't be opened either.
        drop(std::fs::remove_file(new));
        let made = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            // It holds user data.
            .mode(if is_planted("buffers-readable") { 0o644 } else { 0o600 })
            .open(new)
            .map_err(failed("making"))
            .and_then(|file| {
                write_zeroes(&file, 0, size as u64)
                    .and_then(|()| file.write_all_at(&end_block(size), size as u64))
                    .map_err(failed("filling"))?;
                file.sync_all().map_err(failed("flushing"))?;
                // SAFETY: the caller's promise.
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
            // The caller gets the error above.
            drop(std::fs::remove_file(new));
        }
        made
    }

    /// Maps a file that [`create`](Self::create) made, with its contents. A copy that lacks space
    /// can be read like any other, but must not be stored to:
    /// [`Directory::why_not_mapped`](crate::Directory::why_not_mapped) tells.
    ///
    /// # Safety
    /// As [`create`](Self::create).
    ///
    /// # Errors
    /// [`OpenError::Incomplete`] when it is missing, or not as long as it was made.
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
        // SAFETY: the caller's promise.
        unsafe { Self::map(file, 0, size, true, path) }
    }

    /// Maps `size` zero bytes of memory that has no file: it dies with the process. For tests, and
    /// where nothing that outlives the process can be mapped.
    ///
    /// # Errors
    /// When the kernel has no memory.
    ///
    /// # Panics
    /// When `size` is not a whole number of blocks, or zero.
    pub fn anonymous(size: usize) -> Result<Self, OpenError> {
        assert_whole_blocks(size);
        let path = Path::new("memfd");
        let file =
            sys::memfd(c"slimio-buffers").map_err(|error| OpenError::io("making", path, &error))?;
        write_zeroes(&file, 0, size as u64)
            .map_err(|error| OpenError::io("filling", path, &error))?;
        // SAFETY: nobody else has the file, which has no name.
        unsafe { Self::map(file, 0, size, false, path) }
    }

    /// Maps a range of a block device (opened without direct I/O), with its contents.
    ///
    /// # Safety
    /// As [`create`](Self::create).
    ///
    /// # Errors
    /// [`OpenError::Unsuitable`] when it is not a block device or is shorter than the range.
    ///
    /// # Panics
    /// When `offset` or `size` is not a whole number of blocks, or `size` is zero.
    pub(crate) unsafe fn device_range(
        path: &Path,
        offset: u64,
        size: usize,
    ) -> Result<Self, OpenError> {
        assert_whole_blocks(size);
        assert!(offset.is_multiple_of(LBA_SIZE as u64), "the range starts with a block");
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
                format!("it has {device_size} bytes, {} are wanted", offset + size as u64),
            ));
        }
        // SAFETY: the caller's promise.
        unsafe { Self::map(file, offset, size, true, path) }
    }

    /// Maps a range of a file that stands for a device, with its contents, after reserving its
    /// space. Errors name `path`.
    ///
    /// # Safety
    /// As [`create`](Self::create).
    ///
    /// # Errors
    /// When there is no room for it.
    ///
    /// # Panics
    /// As [`device_range`](Self::device_range).
    pub(crate) unsafe fn file_range(
        file: &File,
        path: &Path,
        offset: u64,
        size: usize,
    ) -> Result<Self, OpenError> {
        assert_whole_blocks(size);
        assert!(offset.is_multiple_of(LBA_SIZE as u64), "the range starts with a block");
        let file = file.try_clone().map_err(|error| OpenError::io("opening", path, &error))?;
        sys::allocate(&file, 0, offset, size as u64)
            .map_err(|error| OpenError::io("making room in", path, &error))?;
        // SAFETY: the caller's promise.
        unsafe { Self::map(file, offset, size, true, path) }
    }

    /// # Safety
    /// As [`create`](Self::create).
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
            // SAFETY: it was mapped just now, and lasts as long as `mapping`, as does the file.
            let watch = unsafe { Watch::begin(memory, size, &mapping.file, offset) };
            let Some(watch) = watch.map_err(failed)? else {
                return Err(is_mapped(path));
            };
            mapping.watch = Some(watch);
        }
        Ok(Self { mapping: Arc::new(mapping), is_cut: false })
    }

    /// Holds on to `held`, which keeps others away, until the last buffer is gone.
    ///
    /// # Panics
    /// When it was cut.
    pub(crate) fn holding(mut self, held: Held) -> Self {
        let mapping = Arc::get_mut(&mut self.mapping).expect("it is held before it is cut");
        mapping.held = Some(held);
        self
    }

    /// Length in bytes.
    pub fn size(&self) -> usize {
        self.mapping.size
    }

    /// Cuts the whole file into buffers of `size` bytes, in order. They keep the mapping alive.
    ///
    /// # Panics
    /// When it was cut before, or when `size` is not whole blocks or does not divide the file.
    pub fn buffers(&mut self, size: usize) -> Vec<Buffer> {
        assert_whole_blocks(size);
        assert!(!self.is_cut, "a mapped file is cut once");
        let whole = self.mapping.size;
        assert!(whole.is_multiple_of(size), "{whole} bytes can't be cut into pieces of {size}");
        self.is_cut = true;
        (0..whole / size)
            .map(|index| {
                // SAFETY: `index * size` is below the mapping's size.
                let memory = unsafe { self.mapping.memory.add(index * size) };
                // SAFETY: `memory` has `size` bytes left in the mapping, starts with a block, and
                // no buffer has it yet: this loop visits each piece once and runs once.
                unsafe { Buffer::mapped(memory, size / LBA_SIZE, self.mapping.clone(), index) }
            })
            .collect()
    }

    /// Reads all of it through its descriptor: a part that can't be read is an error in words here,
    /// but would be a [fault](Buffer::faults) later.
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

    /// Makes all of it zero, without reading what is there.
    ///
    /// # Errors
    /// When the kernel can't write it.
    ///
    /// # Panics
    /// When it was cut.
    pub fn clear(&mut self, path: &Path) -> Result<(), OpenError> {
        assert!(!self.is_cut, "nobody has a piece of it");
        write_zeroes(&self.mapping.file, self.mapping.offset, self.mapping.size as u64)
            .map_err(|error| OpenError::io("clearing", path, &error))
    }

    /// The file's contents now, read through its descriptor. This works while its buffers are in
    /// use, too.
    ///
    /// # Errors
    /// When the kernel can't read it.
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

/// Writes zeroes, so that the space is allocated, as written blocks rather than unwritten ones.
/// Whole blocks, from aligned memory: the file may be open for direct I/O.
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
