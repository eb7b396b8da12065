//! A log file that is written the short way.
//!
//! ```text
//!            durable          length                     zeroed
//!  ─────────────┼───────────────┼──────────────────────────┼
//!   on the disk │ in the stage  │ zeros, on the disk       │ nothing
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

use std::fs::File;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;

use rustix::fs::{Advice, OFlags};
use rustix::io::{Errno, ReadWriteFlags};
use slimio_device::{Buffer, LBA_SIZE, cached_pages};
use slimio_planted::is_planted;

use crate::{Probe, Refusal, Stage};

const BLOCK: u64 = LBA_SIZE as u64;
/// The least and the most that is filled with zeros ahead of the log at once, in bytes.
const STEP_MIN: u64 = 1 << 20;
const STEP_MAX: u64 = 64 << 20;
/// Between these limits, it is the length of the log divided by this.
const STEP_SHARE: u64 = 8;
/// Blocks of zeros that are written at once.
const ZEROS_LBAS: usize = 256;

/// `RWF_NOAPPEND` (Linux 6.9): the offset counts although the file was opened with `O_APPEND`.
const NO_APPEND: ReadWriteFlags = ReadWriteFlags::from_bits_retain(0x20);

/// Why a file was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// The file can't go the short way, for these reasons. Nothing was changed.
    Refused(Vec<Refusal>),
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

/// A log file that only this value writes to.
///
/// The first failure of a write or flush stays: every later call fails, too, because it is not known
/// what the disk holds.
#[derive(Debug)]
pub struct LogFile {
    file: File,
    stage: Stage,
    /// Blocks up to here were written, if only with zeros: a write to them changes no metadata.
    /// A multiple of the block.
    zeroed: u64,
    /// Whether the file was opened with `O_APPEND`.
    is_append: bool,
    /// What each write is told beside its offset.
    flags: ReadWriteFlags,
    failed: Option<Errno>,
}

impl LogFile {
    /// Takes a file over that was opened for writing; its end is the end of the log. Everything in it
    /// is durable afterwards. It is opened once more meanwhile, so record locks (`F_SETLK`) that this
    /// process has on it are lost, as with any descriptor that is closed.
    ///
    /// # Errors
    /// If the file can't go the short way, or something fails. The file is as it was, but may have
    /// zeros at its end if the failure says that it can't be written.
    pub fn take(file: File, stage: Stage) -> Result<Self, (File, NotTaken)> {
        let before = match rustix::fs::fcntl_getfl(&file) {
            Ok(flags) => flags,
            Err(error) => return Err((file, error.into())),
        };
        let is_append = before.contains(OFlags::APPEND);
        let mut flags = ReadWriteFlags::DSYNC;
        flags.set(ReadWriteFlags::DSYNC, !is_planted("sync-undurable"));
        flags.set(NO_APPEND, is_append && has_no_append());
        let mut taken = Self { file, stage, zeroed: 0, is_append, flags, failed: None };
        if let Err(why) = taken.prepare(before) {
            let _ = rustix::fs::fcntl_setfl(&taken.file, before);
            return Err((taken.file, why));
        }
        // The last block is written whole, so that the file ends with it.
        let (offset, block) = taken.stage.last();
        taken.zeroed = offset + block.len() as u64;
        if block.is_empty() {
            return Ok(taken);
        }
        match write(&taken.file, block, offset, flags) {
            Ok(()) => Ok(taken),
            Err(error) => Err((taken.give_back().0, error.into())),
        }
    }

    /// Looks at the file, and prepares it for direct I/O, and the stage for what follows.
    fn prepare(&mut self, flags: OFlags) -> Result<(), NotTaken> {
        let file = &self.file;
        rustix::fs::fdatasync(file)?;
        // The descriptor itself may be one that can't read.
        let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        let probe = Probe::of(&path)?;
        if !probe.can_be_taken() {
            return Err(NotTaken::Refused(probe.refusals));
        }
        let length = probe.size;
        let mut tail = vec![0; (length % BLOCK) as usize];
        File::open(&path)?.read_exact_at(&mut tail, length - length % BLOCK)?;
        // A cached page would be stale after the first direct write; a dirty one would undo it when it
        // is written back. The kernel keeps pages that are mapped.
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        if cached_pages(file).is_some_and(|pages| pages > 0) && !is_planted("taken-while-mapped") {
            return Err(NotTaken::Refused(vec![Refusal::Cached]));
        }
        let mut direct = flags | OFlags::DIRECT;
        // Without that flag, an offset would not count.
        direct.set(OFlags::APPEND, self.flags.contains(NO_APPEND));
        rustix::fs::fcntl_setfl(file, direct)?;
        Ok(self.stage.begin(file, length, &tail)?)
    }

    /// Bytes of the log. The file itself is longer.
    pub fn len(&self) -> u64 {
        self.stage.length()
    }

    /// Whether the log has no bytes.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The file. Whoever reads it sees what is durable, and zeros behind that.
    pub fn file(&self) -> &File {
        &self.file
    }

    /// Appends bytes. They are durable after [`sync`](Self::sync); if there are many, a part of them is
    /// written before. As far as they were appended, they outlive the process if the stage does.
    ///
    /// # Errors
    /// `StorageFull` if the disk has no room for them: none of them was appended then, and the log goes
    /// on. Every other error stays.
    pub fn append(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        self.check()?;
        if let Some((needed, ahead)) = self.wants_zeros(bytes.len() as u64) {
            let zeroed = match zero(&self.file, ahead.clone(), self.flags) {
                Ok(()) => Ok(ahead.end),
                // There may be room for just this.
                Err(Errno::NOSPC | Errno::DQUOT) => {
                    zero(&self.file, needed.clone(), self.flags).map(|()| needed.end)
                }
                Err(error) => Err(error),
            };
            self.zeroed = zeroed.map_err(|error| self.seen(error))?;
        }
        while !bytes.is_empty() {
            let count = self.stage.append(bytes);
            if count == 0 {
                self.write_out()?;
            }
            bytes = &bytes[count..];
        }
        Ok(())
    }

    /// Makes everything durable that was appended.
    ///
    /// # Errors
    /// If the write fails. The error stays.
    pub fn sync(&mut self) -> io::Result<()> {
        self.check()?;
        if self.stage.durable() < self.stage.length() { self.write_out() } else { Ok(()) }
    }

    /// The bytes of the file that must be filled with zeros before `more` bytes can be appended, and
    /// those that should be. `None` if there is room for them.
    fn wants_zeros(&self, more: u64) -> Option<(Range<u64>, Range<u64>)> {
        let end = self.len().saturating_add(more).next_multiple_of(BLOCK);
        let ahead = end + (end / STEP_SHARE).clamp(STEP_MIN, STEP_MAX).next_multiple_of(BLOCK);
        (end > self.zeroed).then_some((self.zeroed..end, self.zeroed..ahead))
    }

    /// Writes the blocks that have something that is not durable.
    fn write_out(&mut self) -> io::Result<()> {
        let (offset, blocks) = self.stage.undurable();
        if let Err(error) = write(&self.file, blocks, offset, self.flags) {
            self.failed = Some(error);
            return Err(error.into());
        }
        self.stage.is_durable();
        Ok(())
    }

    fn check(&self) -> io::Result<()> {
        self.failed.map_or(Ok(()), |error| Err(error.into()))
    }

    /// An error while zeros were written: a full disk can become free again, everything else stays.
    fn seen(&mut self, error: Errno) -> io::Error {
        if !matches!(error, Errno::NOSPC | Errno::DQUOT) {
            self.failed = Some(error);
        }
        error.into()
    }

    /// Makes everything durable, cuts the file at the end of the log, and gives it back as it was
    /// opened.
    ///
    /// # Errors
    /// The first failure, if there was one, and otherwise that of this call. The file may then be
    /// longer than the log.
    pub fn release(mut self) -> (File, io::Result<()>) {
        let synced = self.sync();
        let (file, cut) = self.give_back();
        (file, synced.and(cut))
    }

    /// Cuts the file behind what is durable, and then ends direct I/O.
    fn give_back(mut self) -> (File, io::Result<()>) {
        let result = self.cut();
        if result.is_ok() {
            self.stage.end();
        }
        (self.file, result)
    }

    fn cut(&self) -> io::Result<()> {
        if !is_planted("tail-uncut") {
            self.file.set_len(self.stage.durable())?;
        }
        rustix::fs::fdatasync(&self.file)?;
        let flags = rustix::fs::fcntl_getfl(&self.file)? - OFlags::DIRECT;
        let append = if self.is_append { OFlags::APPEND } else { OFlags::empty() };
        Ok(rustix::fs::fcntl_setfl(&self.file, flags | append)?)
    }
}

/// Fills a range of blocks with zeros, and makes them and the file's new size durable.
fn zero(file: &File, range: Range<u64>, flags: ReadWriteFlags) -> Result<(), Errno> {
    let zeros = Buffer::zeroed(ZEROS_LBAS);
    let flags = flags - ReadWriteFlags::DSYNC;
    let mut at = range.start;
    while at < range.end {
        let size = (range.end - at).min(zeros.len() as u64);
        write(file, &zeros[..size as usize], at, flags)?;
        at += size;
    }
    rustix::fs::fdatasync(file)
}

/// Whether the kernel has [`NO_APPEND`]. Older ones refuse the unknown flag, so they are not asked.
fn has_no_append() -> bool {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor) >= (6, 9),
        _ => false,
    }
}

/// One write. A short one is an error.
fn write(file: &File, bytes: &[u8], offset: u64, flags: ReadWriteFlags) -> Result<(), Errno> {
    let written = loop {
        match rustix::io::pwritev2(file, &[IoSlice::new(bytes)], offset, flags) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if written == bytes.len() { Ok(()) } else { Err(Errno::IO) }
}
