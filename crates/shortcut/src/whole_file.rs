//! A file in which any number of processes overwrite whole blocks.
//!
//! The program's own descriptor stays as it is. In addition there is a *direct* descriptor. A write
//! through it is durable when the write returns (`O_DIRECT`, `O_DSYNC`). Writes that are aligned
//! and lie in blocks that were written before go to the direct descriptor (the *short path*). All
//! other writes go to the program's descriptor, and leave a [`Debt`]: the next sync of the file
//! must call the kernel.
//!
//! If a block counts as written although it is not, a write to it only takes longer: the kernel
//! makes a direct write durable even if it needs new blocks. A direct write also makes the kernel
//! drop the overwritten pages from its page cache.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd as _};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use slimio_device::{Alignment, Attributes, Extents, FileSystem, LBA_SIZE};
use slimio_planted::is_planted;

use crate::debts::Debt;
use crate::place::{refusal_of_file_system, refusals_of_attributes};

const BLOCK: u64 = LBA_SIZE as u64;
/// An alignment that always suffices, for kernels that do not say what direct I/O needs.
const STRICT: Alignment = Alignment { offset: LBA_SIZE as u32, memory: LBA_SIZE as u32 };

/// Errors of a write that do not mean that the disk has failed. For example, the disk needs another
/// alignment than the kernel said, a pointer is bad, a limit is reached, or there is no room.
const HARMLESS: [Errno; 9] = [
    Errno::INVAL,
    Errno::FAULT,
    Errno::FBIG,
    Errno::NOSPC,
    Errno::DQUOT,
    Errno::NOMEM,
    Errno::PERM,
    Errno::INTR,
    Errno::AGAIN,
];

/// From one sync to the next, at most this many writes take the short path. A program that writes
/// more without a sync either writes much at once, or does not wait for the disk when it commits.
/// In both cases, its writes should not wait for the disk.
const UNSYNCED_MAX: u32 = 8;
/// The largest number of extents that are looked up at once.
const EXTENTS_MAX: usize = 128;

/// An open file whose blocks are overwritten whole.
#[derive(Debug)]
pub struct WholeFile<'a> {
    debt: Debt<'a>,
    /// The descriptor for direct writes; `None` if all writes go to the program's descriptor.
    direct: Option<File>,
    /// The alignment that direct writes need; `None` if the file can't take the short path. The
    /// first write looks it up.
    alignment: OnceLock<Option<Alignment>>,
    /// A run of blocks that were written. The upper half is the number of the first block, and the
    /// lower half is the number of the block after the last.
    written: AtomicU64,
    /// The value of [`Debt::moved`] when the blocks of `written` were looked up.
    moved: AtomicU64,
    /// Writes that took the short path since the last sync.
    unsynced: AtomicU32,
    /// The value of [`Debt::failures`] when the file was opened.
    failures: u64,
}

/// Opens the direct descriptor of a file that is open for writing.
///
/// # Errors
/// If the file takes no direct I/O, or may not be opened.
pub fn open_direct(file: impl AsFd) -> io::Result<File> {
    let path = format!("/proc/self/fd/{}", file.as_fd().as_raw_fd());
    let mut flags = OFlags::WRONLY | OFlags::DIRECT | OFlags::CLOEXEC | OFlags::NONBLOCK;
    flags.set(OFlags::DSYNC, !is_planted("whole-undurable"));
    Ok(rustix::fs::open(path, flags, Mode::empty())?.into())
}

impl<'a> WholeFile<'a> {
    /// A file that was opened just now. `direct` is its direct descriptor.
    ///
    /// The file has a debt from now on, because earlier changes may not have been counted. They may
    /// have been made by other programs, or under another name of the file.
    pub fn new(debt: Debt<'a>, direct: Option<File>) -> Self {
        if !is_planted("opened-without-debt") {
            debt.owe();
        }
        Self {
            failures: debt.failures(),
            moved: AtomicU64::new(debt.moved()),
            debt,
            direct,
            alignment: OnceLock::new(),
            written: AtomicU64::new(0),
            unsynced: AtomicU32::new(0),
        }
    }

    /// The file's debt.
    pub fn debt(&self) -> Debt<'a> {
        self.debt
    }

    /// The descriptor for direct writes.
    pub fn direct(&self) -> Option<&File> {
        self.direct.as_ref()
    }

    /// Writes the bytes of several buffers at an offset. They are durable when this returns.
    /// Returns the number of bytes, or `None` if the caller must write them through the
    /// program's descriptor. Such a write must be made inside [`Debt::around`].
    ///
    /// # Errors
    /// If the write fails. Every later write and sync of the file then fails too, in each process
    /// that had the file open, because nobody knows what the disk holds.
    pub fn write(&self, pieces: &[IoSlice<'_>], offset: u64) -> io::Result<Option<usize>> {
        self.failed()?;
        if self.unsynced.load(Ordering::Relaxed) >= UNSYNCED_MAX {
            return Ok(None);
        }
        let Some(direct) = self.direct_for(pieces, offset) else { return Ok(None) };
        match rustix::io::pwritev(direct, pieces, offset) {
            Ok(written) => {
                self.debt.count_write();
                self.unsynced.fetch_add(1, Ordering::Relaxed);
                Ok(Some(written))
            }
            // Nothing was written, but a write through the program's descriptor may succeed.
            Err(error) if HARMLESS.contains(&error) => Ok(None),
            Err(error) => {
                self.debt.fail();
                Err(error.into())
            }
        }
    }

    /// Makes the file durable. Calls `sync` only if there is a debt or if `is_forced`.
    ///
    /// # Errors
    /// If a direct write has failed since the file was opened, or if `sync` fails. The debt then
    /// stays.
    pub fn sync(&self, is_forced: bool, sync: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
        self.failed()?;
        self.unsynced.store(0, Ordering::Relaxed);
        if is_forced || self.debt.is_owed() {
            return self.debt.pay(sync);
        }
        self.debt.count_sync();
        Ok(())
    }

    fn failed(&self) -> io::Result<()> {
        let is_failed = self.debt.failures() != self.failures && !is_planted("failure-not-told");
        if is_failed { Err(Errno::IO.into()) } else { Ok(()) }
    }

    /// The direct descriptor, if it can write these bytes.
    fn direct_for(&self, pieces: &[IoSlice<'_>], offset: u64) -> Option<&File> {
        let direct = self.direct.as_ref()?;
        let alignment = (*self.alignment.get_or_init(|| alignment(direct)))?;
        let (unit, memory) = (u64::from(alignment.offset), alignment.memory as usize);
        let size: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        let end = offset.checked_add(size)?;
        let is_aligned = |piece: &IoSlice<'_>| {
            piece.as_ptr().addr().is_multiple_of(memory)
                && (piece.len() as u64).is_multiple_of(unit)
        };
        let is_possible = size > 0
            && i64::try_from(end).is_ok()
            && offset.is_multiple_of(unit)
            && pieces.iter().all(is_aligned);
        (is_possible && self.are_written(direct, offset..end)).then_some(direct)
    }

    /// Whether all these bytes are in blocks that were written.
    fn are_written(&self, direct: &File, range: std::ops::Range<u64>) -> bool {
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        if blocks.end > u64::from(u32::MAX) {
            return false;
        }
        let moved = self.debt.moved();
        let known = if self.moved.load(Ordering::Acquire) == moved {
            let known = self.written.load(Ordering::Acquire);
            known >> 32..known & u64::from(u32::MAX)
        } else {
            0..0
        };
        if known.start <= blocks.start && blocks.end <= known.end {
            return true;
        }
        let Some(found) = written_from(direct, blocks.start) else { return false };
        // If several threads store their results at once, the results may be mixed up. That only
        // costs time.
        self.written.store(blocks.start << 32 | found, Ordering::Release);
        self.moved.store(moved, Ordering::Release);
        blocks.end <= found
    }
}

/// The alignment that direct writes to a file need; `None` if the file is not overwritten in place.
fn alignment(direct: &File) -> Option<Alignment> {
    let attributes = Attributes::of(direct).ok()?;
    let is_refused = refusal_of_file_system(&FileSystem::of(direct).ok()?).is_some()
        || !refusals_of_attributes(&attributes).is_empty();
    (!is_refused).then(|| attributes.direct.flatten().unwrap_or(STRICT))
}

/// Finds the run of written blocks that begins with block `start`, and returns the number of the
/// block after the run. A block that the file shares with another file, or data that is not in
/// blocks of its own, ends the run.
fn written_from(direct: &File, start: u64) -> Option<u64> {
    let size = direct.metadata().ok()?.len();
    let mut end = start * BLOCK;
    for extent in Extents::new(direct, end..size.max(end), false).take(EXTENTS_MAX) {
        let extent = extent.ok()?;
        let is_unwritten = extent.is_unwritten() && !is_planted("unwritten-taken-whole");
        if extent.start > end || is_unwritten || extent.is_shared() || extent.is_special() {
            break;
        }
        end = extent.end();
    }
    Some((end.min(size) / BLOCK).min(u64::from(u32::MAX)))
}
