//! Filling a log file with zeros ahead, and what else its keeper does for it.

use std::io;
use std::os::fd::AsFd;
use std::sync::LazyLock;

use rustix::io::Errno;
use slimio_device::Buffer;

use crate::log_file::{BLOCK, LogFile, flags, write};
use crate::staged::Staged;

/// The least and the most that is filled with zeros ahead of the log, in bytes. A log of a few records, as
/// of a database that is closed again at once, shall not cost much.
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 64 << 20;
/// Between these limits, it is the length of the log up to this, and then this share of the length. Each time
/// that zeros are added, the file system's journal is committed, and the program's next sync waits for that.
const AHEAD_WHOLE_MAX: u64 = 8 << 20;
const AHEAD_SHARE: u64 = 8;
/// The most that a program fills itself when its keeper is too slow, because it waits for that.
const AHEAD_AT_ONCE_MAX: u64 = 1 << 20;
/// Blocks of zeros that are written at once.
const ZEROS_LBAS: usize = 64;

impl<F: AsFd> LogFile<F> {
    /// One step of what the log's keeper does for it: fills the file with zeros ahead, and writes what
    /// fills the stage. Returns whether there is more to do. Each step takes as long as a write of
    /// 256 KiB. If the keeper does not look again by itself, it is told of the next append.
    ///
    /// # Errors
    /// If a write or flush fails. That the file can't be made longer is no failure here: who appends
    /// will see.
    pub fn keep_up(&self, looks_again: bool) -> io::Result<bool> {
        let mut writing = self.stage.writing()?;
        let is_filling = {
            let mut staged = self.stage.staged()?;
            staged.heard(looks_again);
            if !staged.is_taken() || staged.failed().is_err() {
                return Ok(false);
            }
            staged.is_filling()
        };
        if is_filling {
            self.write_out(&mut writing, false)?;
        }
        let (start, end, is_append) = {
            let mut staged = self.stage.staged()?;
            self.make_direct(&mut staged)?;
            let end = staged.length().next_multiple_of(BLOCK) + ahead(staged.length());
            staged.reaches(end);
            (staged.zeroed(), end, staged.is_append())
        };
        let next = end.min(start + ZEROS_LBAS as u64 * BLOCK);
        if next <= start || self.write_zeros(start, next, is_append).is_err() {
            return Ok(false);
        }
        self.stage.staged()?.set_zeroed(next);
        if next < end {
            return Ok(true);
        }
        drop(writing);
        // The next sync would make the new length durable, too, and somebody waits for that.
        rustix::fs::fdatasync(&self.file).map_err(|error| self.failed(error))?;
        Ok(false)
    }

    /// Makes everything durable that was appended, at rest: the keeper is to be told of the next append.
    /// Returns `false` if something was written since the staged bytes ended at `staged_to`; the keeper is
    /// not told then.
    ///
    /// # Errors
    /// If a write or flush fails. The error stays.
    pub fn rest(&self, staged_to: u64) -> io::Result<bool> {
        self.sync()?;
        let mut staged = self.stage.staged()?;
        let rests = !staged.is_taken() || staged.staged_to() == staged_to;
        staged.heard(!rests);
        Ok(rests)
    }

    /// Fills what `more` bytes need with zeros, and a little more if that is possible.
    pub(crate) fn zero_for(&self, staged: &mut Staged<'_>, more: u64) -> io::Result<()> {
        let (start, is_append) = (staged.zeroed(), staged.is_append());
        let needed = end_of_block(staged, more);
        if needed <= start {
            return Ok(());
        }
        self.make_direct(staged)?;
        let ahead = needed + ahead(staged.length()).min(AHEAD_AT_ONCE_MAX);
        staged.reaches(ahead);
        let zeroed = self
            .write_zeros(start, ahead, is_append)
            .map(|()| ahead)
            // There may be room for just this.
            .or_else(|_| self.write_zeros(start, needed, is_append).map(|()| needed))?;
        staged.set_zeroed(zeroed);
        if let Err(error) = rustix::fs::fdatasync(&self.file) {
            staged.set_failed(error);
            return Err(error.into());
        }
        Ok(())
    }

    fn write_zeros(&self, start: u64, end: u64, is_append: bool) -> Result<(), Errno> {
        static ZEROS: LazyLock<Buffer> = LazyLock::new(|| Buffer::zeroed(ZEROS_LBAS));
        let flags = flags(is_append, false);
        let mut at = start;
        while at < end {
            let size = (end - at).min(ZEROS.len() as u64);
            write(self.file.as_fd(), &ZEROS[..size as usize], at, flags)?;
            at += size;
        }
        Ok(())
    }
}

/// How much is filled with zeros ahead of a log of this length, in bytes.
pub(crate) fn ahead(length: u64) -> u64 {
    let whole = length.min(AHEAD_WHOLE_MAX);
    whole.max(length / AHEAD_SHARE).clamp(AHEAD_MIN, AHEAD_MAX).next_multiple_of(BLOCK)
}

/// The end of the block that the staged bytes would end in with `more` of them.
pub(crate) fn end_of_block(staged: &Staged<'_>, more: u64) -> u64 {
    staged.staged_to().saturating_add(more).next_multiple_of(BLOCK)
}
