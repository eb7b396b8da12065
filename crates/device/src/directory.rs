//! A directory of files. Each file is a linear space of blocks. A *path* to a file is a [`Device`].

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
    Device, IN_FLIGHT_MAX, LBA_SIZE, MappedFile, OpenError, PathOptions, WriteCache, calls,
    extents, faults, holders, sys,
};

/// Name of a directory's lock file. A process that uses the directory locks this file, and writes
/// its own process id to the file.
pub const LOCK_FILE_NAME: &str = "lock";

/// A directory that is locked: no other process uses it as long as this value lives. This value
/// also knows how the directory's files are opened.
pub struct Directory {
    path: PathBuf,
    /// The open directory, which is used to flush names and to find the file system.
    handle: File,
    /// Mappings of the directory's files also keep this lock.
    lock: Arc<Lock>,
    claim: Claim,
    file_system: FileSystem,
    engine: Engine,
    options: PathOptions,
    bulk: Bulk,
    /// Why files are not opened for direct I/O; `None` until a reason is found.
    not_direct: Option<String>,
    /// Names of files that share blocks with other files.
    reflinked: BTreeSet<String>,
    /// Lengths, in blocks, of the files to which paths were opened.
    lba_counts: HashMap<String, Arc<AtomicU64>>,
}

impl Directory {
    /// Locks and claims an existing directory. The kernel keeps a process's claim until the
    /// process's last operation is over, even if the process has ended. If the claim of an earlier
    /// process is still kept, this function waits for the claim, for minutes if necessary, and logs
    /// the wait. Meanwhile, it reads nothing.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when there is no directory; [`OpenError::InUse`] when another process
    /// has the directory; [`OpenError::StillInFlight`] when the operations of a process that has
    /// ended stay in flight.
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

    /// Like [`open`](Self::open), but if the directory is missing, makes it first, together with
    /// any missing directories above it. The names of new directories are durable when this call
    /// returns.
    ///
    /// # Errors
    /// The same as those of [`open`](Self::open), and an error when the directory can't be made.
    pub fn open_or_create(path: &Path, options: PathOptions) -> Result<Self, OpenError> {
        make_directory(path).map_err(|error| OpenError::io("making", path, &error))?;
        Self::open(path, options)
    }

    /// Flushes the names of this directory and of the directories above it on the same file system,
    /// so that these names are durable. The flush is necessary because the process that made these
    /// directories may have died before it flushed their names. A directory that this process may
    /// not read can't be flushed alone, so then the whole file system is flushed.
    ///
    /// # Errors
    /// When a directory above this one, or the file system, can't be flushed.
    pub fn flush_own_name(&self) -> Result<(), OpenError> {
        let device = |handle: &File| handle.metadata().map(|metadata| metadata.dev());
        let failed = |path| move |error: io::Error| OpenError::io("flushing", path, &error);
        let own = device(&self.handle).map_err(failed(&self.path))?;
        for above in self.path.ancestors().skip(1) {
            let handle = match File::open(above) {
                Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                    return sys::flush_file_system(&self.handle).map_err(failed(&self.path));
                }
                opened => opened.map_err(failed(above))?,
            };
            if device(&handle).map_err(failed(above))? != own {
                break;
            }
            handle.sync_all().map_err(failed(above))?;
        }
        Ok(())
    }

    /// The directory's absolute path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The path of one of the directory's files.
    pub fn file_path(&self, name: &str) -> PathBuf {
        self.path.join(name)
    }

    /// Whether the directory has a file of this name.
    pub fn has_file(&self, name: &str) -> bool {
        self.file_path(name).exists()
    }

    /// Names of everything in the directory except its lock and its claim, sorted.
    ///
    /// # Errors
    /// When the directory can't be read.
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

    /// Makes a file of `lba_count` blocks, and reserves its space. The file and its name are
    /// durable when this call returns; the contents of the blocks are undefined.
    ///
    /// # Errors
    /// [`OpenError::NoSpace`] when there is no room; then no file is left. Another error when a
    /// file of this name exists already.
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
                    // If btrfs refuses to turn copy-on-write off for the file, writes to the file
                    // are slow, and the notes tell the user.
                    drop(sys::set_no_copy_on_write(&file));
                }
                if lba_count > 0 {
                    reserve(&file, 0, lba_count * LBA_SIZE as u64)?;
                }
                file.sync_all()?;
                if is_planted("made-unflushed") { Ok(()) } else { self.handle.sync_all() }
            };
            fill().map_err(|error| {
                // Even if the removal fails, the caller gets the first error.
                drop(fs::remove_file(&path));
                ("filling", error)
            })
        };
        make().map_err(|(doing, error)| OpenError::io(doing, &path, &error))
    }

    /// Makes the contents of a file durable, no matter which process wrote them.
    ///
    /// # Errors
    /// When the file is missing or can't be flushed.
    pub fn flush_file(&mut self, name: &str) -> Result<(), OpenError> {
        let path = self.file_path(name);
        let flushed = File::open(&path).and_then(|file| file.sync_all());
        flushed.map_err(|error| OpenError::io("flushing", &path, &error))
    }

    /// Removes a file that no path is open to. The removal is durable when this call returns.
    ///
    /// # Errors
    /// When the file can't be removed.
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

    /// Opens one more path to a file. The file's length is rounded down to whole blocks.
    ///
    /// # Errors
    /// When the file is missing or can't be opened.
    pub fn open_path(&mut self, name: &str) -> Result<Box<dyn Device + Send>, OpenError> {
        let target = self.target(name)?;
        self.engine.open(target, None)
    }

    /// Like [`open_path`](Self::open_path), for a path that carries much data and on which nothing
    /// urgent depends: see [`WholeDevice::open_bulk_path`](crate::WholeDevice::open_bulk_path).
    ///
    /// # Errors
    /// The same as those of [`open_path`](Self::open_path).
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
        if extents::has_shared(&file) {
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

    /// Opens a file for direct I/O, or for buffered I/O if the file system has no direct I/O.
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
                        "{kind} has no direct I/O here: the kernel copies all data once more"
                    ));
                }
                opened => return opened.map_err(|error| OpenError::io("opening", path, &error)),
            }
        }
        open(0).map_err(|error| OpenError::io("opening", path, &error))
    }

    /// Makes a file of `size` bytes, all zero, and maps it. The file replaces an old file of this
    /// name. The file, its length and its name are durable when this call returns. Until then, the
    /// old file is unchanged.
    ///
    /// If `size` is zero, nothing is mapped, and the file holds no data.
    ///
    /// # Errors
    /// [`OpenError::NoSpace`] when there is no room; the old file is then unchanged.
    ///
    /// # Panics
    /// When `size` is not a whole number of blocks.
    pub fn create_mapped(&mut self, name: &str, size: usize) -> Result<MappedFile, OpenError> {
        // The file is new, so no path is open to it, and none will be opened while it is mapped.
        mapped_range::create_mapped(&self.file_path(name), size, &self.lock)
    }

    /// Maps a file that [`create_mapped`](Self::create_mapped) made. The contents are kept.
    ///
    /// # Errors
    /// [`OpenError::Incomplete`] when the file is missing, or when its length is not the length
    /// that it was made with; [`OpenError::Unsuitable`] when a path is open to the file.
    pub fn open_mapped(&mut self, name: &str) -> Result<MappedFile, OpenError> {
        let path = self.file_path(name);
        if self.lba_counts.get(name).is_some_and(|shared| Arc::strong_count(shared) > 1) {
            return Err(OpenError::unsuitable(&path, "a path to this file is open".into()));
        }
        mapped_range::open_mapped(&path, &self.lock)
    }

    /// Why stores to mapped files in this directory are not allowed, as the end of a sentence;
    /// `None` if they are allowed. On a file system that never overwrites in place, each store may
    /// need new space.
    pub fn why_never_mapped(&self) -> Option<String> {
        let kind = &self.file_system.kind;
        let why = || format!("a store to a mapped file on {kind} may need space when none is left");
        self.file_system.copies_on_write().then(why)
    }

    /// Why stores to the mapped file of this name are not allowed; `None` if they are allowed.
    /// There are two possible reasons. Either [`why_never_mapped`](Self::why_never_mapped) gives
    /// one, or the volume was copied by `cp --reflink` or `cp --sparse=always`. After such a copy,
    /// the file has holes or shares blocks with another file. A store to a hole or a shared block
    /// needs new space.
    pub fn why_not_mapped(&self, name: &str) -> Option<String> {
        let never = self.why_never_mapped();
        never.or_else(|| {
            let file = File::open(self.file_path(name)).ok()?;
            let is_shared = extents::has_shared(&file);
            if is_shared {
                return Some(format!("{name} shares blocks with another file (a reflink copy)"));
            }
            let has_holes =
                sys::has_holes(&file).unwrap_or(false) && !is_planted("holes-stored-to");
            has_holes.then(|| format!("part of {name} has no space on the disk (a sparse copy)"))
        })
    }

    /// The file system that the directory is on.
    pub fn file_system(&self) -> &FileSystem {
        &self.file_system
    }

    /// Whether completed writes to the directory's files are stable. The answer is never
    /// [`WriteCache::Stable`], because the file system may hold back metadata that is needed to
    /// find the written blocks.
    pub fn write_cache(&self) -> WriteCache {
        match self.file_system.write_cache {
            _ if self.not_direct.is_some() => WriteCache::Volatile,
            WriteCache::Stable => WriteCache::VolatileWithFua,
            other => other,
        }
    }

    /// Whether I/O on the directory's files is direct, and uses the engine that was asked for. If
    /// not, the file system or the kernel has refused one of the two, or buffered I/O was asked
    /// for. The answer is final once a path was opened.
    pub fn is_best(&self) -> bool {
        self.engine.is_best() && self.not_direct.is_none()
    }

    /// How I/O is done, in one line for the startup banner and the command INFO. The line is final
    /// once a path was opened.
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

    /// Why I/O is not done in a better way, and what else the user should know, in sentences
    /// without a full stop. The notes are complete once a path was opened.
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
                 shared block is slow, and may find no space"
            )
        }));
        notes
    }
}

/// Makes a directory and the missing directories above it, and makes their names durable.
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
    match File::open(above) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            sys::flush_file_system(&File::open(path)?)
        }
        opened => opened?.sync_all(),
    }
}

/// Locks a directory.
fn lock(directory: &Path) -> Result<Lock, OpenError> {
    let failed = |error: io::Error| OpenError::io("locking", directory, &error);
    let file = open_to_lock(&directory.join(LOCK_FILE_NAME)).map_err(failed)?;
    match Lock::take(file).map_err(failed)? {
        Ok(lock) => Ok(lock),
        Err(mut file) => {
            // The error can't always name the holder: the kernel may hide the holder, and the lock
            // file may lack the holder's process id.
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

/// Writes our process id to the lock file. The claim must have been taken before. Otherwise the
/// kernel might still be writing this file for a process that has ended, and our change would wait
/// for that write without a message.
fn sign(lock: &mut Lock) -> io::Result<()> {
    let file = lock.file();
    let mut write_own = || {
        file.set_len(0)?;
        file.rewind()?;
        writeln!(file, "{}", std::process::id())
    };
    match write_own() {
        // If the file system is full, or a quota or limit is reached, the lock file stays without a
        // process id. The lock is valid anyway.
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
            Directory::open(place.path(), PathOptions::default()).expect("the directory opens");
        directory.create_file("kept", 0).expect("the file can be made");
        // `/dev/null` can't be flushed, so an error shows that a flush was tried.
        directory.handle = File::open("/dev/null").expect("every machine has /dev/null");
        assert!(directory.create_file("other", 0).is_err());
        assert!(
            !place.path().join("other").exists(),
            "a file whose name could not be flushed must be removed"
        );
        assert!(directory.remove_file("kept").is_err());
    }
}
