//! Notes about the logs that are taken. The notes are kept on the disk.
//!
//! A log is called *taken* as long as it is written by the short path: by direct writes into places
//! of the file that already hold zeros. For this, a process called the keeper writes zeros after
//! the last record in advance. So after a power cut, the log still has zeros at its end. The log's
//! note says which file to repair. The note is made durable before the file is taken. The keeper of
//! the log has the note locked (flock(2)).

use std::fs::{self, DirBuilder, File};
use std::io::{self, Read as _, Write as _};
use std::os::unix::ffi::{OsStrExt as _, OsStringExt as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::{Path, PathBuf};

use rustix::fs::FlockOperation;
use rustix::process::geteuid;

use crate::{Repaired, repair};

const NAME: &str = "slimio-shortcut";
const SUFFIX: &str = "taken";

/// The folder of this user's notes.
#[derive(Debug)]
pub struct Notes {
    path: PathBuf,
}

/// A note of a log that is taken. When this value is dropped, the note is removed.
#[derive(Debug)]
pub(crate) struct Note {
    path: PathBuf,
    _lock: File,
}

impl Drop for Note {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

impl Notes {
    /// This user's folder, which is made if it is missing: in `/var/lib` for root, and otherwise
    /// where the environment says (`XDG_STATE_HOME`, `HOME`).
    ///
    /// # Errors
    /// If the environment names no place, or if the folder can't be made.
    pub fn of_user() -> io::Result<Self> {
        let of_home = || Some(PathBuf::from(std::env::var_os("HOME")?).join(".local/state"));
        let place = if geteuid().is_root() {
            Some(PathBuf::from("/var/lib"))
        } else {
            std::env::var_os("XDG_STATE_HOME").map(PathBuf::from).or_else(of_home)
        };
        let place = place.ok_or_else(|| {
            io::Error::new(io::ErrorKind::NotFound, "neither XDG_STATE_HOME nor HOME is set")
        })?;
        Self::at(&place.join(NAME))
    }

    /// The folder at this path, which is made if it is missing.
    ///
    /// # Errors
    /// If the folder can't be made.
    pub fn at(path: &Path) -> io::Result<Self> {
        let made = DirBuilder::new().recursive(true).mode(0o700).create(path);
        made.map_err(|error| io::Error::new(error.kind(), format!("{}: {error}", path.display())))?;
        Ok(Self { path: path.to_owned() })
    }

    /// Makes a durable note that a log is taken. `name` is the note's name.
    ///
    /// # Errors
    /// If the note can't be written.
    pub(crate) fn note(&self, name: &str, log: &Path) -> io::Result<Note> {
        let path = self.path.join(name).with_extension(SUFFIX);
        let mut file = File::create(&path)?;
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive)?;
        file.write_all(log.as_os_str().as_bytes())?;
        file.sync_all()?;
        File::open(&self.path)?.sync_all()?;
        Ok(Note { path, _lock: file })
    }

    /// For every note that no process has locked: cuts the zeros off the end of the log that the
    /// note names, and removes the note. If the cut fails but can succeed later, the note stays.
    /// Reports each cut and each failure by `say`.
    ///
    /// # Errors
    /// If the folder can't be read, or a note can't be removed.
    pub fn repair(&self, say: impl Fn(&str)) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let path = entry?.path();
            if path.extension().is_none_or(|extension| extension != SUFFIX) {
                continue;
            }
            // The note may have been removed meanwhile.
            let Ok(mut file) = File::open(&path) else { continue };
            if rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                continue;
            }
            let mut log = Vec::new();
            if let Err(error) = file.read_to_end(&mut log) {
                say(&format!("{}: the note can't be read: {error}", path.display()));
                continue;
            }
            let log = PathBuf::from(std::ffi::OsString::from_vec(log));
            match repair(&log) {
                Ok(Repaired::Cut { before, now }) => say(&format!(
                    "{}: cut from {before} to {now} bytes: the bytes cut off were zeros, as a power \
                     cut leaves them",
                    log.display()
                )),
                Ok(Repaired::Whole) => {}
                // The log was removed, or the path in its note was not durable yet. A log is taken
                // only after its note is durable, so there is nothing to repair.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    say(&format!("{}: not repaired after a power cut: {error}", log.display()));
                    if error.kind() != io::ErrorKind::InvalidData {
                        continue;
                    }
                }
            }
            fs::remove_file(&path)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use super::*;

    #[test]
    fn a_log_that_nobody_keeps_is_cut_once() {
        let folder = tempfile::tempdir().unwrap();
        let notes = Notes::at(&folder.path().join("a/b")).unwrap();
        let log = folder.path().join("a.aof");
        let zeros = |text: &[u8]| [text, &vec![0; 8192 - text.len()]].concat();
        fs::write(&log, zeros(b"*1\r\n$4\r\nPING\r\n")).unwrap();
        let said = std::cell::RefCell::new(Vec::new());
        // If another test starts a process, that process also has the log open, until it runs its
        // program. `repair` then reports that, and the test tries again.
        let say = |line: &str| {
            if !line.contains("another program has it open") {
                said.borrow_mut().push(line.to_owned());
            }
        };
        let note = notes.note("1", &log).unwrap();
        notes.repair(say).unwrap();
        assert_eq!(fs::metadata(&log).unwrap().len(), 8192, "a log with a keeper must not be cut");
        let left = note.path.clone();
        drop(note);
        assert!(!left.exists());
        // If another test starts a process, that process also has the note's lock, until it runs
        // its program. `repair` then skips the note, so the test tries again.
        let repaired = || {
            let begin = Instant::now();
            while left.exists() {
                assert!(begin.elapsed() < Duration::from_secs(20), "the note was not removed");
                notes.repair(say).unwrap();
            }
        };
        // This is the state after a power cut: the note is there, and no process has locked it.
        fs::write(&left, log.as_os_str().as_bytes()).unwrap();
        repaired();
        assert_eq!(fs::read(&log).unwrap(), b"*1\r\n$4\r\nPING\r\n");
        assert_eq!(said.borrow().len(), 1, "{said:?}");
        // A file that is no log of Redis or Valkey is left as it is.
        fs::write(&log, zeros(b"something else")).unwrap();
        fs::write(&left, log.as_os_str().as_bytes()).unwrap();
        repaired();
        assert_eq!(fs::metadata(&log).unwrap().len(), 8192);
        assert!(said.borrow()[1].contains("zeros at its end may be data"), "{said:?}");
        // If the log no longer exists, or if a power cut has left the note empty, there is no log
        // to repair. The note is removed all the same.
        fs::write(&left, b"").unwrap();
        repaired();
    }
}
