//! What the keeper does for files that are overwritten in whole blocks. The keeper is the process
//! that looks after the logs of programs. It has a table of the debts of these files, and reports
//! how the files are written. A file has a debt if it has changes that only the kernel can make
//! durable.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd as _;
use std::path::{Path, PathBuf};

use rustix::fs::{FlockOperation, MemfdFlags, OFlags};

use crate::debts::{Debts, Totals};
use crate::fill::fill;
use crate::{Folder, Probe, Space};

const SUFFIX: &str = "debts";
const DIRECT: &str = "left to the kernel: the program itself uses direct I/O";

/// The table of debts of all files that the processes of one keeper have opened.
#[derive(Debug)]
pub(crate) struct Table {
    file: File,
    path: Option<PathBuf>,
    /// Messages about files, each with the folder of its file. A message is given once for a
    /// folder, because some programs have many such files in one folder.
    said: HashSet<(PathBuf, String)>,
}

impl Table {
    /// Makes a table. If there is a folder, the table is a file in that folder.
    ///
    /// # Errors
    /// If there is no room for the table.
    pub(crate) fn new(folder: Option<&Folder>, name: &str) -> io::Result<Self> {
        let Some(folder) = folder else {
            let file = File::from(rustix::fs::memfd_create("debts", MemfdFlags::CLOEXEC)?);
            Debts::create(&file)?;
            return Ok(Self { file, path: None, said: HashSet::new() });
        };
        remove_left_over(folder.path());
        let path = folder.path().join(name).with_extension(SUFFIX);
        let (file, _) = folder.create_locked(&path, Debts::create)?;
        Ok(Self { file, path: Some(path), said: HashSet::new() })
    }

    /// The file that the table is in.
    pub(crate) fn file(&self) -> &File {
        &self.file
    }

    /// Prepares a file that a process has opened. Returns the message about the file, unless the
    /// same message was given for another file in the same folder.
    pub(crate) fn say_of(&mut self, file: &File, path: &Path) -> Option<String> {
        let open = format!("/proc/self/fd/{}", file.as_raw_fd());
        let probe = || Probe::of(Path::new(&open));
        let mut found = probe();
        let is_unwritten = |space: Space| space.unwritten > 0;
        if let Ok(probed) = &found
            && probed.can_be_taken()
            && probed.space.is_some_and(is_unwritten)
            && fill(file).is_ok_and(|filled| filled > 0)
        {
            found = probe();
        }
        // A program that uses direct I/O itself does not need the short path. It gains only from
        // the blocks that were filled above.
        let is_direct =
            rustix::fs::fcntl_getfl(file).is_ok_and(|flags| flags.contains(OFlags::DIRECT));
        let said = if is_direct { DIRECT.to_owned() } else { said(found) };
        let folder = path.parent().unwrap_or(path).to_owned();
        self.said.insert((folder, said.clone())).then_some(said)
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        if let Some(path) = &self.path {
            let _ = fs::remove_file(path);
        }
    }
}

fn said(probe: io::Result<Probe>) -> String {
    match probe {
        Err(error) => format!("left to the kernel: {error}"),
        Ok(probe) if !probe.can_be_taken() => {
            let why: Vec<String> = probe.refusals.iter().map(ToString::to_string).collect();
            format!("left to the kernel: {}", why.join("; "))
        }
        Ok(Probe { space: Some(Space { written, .. }), size, .. }) if written < size => {
            "written by the short path in those blocks that were written before".to_owned()
        }
        Ok(_) => "written by the short path".to_owned(),
    }
}

/// Removes the tables of killed keepers. Processes that have such a table mapped keep it.
fn remove_left_over(folder: &Path) {
    for (path, file) in tables(folder) {
        if rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive).is_ok() {
            let _ = fs::remove_file(path);
        }
    }
}

/// The sums over the processes of all running keepers: the files that are overwritten in whole
/// blocks, the writes that took the short path, and the syncs that found nothing to do.
pub(crate) fn totals(folder: &Path) -> Totals {
    let mut totals = Totals::default();
    for (_, file) in tables(folder) {
        let is_left_over = rustix::fs::fcntl_lock(&file, FlockOperation::NonBlockingLockExclusive);
        if is_left_over.is_err()
            && let Ok(debts) = Debts::open(&file)
        {
            let more = debts.totals();
            totals.files += more.files;
            totals.writes += more.writes;
            totals.syncs += more.syncs;
        }
    }
    totals
}

fn tables(folder: &Path) -> Vec<(PathBuf, File)> {
    let paths = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let paths = paths.filter(|path| path.extension().is_some_and(|extension| extension == SUFFIX));
    let open = |path: PathBuf| {
        let file = OpenOptions::new().read(true).write(true).open(&path).ok()?;
        Some((path, file))
    };
    paths.filter_map(open).collect()
}
