//! The folder of the stages. A stage has bytes that a program has appended to a log and that are
//! not in the log's file yet. The keeper is the process that looks after the program's logs. The
//! folder is in memory: bytes in a stage outlive the program and its keeper, but are lost when the
//! machine stops.
//!
//! A process that uses a stage has the stage's file locked (`F_SETLK`; a forked child does not
//! inherit this lock). A stage that no process has locked is left over, and the next keeper mends
//! the stage's log.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, CWD, FlockOperation, OFlags, linkat};
use rustix::process::geteuid;
use slimio_device::{FileSystem, WriteLease};
use slimio_planted::is_planted;

use crate::{Identity, Mended, Stage, Totals, ending, tables};

const NAME: &str = "slimio-shortcut";
const SUFFIX: &str = "stage";
/// The flag of open(2) that makes a file without a name in a folder.
const TMPFILE: i32 = OFlags::TMPFILE.bits().cast_signed();
/// Permissions of the folder. Other users may not even see the names in it.
const MODE: u32 = 0o700;

/// The folder of this user's stages.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// A log that has a stage in the folder.
#[derive(Debug)]
pub struct Staged {
    /// Where the log's file was when the short path was begun for the log. The file may have been
    /// renamed since.
    pub path: PathBuf,
    /// Whether a process uses the stage. If no process does, the log needs mending.
    pub is_used: bool,
    /// Whether the process that uses the stage was killed but has not ended, because a write is
    /// still in flight.
    pub(crate) is_ending: bool,
    stage: Stage,
    stage_path: PathBuf,
    /// The stage's file, which this process has locked unless another process uses the stage.
    _lock: File,
}

impl Folder {
    /// This user's folder, which is made if it is missing.
    ///
    /// # Errors
    /// If none of the possible places for the folder can be used.
    pub fn of_user() -> io::Result<Self> {
        let user = geteuid();
        let mut places = Vec::new();
        if user.is_root() {
            places.push(Path::new("/run").join(NAME));
        } else if let Some(runtime) = std::env::var_os("XDG_RUNTIME_DIR") {
            places.push(Path::new(&runtime).join(NAME));
        }
        places.push(Path::new("/dev/shm").join(format!("{NAME}-{}", user.as_raw())));
        let mut why = None;
        for place in places {
            match Self::at(&place) {
                Ok(folder) => return Ok(folder),
                Err(error) => {
                    let kind = error.kind();
                    why = Some(io::Error::new(kind, format!("{}: {error}", place.display())));
                }
            }
        }
        Err(why.expect("there is at least one place"))
    }

    /// The folder at this path, which is made if it is missing.
    ///
    /// # Errors
    /// If the folder can't be made, is not in memory, belongs to another user, or is accessible to
    /// other users.
    pub fn at(path: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(MODE).create(path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
            _ => {}
        }
        let metadata = fs::symlink_metadata(path)?;
        let is_own = metadata.is_dir() && metadata.uid() == geteuid().as_raw();
        if !is_own || metadata.mode() & 0o077 != 0 {
            let why = "not a folder that only this user may access; remove it";
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, why));
        }
        let kind = FileSystem::of(&File::open(path)?)?.kind;
        if kind != "tmpfs" {
            let why = format!("the folder is on {kind}, not in memory (tmpfs)");
            return Err(io::Error::new(io::ErrorKind::Unsupported, why));
        }
        Ok(Self { path: path.to_owned() })
    }

    /// The folder's path.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Counts of files, and of writes and syncs, since the running keepers were started. Only files
    /// that programs overwrite in whole blocks are counted.
    pub fn totals(&self) -> Totals {
        tables::totals(&self.path)
    }

    /// Makes a stage called `name`, and locks it.
    ///
    /// # Errors
    /// If there is no room for the stage.
    pub(crate) fn create(&self, name: &str) -> io::Result<(PathBuf, File, Stage)> {
        let path = self.path.join(name).with_extension(SUFFIX);
        let (file, stage) = self.create_locked(&path, Stage::create)?;
        Ok((path, file, stage))
    }

    /// Makes a file without a name, locks it, and calls `fill` to fill it. Only then, the file gets
    /// the name `path`, which is in this folder. If other processes could find the file before it
    /// was locked and filled, they would believe that it is left over, and remove it.
    ///
    /// # Errors
    /// If there is no room for the file, if the name is taken, or if `fill` fails. Then no file is
    /// left.
    pub(crate) fn create_locked<T>(
        &self,
        path: &Path,
        fill: impl FnOnce(&File) -> io::Result<T>,
    ) -> io::Result<(File, T)> {
        let mut options = OpenOptions::new();
        options.read(true).write(true).mode(0o600).custom_flags(TMPFILE);
        let file = options.open(&self.path)?;
        let give_name = || {
            let unnamed = format!("/proc/self/fd/{}", file.as_raw_fd());
            linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW)
        };
        if is_planted("stage-named-early") {
            give_name()?;
        }
        lock_stage(&file)?;
        let filled = fill(&file)?;
        if !is_planted("stage-named-early") {
            give_name()?;
        }
        Ok((file, filled))
    }

    /// The stages that have a log. Removes each stage that has no log and that no process uses.
    ///
    /// # Errors
    /// If the folder can't be read.
    pub fn staged(&self) -> io::Result<Vec<Staged>> {
        let mut found = Vec::new();
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != SUFFIX) {
                continue;
            }
            // The stage may have been removed meanwhile.
            let Ok(file) = OpenOptions::new().read(true).write(true).open(&path) else { continue };
            let locked = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
            let is_used = locked.is_err();
            let is_ending = is_used && ending::is_holder_ending(&file);
            let stage = match Stage::open(&file) {
                Ok(stage) => stage,
                Err(_) if is_used => continue,
                Err(_) => {
                    fs::remove_file(&path)?;
                    continue;
                }
            };
            if stage.file()?.is_some() {
                let log = stage.path()?;
                let stage_path = path;
                found.push(Staged {
                    path: log,
                    is_used,
                    is_ending,
                    stage,
                    stage_path,
                    _lock: file,
                });
            } else if !is_used {
                fs::remove_file(&path)?;
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(found)
    }
}

impl Staged {
    /// Length of the log in bytes. The log's file can be longer: after the log, it has zeros.
    ///
    /// # Errors
    /// If this thread has locked the stage already.
    pub fn length(&self) -> io::Result<u64> {
        Ok(self.stage.staged()?.length())
    }

    /// Mends the log of a stage that no process uses, and removes the stage. Returns the log file's
    /// present path.
    ///
    /// A forked child of the program may still have the file open, and so keep the program's lease
    /// alive. This call waits until the child ends, or until the kernel takes the lease away.
    ///
    /// # Errors
    /// If the file is not found, was changed by another program in the meantime, or can't be
    /// written. File and stage then stay as they are.
    pub fn mend(&self, say: impl Fn(&str)) -> io::Result<(PathBuf, Mended)> {
        assert!(!self.is_used, "a stage that a process uses must not be mended");
        let of = self.stage.file()?.expect("the stage has a log");
        let (path, file) = match find(&self.path, of, true) {
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                say(&format!(
                    "{}: a process that was forked by the killed program still has this log open; \
                     waiting until it closes the log, at most for the time in \
                     /proc/sys/fs/lease-break-time",
                    self.path.display()
                ));
                find(&self.path, of, false)?
            }
            other => other?,
        };
        // A forked child that has the file open can keep this process from getting the lease.
        // Mending goes on without the lease, because such a child does not write: if it did, it
        // would have locked the stage.
        let _lease = WriteLease::take(&file);
        let mended = self.stage.mend(&file)?;
        fs::remove_file(&self.stage_path)?;
        Ok((path, mended))
    }

    /// Removes the stage of a log whose file [`mend`](Self::mend) has not found, if the file is
    /// gone for good. Returns whether the stage was removed.
    ///
    /// The file counts as gone for good under two conditions. First, the log's records say where
    /// the log ends: a database can use such a log without the short path, too, and removes the
    /// file when it no longer needs the log. Second, the log's folder exists, on the same device as
    /// before: if the folder is missing, the file may come back when its file system is mounted.
    ///
    /// # Errors
    /// If the stage can't be removed.
    pub fn forget_if_gone(&self) -> io::Result<bool> {
        let Some(of) = self.stage.file()? else { return Ok(false) };
        let folder = self.path.parent().and_then(|folder| Identity::at(folder).ok());
        let is_there = folder.is_some_and(|folder| folder.device == of.device);
        if !is_there || !self.stage.staged()?.is_self_ending() {
            return Ok(false);
        }
        fs::remove_file(&self.stage_path)?;
        Ok(true)
    }

    /// The file of the stage.
    pub fn stage_path(&self) -> &Path {
        &self.stage_path
    }
}

/// Marks a stage's file as in use by this process.
///
/// # Errors
/// If another process is mending the log.
pub fn lock_stage(file: &File) -> io::Result<()> {
    Ok(rustix::fs::fcntl_lock(file, FlockOperation::NonBlockingLockShared)?)
}

/// Opens the file that has this identity: at its path or, if it was renamed, elsewhere in the same
/// folder. If `is_hasty`, does not wait for a process that holds a lease on the file, but fails
/// with `WouldBlock`.
fn find(path: &Path, of: Identity, is_hasty: bool) -> io::Result<(PathBuf, File)> {
    let open = |path: PathBuf| {
        if Identity::at(&path).ok()? != of {
            return None;
        }
        let flags = if is_hasty { OFlags::NONBLOCK } else { OFlags::empty() };
        let flags = flags.bits().cast_signed();
        let mut options = OpenOptions::new();
        let file = options.read(true).write(true).custom_flags(flags).open(&path);
        Some(file.map(|file| (path, file)))
    };
    if let Some(found) = open(path.to_owned()) {
        return found;
    }
    let folder = path.parent().unwrap_or(Path::new("/"));
    for entry in fs::read_dir(folder)? {
        if let Some(found) = open(entry?.path()) {
            return found;
        }
    }
    Err(io::Error::new(io::ErrorKind::NotFound, "the log's file is gone"))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};

    use super::*;

    /// `slimio shortcut status` looks at all stages, and so does `slimio shortcut run` before it
    /// starts its program.
    #[test]
    fn a_stage_is_whole_and_locked_whenever_others_find_it() {
        let place = tempfile::tempdir_in("/dev/shm").expect("/dev/shm is writable");
        let folder = Folder::at(&place.path().join("stages")).expect("the folder is in memory");
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let looker = scope.spawn(|| {
                let mut cut = Vec::new();
                while !is_over.load(Ordering::Relaxed) {
                    for entry in fs::read_dir(folder.path()).expect("the folder exists") {
                        let path = entry.expect("the folder can be read").path();
                        // A lock does not hinder the process that has it, so the test can't see
                        // the lock. Instead, the test looks at the contents of the file, which are
                        // written after the file is locked.
                        if fs::metadata(&path).is_ok_and(|metadata| metadata.len() == 0) {
                            cut.push(path);
                        }
                    }
                }
                cut
            });
            for number in 0..2000 {
                let made = folder.create(&number.to_string()).expect("there is room for a stage");
                fs::remove_file(made.0).expect("the stage has a name");
            }
            is_over.store(true, Ordering::Relaxed);
            let cut = looker.join().expect("the looker does not panic");
            assert!(cut.is_empty(), "{cut:?}");
        });
        folder.create("one").expect("there is room for a stage");
        let again = folder.create("one").map_err(|error| error.kind());
        assert_eq!(again.err(), Some(io::ErrorKind::AlreadyExists));
    }
}
