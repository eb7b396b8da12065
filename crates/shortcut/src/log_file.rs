//! A log file that is written by the short path: by direct writes over zeros that are already in
//! the file.
//!
//! ```text
//!            written          length                     zeroed
//!  ─────────────┼───────────────┼──────────────────────────┼
//!   in the file │ in the stage  │ zeros, in the file       │ nothing
//!  ─────┼───────┴───────────────┴───┼──────────────────────┼
//!     start of the stage         whole blocks
//! ```
//!
//! Appended bytes are collected in the stage, which is memory that processes share.
//! [`sync`](LogFile::sync) writes the blocks that have new bytes, by one direct write that is
//! durable when it returns. The last of these blocks is usually not full. It is filled up with
//! zeros, and written again when it has more bytes. Each version of a block has all bytes of the
//! version before. So if each block is written either whole or not at all, nothing is lost.
//!
//! The file is longer than the log, because it was filled with zeros ahead.
//! [`release`](LogFile::release) cuts the file at the end of the log.
//!
//! The whole state of the log is in the stage. So several processes may append to one log. Each has
//! its own `LogFile`, with the same open file and the same stage.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use slimio_device::{LBA_SIZE, Part, end_lease};
use slimio_planted::is_planted;

use crate::Stage;
use crate::log::is_late;
use crate::staged::Staged;

pub(crate) const BLOCK: u64 = LBA_SIZE as u64;
/// How many times a process tries to note a failure in the stage.
const FAILED_TRIES: usize = 50;
/// `RWF_NOAPPEND` (Linux 6.9): the offset counts although the file was opened with `O_APPEND`.
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// A log file, and the bytes that were appended to it.
///
/// Once a write of the log's bytes or a flush has failed, every later write and sync fails too,
/// because nobody knows what the disk holds.
#[derive(Debug)]
pub struct LogFile<F: AsFd = File> {
    pub(crate) file: F,
    pub(crate) stage: Stage,
}

impl<F: AsFd> LogFile<F> {
    /// The log of a file that is open for writing. If the stage has no log yet, the file is written
    /// by ordinary system calls, not through the stage, until the file is [taken](Self::take).
    pub fn new(file: F, stage: Stage) -> Self {
        Self { file, stage }
    }

    /// Whether the file is taken, and so is written by the short path.
    ///
    /// # Errors
    /// If this thread is already in a call on this log.
    pub fn is_taken(&self) -> io::Result<bool> {
        Ok(self.stage.staged()?.is_taken())
    }

    /// Whether a write or flush has failed.
    ///
    /// # Errors
    /// If this thread is already in a call on this log.
    pub(crate) fn has_failed(&self) -> io::Result<bool> {
        Ok(self.stage.staged()?.failed().is_err())
    }

    /// Offset in the file after the last staged byte. The log can go on past this offset, if the
    /// program last wrote in the middle of the log.
    ///
    /// # Errors
    /// If this thread is already in a call on this log.
    pub(crate) fn staged_to(&self) -> io::Result<u64> {
        Ok(self.stage.staged()?.staged_to())
    }

    /// Length of the log in bytes, or `None` if the file is not taken. The file itself is longer.
    ///
    /// # Errors
    /// If this thread is already in a call on this log.
    pub fn length(&self) -> io::Result<Option<u64>> {
        let staged = self.stage.staged()?;
        Ok(staged.is_taken().then(|| staged.length()))
    }

    /// The file's position, as lseek(2) would return it, or `None` if the file is not taken. A file
    /// opened with `O_APPEND` has its position at the log's end only after something was appended.
    ///
    /// # Errors
    /// If this thread is already in a call on this log.
    pub fn position(&self) -> io::Result<Option<u64>> {
        let staged = self.stage.staged()?;
        Ok(staged.is_taken().then(|| staged.position()))
    }

    /// Moves the file's position to the log's end. Returns the new position, or `None` if the file
    /// is not taken.
    ///
    /// # Errors
    /// If this thread is already in a call on this log.
    pub fn seek_end(&self) -> io::Result<Option<u64>> {
        let mut staged = self.stage.staged()?;
        if !staged.is_taken() {
            return Ok(None);
        }
        let end = staged.length();
        staged.set_position(end);
        Ok(Some(end))
    }

    /// Turns the flags that fcntl(2) reports now into the flags that the file was opened with.
    pub fn flags_as_opened(&self, flags: i32) -> i32 {
        // A lease also sets `O_ASYNC`. A regular file without a lease does not have this flag.
        let mut flags = OFlags::from_bits_retain(flags.cast_unsigned()) - OFlags::ASYNC;
        if let Ok(staged) = self.stage.staged()
            && staged.is_taken()
        {
            flags -= OFlags::DIRECT;
            flags.set(OFlags::APPEND, staged.is_append());
        }
        flags.bits().cast_signed()
    }

    /// The file. A process that reads it directly sees the durable bytes, and zeros after them.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// The stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Makes all appended bytes durable. Returns `false` if the file is not taken; the kernel must
    /// then sync the file.
    ///
    /// # Errors
    /// If a write or flush fails. All later writes and syncs then fail too.
    pub fn sync(&self) -> io::Result<bool> {
        let end = {
            let staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() {
                return Ok(false);
            }
            staged.staged_to()
        };
        // If several threads sync at once, one of them writes the bytes of all, and the others wait
        // for this write.
        loop {
            if let Some(mut writing) = self.stage.writing_or_wait() {
                return self.write_out(&mut writing, true);
            }
            let staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() || (staged.written() >= end && !staged.needs_flush()) {
                // Giving a file back makes all of it durable.
                return Ok(staged.is_taken());
            }
        }
    }

    /// Writes the staged bytes, while other threads may append. If `is_durable`, the bytes are
    /// durable afterwards. Returns `false` if the file is not taken.
    pub(crate) fn write_out(&self, writing: &mut Part<'_>, is_durable: bool) -> io::Result<bool> {
        let (offset, size, end, is_append, is_unflushed) = {
            let mut staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() {
                return Ok(false);
            }
            self.make_direct(&mut staged)?;
            let (offset, blocks) = staged.unwritten();
            // If everything is written already, `unwritten` still returns the last block.
            let is_new = staged.written() < staged.staged_to();
            let size = if is_new { blocks.len() } else { 0 };
            writing[..size].copy_from_slice(&blocks[..size]);
            (offset, size, staged.staged_to(), staged.is_append(), staged.needs_flush())
        };
        if size == 0 && !(is_durable && is_unflushed) {
            return Ok(true);
        }
        let flags = flags(is_append, is_durable && !is_unflushed);
        let mut result = Ok(());
        if size > 0 {
            result = write(self.file.as_fd(), &writing[..size], offset, flags);
        }
        if is_durable && is_unflushed && !is_planted("flush-forgotten") {
            result = result.and_then(|()| rustix::fs::fdatasync(&self.file));
        }
        if let Err(error) = result {
            return Err(self.failed(error));
        }
        let mut staged = self.stage.staged()?;
        staged.set_needs_flush(!is_durable);
        staged.is_written(end);
        Ok(true)
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64, is_append: bool) -> Result<(), Errno> {
        write(self.file.as_fd(), bytes, offset, flags(is_append, true))
    }

    /// Notes a failure, after which all later writes and syncs fail too. If the failure were not
    /// noted, a later sync would succeed. So even a keeper, which must not wait long for a program,
    /// tries several times.
    pub(crate) fn failed(&self, error: Errno) -> io::Error {
        for _ in 0..FAILED_TRIES {
            let staged = self.stage.staged();
            let is_late = is_late(&staged);
            if let Ok(mut staged) = staged {
                staged.set_failed(error);
            }
            if !is_late {
                break;
            }
        }
        error.into()
    }

    /// Makes everything durable, cuts the file at the end of the log, and restores the flags with
    /// which it was opened. From now on, the file is written by ordinary system calls, not through
    /// the stage.
    ///
    /// # Errors
    /// The first failure of a write or flush, in this call or before. The file may then be longer
    /// than the log.
    pub fn release(&self) -> io::Result<()> {
        self.by_kernel(|| ())
    }

    /// Releases the file for good, so that it is not taken again. The open file may then be handed
    /// to a process that does not know of the stage.
    ///
    /// # Errors
    /// The first failure of a write or flush, in this call or before.
    pub fn give_up(&self) -> io::Result<()> {
        self.stage.staged()?.give_up();
        self.release()
    }

    /// Releases the file, and then runs `then` while no other process takes or writes the file.
    ///
    /// # Errors
    /// The error of the release. `then` is not called in this case.
    pub fn by_kernel<T>(&self, then: impl FnOnce() -> T) -> io::Result<T> {
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        if staged.is_taken() {
            self.give_back(&mut staged)?;
        }
        staged.failed()?;
        drop(staged);
        Ok(then())
    }

    /// Ends direct I/O on a file that is not taken but still has direct I/O. That happens if
    /// a process that shared this open file was killed, and another process then mended the log
    /// (wrote the missing bytes and cut the file). That process opened the file anew, and so could
    /// not change the flags of this open file. Returns whether the file had direct
    /// I/O.
    ///
    /// # Errors
    /// If the kernel refuses to report or change the flags.
    pub fn end_direct(&self) -> io::Result<bool> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        if self.is_taken()? || !flags.contains(OFlags::DIRECT) {
            return Ok(false);
        }
        let append =
            if self.stage.staged()?.is_append() { OFlags::APPEND } else { OFlags::empty() };
        rustix::fs::fcntl_setfl(&self.file, (flags - OFlags::DIRECT) | append)?;
        Ok(true)
    }

    /// Runs `then` on a file that is not taken, while no other process takes or writes the file.
    /// Returns `None` if the file is taken now.
    ///
    /// # Errors
    /// The first failure of a write or flush, if there was one.
    pub fn unless_taken<T>(&self, then: impl FnOnce() -> T) -> io::Result<Option<T>> {
        let _writing = self.stage.writing()?;
        {
            let staged = self.stage.staged()?;
            staged.failed()?;
            if staged.is_taken() {
                return Ok(None);
            }
        }
        Ok(Some(then()))
    }

    /// Writes the staged bytes, cuts the file, and ends direct I/O. If a write or flush has failed,
    /// now or before, the file is cut at the end of the part of the log that is in the file; staged
    /// bytes that were not written are lost.
    pub(crate) fn give_back(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        let (staged_to, is_append) = (staged.staged_to(), staged.is_append());
        if staged.failed().is_ok() && staged.written() < staged_to {
            self.make_direct(staged)?;
            let (offset, blocks) = staged.unwritten();
            match self.write(blocks, offset, is_append) {
                Ok(()) => staged.is_written(staged_to),
                Err(error) => staged.set_failed(error),
            }
        }
        let end = if is_planted("cut-where-written") { staged.written() } else { staged.size() };
        // If this process kept its lease on the file for too long, the kernel has taken the lease
        // away. The process that waited to open the file may then have appended after the zeros. In
        // this case, the file is not cut, so that the appended bytes stay.
        let size = rustix::fs::fstat(&self.file)?.st_size as u64;
        let is_cut = !staged.is_longer(size) || is_planted("foreign-cut");
        if is_cut && !is_planted("tail-uncut") {
            rustix::fs::ftruncate(&self.file, end)?;
        }
        rustix::fs::seek(&self.file, SeekFrom::Start(staged.position().min(end)))?;
        if let Err(error) = rustix::fs::fdatasync(&self.file) {
            staged.set_failed(error);
        }
        let flags = rustix::fs::fcntl_getfl(&self.file)? - OFlags::DIRECT;
        let append = if is_append { OFlags::APPEND } else { OFlags::empty() };
        rustix::fs::fcntl_setfl(&self.file, flags | append)?;
        staged.end();
        end_lease(&self.file);
        Ok(())
    }
}

/// Whether the kernel has [`NO_APPEND`]. Older kernels refuse the unknown flag, so it is not used
/// with them.
pub(crate) static HAS_NO_APPEND: LazyLock<bool> = LazyLock::new(|| {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 9),
        _ => false,
    }
});

/// The flags of a write.
pub(crate) fn flags(is_append: bool, is_durable: bool) -> ReadWriteFlags {
    let mut flags = ReadWriteFlags::empty();
    flags.set(ReadWriteFlags::DSYNC, is_durable && !is_planted("sync-undurable"));
    flags.set(NO_APPEND, is_append && *HAS_NO_APPEND);
    flags
}

/// One write. A short write is an error.
pub(crate) fn write(
    file: BorrowedFd<'_>,
    bytes: &[u8],
    offset: u64,
    flags: ReadWriteFlags,
) -> Result<(), Errno> {
    let written = loop {
        match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], offset, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if written == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}
