//! Tells a successor when its predecessor is over: not only the process, but also the operations
//! that it had in flight.
//!
//! A write that the kernel has given to a device outlives a killed process, for as long as the
//! device takes, and overwrites whatever a successor has put there meanwhile. No call of another
//! process waits for it (`fsync` does not). But the kernel keeps an open file description as long
//! as an operation uses it, or is in flight on a ring that has it registered. So the owner of a
//! volume has a *claim*, a description that only one process can have:
//!
//! | | the claim | who keeps it |
//! |---|---|---|
//! | directory | its file `claim`, locked | each ring of a path has it registered |
//! | block device | the device, opened exclusively | each path goes through it |
//! | NVMe namespace | its block device, opened exclusively | each ring of a path has it registered |
//!
//! Nothing of a volume is read before its claim is taken. A claim that a living process has is
//! refused by other means (a directory's lock, the known holders of a device); one that only
//! operations in flight still hold is waited for.

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

/// The file whose lock the kernel keeps until nothing of a directory's last process is in flight.
pub const CLAIM_FILE_NAME: &str = "claim";

/// A description that nobody else has. It is released when everything that shares it is gone:
/// nothing unlocks it, because an operation in flight may still hold it.
#[derive(Clone, Debug)]
pub(crate) struct Claim(Arc<Claimed>);

#[derive(Debug)]
struct Claimed {
    file: File,
    /// Shows that a living process has it, if nothing else shows that.
    _shown: Option<File>,
}

impl Claim {
    /// A file that was opened or locked exclusively, and one that shows a living process's claim.
    pub(crate) fn of(file: File, shown: Option<File>) -> Self {
        Self(Arc::new(Claimed { file, _shown: shown }))
    }

    /// Takes the claim of a directory whose lock is held, and waits for it if necessary.
    ///
    /// # Errors
    /// [`OpenError::StillInFlight`] when it does not become free; [`OpenError::InUse`] when a
    /// living process has it, whose lock was deleted; when the kernel can't lock.
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
            // Not at once: a process that is being killed has it a moment longer than the lock.
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

    /// Lets a ring keep it until its last operation is over.
    ///
    /// # Errors
    /// The kernel's error.
    pub(crate) fn be_held_by<T: Copy, M: Memory, W: Width>(
        &self,
        ring: &mut Ring<T, M, W>,
    ) -> Result<(), Errno> {
        if is_planted("claim-not-registered") { Ok(()) } else { ring.hold(self) }
    }
}

/// Opens a file that only serves to be locked, or makes it.
pub(crate) fn open_to_lock(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)
}

impl AsFd for Claim {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.file.as_fd()
    }
}

/// How long to wait for a claim, and when to log that.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Patience {
    /// Between two tries.
    pause: Duration,
    first_word: Duration,
    /// Between two log lines.
    next_word: Duration,
    limit: Duration,
}

impl Patience {
    /// With nothing in flight, a claim is free after some 30 ms. Otherwise it is free when the
    /// device is done, or the kernel has given up: drivers mostly do that after 30 s, several
    /// times.
    pub(crate) const DEFAULT: Self = Self {
        pause: Duration::from_millis(3),
        first_word: Duration::from_secs(1),
        next_word: Duration::from_secs(10),
        limit: Duration::from_secs(300),
    };

    /// Retries until `attempt` succeeds, and logs when that takes long. `path` is what is claimed.
    ///
    /// # Errors
    /// [`OpenError::StillInFlight`] at the limit; any error of `attempt`.
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
                    "waiting for {}: what a process that has ended gave to its device is not over, \
                     and may yet change what is there ({} s so far, {} s at most)",
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
        let refused = refused.expect_err("it was never taken");
        assert!(matches!(refused, OpenError::StillInFlight { .. }), "{refused}");
        assert!(refused.to_string().starts_with("/data/claim is not free after 0 s"), "{refused}");
        assert!(tries > 1, "it was tried once");
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
        assert!(first_word > Duration::from_millis(100), "ordinary restarts say nothing");
        assert!(pause < Duration::from_millis(10), "ordinary restarts are not slowed down");
    }

    #[test]
    fn as_long_as_anybody_shares_it_it_is_held() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let claim = Claim::of_directory(place.path()).expect("nobody has it");
        let shared = claim.clone();
        let other = File::open(place.path().join(CLAIM_FILE_NAME)).expect("it was made");
        drop(claim);
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(shared);
        // A program that another test is just starting has it for a moment.
        Claim::of_directory(place.path()).expect("it is released");
    }
}
