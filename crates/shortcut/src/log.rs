//! A log that the keeper looks after. The keeper is a process. It fills the log's file with zeros
//! in advance. It also writes to the file the bytes that programs have appended. Until then, these
//! bytes are in the stage, which is shared memory.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use slimio_device::WriteLease;

use crate::notes::Note;
use crate::{LogFile, NotTaken};

/// After this time, the keeper writes staged bytes even if no process has asked for a sync.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// A log of a process.
pub(crate) struct Log {
    pub(crate) number: u32,
    /// The number that the keeper gave to the process.
    pub(crate) process: u32,
    pub(crate) path: PathBuf,
    pub(crate) file: LogFile,
    pub(crate) stage_path: Option<PathBuf>,
    /// The stage's file, which the keeper has locked. The lock is lost as soon as the keeper closes
    /// any descriptor of the file.
    pub(crate) stage_file: OwnedFd,
    pub(crate) note: Option<Note>,
    pub(crate) lease: Option<WriteLease<File>>,
    /// Whether the file may need zeros beyond the log's end, or the stage may be filling up.
    pub(crate) is_behind: bool,
    /// When the keeper looks at the log again, and where the staged bytes ended at its last look.
    pub(crate) look: Option<(Instant, u64)>,
    /// When the keeper takes the log again, if the log is left to the kernel for now.
    pub(crate) retry: Option<Instant>,
    /// How long the log is left to the kernel the next time.
    pub(crate) pause: Duration,
}

impl Log {
    pub(crate) fn take(&mut self) -> Result<(), NotTaken> {
        let file = self.file.file().try_clone()?;
        // The path is needed to mend the file, so it is set before the file is taken. If `staged`
        // times out, nothing has been changed yet.
        self.file.stage().staged()?.set_path(&self.path);
        // The old lease may still be here, although it ended when the file was given back.
        self.lease = None;
        self.lease = Some(self.file.take_leased(file)?);
        self.is_behind = true;
        Ok(())
    }

    pub(crate) fn staged_to(&self) -> u64 {
        self.file.staged_to().unwrap_or(0)
    }

    pub(crate) fn look_again(&mut self, staged_to: u64) {
        self.look.get_or_insert((Instant::now() + LOOK_EVERY, staged_to));
    }

    pub(crate) fn forget_stage(&mut self) {
        if let Some(path) = self.stage_path.take() {
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The message about a file that a program has opened.
pub(crate) fn said(taken: &Result<(), NotTaken>) -> String {
    match taken {
        Ok(()) => "written by the short path".to_owned(),
        Err(NotTaken::Busy) => {
            "left to the kernel until no other process has the file open and the program writes at \
             the file's end"
                .to_owned()
        }
        Err(NotTaken::GivenUp) => {
            "left to the kernel: the program uses it in a way that the short path does not support"
                .to_owned()
        }
        Err(NotTaken::Refused(refusals)) => {
            let why: Vec<String> = refusals.iter().map(ToString::to_string).collect();
            format!("left to the kernel: {}", why.join("; "))
        }
        Err(NotTaken::Failed(error)) if error.kind() == io::ErrorKind::PermissionDenied => {
            "left to the kernel: only the file's owner can hold a lease on it".to_owned()
        }
        Err(NotTaken::Failed(error)) => format!("left to the kernel: {error}"),
    }
}

/// Whether a call on the stage failed because another process held a lock of the stage for too
/// long.
pub(crate) fn is_late<T>(result: &io::Result<T>) -> bool {
    result.as_ref().is_err_and(is_lateness)
}

/// Whether an error says that another process held a lock of the stage for too long. A disk can
/// time out, too, but such an error has a number of the system.
pub(crate) fn is_lateness(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none()
}

#[cfg(test)]
mod tests {
    use rustix::io::Errno;

    use super::*;

    #[test]
    fn a_disk_that_times_out_is_not_a_lock_that_is_late() {
        assert!(is_late::<()>(&Err(io::ErrorKind::TimedOut.into())));
        assert!(!is_late::<()>(&Err(Errno::TIMEDOUT.into())));
    }
}
