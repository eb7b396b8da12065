//! The claim of a volume: a new owner can't take it before the previous owner is gone. An owner is
//! gone once its process has ended, and all operations that the process had in flight have ended,
//! too.
//!
//! If a process is killed, a write that the kernel has already given to a device stays in flight
//! until the device has executed it. Meanwhile, a new owner may write to the same place, and the
//! old write then overwrites the new data. No system call of another process waits for such a
//! write, not even `fsync`. But the kernel keeps an open file description as long as an operation
//! uses the description, or is in flight on a ring that has the description registered. So the
//! owner of a volume has a *claim*, an open file description that only one process can have:
//!
//! | | the claim | who keeps it |
//! |---|---|---|
//! | directory | its file `claim`, locked | each ring of a path registers it |
//! | block device | the device, opened exclusively | each path uses it for its operations |
//! | NVMe namespace | its block device, opened exclusively | each ring of a path registers it |
//!
//! A path is one way to a volume's files or device, with a queue of its own.
//!
//! Nothing of a volume is read before its claim is taken. If a living process has the claim, the
//! volume is refused. The claim itself does not show whether a living process has it: the
//! directory's lock shows this, or a search for the holders of the device. If only operations in
//! flight still hold the claim, the new owner waits until they have ended.

use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::{Duration, Instant};

use slimio_planted::is_planted;
use slimio_ring::{Errno, Memory, Ring, Width};

use crate::{OpenError, holders};

/// Name of the file whose lock is the claim of a directory. The kernel keeps the lock until the
/// last operation of the process that used the directory has ended.
pub const CLAIM_FILE_NAME: &str = "claim";

/// An open file description that no other process can have. The claim is released when nothing uses
/// the description any more. No code unlocks the file earlier, because an operation in flight may
/// still depend on the claim.
#[derive(Clone, Debug)]
pub(crate) struct Claim(Arc<Claimed>);

#[derive(Debug)]
struct Claimed {
    file: File,
    /// A lock that shows other processes that a living process has the claim. Even a process
    /// without permission to look at our descriptors sees this lock.
    _shown: Option<File>,
}

impl Claim {
    /// Makes a claim of `file`, which was opened or locked exclusively. `shown` is a lock by which
    /// other processes see that a living process has the claim.
    pub(crate) fn of(file: File, shown: Option<File>) -> Self {
        Self(Arc::new(Claimed { file, _shown: shown }))
    }

    /// Takes the claim of a directory whose lock this process holds. Waits for the claim if
    /// necessary.
    ///
    /// # Errors
    /// [`OpenError::StillInFlight`] when the claim does not become free; [`OpenError::InUse`] when
    /// a living process has the claim although the directory's lock file was deleted; another error
    /// when the kernel can't lock.
    pub(crate) fn of_directory(directory: &Path) -> Result<Self, OpenError> {
        let path = directory.join(CLAIM_FILE_NAME);
        let failed = |error: io::Error| OpenError::io("claiming", &path, &error);
        let file = open_to_lock(&path).map_err(failed)?;
        if is_planted("claim-not-awaited") {
            return Ok(Self::of(file, None));
        }
        let patience = Patience::DEFAULT;
        let (began, mut is_looked_up) = (Instant::now(), false);
        patience.wait_for(&path, || match file.try_lock() {
            Ok(()) => Ok(Some(())),
            // The holder is looked up only after a while, because a process that is being killed
            // keeps the claim a moment longer than the directory's lock.
            Err(TryLockError::WouldBlock)
                if began.elapsed() >= patience.first_word && !is_looked_up =>
            {
                is_looked_up = true;
                match holders::living_of_lock(&file) {
                    Some(holder) => {
                        let path = directory.to_path_buf();
                        Err(OpenError::InUse { path, holder: Some(holder) })
                    }
                    None => Ok(None),
                }
            }
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(failed(error)),
        })?;
        Ok(Self::of(file, None))
    }

    pub(crate) fn file(&self) -> &File {
        &self.0.file
    }

    /// Registers the claim with a ring, which keeps it until the ring's last operation has ended.
    ///
    /// # Errors
    /// If the kernel can't register the claim.
    pub(crate) fn be_held_by<T: Copy, M: Memory, W: Width>(
        &self,
        ring: &mut Ring<T, M, W>,
    ) -> Result<(), Errno> {
        if is_planted("claim-not-registered") { Ok(()) } else { ring.hold(self) }
    }
}

/// Opens a file that is used only for its lock. Makes the file if it is missing.
pub(crate) fn open_to_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

/// How long to wait for a claim, and how often to log the wait.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// The time between two tries.
    pause: Duration,
    first_word: Duration,
    /// The time between two log lines.
    next_word: Duration,
    limit: Duration,
}

impl Patience {
    /// After a process has ended without operations in flight, its claim is free within about 30
    /// ms. Operations in flight keep the claim until the device finishes them or the driver gives
    /// them up. Most drivers time out after 30 s, and retry several times.
    pub(crate) const DEFAULT: Self = Self {
        pause: Duration::from_millis(3),
        first_word: Duration::from_secs(1),
        next_word: Duration::from_secs(10),
        limit: Duration::from_secs(300),
    };

    /// Repeats `attempt` until it returns a value, and logs a long wait. `path` names the claim in
    /// messages.
    ///
    /// # Errors
    /// [`OpenError::StillInFlight`] when `limit` has passed; any error of `attempt`.
    pub(crate) fn wait_for<T>(
        self,
        path: &Path,
        mut attempt: impl FnMut() -> Result<Option<T>, OpenError>,
    ) -> Result<T, OpenError> {
        let began = Instant::now();
        let mut word_at = self.first_word;
        loop {
            let taken = attempt()?;
            let waited = began.elapsed();
            if let Some(taken) = taken {
                if word_at > self.first_word {
                    log::info!("{} is free after {:.1} s", path.display(), waited.as_secs_f64());
                }
                return Ok(taken);
            }
            if waited >= self.limit {
                let waited_seconds = waited.as_secs();
                return Err(OpenError::StillInFlight { path: path.to_path_buf(), waited_seconds });
            }
            if waited >= word_at {
                word_at += self.next_word;
                log::warn!(
                    "waiting for {}: operations of a process that has ended are still in flight on \
                     the device, and may yet change the device's data ({} s so far, {} s at most)",
                    path.display(),
                    waited.as_secs(),
                    self.limit.as_secs()
                );
            }
            sleep(self.pause);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Patience = Patience {
        pause: Duration::from_micros(100),
        first_word: Duration::from_millis(1),
        next_word: Duration::from_millis(1),
        limit: Duration::from_millis(20),
    };

    #[test]
    fn waiting_ends_with_an_error() {
        let mut tries = 0;
        let refused = SHORT.wait_for(Path::new("/data/claim"), || {
            tries += 1;
            Ok(None::<()>)
        });
        let refused = refused.expect_err("the claim never becomes free");
        assert!(matches!(refused, OpenError::StillInFlight { .. }), "{refused}");
        assert!(refused.to_string().starts_with("/data/claim is not free after 0 s"), "{refused}");
        assert!(tries > 1, "the claim was tried only once");
    }

    #[test]
    fn what_goes_wrong_is_not_waited_for() {
        let mut tries = 0;
        let refused = SHORT.wait_for(Path::new("device"), || {
            tries += 1;
            Err::<Option<()>, _>(OpenError::Missing { path: "device".into() })
        });
        assert_eq!((refused, tries), (Err(OpenError::Missing { path: "device".into() }), 1));
    }

    #[test]
    fn it_is_longer_than_drivers_take_to_give_up() {
        let Patience { pause, first_word, limit, .. } = Patience::DEFAULT;
        assert!(limit > Duration::from_secs(4 * 30));
        assert!(first_word > Duration::from_millis(100), "an ordinary restart logs a wait");
        assert!(pause < Duration::from_millis(10), "an ordinary restart is slowed down");
    }

    #[test]
    fn as_long_as_anybody_shares_it_it_is_held() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let claim = Claim::of_directory(place.path()).expect("the claim is free");
        let shared = claim.clone();
        let other =
            File::open(place.path().join(CLAIM_FILE_NAME)).expect("the claim's file exists");
        drop(claim);
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(shared);
        // This call may wait for a moment: if another test is just starting a child process, the
        // child shares the descriptor briefly.
        Claim::of_directory(place.path()).expect("the claim is released");
    }
}
