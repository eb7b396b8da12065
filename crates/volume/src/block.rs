//! A volume on a block device: one linear space, cut in areas.
//!
//! ```text
//! | superblock: first half | buffers of the log | log | slot a | slot b | slot c | superblock: second half |
//! ```
//!
//! The log and the three snapshot slots have a quarter each of what is between the buffers and the
//! superblock's second half. The shares follow from the device's size alone.

use std::os::unix::fs::FileTypeExt as _;
use std::path::Path;

use slimio_device::{
    Buffer, Contents, Device, DeviceError, Geometry, LBA_SIZE, Layer, Layered, Lba, LbaRange,
    MappedFile, Op, OpenError, PathOptions, WholeDevice, is_character_device, open_whole,
};
use slimio_storage::{Area, Media, PlacementMonitor, SlotName, Storage, layout};

use crate::placement::{Monitor, Placements};

/// Size of the place for the log's buffers, in blocks.
const BUFFERS_LBAS: u64 = (64 << 20) / LBA_SIZE as u64;

/// Blocks of the superblock's area: half of them at either end of the device.
const SUPER_LBAS: u64 = layout::SUPERBLOCK_AREA_LBAS_MIN;

/// Log and snapshot slots.
const SHARES: u64 = 1 + layout::SLOT_COUNT as u64;

/// Fewest blocks of each of them.
const SHARE_LBAS_MIN: u64 = 2;

/// Whether a path names a device: one of blocks, or an NVMe generic one.
pub(crate) fn is_device(path: &Path) -> bool {
    let is_block = path.metadata().is_ok_and(|metadata| metadata.file_type().is_block_device());
    is_block || is_character_device(path)
}

/// Takes a block device as a volume. One that holds something else is refused.
///
/// # Errors
/// Why it can't be taken.
pub(crate) fn open(
    path: &Path,
    options: PathOptions,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    make_volume(path, open_whole(path, options)?, wal_size_max)
}

/// Makes a volume of a device that is ours alone.
fn make_volume(
    path: &Path,
    mut device: Box<dyn WholeDevice>,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    check_size(path, device.lba_count())?;
    let contents = device.contents()?;
    if let Contents::Known(what) = contents {
        return Err(OpenError::Unsuitable {
            path: path.to_path_buf(),
            why: format!("it holds {what}"),
        });
    }
    // How it is reached is known for certain once a path was opened.
    drop(device.open_path()?);
    let placements = Placements::of(&*device);
    let monitor = Monitor::new(&*device, &placements);
    let notes = device.notes().into_iter().chain(placements.note());
    Ok(Storage {
        exists: !matches!(contents, Contents::Nothing),
        name: path.display().to_string(),
        is_best: device.is_best(),
        placement: monitor.map(|monitor| Box::new(monitor) as Box<dyn PlacementMonitor>),
        io_path: device.describe(),
        why_not_better: notes.collect::<Vec<_>>().join("; "),
        media: Box::new(BlockMedia {
            device,
            placements,
            outlives_process: true,
            wal_lbas_max: wal_size_max / LBA_SIZE as u64,
        }),
    })
}

/// Refuses a device without room for all areas.
pub(crate) fn check_size(path: &Path, lba_count: u64) -> Result<(), OpenError> {
    let lbas_min = SUPER_LBAS + BUFFERS_LBAS + SHARES * SHARE_LBAS_MIN;
    if lba_count >= lbas_min {
        return Ok(());
    }
    let why = format!("it has {lba_count} blocks, fewer than {lbas_min}");
    Err(OpenError::Unsuitable { path: path.to_path_buf(), why })
}

struct BlockMedia {
    device: Box<dyn WholeDevice>,
    placements: Placements,
    outlives_process: bool,
    wal_lbas_max: u64,
}

impl BlockMedia {
    fn buffers_offset() -> u64 {
        SUPER_LBAS / 2 * LBA_SIZE as u64
    }

    /// Blocks of the log's area, and of each snapshot slot.
    fn share_lbas(&self) -> u64 {
        share_lbas(self.device.lba_count())
    }
}

/// Blocks of the log's area, and of each snapshot slot, on a device with so many.
fn share_lbas(lba_count: u64) -> u64 {
    (lba_count - SUPER_LBAS - BUFFERS_LBAS) / SHARES
}

impl Media for BlockMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.device.open_path()?;
        let path = Box::new(Layered::new(self.placements.of_path(area), path));
        let extents = Extents::of(area, self.device.lba_count(), self.wal_lbas_max);
        Ok(Box::new(Layered::new(extents, path)))
    }

    fn make_slot(&mut self, _: SlotName) -> Result<(), OpenError> {
        // It is a part of the device, which has no parts missing.
        Ok(())
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        let fits = super_lbas <= SUPER_LBAS && wal_lbas <= self.share_lbas();
        if fits { Ok(()) } else { Err(OpenError::NoSpace { path: self.path() }) }
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        let count = BUFFERS_LBAS as usize * LBA_SIZE / size;
        let mut range = self.device.map(Self::buffers_offset(), count * size)?;
        Ok(range.buffers(size))
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if count * size > BUFFERS_LBAS as usize * LBA_SIZE {
            return Err(OpenError::Unsuitable {
                path: self.path(),
                why: "log-buffers times log-buffer-size is more than 64 MiB".into(),
            });
        }
        let mut buffers = match self.device.map(Self::buffers_offset(), count * size) {
            Ok(mut range) => range.buffers(size),
            Err(error) => {
                log::warn!("the log's buffers are in private memory: {error}");
                self.outlives_process = false;
                MappedFile::anonymous(count * size)?.buffers(size)
            }
        };
        for buffer in &mut buffers {
            buffer.fill(0);
            buffer.let_go();
        }
        Ok(buffers)
    }

    fn buffers_outlive_process(&self) -> bool {
        self.outlives_process
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        false
    }
}

impl BlockMedia {
    fn path(&self) -> std::path::PathBuf {
        self.device.describe().into()
    }
}

/// One or two extents of a device, as one space.
pub(crate) struct Extents {
    /// Blocks before this one are in the first extent.
    split: u64,
    /// Where the first extent begins on the device.
    first: u64,
    /// Where the second does.
    second: u64,
    lba_count: u64,
}

impl Extents {
    /// Where an area is on a device of `lba_count` blocks, which has room for all of them. The
    /// log's is `wal_lbas_max` blocks long at most.
    pub(crate) fn of(area: Area, lba_count: u64, wal_lbas_max: u64) -> Self {
        let (share, half) = (share_lbas(lba_count), SUPER_LBAS / 2);
        let wal_start = half + BUFFERS_LBAS;
        let (split, first, second, lba_count) = match area {
            Area::Superblock => (half, 0, lba_count - half, SUPER_LBAS),
            Area::Wal => {
                let wal_lbas = share.min(wal_lbas_max);
                (wal_lbas, wal_start, 0, wal_lbas)
            }
            Area::Snapshot(slot) => {
                (share, wal_start + (1 + slot.index() as u64) * share, 0, share)
            }
        };
        Self { split, first, second, lba_count }
    }

    /// Where `lbas` blocks from `lba` on lie. For what is not all in one extent that is nowhere: the
    /// device refuses it, rather than touch blocks of another area.
    fn place(&self, lba: Lba, lbas: u64) -> Lba {
        let end = lba.0.saturating_add(lbas);
        if end <= self.split {
            Lba(self.first + lba.0)
        } else if lba.0 >= self.split && end <= self.lba_count {
            Lba(self.second + (lba.0 - self.split))
        } else {
            Lba(u64::MAX)
        }
    }
}

impl Layer for Extents {
    fn geometry(&self, below: Geometry) -> Geometry {
        Geometry { lba_count: self.lba_count, ..below }
    }

    fn translate(&mut self, op: Op) -> Op {
        match op {
            Op::Read { lba, buffer } => {
                Op::Read { lba: self.place(lba, buffer.len_lbas() as u64), buffer }
            }
            Op::Write { lba, buffer, placement, durable } => {
                let lba = self.place(lba, buffer.len_lbas() as u64);
                Op::Write { lba, buffer, placement, durable }
            }
            Op::Flush => Op::Flush,
            Op::Deallocate { range } => {
                let lbas = range.end.0.saturating_sub(range.start.0);
                let start = self.place(range.start, lbas);
                let end = Lba(start.0.saturating_add(lbas));
                Op::Deallocate { range: LbaRange { start, end } }
            }
        }
    }

    fn grow(&mut self, _: &mut dyn Device, lba_count: u64) -> Result<(), DeviceError> {
        if lba_count <= self.lba_count { Ok(()) } else { Err(DeviceError::NoSpace) }
    }

    fn shrink(&mut self, _: &mut dyn Device, _: u64) -> Result<(), DeviceError> {
        // Its share stays its own.
        Ok(())
    }
}
