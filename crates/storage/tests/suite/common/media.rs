//! A volume's medium on a simulated disk.

use slimio_device::{Buffer, Device, Lba, MappedFile, OpenError};
use slimio_planted::is_planted;
use slimio_sim::{Image, SimConfig, SimDisk};
use slimio_storage::{Area, Media, Pool, SlotName};

pub(crate) const SUPER: usize = 0;
pub(crate) const WAL: usize = 1;

pub(crate) fn slot_space(slot: SlotName) -> usize {
    2 + slot.index()
}

/// The kind of medium that a volume is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Files. Fresh blocks have to be zeroed, and released blocks stay allocated.
    Files,
    /// A device, which is one space that is cut into extents.
    Device,
}

/// Number of extents of a device, unless a test says otherwise.
const EXTENT_COUNT: u64 = 36;

/// Blocks of the superblock, half of them at each end of a device.
const SUPER_LBAS: u64 = 16;

pub(crate) struct SimMedia {
    pub(crate) disk: SimDisk,
    pub(crate) kind: Kind,
    pub(crate) can_map: bool,
    /// Whether the buffers are private memory, although the medium claims that they are mapped.
    /// Private memory is cheaper. It is enough for a test that does not depend on what outlives the
    /// process.
    pub(crate) is_feigned: bool,
    /// Number of extents of the device. A segment has two extents.
    pub(crate) extent_count: u64,
    /// The identity that the device reports.
    pub(crate) identity: Option<String>,
    pool: Option<Pool>,
    mapped: Vec<u8>,
    missing: Vec<SlotName>,
}

impl SimMedia {
    pub(crate) fn new(config: SimConfig, kind: Kind) -> Self {
        let config = SimConfig { has_files: kind == Kind::Files, ..config };
        Self {
            disk: SimDisk::new(config),
            kind,
            can_map: true,
            is_feigned: false,
            extent_count: EXTENT_COUNT,
            identity: None,
            pool: None,
            mapped: Vec::new(),
            missing: Vec::new(),
        }
    }

    /// The medium as the next process finds it. No operation of the dead process is in flight any
    /// more.
    pub(crate) fn from_image(config: SimConfig, kind: Kind, image: &Image) -> Self {
        let config = SimConfig { has_files: kind == Kind::Files, ..config };
        let disk = SimDisk::from_image(config, image);
        if !is_planted("claim-not-awaited") {
            disk.claim();
        }
        let lbas = disk.open_path(SUPER).geometry().lba_count;
        // All extents are free until the superblock's map is loaded.
        let pool = (kind == Kind::Device).then(|| pool(lbas, 1));
        let mapped = image.mapped.clone();
        Self { disk, pool, mapped, ..Self::new(config, kind) }
    }

    /// The space of the simulated disk that holds a block of an area, and the block's LBA in that
    /// space. `None` if no space holds the block.
    pub(crate) fn place(&self, area: Area, lba: u64) -> Option<(usize, u64)> {
        match &self.pool {
            Some(pool) => Some((SUPER, pool.locate(area, Lba(lba))?.0)),
            None => Some((space_of(area), lba)),
        }
    }

    pub(crate) fn remove(&mut self, slot: SlotName) {
        self.disk.truncate(slot_space(slot), 0);
        self.missing.push(slot);
    }

    /// The slots that were removed and have not been made again.
    pub(crate) fn missing(&self) -> &[SlotName] {
        &self.missing
    }

    fn map(&self, size: usize, contents: &[u8], buffer_size: usize) -> Vec<Buffer> {
        if self.is_feigned {
            let mut buffers = private(size / buffer_size, buffer_size);
            for (buffer, bytes) in buffers.iter_mut().zip(contents.chunks_exact(buffer_size)) {
                buffer.copy_from_slice(bytes);
            }
            return buffers;
        }
        let mut mapped = MappedFile::anonymous(size).expect("there is memory");
        let mut buffers = mapped.buffers(buffer_size);
        for (buffer, bytes) in buffers.iter_mut().zip(contents.chunks_exact(buffer_size)) {
            buffer.copy_from_slice(bytes);
        }
        self.disk.set_mapped(mapped);
        buffers
    }
}

impl Media for SimMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        match (&self.pool, area) {
            (Some(pool), _) => Ok(pool.path(area, Box::new(self.disk.open_path(SUPER)))),
            (None, Area::Snapshot(slot)) if self.missing.contains(&slot) => {
                Err(OpenError::Missing { path: area.name().into() })
            }
            (None, _) => Ok(Box::new(self.disk.open_path(space_of(area)))),
        }
    }

    fn identity(&self) -> Option<String> {
        self.identity.clone()
    }

    fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    fn open_free(&mut self) -> Result<Option<Box<dyn Device + Send>>, OpenError> {
        let path = || Box::new(self.disk.open_path(SUPER));
        Ok(self.pool.as_ref().map(|pool| pool.free_path(path())))
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.missing.retain(|&missing| missing != slot);
        Ok(())
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        if self.kind == Kind::Device {
            let extent_lbas = (wal_lbas / 4).max(1);
            let lbas = SUPER_LBAS + extent_lbas * self.extent_count;
            if self.disk.space_count() == 0 {
                assert_eq!(self.disk.add_space(lbas), SUPER);
            }
            self.pool = Some(pool(lbas, extent_lbas));
        } else if self.disk.space_count() == 0 {
            assert_eq!(self.disk.add_space(super_lbas), SUPER);
            assert_eq!(self.disk.add_space(wal_lbas), WAL);
            for slot in SlotName::ALL {
                assert_eq!(self.disk.add_space(0), slot_space(slot));
            }
        }
        Ok(())
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if self.mapped.is_empty() || !self.can_map {
            return Ok(Vec::new());
        }
        Ok(self.map(self.mapped.len(), &self.mapped, size))
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        if self.can_map {
            return Ok(self.map(count * size, &[], size));
        }
        Ok(private(count, size))
    }

    fn buffers_outlive_process(&self) -> bool {
        self.can_map
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        self.kind == Kind::Files
    }
}

fn pool(device_lbas: u64, extent_lbas: u64) -> Pool {
    Pool::new(device_lbas, SUPER_LBAS / 2, extent_lbas, u64::MAX)
        .expect("the device is large enough")
}

/// The space of an area, if each area has a space of its own.
fn space_of(area: Area) -> usize {
    match area {
        Area::Superblock => SUPER,
        Area::Wal => WAL,
        Area::Snapshot(slot) => slot_space(slot),
    }
}

fn private(count: usize, size: usize) -> Vec<Buffer> {
    (0..count).map(|_| Buffer::zeroed(size / slimio_device::LBA_SIZE)).collect()
}
