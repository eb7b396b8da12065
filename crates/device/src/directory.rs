//! A directory of files, each of which is a linear space of blocks of its own.

use std::collections::{BTreeSet, HashMap};
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use slimio_planted::is_planted;

use crate::bulk::Bulk;
use crate::claim::{CLAIM_FILE_NAME, Claim, open_to_lock};
use crate::engine::Engine;
use crate::mapped_range::{self, is_mapped};
use crate::surroundings::FileSystem;
use crate::sys::Lock;
use crate::target::{Target, TargetKind, reserve};
use crate::{
    Device, IN_FLIGHT_MAX, LBA_SIZE, MappedFile, OpenError, PathOptions, WriteCache, calls, faults,
    holders, sys,
};

/// The file whose lock says that the directory is in use. The holder's process id is in it.
pub const LOCK_FILE_NAME: &str = "lock";

/// A directory that no other process uses as long as this lives, and the way its files are reached.
pub struct Directory {
    path: PathBuf,
    /// For flushing names, and for finding the file system.
    handle: File,
    /// Mappings hold it, too.
    lock: Arc<Lock>,
    claim: Claim,
    file_system: FileSystem,
    engine: Engine,
    options: PathOptions,
    bulk: Bulk,
    /// Why files are not opened for direct I/O, once that is known.
    not_direct: Option<String>,
    /// Files that share blocks with others.
    reflinked: BTreeSet<String>,
    /// Lengths of the files that paths were opened to.
    lba_counts: HashMap<String, Arc<AtomicU64>>,
}

impl Directory {
    /// Takes a directory that exists. While the kernel still has operations of a process that has
    /// ended, waits for them, minutes if it must, and says so in the log: nothing is read before
    /// that.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when it does not, [`OpenError::InUse`] when another process has it,
    /// [`OpenError::StillInFlight`] when those operations do not end.
    pub fn open(path: &Path, options: PathOptions) -> Result<Self, OpenError> {
        let failed = |doing| move |error: io::Error| OpenError::io(doing, path, &error);
        let path = path.canonicalize().map_err(failed("opening"))?;
        let handle = File::open(&path).map_err(failed("opening"))?;
        if !handle.metadata().map_err(failed("looking at"))?.is_dir() {
            return Err(OpenError::unsuitable(&path, "it is no directory".into()));
        }
        let mut lock = lock(&path)?;
        let claim = Claim::of_directory(&path)?;
        sign(&mut lock).map_err(failed("writing to the lock of"))?;
        let file_system = FileSystem::of(&handle).map_err(failed("looking at"))?;
        let engine = Engine::choose(options.engine);
        let mut bulk = Bulk::of_files(&options);
        if let Some(why) = engine.why_no_ring() {
            bulk.refuse(why);
        }
        Ok(Self {
            path,
            handle,
            lock: Arc::new(lock),
            claim,
            file_system,
            engine,
            options,
            bulk,
            not_direct: (!options.direct).then(|| "buffered I/O was asked for".into()),
            reflinked: BTreeSet::new(),
            lba_counts: HashMap::new(),
        })
    }

    /// Takes a directory, making it first (and those above it) where it is missing. Its name is
    /// durable when this returns.
    ///
    /// # Errors
    /// As [`open`](Self::open), or when it can't be made.
    pub fn open_or_create(path: &Path, options: PathOptions) -> Result<Self, OpenError> {
        make_directory(path).map_err(|error| OpenError::io("making", path, &error))?;
        Self::open(path, options)
    }

    /// Makes its name durable, and those of the directories above it on the same file system: the
    /// process that made them may have died before it could.
    ///
    /// # Errors
    /// When a readable one can't be flushed.
    pub fn flush_own_name(&self) -> Result<(), OpenError> {
        let device = |handle: &File| handle.metadata().map(|metadata| metadata.dev());
        let failed = |path| move |error: io::Error| OpenError::io("flushing", path, &error);
        let own = device(&self.handle).map_err(failed(&self.path))?;
        for above in self.path.ancestors().skip(1) {
            let handle = match File::open(above) {
                // The process that made its entries could read it.
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => break,
                opened => opened.map_err(failed(above))?,
            };
            if device(&handle).map_err(failed(above))? != own {
                break;
            }
            handle.sync_all().map_err(failed(above))?;
        }
        Ok(())
    }

    /// Where it is, from the root.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where one of its files is.
    pub fn file_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether it has a file of this name.
    pub fn has_file(&self, name: &str) -> bool {
        self.file_path(name).exists()
    }

    /// Names of everything in it but its lock and its claim, in order.
    ///
    /// # Errors
    /// When it can't be read.
    pub fn names(&self) -> Result<Vec<String>, OpenError> {
        let read = || -> io::Result<Vec<String>> {
            let mut names = Vec::new();
            for entry in fs::read_dir(&self.path)? {
                names.push(entry?.file_name().to_string_lossy().into_owned());
            }
            names.retain(|name| name != LOCK_FILE_NAME && name != CLAIM_FILE_NAME);
            names.sort();
            Ok(names)
        };
        read().map_err(|error| OpenError::io("reading", &self.path, &error))
    }

    /// Makes a file of `lba_count` blocks, with its space reserved. File and name are durable when
    /// this returns; the contents of the blocks are undefined.
    ///
    /// # Errors
    /// [`OpenError::NoSpace`] when there is no room: then there is no file. When there is one of
    /// this name already.
    pub fn create_file(&mut self, name: &str, lba_count: u64) -> Result<(), OpenError> {
        let path = self.file_path(name);
        let failed = |doing| move |error: io::Error| (doing, error);
        let make = || -> Result<(), (&'static str, io::Error)> {
            let file = OpenOptions::new()
                .read(true)
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(&path)
                .map_err(failed("making"))?;
            let fill = || -> io::Result<()> {
                if self.file_system.kind == "btrfs" {
                    // Where this is refused, the file is as slow as the notes say.
                    drop(sys::set_no_copy_on_write(&file));
                }
                if lba_count > 0 {
                    reserve(&file, 0, lba_count * LBA_SIZE as u64)?;
                }
                file.sync_all()?;
                if is_planted("made-unflushed") { Ok(()) } else { self.handle.sync_all() }
            };
            fill().map_err(|error| {
                // The caller gets the error above.
                drop(fs::remove_file(&path));
                ("filling", error)
            })
        };
        make().map_err(|(doing, error)| OpenError::io(doing, &path, &error))
    }

    /// Makes the contents of a file durable, whoever wrote them.
    ///
    /// # Errors
    /// When it is missing or can't be flushed.
    pub fn flush_file(&mut self, name: &str) -> Result<(), OpenError> {
        let path = self.file_path(name);
        let flushed = File::open(&path).and_then(|file| file.sync_all());
        flushed.map_err(|error| OpenError::io("flushing", &path, &error))
    }

    /// Removes a file that no path is open to. Durable when this returns.
    ///
    /// # Errors
    /// When it can't be removed.
    pub fn remove_file(&mut self, name: &str) -> Result<(), OpenError> {
        let path = self.file_path(name);
        let failed = |error: io::Error| OpenError::io("removing", &path, &error);
        fs::remove_file(&path).map_err(failed)?;
        self.lba_counts.remove(name);
        if is_planted("removed-unflushed") {
            return Ok(());
        }
        self.handle.sync_all().map_err(failed)
    }

    /// Opens one more path to a file. Its length is rounded down to whole blocks.
    ///
    /// # Errors
    /// When it is missing or can't be opened.
    pub fn open_path(&mut self, name: &str) -> Result<Box<dyn Device + Send>, OpenError> {
        let target = self.target(name)?;
        self.engine.open(target, None)
    }

    /// As [`open_path`](Self::open_path), for a path that carries much data and that nothing urgent
    /// depends on: see [`WholeDevice::open_bulk_path`](crate::WholeDevice::open_bulk_path).
    ///
    /// # Errors
    /// As there.
    pub fn open_bulk_path(&mut self, name: &str) -> Result<Box<dyn Device + Send>, OpenError> {
        let target = self.target(name)?;
        if self.not_direct.is_some() {
            self.bulk.without_pool();
        }
        self.engine.open(target, Some(&mut self.bulk))
    }

    fn target(&mut self, name: &str) -> Result<Target, OpenError> {
        let path = self.file_path(name);
        let file = self.open_file(&path)?;
        let metadata =
            file.metadata().map_err(|error| OpenError::io("looking at", &path, &error))?;
        if !metadata.is_file() {
            return Err(OpenError::unsuitable(&path, "it is no regular file".into()));
        }
        if faults::is_mapped(&file).map_err(|error| OpenError::io("looking at", &path, &error))? {
            return Err(is_mapped(&path));
        }
        // Where the file system can't tell, there is no such sharing.
        if sys::has_shared_extents(&file).unwrap_or(false) {
            self.reflinked.insert(name.to_owned());
        }
        let lba_count = self
            .lba_counts
            .entry(name.to_owned())
            .or_insert_with(|| Arc::new(AtomicU64::new(metadata.len() / LBA_SIZE as u64)))
            .clone();
        Ok(Target {
            mapped: Arc::default(),
            write_streams: 0,
            file,
            claim: Some(self.claim.clone()),
            path,
            kind: TargetKind::File,
            lba_count,
            write_cache: self.write_cache(),
            in_flight_max: self.options.in_flight_max.clamp(1, IN_FLIGHT_MAX),
            overwrites_in_place: !self.file_system.copies_on_write(),
            has_durable_writes: true,
        })
    }

    /// Opens a file for direct I/O, or through the cache where the file system has no direct I/O.
    fn open_file(&mut self, path: &Path) -> Result<File, OpenError> {
        let open = |flags| {
            let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
            opened.and_then(|file| {
                if flags & libc::O_DIRECT != 0 {
                    sys::try_direct_read(&file)?;
                }
                Ok(file)
            })
        };
        if self.not_direct.is_none() {
            match open(libc::O_DIRECT) {
                Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
                    let kind = &self.file_system.kind;
                    self.not_direct = Some(format!(
                        "{kind} has no direct I/O here: the kernel copies everything once more"
                    ));
                }
                opened => return opened.map_err(|error| OpenError::io("opening", path, &error)),
            }
        }
        open(0).map_err(|error| OpenError::io("opening", path, &error))
    }

    /// Makes a file of `size` zero bytes, replacing an old one, and maps it. With `size` zero,
    /// nothing is mapped: the file only says that it is empty. File, length and name are durable
    /// when this returns. Until then an old file is there, untouched.
    ///
    /// # Errors
    /// [`OpenError::NoSpace`] when there is no room; an old file is then as it was.
    ///
    /// # Panics
    /// When `size` is not a whole number of blocks.
    pub fn create_mapped(&mut self, name: &str, size: usize) -> Result<MappedFile, OpenError> {
        // It is new, so that no path is open to it, and none will be while it is mapped.
        mapped_range::create_mapped(&self.file_path(name), size, &self.lock)
    }

    /// Maps a file that [`create_mapped`](Self::create_mapped) made, with its contents.
    ///
    /// # Errors
    /// [`OpenError::Incomplete`] when it is missing, or not as long as it was made, and
    /// [`OpenError::Unsuitable`] when a path is open to it.
    pub fn open_mapped(&mut self, name: &str) -> Result<MappedFile, OpenError> {
        let path = self.file_path(name);
        if self.lba_counts.get(name).is_some_and(|shared| Arc::strong_count(shared) > 1) {
            return Err(OpenError::unsuitable(&path, "a path to it is open".into()));
        }
        mapped_range::open_mapped(&path, &self.lock)
    }

    /// Why no mapped file here may be stored to, as the end of a sentence; `None` where they may:
    /// on a file system that never overwrites in place, each store may need space.
    pub fn why_never_mapped(&self) -> Option<String> {
        let kind = &self.file_system.kind;
        let why = || format!("a store to a mapped file of {kind} may need space, and finds none");
        self.file_system.copies_on_write().then(why)
    }

    /// Why the mapped file of this name may not be stored to, although one that is made anew may. A
    /// store needs space where blocks belong to another file, too, and where there are holes: the
    /// volume was copied by `cp --reflink`, or by `cp --sparse=always`.
    pub fn why_not_mapped(&self, name: &str) -> Option<String> {
        let never = self.why_never_mapped();
        never.or_else(|| {
            let file = File::open(self.file_path(name)).ok()?;
            let is_shared = sys::has_shared_extents(&file).unwrap_or(false);
            if is_shared {
                return Some(format!("{name} shares blocks with another file (a reflink copy)"));
            }
            let has_holes =
                sys::has_holes(&file).unwrap_or(false) && !is_planted("holes-stored-to");
            has_holes.then(|| format!("part of {name} has no space on the disk (a sparse copy)"))
        })
    }

    /// The file system that it is on.
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// Whether completed writes to its files are stable. Never [`WriteCache::Stable`]: the file
    /// system may hold back metadata that the write needs to be found.
    pub fn write_cache(&self) -> WriteCache {
        match self.file_system.write_cache {
            _ if self.not_direct.is_some() => WriteCache::Volatile,
            WriteCache::Stable => WriteCache::VolatileWithFua,
            other => other,
        }
    }

    /// Whether this is the best of the ways to its files that were asked for: neither the file
    /// system nor the kernel has forced a worse one. Complete once a path was opened.
    pub fn is_best(&self) -> bool {
        self.engine.is_best() && self.not_direct.is_none()
    }

    /// The way of I/O in force, in a line for banner and INFO. Complete once a path was opened.
    pub fn describe(&self) -> String {
        let how = if self.not_direct.is_none() { "direct" } else { "buffered" };
        let FileSystem { kind, source, has_journal, write_cache, .. } = &self.file_system;
        let journal = match has_journal {
            Some(true) => "journal",
            Some(false) => "no journal",
            None => "journal unknown",
        };
        let discard = if self.file_system.has_option("discard") { ", discard" } else { "" };
        format!(
            "{how} I/O on files {}; {kind} on {source} ({journal}{discard}, {write_cache}){}",
            self.engine.describe(),
            self.bulk.describe(),
        )
    }

    /// Why it is not a better way, and what else the user should know, in sentences without a full
    /// stop. Complete once a path was opened.
    pub fn notes(&self) -> Vec<String> {
        let mut notes = vec![
            "no NVMe passthrough: the volume is a directory of files, not an NVMe generic device"
                .to_owned(),
        ];
        notes.extend(self.engine.notes());
        notes.extend(calls::notes());
        notes.extend(self.bulk.why_not().iter().cloned());
        notes.extend(self.not_direct.iter().map(|why| format!("no direct I/O: {why}")));
        notes.extend(self.file_system.notes());
        notes.extend(self.reflinked.iter().map(|name| {
            format!(
                "{name} shares blocks with another file (a reflink copy): the first write to each \
                 is slow, and may find no space"
            )
        }));
        notes
    }
}

/// Makes a directory and those above it, each with a durable name.
fn make_directory(path: &Path) -> io::Result<()> {
    if path.is_dir() {
        return Ok(());
    }
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    let above = above.unwrap_or(Path::new("."));
    make_directory(above)?;
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
        made => made?,
    }
    File::open(above)?.sync_all()
}

/// Takes the lock of a directory.
fn lock(directory: &Path) -> Result<Lock, OpenError> {
    let failed = |error: io::Error| OpenError::io("locking", directory, &error);
    let file = open_to_lock(&directory.join(LOCK_FILE_NAME)).map_err(failed)?;
    match Lock::take(file).map_err(failed)? {
        Ok(lock) => Ok(lock),
        Err(mut file) => {
            // Naming the holder is optional: the file may not name it, the kernel may not show it.
            let named = |file: &mut File| {
                let mut holder = String::new();
                drop(file.read_to_string(&mut holder));
                holder.trim().parse().ok()
            };
            let holder = holders::of_lock(&file).or_else(|| named(&mut file));
            Err(OpenError::InUse { path: directory.to_path_buf(), holder })
        }
    }
}

/// Writes our process id to a lock. Only once the claim is taken: the kernel may still be writing
/// this file for a process that has ended, and changing it would wait for that silently.
fn sign(lock: &mut Lock) -> io::Result<()> {
    let file = lock.file();
    let mut write_own = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    match write_own() {
        // On a full file system, or at a quota or limit, the lock holds without a process id.
        Err(error)
            if matches!(error.raw_os_error(), Some(libc::ENOSPC | libc::EDQUOT | libc::EFBIG)) =>
        {
            Ok(())
        }
        written => written,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_flushed_when_files_are_made_and_removed() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut directory =
            Directory::open(place.path(), PathOptions::default()).expect("it opens");
        directory.create_file("kept", 0).expect("it can be made");
        // It can't be flushed: an error shows that a flush was tried.
        directory.handle = File::open("/dev/null").expect("every machine has it");
        assert!(directory.create_file("other", 0).is_err());
        assert!(!place.path().join("other").exists(), "what may not last is none");
        assert!(directory.remove_file("kept").is_err());
    }
}
