//! A log file that is written the short way.
//!
//! ```text
//!            written          length                     zeroed
//!  ─────────────┼───────────────┼──────────────────────────┼
//!   in the file │ in the stage  │ zeros, in the file       │ nothing
//!  ─────┼───────┴───────────────┴───┼──────────────────────┼
//!     start of the stage         whole blocks
//! ```
//!
//! What is appended is collected in the stage. [`sync`](LogFile::sync) writes the blocks that have
//! something new, by one direct write that is durable when it returns. The last of them is usually not
//! full: it is filled up with zeros, and written again when more is there. Every version of a block has
//! the bytes of the version before it, so a block that is written whole or not at all loses nothing.
//!
//! The file is longer than the log, because it was filled with zeros ahead.
//! [`release`](LogFile::release) cuts it.
//!
//! All that is known of the log is in the stage. So several processes may append to one log: each has a
//! `LogFile` of its own, for the same open file and the same stage.

use std::fs::File;
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::LazyLock;

use rustix::fs::{OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use slimio_device::{LBA_SIZE, Part, end_lease};
use slimio_planted::is_planted;

use crate::Stage;
use crate::ahead::{ahead, end_of_block};
use crate::stage::Staged;

pub(crate) const BLOCK: u64 = LBA_SIZE as u64;
/// `RWF_NOAPPEND` (Linux 6.9): the offset counts although the file was opened with `O_APPEND`.
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// What became of bytes that were to be appended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Appended {
    /// All of them were appended.
    Whole,
    /// All of them were appended, and the log's keeper should look at it.
    TellKeeper,
    /// None: the log is not taken, so the kernel is to write them.
    NotTaken,
}

/// A log file, and what was appended to it.
///
/// The first failure of a write or flush stays: every later call fails, too, because it is not known
/// what the disk holds.
#[derive(Debug)]
pub struct LogFile<F: AsFd = File> {
    pub(crate) file: F,
    pub(crate) stage: Stage,
}

impl<F: AsFd> LogFile<F> {
    /// The log of a file that is open for writing. If the stage has no log yet, the kernel writes to it
    /// until it is [taken](Self::take).
    pub fn new(file: F, stage: Stage) -> Self {
        Self { file, stage }
    }

    /// Whether the file is taken, so that it is written the short way.
    ///
    /// # Errors
    /// If this thread is inside of a call to this log.
    pub fn is_taken(&self) -> io::Result<bool> {
        Ok(self.stage.staged()?.is_taken())
    }

    /// Bytes of the log, or `None` if the file is not taken. The file itself is longer.
    ///
    /// # Errors
    /// If this thread is inside of a call to this log.
    pub fn length(&self) -> io::Result<Option<u64>> {
        let staged = self.stage.staged()?;
        Ok(staged.is_taken().then(|| staged.length()))
    }

    /// The file's position, as lseek(2) would tell it, or `None` if the file is not taken. It is where
    /// the log ends, unless the file was opened with `O_APPEND` and nothing was appended since.
    ///
    /// # Errors
    /// If this thread is inside of a call to this log.
    pub fn position(&self) -> io::Result<Option<u64>> {
        let staged = self.stage.staged()?;
        Ok(staged.is_taken().then(|| staged.position()))
    }

    /// Moves the file's position to where the log ends. Returns this, or `None` if the file is not taken.
    ///
    /// # Errors
    /// If this thread is inside of a call to this log.
    pub fn seek_end(&self) -> io::Result<Option<u64>> {
        let mut staged = self.stage.staged()?;
        if !staged.is_taken() {
            return Ok(None);
        }
        let end = staged.length();
        staged.set_position(end);
        Ok(Some(end))
    }

    /// What fcntl(2) would say of the flags that the file was opened with, from what it says now.
    pub fn flags_as_opened(&self, flags: i32) -> i32 {
        let mut flags = OFlags::from_bits_retain(flags.cast_unsigned());
        if let Ok(staged) = self.stage.staged()
            && staged.is_taken()
        {
            flags -= OFlags::DIRECT;
            flags.set(OFlags::APPEND, staged.is_append());
        }
        flags.bits().cast_signed()
    }

    /// The file. Whoever reads it sees what is durable, and zeros behind that.
    pub fn file(&self) -> &F {
        &self.file
    }

    /// The stage.
    pub fn stage(&self) -> &Stage {
        &self.stage
    }

    /// Appends bytes. They are durable after [`sync`](Self::sync); if there are many, a part of them is
    /// written before. As far as they were appended, they outlive the process if the stage does.
    ///
    /// # Errors
    /// If the file can't be made longer, for example because the disk is full: none of the bytes was
    /// appended then, and the log goes on. The failure of any other write or flush stays.
    pub fn append(&self, bytes: &[u8]) -> io::Result<Appended> {
        self.append_vectored(&[IoSlice::new(bytes)])
    }

    /// Appends the bytes of several buffers, as [`append`](Self::append) does.
    ///
    /// # Errors
    /// As above.
    pub fn append_vectored(&self, pieces: &[IoSlice<'_>]) -> io::Result<Appended> {
        let more: u64 = pieces.iter().map(|piece| piece.len() as u64).sum();
        {
            let mut staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() {
                return Ok(Appended::NotTaken);
            }
            if more <= staged.room() && end_of_block(&staged, more) <= staged.zeroed() {
                for piece in pieces {
                    staged.append(piece);
                }
                return Ok(appended(&mut staged));
            }
        }
        // Nobody else appends while a part of the bytes is written.
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        staged.failed()?;
        if !staged.is_taken() {
            return Ok(Appended::NotTaken);
        }
        self.zero_for(&mut staged, more)?;
        for piece in pieces {
            let mut piece = &piece[..];
            while !piece.is_empty() {
                let count = staged.append(piece);
                if count == 0 {
                    self.write_staged(&mut staged)?;
                }
                piece = &piece[count..];
            }
        }
        Ok(appended(&mut staged))
    }

    /// Makes everything durable that was appended. Returns `false` if the file is not taken, so that the
    /// kernel is to do it.
    ///
    /// # Errors
    /// If a write or flush fails. The error stays.
    pub fn sync(&self) -> io::Result<bool> {
        let end = {
            let staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() {
                return Ok(false);
            }
            staged.length()
        };
        // Of many threads, one writes what all have appended, and all go on when that is done.
        loop {
            if let Some(mut writing) = self.stage.writing_or_wait() {
                return self.write_out(&mut writing, true);
            }
            let staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() || (staged.written() >= end && !staged.needs_flush()) {
                // Who gives a file back makes all of it durable.
                return Ok(staged.is_taken());
            }
        }
    }

    /// Writes what is staged, durably or not, while others may append. Returns `false` if the file is
    /// not taken.
    pub(crate) fn write_out(&self, writing: &mut Part<'_>, is_durable: bool) -> io::Result<bool> {
        let (offset, size, end, is_append, is_unflushed) = {
            let staged = self.stage.staged()?;
            staged.failed()?;
            if !staged.is_taken() {
                return Ok(false);
            }
            let (offset, blocks) = staged.unwritten();
            // What is all written has its last block in there.
            let is_new = staged.written() < staged.length();
            let size = if is_new { blocks.len() } else { 0 };
            writing[..size].copy_from_slice(&blocks[..size]);
            (offset, size, staged.length(), staged.is_append(), staged.needs_flush())
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
        let mut staged = self.stage.staged()?;
        if let Err(error) = result {
            staged.set_failed(error);
            return Err(error.into());
        }
        staged.set_needs_flush(!is_durable);
        staged.is_written(end);
        Ok(true)
    }

    /// Writes what is staged, without making it durable, while nobody may append.
    fn write_staged(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        let (offset, blocks) = staged.unwritten();
        let flags = flags(staged.is_append(), false);
        if let Err(error) = write(self.file.as_fd(), blocks, offset, flags) {
            staged.set_failed(error);
            return Err(error.into());
        }
        staged.set_needs_flush(true);
        let end = staged.length();
        staged.is_written(end);
        Ok(())
    }

    pub(crate) fn write(&self, bytes: &[u8], offset: u64, is_append: bool) -> Result<(), Errno> {
        write(self.file.as_fd(), bytes, offset, flags(is_append, true))
    }

    pub(crate) fn failed(&self, error: Errno) -> io::Error {
        if let Ok(mut staged) = self.stage.staged() {
            staged.set_failed(error);
        }
        error.into()
    }

    /// Makes everything durable, cuts the file at the end of the log, and leaves it as it was opened;
    /// the kernel writes to it from now on.
    ///
    /// # Errors
    /// The first failure, if there was one, and otherwise that of this call. The file may then be
    /// longer than the log.
    pub fn release(&self) -> io::Result<()> {
        self.by_kernel(|| ())
    }

    /// Releases the file for good: it is not taken again. So it is safe to hand the open file to somebody
    /// who does not know of the stage.
    ///
    /// # Errors
    /// As [`release`](Self::release).
    pub fn give_up(&self) -> io::Result<()> {
        self.stage.staged()?.give_up();
        self.release()
    }

    /// Releases the file, and then does something to it while no other process takes or writes it.
    ///
    /// # Errors
    /// That of the release. `then` is not called in this case.
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

    /// Ends direct I/O on a file that is not taken, if somebody could not do so who has given it back: who
    /// mends what killed processes leave does not have the open file. Returns whether it was direct.
    ///
    /// # Errors
    /// If the kernel does not do it.
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

    /// Does something to a file that is not taken while no other process takes or writes it. Returns
    /// `None` if it is taken now.
    ///
    /// # Errors
    /// The first failure, if there was one.
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

    /// Writes what is staged, cuts the file, and ends direct I/O. If a write or flush has failed, now or
    /// before, the file is cut behind what is in it.
    pub(crate) fn give_back(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        let (length, is_append) = (staged.length(), staged.is_append());
        if staged.failed().is_ok() && staged.written() < length {
            let (offset, blocks) = staged.unwritten();
            match self.write(blocks, offset, is_append) {
                Ok(()) => staged.is_written(length),
                Err(error) => staged.set_failed(error),
            }
        }
        let end = staged.written();
        // Who has had to wait too long for a lease may have appended behind the zeros.
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

/// What is said of bytes that were appended.
fn appended(staged: &mut Staged<'_>) -> Appended {
    let ahead_of_log = staged.zeroed().saturating_sub(staged.length());
    let is_urgent = staged.is_filling() || ahead_of_log < ahead(staged.length()) / 2;
    if staged.tell(is_urgent) { Appended::TellKeeper } else { Appended::Whole }
}

/// Whether the kernel has [`NO_APPEND`]. Older ones refuse the unknown flag, so they are not asked.
pub(crate) static HAS_NO_APPEND: LazyLock<bool> = LazyLock::new(|| {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 9),
        _ => false,
    }
});

/// What a write is told beside its offset.
pub(crate) fn flags(is_append: bool, is_durable: bool) -> ReadWriteFlags {
    let mut flags = ReadWriteFlags::empty();
    flags.set(ReadWriteFlags::DSYNC, is_durable && !is_planted("sync-undurable"));
    flags.set(NO_APPEND, is_append && *HAS_NO_APPEND);
    flags
}

/// One write. A short one is an error.
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
