//! A whole block device, or a partition: one linear space of blocks.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, Instant};

use crate::bulk::Bulk;
use crate::claim::{Claim, Patience};
use crate::contents::Contents;
use crate::engine::Engine;
use crate::mapped_range::{self, MappedRange};
use crate::polling;
use crate::surroundings::{queue_of_file, write_cache_of_block_device, write_streams};
use crate::target::{Target, TargetKind};
use crate::{
    Device, IN_FLIGHT_MAX, LBA_SIZE, MappedFile, OpenError, PathOptions, PlacementId, WholeDevice,
    WriteCache, calls, holders, identity, sys,
};

/// A block device that is opened exclusively. As long as this value lives, the kernel neither
/// mounts the device, nor adds it to a volume group, nor lets another `BlockDevice` open it.
pub struct BlockDevice {
    path: PathBuf,
    /// The device, opened exclusively. All paths use this open file, so the device stays claimed
    /// until the last operation of every path has ended.
    claim: Claim,
    size: u64,
    write_cache: WriteCache,
    engine: Engine,
    /// The device's write streams, as placements. The list is empty if operations can't name a
    /// stream.
    streams: Vec<PlacementId>,
    options: PathOptions,
    bulk: Bulk,
    mapped: Arc<MappedRange>,
    /// Why NVMe passthrough is not used, and whether passthrough was tried.
    no_passthrough: (String, bool),
}

impl BlockDevice {
    /// Opens a block device exclusively. Nothing on it is changed. If a process has ended, but its
    /// operations are still in flight on the device, this function waits until these operations
    /// have ended, for minutes if necessary, and logs the wait.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when a process has the device open; [`OpenError::StillInFlight`] when
    /// the operations of a process that has ended stay in flight. [`OpenError::Unsuitable`] when
    /// the kernel uses the device (for example, because it is mounted), when it is no block device,
    /// or when its sectors are larger than [`LBA_SIZE`].
    pub fn open(path: &Path, options: PathOptions) -> Result<Self, OpenError> {
        let failed = |doing| move |error: io::Error| OpenError::io(doing, path, &error);
        let metadata = path.metadata().map_err(failed("looking at"))?;
        if !metadata.file_type().is_block_device() {
            return Err(OpenError::unsuitable(path, "it is no block device".into()));
        }
        let flags = if options.direct { libc::O_DIRECT } else { 0 };
        let claim = claim(path, flags)?;
        let holder = claim.file();
        let sector_size = sys::logical_block_size(holder).map_err(failed("measuring"))?;
        if sector_size > LBA_SIZE as u64 {
            return Err(OpenError::unsuitable(
                path,
                format!("its sectors have {sector_size} bytes, more than {LBA_SIZE}"),
            ));
        }
        let size = sys::block_device_size(holder).map_err(failed("measuring"))?;
        let write_cache = write_cache_of_block_device(holder).map_err(failed("looking at"))?;
        let engine = Engine::choose(options.engine);
        // Only operations of io_uring can name a write stream. If I/O is buffered, the stream's
        // name is lost.
        let has_streams = options.direct && matches!(engine, Engine::Uring);
        let count =
            if has_streams { write_streams(holder).map_err(failed("looking at"))? } else { 0 };
        let streams = (1..=count.into()).map(PlacementId).collect();
        let mut bulk = Bulk::of_device(&options, queue_of_file(holder).as_deref());
        if !options.direct {
            bulk.refuse("buffered I/O was asked for");
        }
        if let Some(why) = engine.why_no_ring() {
            bulk.refuse(why);
        }
        let no_passthrough = ("the volume is a block device".into(), false);
        let path = path.to_path_buf();
        let mapped = Arc::default();
        Ok(Self {
            path,
            claim,
            size,
            write_cache,
            engine,
            streams,
            options,
            bulk,
            mapped,
            no_passthrough,
        })
    }

    /// Stores why NVMe passthrough is not used, and whether passthrough was tried.
    pub(crate) fn without_passthrough(self, why: String, was_tried: bool) -> Self {
        Self { no_passthrough: (why, was_tried), ..self }
    }

    fn target(&self) -> Result<Target, OpenError> {
        let again = self.claim.file().try_clone();
        let file = again.map_err(|error| OpenError::io("opening", &self.path, &error))?;
        Ok(Target {
            write_streams: self.streams.len() as u8,
            file,
            claim: None,
            path: self.path.clone(),
            kind: TargetKind::BlockDevice,
            lba_count: Arc::new(AtomicU64::new(self.lba_count())),
            mapped: self.mapped.clone(),
            write_cache: self.write_cache(),
            in_flight_max: self.options.in_flight_max.clamp(1, IN_FLIGHT_MAX),
            overwrites_in_place: true,
            has_durable_writes: true,
        })
    }

    /// Whether a completed write may still be in a volatile cache.
    pub fn write_cache(&self) -> WriteCache {
        if self.options.direct { self.write_cache } else { WriteCache::Volatile }
    }
}

impl WholeDevice for BlockDevice {
    fn lba_count(&self) -> u64 {
        self.size / LBA_SIZE as u64
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        Contents::of_file(self.claim.file(), self.size).map_err(|error| {
            // With direct I/O, the kernel returns ENODATA ("no data") for a sector that can't be
            // read.
            let is_unreadable = error.raw_os_error() == Some(libc::ENODATA);
            let unreadable = io::Error::from_raw_os_error(libc::EIO);
            OpenError::io("reading", &self.path, if is_unreadable { &unreadable } else { &error })
        })
    }

    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let target = self.target()?;
        self.engine.open(target, None)
    }

    fn open_bulk_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let target = self.target()?;
        self.engine.open(target, Some(&mut self.bulk))
    }

    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        mapped_range::map_device(&self.path, self.claim.file(), &self.mapped, offset, size)
    }

    fn placements(&self) -> &[PlacementId] {
        &self.streams
    }

    fn identity(&self) -> Option<String> {
        identity::of_block_device(&self.path)
    }

    fn is_best(&self) -> bool {
        self.engine.is_best() && !self.no_passthrough.1
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let mut facts = vec![
            ("device", self.path.display().to_string()),
            ("size", format!("{} bytes", self.size)),
            ("write streams", self.streams.len().to_string()),
            ("write cache", self.write_cache.to_string()),
            ("queues to poll", polling::fact(queue_of_file(self.claim.file()).as_deref())),
        ];
        facts.extend(self.identity().map(|identity| ("identity", identity)));
        facts
    }

    fn describe(&self) -> String {
        let how = if self.options.direct { "direct" } else { "buffered" };
        let streams = match self.streams.len() {
            0 => String::new(),
            count => format!("{count} write streams, "),
        };
        format!(
            "{how} I/O on block device {} {} ({streams}{}){}",
            self.path.display(),
            self.engine.describe(),
            self.write_cache,
            self.bulk.describe()
        )
    }

    fn notes(&self) -> Vec<String> {
        let mut notes = vec![format!("no NVMe passthrough: {}", self.no_passthrough.0)];
        notes.extend(self.engine.notes());
        notes.extend(calls::notes());
        notes.extend(self.bulk.why_not().iter().cloned());
        if !self.options.direct {
            notes.push("no direct I/O: buffered I/O was asked for".into());
        }
        notes
    }
}

/// Advice for a user who lacks the permission to open a device.
pub(crate) const PERMISSION_REMEDY: &str = "install the udev rule dist/60-slimio-nvme.rules and add \
                                            the server's user to the group slimio, or run the \
                                            server as root";

/// Time between two searches for the holder of a busy device.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Opens a block device exclusively. `flags` are additional flags of `open`. If the device is busy
/// and no holder can be found, this function waits. In that case, a process that has ended may
/// still have operations in flight, which keep the device busy.
pub(crate) fn claim(path: &Path, flags: i32) -> Result<Claim, OpenError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_EXCL | flags);
    let mut looked_at: Option<Instant> = None;
    let file = Patience::DEFAULT.wait_for(path, || match options.open(path) {
        Ok(file) => Ok(Some(file)),
        Err(error) if error.raw_os_error() == Some(libc::EBUSY) => {
            if looked_at.is_none_or(|at| at.elapsed() >= POLL_INTERVAL) {
                refuse_if_held(path)?;
                looked_at = Some(Instant::now());
            }
            Ok(None)
        }
        Err(error) => Err(refused(path, &error)),
    })?;
    // The exclusive open keeps other programs out. In addition, `show` takes a lock. Some processes
    // have no permission to look at our descriptors. From the lock, they can tell that the device
    // is in use. A failure to lock is ignored, because the only consequence is that the error
    // messages of those processes say less.
    Ok(Claim::of(file, holders::show(path).ok()))
}

/// Returns an error if a holder of the device can be found. The error names the holder, if
/// possible.
fn refuse_if_held(path: &Path) -> Result<(), OpenError> {
    let found = holders::in_kernel(path);
    if !found.is_empty() {
        return Err(OpenError::unsuitable(path, format!("it is in use: {}", found.join(", "))));
    }
    match holders::process(path) {
        None if !holders::is_shown(path) => Ok(()),
        holder => Err(OpenError::InUse { path: path.to_path_buf(), holder }),
    }
}

/// The [`OpenError`] for the error with which the kernel refused to open a device.
pub(crate) fn refused(path: &Path, error: &io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            OpenError::Forbidden { path: path.to_path_buf(), remedy: PERMISSION_REMEDY.into() }
        }
        _ => OpenError::io("opening", path, error),
    }
}
