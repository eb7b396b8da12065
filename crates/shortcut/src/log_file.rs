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
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;
use std::sync::LazyLock;

use rustix::fs::{Advice, OFlags, SeekFrom};
use rustix::io::{Errno, ReadWriteFlags};
use slimio_device::{Buffer, LBA_SIZE, Part, WriteLease, cached_pages, end_lease};
use slimio_planted::is_planted;

use crate::stage::Staged;
use crate::{Probe, Refusal, Stage};

const BLOCK: u64 = LBA_SIZE as u64;
/// The least and the most that is filled with zeros ahead of the log, in bytes.
const AHEAD_MIN: u64 = 1 << 20;
const AHEAD_MAX: u64 = 64 << 20;
/// Between these limits, it is the length of the log divided by this.
const AHEAD_SHARE: u64 = 8;
/// Blocks of zeros that are written at once.
const ZEROS_LBAS: usize = 256;

/// `RWF_NOAPPEND` (Linux 6.9): the offset counts although the file was opened with `O_APPEND`.
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// Why a file was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// The file can't go the short way, for these reasons. Nothing was changed.
    Refused(Vec<Refusal>),
    /// Somebody else has the file open, or the program does not write at its end. Nothing was changed.
    Busy,
    /// The file was [given up](LogFile::give_up).
    GivenUp,
    /// Something failed.
    Failed(io::Error),
}

impl From<io::Error> for NotTaken {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

impl From<Errno> for NotTaken {
    fn from(error: Errno) -> Self {
        Self::Failed(error.into())
    }
}

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
    file: F,
    stage: Stage,
}

/// What was found out about a file before it is taken.
struct Found {
    flags: OFlags,
    /// Device and inode number.
    of: (u64, u64),
    length: u64,
    /// When it was changed last: seconds and nanoseconds.
    changed: (i64, i64),
    /// The bytes of its last block, if that is not full.
    tail: Vec<u8>,
}

impl<F: AsFd> LogFile<F> {
    /// The log of a file that is open for writing. If the stage has no log yet, the kernel writes to it
    /// until it is [taken](Self::take).
    pub fn new(file: F, stage: Stage) -> Self {
        Self { file, stage }
    }

    /// Takes the file over; its end is the end of the log. Everything in it is durable afterwards. It is
    /// opened once more meanwhile, so record locks (`F_SETLK`) that this process has on it are lost, as
    /// with any descriptor that is closed.
    ///
    /// # Errors
    /// If the file can't go the short way, or something fails. The file is as it was, but may have
    /// zeros at its end if the failure says that it can't be written.
    pub fn take(&self) -> Result<(), NotTaken> {
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        let found = self.look()?;
        self.begin(&mut staged, &found)
    }

    /// Takes the file over as [`take`](Self::take) does, under a write lease.
    ///
    /// # Errors
    /// As above, and if the file can't be leased.
    pub fn take_leased<L: AsFd>(&self, file: L) -> Result<WriteLease<L>, NotTaken> {
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        let found = self.look()?;
        let lease = WriteLease::take(file)?.ok_or(NotTaken::Busy)?;
        self.begin(&mut staged, &found)?;
        Ok(lease)
    }

    /// Looks at the file.
    fn look(&self) -> Result<Found, NotTaken> {
        let file = self.file.as_fd();
        rustix::fs::fdatasync(file)?;
        // The descriptor itself may be one that can't read.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let probe = Probe::of(&path)?;
        if !probe.can_be_taken() {
            return Err(NotTaken::Refused(probe.refusals));
        }
        let reader = File::open(&path)?;
        let metadata = reader.metadata()?;
        let (length, changed) = (metadata.len(), (metadata.ctime(), metadata.ctime_nsec()));
        let mut tail = vec![0; (length % BLOCK) as usize];
        reader.read_exact_at(&mut tail, length - length % BLOCK)?;
        let flags = rustix::fs::fcntl_getfl(file)?;
        let of = (metadata.dev(), metadata.ino());
        Ok(Found { flags, of, length, changed, tail })
    }

    /// Prepares the file for direct I/O, and the stage for what follows.
    fn begin(&self, staged: &mut Staged<'_>, found: &Found) -> Result<(), NotTaken> {
        if staged.is_given_up() {
            return Err(NotTaken::GivenUp);
        }
        let file = self.file.as_fd();
        let is_append = found.flags.contains(OFlags::APPEND);
        let now = rustix::fs::fstat(file)?;
        let changed = (now.st_ctime, now.st_ctime_nsec as i64);
        let position = rustix::fs::tell(file)?;
        let is_at_end = is_append || position == found.length;
        if now.st_size as u64 != found.length || changed != found.changed || !is_at_end {
            return Err(NotTaken::Busy);
        }
        // A cached page would be stale after the first direct write; a dirty one would undo it when it
        // is written back. The kernel keeps pages that are mapped.
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        if cached_pages(file).is_some_and(|pages| pages > 0) && !is_planted("taken-while-mapped") {
            return Err(NotTaken::Refused(vec![Refusal::Cached]));
        }
        let mut direct = found.flags | OFlags::DIRECT;
        // Without that flag, an offset would not count.
        direct.set(OFlags::APPEND, is_append && *HAS_NO_APPEND);
        rustix::fs::fcntl_setfl(file, direct)?;
        staged.set_opened(is_append, position);
        staged.begin(found.of, found.length, &found.tail);
        // The last block is written whole, so that the file ends with it.
        let (offset, block) = staged.last();
        let zeroed = offset + block.len() as u64;
        let written = if block.is_empty() { Ok(()) } else { self.write(block, offset, is_append) };
        if let Err(error) = written {
            self.give_back(staged)?;
            return Err(error.into());
        }
        staged.set_zeroed(zeroed);
        Ok(())
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
    fn write_out(&self, writing: &mut Part<'_>, is_durable: bool) -> io::Result<bool> {
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
        let flags = self.flags(is_append, is_durable && !is_unflushed);
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
        let flags = self.flags(staged.is_append(), false);
        if let Err(error) = write(self.file.as_fd(), blocks, offset, flags) {
            staged.set_failed(error);
            return Err(error.into());
        }
        staged.set_needs_flush(true);
        let end = staged.length();
        staged.is_written(end);
        Ok(())
    }

    /// One step of what the log's keeper does for it: fills the file with zeros ahead, and writes what
    /// fills the stage. Returns whether there is more to do. Each step takes as long as a write of
    /// 1 MiB.
    ///
    /// # Errors
    /// If a write or flush fails. That the file can't be made longer is no failure here: who appends
    /// will see.
    pub fn keep_up(&self) -> io::Result<bool> {
        let mut writing = self.stage.writing()?;
        let is_filling = {
            let mut staged = self.stage.staged()?;
            staged.heard(true);
            if !staged.is_taken() || staged.failed().is_err() {
                return Ok(false);
            }
            staged.is_filling()
        };
        if is_filling {
            self.write_out(&mut writing, false)?;
        }
        let (start, end, is_append) = {
            let staged = self.stage.staged()?;
            let end = staged.length().next_multiple_of(BLOCK) + ahead(staged.length());
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
    /// Returns `false` if something was appended since the log had `length` bytes; the keeper is not told
    /// then.
    ///
    /// # Errors
    /// If a write or flush fails. The error stays.
    pub fn rest(&self, length: u64) -> io::Result<bool> {
        self.sync()?;
        let mut staged = self.stage.staged()?;
        let rests = !staged.is_taken() || staged.length() == length;
        staged.heard(!rests);
        Ok(rests)
    }

    /// Fills what `more` bytes need with zeros, and a little more if that is possible.
    fn zero_for(&self, staged: &mut Staged<'_>, more: u64) -> io::Result<()> {
        let (start, is_append) = (staged.zeroed(), staged.is_append());
        let needed = end_of_block(staged, more);
        if needed <= start {
            return Ok(());
        }
        let ahead = needed + AHEAD_MIN;
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
        let flags = self.flags(is_append, false);
        let mut at = start;
        while at < end {
            let size = (end - at).min(ZEROS.len() as u64);
            write(self.file.as_fd(), &ZEROS[..size as usize], at, flags)?;
            at += size;
        }
        Ok(())
    }

    fn write(&self, bytes: &[u8], offset: u64, is_append: bool) -> Result<(), Errno> {
        write(self.file.as_fd(), bytes, offset, self.flags(is_append, true))
    }

    #[expect(clippy::unused_self, reason = "it belongs to what the file is told")]
    fn flags(&self, is_append: bool, is_durable: bool) -> ReadWriteFlags {
        let mut flags = ReadWriteFlags::empty();
        flags.set(ReadWriteFlags::DSYNC, is_durable && !is_planted("sync-undurable"));
        flags.set(NO_APPEND, is_append && *HAS_NO_APPEND);
        flags
    }

    fn failed(&self, error: Errno) -> io::Error {
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
    fn give_back(&self, staged: &mut Staged<'_>) -> io::Result<()> {
        let (length, is_append) = (staged.length(), staged.is_append());
        if staged.failed().is_ok() && staged.written() < length {
            let (offset, blocks) = staged.unwritten();
            match self.write(blocks, offset, is_append) {
                Ok(()) => staged.is_written(length),
                Err(error) => staged.set_failed(error),
            }
        }
        let end = staged.written();
        if !is_planted("tail-uncut") {
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
        end_lease(self.file.as_fd());
        Ok(())
    }
}

/// What is said of bytes that were appended.
fn appended(staged: &mut Staged<'_>) -> Appended {
    let ahead_of_log = staged.zeroed().saturating_sub(staged.length());
    let is_urgent = staged.is_filling() || ahead_of_log < ahead(staged.length()) / 2;
    if staged.tell(is_urgent) { Appended::TellKeeper } else { Appended::Whole }
}

/// How much is filled with zeros ahead of a log of this length, in bytes.
fn ahead(length: u64) -> u64 {
    (length / AHEAD_SHARE).clamp(AHEAD_MIN, AHEAD_MAX).next_multiple_of(BLOCK)
}

/// The end of the block that the log would end in with `more` bytes.
fn end_of_block(staged: &Staged<'_>, more: u64) -> u64 {
    staged.length().saturating_add(more).next_multiple_of(BLOCK)
}

/// Whether the kernel has [`NO_APPEND`]. Older ones refuse the unknown flag, so they are not asked.
static HAS_NO_APPEND: LazyLock<bool> = LazyLock::new(|| {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 9),
        _ => false,
    }
});

/// One write. A short one is an error.
fn write(
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
