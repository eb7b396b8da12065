//! A whole block device, or a partition: one linear space of blocks.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use crate::bulk::Bulk;
use crate::contents::Contents;
use crate::engine::Engine;
use crate::mapped_range::MappedRange;
use crate::polling;
use crate::surroundings::{queue_of_file, write_cache_of_block_device, write_streams};
use crate::target::{Target, TargetKind};
use crate::{
    Device, IN_FLIGHT_MAX, LBA_SIZE, MappedFile, OpenError, PathOptions, PlacementId, WholeDevice,
    WriteCache, identity, mapped_range, nvme, sys,
};

/// A block device that no other program has, by the kernel's word, as long as this lives: neither
/// mounted, nor in a volume group, nor held by another one of these.
pub struct BlockDevice {
    path: PathBuf,
    /// Opened exclusively. The paths are opened beside it.
    holder: File,
    size: u64,
    write_cache: WriteCache,
    engine: Engine,
    /// The write streams that it has, as placements; none where operations can't name them.
    streams: Vec<PlacementId>,
    options: PathOptions,
    bulk: Bulk,
    mapped: Arc<MappedRange>,
    /// Why it is not reached by NVMe passthrough, and whether that was tried.
    no_passthrough: (String, bool),
}

impl BlockDevice {
    /// Takes a block device. Nothing on it is changed.
    ///
    /// # Errors
    /// [`OpenError::InUse`] when something has it, [`OpenError::Unsuitable`] when it is no block
    /// device or its sectors are larger than our blocks.
    pub fn open(path: &Path, options: PathOptions) -> Result<Self, OpenError> {
        let failed = |doing| move |error: io::Error| OpenError::io(doing, path, &error);
        let metadata = path.metadata().map_err(failed("looking at"))?;
        if !metadata.file_type().is_block_device() {
            return Err(OpenError::unsuitable(path, "it is no block device".into()));
        }
        let holder = open_exclusively(path)?;
        let sector_size = sys::logical_block_size(&holder).map_err(failed("measuring"))?;
        if sector_size > LBA_SIZE as u64 {
            return Err(OpenError::unsuitable(
                path,
                format!("its sectors have {sector_size} bytes, more than {LBA_SIZE}"),
            ));
        }
        let size = sys::block_device_size(&holder).map_err(failed("measuring"))?;
        let write_cache = write_cache_of_block_device(&holder).map_err(failed("looking at"))?;
        let engine = Engine::choose(options.engine);
        // Operations of io_uring name them, and what goes through the cache forgets them.
        let has_streams = options.direct && matches!(engine, Engine::Uring);
        let count =
            if has_streams { write_streams(&holder).map_err(failed("looking at"))? } else { 0 };
        let streams = (1..=count.into()).map(PlacementId).collect();
        let mut bulk = Bulk::of_device(&options, queue_of_file(&holder).as_deref());
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
            holder,
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

    /// Says why it is not reached by NVMe passthrough, and whether that was tried.
    pub(crate) fn without_passthrough(self, why: String, was_tried: bool) -> Self {
        Self { no_passthrough: (why, was_tried), ..self }
    }

    fn target(&self) -> Result<Target, OpenError> {
        let flags = if self.options.direct { libc::O_DIRECT } else { 0 };
        let opened = OpenOptions::new().read(true).write(true).custom_flags(flags).open(&self.path);
        let file = opened.map_err(|error| OpenError::io("opening", &self.path, &error))?;
        Ok(Target {
            write_streams: self.streams.len() as u8,
            file,
            path: self.path.clone(),
            kind: TargetKind::BlockDevice,
            lba_count: Arc::new(AtomicU64::new(self.lba_count())),
            mapped: self.mapped.clone(),
            write_cache: self.write_cache(),
            in_flight_max: self.options.in_flight_max.clamp(1, IN_FLIGHT_MAX),
            has_durable_writes: true,
        })
    }

    /// What a completed write is worth.
    pub fn write_cache(&self) -> WriteCache {
        if self.options.direct { self.write_cache } else { WriteCache::Volatile }
    }
}

impl WholeDevice for BlockDevice {
    fn lba_count(&self) -> u64 {
        self.size / LBA_SIZE as u64
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        Contents::of_file(&self.holder, self.size)
            .map_err(|error| OpenError::io("reading", &self.path, &error))
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
        mapped_range::map_device(&self.path, &self.holder, &self.mapped, offset, size)
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
            ("queues to poll", polling::fact(queue_of_file(&self.holder).as_deref())),
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
        notes.extend(self.bulk.why_not().iter().cloned());
        if !self.options.direct {
            notes.push("no direct I/O: buffered I/O was asked for".into());
        }
        notes
    }
}

/// What a user is told who may not open a device.
pub(crate) const PERMISSION_REMEDY: &str = "install the udev rule dist/60-slimio-nvme.rules and add \
                                            the server's user to the group slimio, or run it as \
                                            root";

/// Opens a block device for oneself alone.
pub(crate) fn open_exclusively(path: &Path) -> Result<File, OpenError> {
    let opened = OpenOptions::new().read(true).write(true).custom_flags(libc::O_EXCL).open(path);
    opened.map_err(|error| match error.raw_os_error() {
        Some(libc::EBUSY) => match nvme::holders(path) {
            holders if holders.is_empty() => {
                OpenError::InUse { path: path.to_path_buf(), holder: None }
            }
            holders => OpenError::unsuitable(path, format!("it is in use: {}", holders.join(", "))),
        },
        _ => refused(path, &error),
    })
}

/// What an error of opening a device means.
pub(crate) fn refused(path: &Path, error: &io::Error) -> OpenError {
    match error.raw_os_error() {
        Some(libc::EACCES | libc::EPERM) => {
            OpenError::Forbidden { path: path.to_path_buf(), remedy: PERMISSION_REMEDY.into() }
        }
        _ => OpenError::io("opening", path, error),
    }
}
