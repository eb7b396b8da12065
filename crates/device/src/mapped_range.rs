//! The range of a device that is mapped into memory. The device's paths, each of which has its own
//! queue, must not write to this range: a slice of the mapping must not change as long as the slice
//! lives.

#![expect(unsafe_code, reason = "a caller that maps a range promises that nobody else writes it")]

use std::fs::File;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use slimio_planted::is_planted;

use crate::sys::Lock;
use crate::{DeviceError, LBA_SIZE, MappedFile, Op, OpenError};

/// Makes and maps a file in a directory. `lock` keeps other processes out of the directory. No path
/// to the file may be open now, and none may be opened while the file is mapped.
///
/// # Errors
/// The same as those of [`MappedFile::create`].
pub(crate) fn create_mapped(
    path: &Path,
    size: usize,
    lock: &Arc<Lock>,
) -> Result<MappedFile, OpenError> {
    // SAFETY: the mapping keeps the lock, which keeps other processes away, and the caller opens no
    // path to the file.
    let mapped = unsafe { MappedFile::create(path, size) }?;
    Ok(mapped.holding(Box::new(lock.clone())))
}

/// Maps a file that [`create_mapped`] made. No path to the file may be open now, and none may be
/// opened while the file is mapped.
///
/// # Errors
/// The same as those of [`MappedFile::open`].
pub(crate) fn open_mapped(path: &Path, lock: &Arc<Lock>) -> Result<MappedFile, OpenError> {
    // SAFETY: the mapping keeps the lock, which keeps other processes away, and the caller opens no
    // path to the file.
    let mapped = unsafe { MappedFile::open(path) }?;
    Ok(mapped.holding(Box::new(lock.clone())))
}

/// Maps a range of a block device. `holder` has the device open exclusively, so other processes
/// can't change the range. As long as a piece of the mapping lives, the paths of this process can't
/// change the range, either.
///
/// # Errors
/// The same as those of [`MappedFile::device_range`], and [`OpenError::Unsuitable`] while another
/// range is mapped.
pub(crate) fn map_device(
    path: &Path,
    holder: &File,
    range: &Arc<MappedRange>,
    offset: u64,
    size: usize,
) -> Result<MappedFile, OpenError> {
    let taken = range.take(offset, size).ok_or_else(|| is_mapped(path))?;
    let holder = holder.try_clone().map_err(|error| OpenError::io("opening", path, &error))?;
    // SAFETY: the holder keeps other processes away, and the taken range keeps our own paths away.
    // The holder and the taken range live as long as the mapping.
    let mapped = unsafe { MappedFile::device_range(path, offset, size) }?;
    Ok(mapped.holding(Box::new((holder, taken))))
}

/// The error for an attempt to map a range while another range is mapped.
pub(crate) fn is_mapped(path: &Path) -> OpenError {
    OpenError::unsuitable(path, "a part of this file or device is already mapped".into())
}

/// The range of a device's blocks that is mapped now, if there is one. At most one range is mapped
/// at a time.
#[derive(Debug, Default)]
pub(crate) struct MappedRange {
    is_taken: AtomicBool,
    start: AtomicU64,
    /// Zero while nothing is mapped.
    end: AtomicU64,
}

impl MappedRange {
    /// Takes a range until the result is dropped. `offset` and `size` are in bytes. `None` while
    /// another range is taken.
    pub(crate) fn take(self: &Arc<Self>, offset: u64, size: usize) -> Option<TakenRange> {
        let lba_size = LBA_SIZE as u64;
        let (start, end) = (offset / lba_size, (offset + size as u64).div_ceil(lba_size));
        if self.is_taken.swap(true, Ordering::AcqRel) {
            return None;
        }
        // The start is stored first. If the end were stored first, `check_range` could refuse a
        // change outside the range for a moment.
        self.start.store(start, Ordering::Release);
        self.end.store(end, Ordering::Release);
        Some(TakenRange(self.clone()))
    }

    /// The range that is taken now, in blocks; empty if none is taken.
    pub(crate) fn range(&self) -> std::ops::Range<u64> {
        let end = self.end.load(Ordering::Acquire);
        self.start.load(Ordering::Acquire).min(end)..end
    }

    /// Returns an error if the operation would change a block of the range.
    pub(crate) fn check(&self, op: &Op) -> Result<(), DeviceError> {
        let (start, end) = match op {
            Op::Write { lba, buffer, .. } => {
                (lba.0, lba.0.saturating_add(buffer.len_lbas() as u64))
            }
            Op::Deallocate { range } => (range.start.0, range.end.0),
            Op::Read { .. } | Op::Flush => return Ok(()),
        };
        self.check_range(start, end)
    }

    /// Returns an error if the blocks from `start` to `end` overlap the range.
    pub(crate) fn check_range(&self, start: u64, end: u64) -> Result<(), DeviceError> {
        let is_outside =
            self.end.load(Ordering::Acquire) <= start || end <= self.start.load(Ordering::Acquire);
        if is_outside || is_planted("mapped-range-written") {
            Ok(())
        } else {
            Err(DeviceError::OutOfRange)
        }
    }
}

#[derive(Debug)]
pub(crate) struct TakenRange(Arc<MappedRange>);

impl Drop for TakenRange {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::Release);
        self.0.is_taken.store(false, Ordering::Release);
    }
}
