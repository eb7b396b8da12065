//! What the keeper does for a log file. The keeper is the process that looks after a program's
//! logs. Above all, it adds zeros ahead of the log's end. It also writes staged bytes, which the
//! program has appended and which are not in the file yet.

use std::io;
use std::os::fd::AsFd;
use std::sync::LazyLock;

use rustix::io::Errno;
use slimio_device::Buffer;

use crate::log_file::{BLOCK, LogFile, flags, write};
use crate::staged::Staged;

/// The smallest and the largest number of zeros ahead of a log's end, in bytes. The minimum is
/// small because a log may get only a few records, as in a database that is soon closed again.
const AHEAD_MIN: u64 = 64 << 10;
const AHEAD_MAX: u64 = 64 << 20;
/// A log has as many zeros ahead as it has bytes, but at most this number. Only a very long log has
/// more: its length divided by `AHEAD_SHARE`. Zeros are added in large steps, because the file
/// system commits its journal after each step, and the program's next sync waits for the commit.
const AHEAD_WHOLE_MAX: u64 = 8 << 20;
const AHEAD_SHARE: u64 = 8;
/// If the keeper is too slow, the program itself adds zeros to its log, and waits meanwhile. So the
/// program adds at most this number of zeros at once.
const AHEAD_AT_ONCE_MAX: u64 = 1 << 20;
/// Number of blocks of zeros that are written at once.
const ZEROS_LBAS: usize = 64;

impl<F: AsFd> LogFile<F> {
    /// One step of the keeper's work for the log: adds zeros ahead of the log's end, and writes
    /// staged bytes if the stage fills up. Returns whether more work is left. Each step takes about
    /// as long as a write of 256 KiB.
    ///
    /// If `looks_again` is true, the keeper will look at the log again by itself. If it is false,
    /// the process that appends next notifies the keeper.
    ///
    /// # Errors
    /// If a write of staged bytes or a flush fails. If the zeros can't be written, this call does
    /// not fail, because the next append reports that.
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
        // Makes the file's new length durable. Otherwise, the program's next sync would have to do
        // so, and the program would wait.
        rustix::fs::fdatasync(&self.file).map_err(|error| self.failed(error))?;
        Ok(false)
    }

    /// Makes all appended bytes durable. Returns whether the log is at rest: the staged bytes still
    /// end at `staged_to`, or there is no log any more. If the log is at rest, the process that
    /// appends next notifies the keeper. If not, the keeper looks at the log again by itself.
    ///
    /// # Errors
    /// If a write or flush fails. All later writes and syncs then fail too.
    pub fn rest(&self, staged_to: u64) -> io::Result<bool> {
        self.sync()?;
        let mut staged = self.stage.staged()?;
        let rests = !staged.is_taken() || staged.staged_to() == staged_to;
        staged.heard(!rests);
        Ok(rests)
    }

    /// Writes zeros to the space that `more` bytes need, and to a little more space if possible.
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
            // The file system may have room for just the needed zeros.
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

/// The number of zeros ahead of a log of this length, in bytes.
pub(crate) fn ahead(length: u64) -> u64 {
    let whole = length.min(AHEAD_WHOLE_MAX);
    whole.max(length / AHEAD_SHARE).clamp(AHEAD_MIN, AHEAD_MAX).next_multiple_of(BLOCK)
}

/// The end of the block in which the staged bytes would end if `more` bytes were added.
pub(crate) fn end_of_block(staged: &Staged<'_>, more: u64) -> u64 {
    staged.staged_to().saturating_add(more).next_multiple_of(BLOCK)
}
