//! A volume on a device. The device is one linear space, and most of this space is cut into
//! extents.
//!
//! ```text
//! | superblock: first half | buffers of the log | extent | ... | superblock: second half |
//! 0                        1 MiB                65 MiB
//! ```
//!
//! The superblock says for each extent whether it is a piece of the log or a piece of a snapshot
//! slot. No area has a fixed share of the extents.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;
use std::sync::Arc;

use slimio_device::{
    Buffer, Contents, Device, LBA_SIZE, Layered, MappedFile, OpenError, WholeDevice,
    is_character_device,
};
use slimio_storage::{Area, Media, PlacementMonitor, Pool, SlotName, Storage, is_unfinished};

use crate::placement::{Monitor, Placements};
use crate::traced::Tape;

/// Size of the place for the log's buffers, in blocks.
const BUFFERS_LBAS: u64 = (64 << 20) / LBA_SIZE as u64;

/// Where the log's buffers begin, in blocks.
const BUFFERS_START: u64 = (1 << 20) / LBA_SIZE as u64;

/// Where the first extent begins, in blocks.
const EXTENTS_START: u64 = BUFFERS_START + BUFFERS_LBAS;

/// The smallest size of an extent, in blocks (1 MiB).
const EXTENT_LBAS_MIN: u64 = (1 << 20) / LBA_SIZE as u64;

/// Whether a path names a device: a block device, or the character device of an NVMe namespace.
pub(crate) fn is_device(path: &Path) -> bool {
    let is_block = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    is_block || is_character_device(path)
}

/// Opens the volume on a device that only this process has open. An empty device is allowed.
/// If `trace` names a file, the device's writes, deallocations and flushes are recorded in that
/// file.
///
/// # Errors
/// When the device is too small, holds something other than a volume, or can't be read. Also when
/// the file of the trace can't be made.
pub(crate) fn make_volume(
    path: &Path,
    mut device: Box<dyn WholeDevice>,
    wal_size_max: u64,
    trace: Option<&Path>,
) -> Result<Storage, OpenError> {
    let pool = pool(path, device.lba_count(), wal_size_max)?;
    let contents = device.contents()?;
    if let Contents::Known(what) = contents {
        return Err(OpenError::Unsuitable {
            path: path.to_path_buf(),
            why: format!("the device holds {what}"),
        });
    }
    // The device can name its I/O path only after a first path was opened.
    let start = device.open_path()?;
    let exists = contents != Contents::Nothing
        && is_unfinished(&mut *pool.path(Area::Superblock, start)) != Ok(true);
    let mut placements = Placements::of(&*device);
    let monitor = Monitor::new(&*device, &placements);
    let tape =
        trace.map(|trace| Tape::new(trace, device.lba_count() * LBA_SIZE as u64)).transpose()?;
    if tape.is_some() {
        placements = placements.of_recorded();
    }
    let (io_path, why_not_better) = describe_io(&*device, &placements);
    Ok(Storage {
        exists,
        name: path.display().to_string(),
        is_best: device.is_best(),
        placement: monitor.map(|monitor| Box::new(monitor) as Box<dyn PlacementMonitor>),
        io_path,
        why_not_better,
        media: Box::new(BlockMedia { device, placements, tape, outlives_process: true, pool }),
    })
}

/// The I/O path of a device, and the reasons that keep its I/O from being better. The second text
/// is empty if there are no such reasons.
fn describe_io(device: &dyn WholeDevice, placements: &Placements) -> (String, String) {
    let notes = device.notes().into_iter().chain(placements.note());
    let recorded = if placements.are_recorded() { ", recorded" } else { "" };
    (device.describe() + recorded, notes.collect::<Vec<_>>().join("; "))
}

/// The extents of a device with this many LBAs. A device without room for all areas is refused.
pub(crate) fn pool(path: &Path, lba_count: u64, wal_size_max: u64) -> Result<Pool, OpenError> {
    let wal_lbas_max = wal_size_max / LBA_SIZE as u64;
    Pool::new(lba_count, EXTENTS_START, EXTENT_LBAS_MIN, wal_lbas_max)
        .map_err(|why| OpenError::Unsuitable { path: path.to_path_buf(), why })
}

struct BlockMedia {
    device: Box<dyn WholeDevice>,
    placements: Placements,
    /// The trace of the device's operations, or `None` if no trace was asked for. For each write,
    /// the trace names the lifetime, which is the kind of data that was written.
    tape: Option<Arc<Tape>>,
    outlives_process: bool,
    pool: Pool,
}

impl BlockMedia {
    fn buffers_offset() -> u64 {
        BUFFERS_START * LBA_SIZE as u64
    }

    fn recorded(&self, path: Box<dyn Device + Send>) -> Box<dyn Device + Send> {
        match &self.tape {
            Some(tape) => tape.over(path, self.placements.of_lifetimes()),
            None => path,
        }
    }
}

impl Media for BlockMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = match area {
            Area::Snapshot(_) => self.device.open_bulk_path()?,
            Area::Superblock | Area::Wal => self.device.open_path()?,
        };
        let path = self.recorded(path);
        // The layer of placements is above the layer of extents, because the layer of placements
        // recognises a snapshot's beginning by the address within the area.
        let placements = self.placements.of_path(area);
        Ok(Box::new(Layered::new(placements, self.pool.path(area, path))))
    }

    fn identity(&self) -> Option<String> {
        self.device.identity()
    }

    fn pool(&self) -> Option<&Pool> {
        Some(&self.pool)
    }

    fn open_free(&mut self) -> Result<Option<Box<dyn Device + Send>>, OpenError> {
        let path = self.device.open_path()?;
        Ok(Some(self.pool.free_path(self.recorded(path))))
    }

    fn make_slot(&mut self, _: SlotName) -> Result<(), OpenError> {
        // A slot is a part of the device, so it can't be missing.
        Ok(())
    }

    fn create(&mut self, _: u64, wal_lbas: u64) -> Result<(), OpenError> {
        let fits = wal_lbas <= self.pool.usage().total;
        if fits { Ok(()) } else { Err(OpenError::NoSpace { path: self.path() }) }
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        let count = BUFFERS_LBAS as usize * LBA_SIZE / size;
        let mut range = self.device.map(Self::buffers_offset(), count * size)?;
        range.check_readable(&self.path())?;
        Ok(range.buffers(size))
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if count * size > BUFFERS_LBAS as usize * LBA_SIZE {
            return Err(OpenError::Unsuitable {
                path: self.path(),
                why: "log-buffers times log-buffer-size is more than 64 MiB".into(),
            });
        }
        let mapped = self.device.map(Self::buffers_offset(), count * size);
        match mapped.and_then(|mut range| range.clear(&self.path()).map(|()| range)) {
            Ok(mut range) => {
                self.outlives_process = true;
                Ok(range.buffers(size))
            }
            Err(error) => {
                log::warn!("the log's buffers are in private memory: {error}");
                self.outlives_process = false;
                Ok(MappedFile::anonymous(count * size)?.buffers(size))
            }
        }
    }

    fn buffers_outlive_process(&self) -> bool {
        self.outlives_process
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        false
    }

    fn io_path(&self) -> Option<(String, String)> {
        Some(describe_io(&*self.device, &self.placements))
    }
}

impl BlockMedia {
    fn path(&self) -> std::path::PathBuf {
        self.device.describe().into()
    }
}
