//! Takes over a log file. A file that is taken is written by the short path. The stage, which is
//! shared memory, collects the bytes that the program appends. One direct write then puts these
//! bytes over zeros that the file already has.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::PathBuf;

use rustix::fs::{Advice, OFlags};
use rustix::io::{Errno, retry_on_intr};
use slimio_device::{WriteLease, cached_pages};
use slimio_planted::is_planted;

use crate::log_file::{BLOCK, HAS_NO_APPEND, LogFile};
use crate::staged::Staged;
use crate::{Identity, Probe, Refusal};

/// Why a file was not taken.
#[derive(Debug)]
pub enum NotTaken {
    /// The file can't take the short path, for these reasons. Nothing was changed.
    Refused(Vec<Refusal>),
    /// The file is already taken, somebody else has the file open or has just changed it, or the
    /// program does not write at the file's end. Nothing was changed.
    Busy,
    /// The file was [given up](LogFile::give_up).
    GivenUp,
    /// An operation failed with this error. After a write of the log's bytes or a flush has failed,
    /// the file is never taken again with this stage.
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

/// The facts about a file that must be known before the file is taken.
struct Found {
    flags: OFlags,
    of: Identity,
    length: u64,
    /// When the file was changed last: seconds and nanoseconds.
    changed: (i64, i64),
    /// The bytes of the file's last block, if that block is not full.
    tail: Vec<u8>,
}

impl<F: AsFd> LogFile<F> {
    /// Takes the file over. The file's end is the end of the log. Everything in the file is durable
    /// afterwards. The call opens the file once more and closes this second descriptor, which drops
    /// the record locks (`F_SETLK`) that the process has on the file.
    ///
    /// # Errors
    /// If the file can't take the short path, or if an operation fails. The file is then unchanged,
    /// with one exception: after a failed write, zeros may be at its end.
    pub fn take(&self) -> Result<(), NotTaken> {
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        check_stage(&staged)?;
        let found = self.look(&mut staged)?;
        self.begin(&mut staged, &found)
    }

    /// Takes the file over as [`take`](Self::take) does, under a write lease.
    ///
    /// # Errors
    /// The errors of [`take`](Self::take), and [`NotTaken::Busy`] if somebody else has the file
    /// open.
    pub fn take_leased<L: AsFd>(&self, file: L) -> Result<WriteLease<L>, NotTaken> {
        let _writing = self.stage.writing()?;
        let mut staged = self.stage.staged()?;
        check_stage(&staged)?;
        let found = self.look(&mut staged)?;
        let lease = WriteLease::take(file)?.ok_or(NotTaken::Busy)?;
        self.begin(&mut staged, &found)?;
        Ok(lease)
    }

    /// Makes the file durable, and examines it.
    fn look(&self, staged: &mut Staged<'_>) -> Result<Found, NotTaken> {
        let file = self.file.as_fd();
        if let Err(error) = retry_on_intr(|| rustix::fs::fdatasync(file)) {
            // The kernel reports a failed write to one sync of an open file. The program has the
            // same open file, so its next sync would succeed.
            if is_loss(error) && !is_planted("sync-error-eaten") {
                staged.set_failed(error);
            }
            return Err(error.into());
        }
        // The program's descriptor may be for writing only, so the file is opened once more.
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
        let of = Identity::of(&reader)?;
        if of.born == 0 {
            return Err(NotTaken::Refused(vec![Refusal::Ageless]));
        }
        Ok(Found { flags, of, length, changed, tail })
    }

    /// Prepares the file for direct I/O, and the stage for the bytes that will be appended.
    fn begin(&self, staged: &mut Staged<'_>, found: &Found) -> Result<(), NotTaken> {
        let file = self.file.as_fd();
        let is_append = found.flags.contains(OFlags::APPEND);
        let now = rustix::fs::fstat(file)?;
        let changed = (now.st_ctime, now.st_ctime_nsec as i64);
        let position = rustix::fs::tell(file)?;
        // Only whole blocks can be written. So to overwrite earlier bytes, the bytes around them
        // must be read.
        let is_readable = found.flags & OFlags::RWMODE == OFlags::RDWR;
        let is_at_end = is_append || is_readable || position == found.length;
        if now.st_size as u64 != found.length || changed != found.changed || !is_at_end {
            return Err(NotTaken::Busy);
        }
        // After the first direct write, a cached page would be stale. A dirty page would undo that
        // write when the page is written back. So this call asks the kernel to drop the cached
        // pages. The kernel keeps pages that are mapped.
        rustix::fs::fadvise(file, 0, None, Advice::DontNeed)?;
        if cached_pages(file).is_some_and(|pages| pages > 0) && !is_planted("taken-while-mapped") {
            return Err(NotTaken::Refused(vec![Refusal::Cached]));
        }
        let mut direct = found.flags | OFlags::DIRECT;
        // A kernel that does not know `RWF_NOAPPEND` would ignore the offset of a write if the file
        // kept `O_APPEND`.
        direct.set(OFlags::APPEND, is_append && *HAS_NO_APPEND);
        // If this process is killed after it has changed the flags, whoever restores them must know
        // what they were.
        staged.set_opened(is_append, is_readable, position);
        rustix::fs::fcntl_setfl(file, direct)?;
        staged.begin(found.of, found.length, &found.tail);
        // The last block is written whole, so that the file ends at a block's end.
        let (offset, block) = staged.last();
        let zeroed = offset + block.len() as u64;
        let written = if block.is_empty() { Ok(()) } else { self.write(block, offset, is_append) };
        if let Err(error) = written {
            if is_damage(error) {
                staged.set_failed(error);
            }
            if let Err(failed) = self.give_back(staged) {
                // The program must not write to the file as it is now.
                staged.set_failed(error);
                return Err(failed.into());
            }
            return Err(error.into());
        }
        staged.set_zeroed(zeroed);
        Ok(())
    }
}

/// Whether the stage allows to take the file.
fn check_stage(staged: &Staged<'_>) -> Result<(), NotTaken> {
    if staged.is_given_up() {
        return Err(NotTaken::GivenUp);
    }
    // The stage of a file that is taken has bytes that are not in the file yet.
    if staged.is_taken() && !is_planted("taken-twice") {
        return Err(NotTaken::Busy);
    }
    // If a write or flush has failed, staged bytes may be lost, and the program may not know it
    // yet. The program's next sync must fail, but `Staged::begin` would clear the failure. So
    // the file is not taken again.
    if !is_planted("failure-forgotten") {
        staged.failed()?;
    }
    Ok(())
}

/// Whether an error of a sync can mean that bytes are lost.
fn is_loss(error: Errno) -> bool {
    let is_refusal =
        matches!(error, Errno::INVAL | Errno::BADF | Errno::ROFS | Errno::OPNOTSUPP | Errno::NOSYS);
    !is_refusal
}

/// Whether a write that failed with this error may have changed the file.
fn is_damage(error: Errno) -> bool {
    let is_refusal =
        matches!(error, Errno::NOSPC | Errno::DQUOT | Errno::FBIG | Errno::NOMEM | Errno::AGAIN);
    is_loss(error) && !is_refusal
}
