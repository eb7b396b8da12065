//! A file whose blocks are overwritten whole, by any number of processes.
//!
//! The program's own descriptor stays as it is. Beside it, there is a *direct* one, by which a write
//! is durable when it returns (`O_DIRECT`, `O_DSYNC`). It takes what is aligned and lies in blocks that
//! were written before. All else goes to the kernel, and leaves a [`Debt`].
//!
//! Nothing depends on what is known of the blocks but the time that a write takes: the kernel also
//! makes a direct write durable that needs new blocks, and drops what its page cache has of them.

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
/// If the kernel does not say what direct I/O needs, this is enough.
const STRICT: Alignment = Alignment { offset: LBA_SIZE as u32, memory: LBA_SIZE as u32 };

/// Failures of a write that say nothing about the disk: it needs another alignment than it said, there is a
/// bad pointer, a limit, or no room.
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

/// Eight writes go the short way before a sync is asked for. If there are more, as when much is written
/// at once or commits do not wait for the disk, a write is not to wait for it either.
const UNSYNCED_MAX: u32 = 8;
/// Extents that are looked at in one go.
const EXTENTS_MAX: usize = 128;

/// An open file whose blocks are overwritten whole.
#[derive(Debug)]
pub struct WholeFile<'a> {
    debt: Debt<'a>,
    /// The descriptor for direct writes. `None`: all goes to the kernel.
    direct: Option<File>,
    /// What direct writes need, when that was looked at; `None` if the file can't go the short way.
    alignment: OnceLock<Option<Alignment>>,
    /// Blocks in a row that were written: the first one's number, and in the lower half that of the
    /// one behind the last.
    written: AtomicU64,
    /// What [`Debt::moved`] said when these were looked for.
    moved: AtomicU64,
    /// Writes that went the short way since a sync was asked for.
    unsynced: AtomicU32,
    /// What [`Debt::failures`] said when the file was opened.
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
    /// A file that was opened just now, and its direct descriptor.
    ///
    /// There is a debt from now on: before, the file may have been changed by programs or under names
    /// that nobody has counted.
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

    /// Writes bytes of several buffers at an offset, so that they are durable when this returns. Returns
    /// how many were written, or `None` if the kernel is to write them by the program's descriptor,
    /// [around](Debt::around) which there is a debt.
    ///
    /// # Errors
    /// If the write fails. Every later write and sync of the file fails, too, in each process that had it
    /// open then: what the disk holds is not known.
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
            // Nothing was written, and by the program's descriptor it may be.
            Err(error) if HARMLESS.contains(&error) => Ok(None),
            Err(error) => {
                self.debt.fail();
                Err(error.into())
            }
        }
    }

    /// Makes the file durable: by `sync` if there is a debt, or if the call `is_forced`.
    ///
    /// # Errors
    /// If a direct write has failed since the file was opened, or that of `sync`. The debt stays.
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

    /// The direct descriptor, if that can write these bytes.
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
        // Threads that store at once may mix what they have found. It costs time, and no more.
        self.written.store(blocks.start << 32 | found, Ordering::Release);
        self.moved.store(moved, Ordering::Release);
        blocks.end <= found
    }
}

/// What direct writes to a file need. `None` if the file is not overwritten in place.
fn alignment(direct: &File) -> Option<Alignment> {
    let attributes = Attributes::of(direct).ok()?;
    let is_refused = refusal_of_file_system(&FileSystem::of(direct).ok()?).is_some()
        || !refusals_of_attributes(&attributes).is_empty();
    (!is_refused).then(|| attributes.direct.flatten().unwrap_or(STRICT))
}

/// The number of the block behind those in a row, from this one on, that were written. What the file
/// shares with another one, or does not keep in blocks of its own, is not counted.
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
