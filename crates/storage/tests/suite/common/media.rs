//! A volume's medium on a simulated disk.

use slimio_device::{Buffer, Device, MappedFile, OpenError};
use slimio_sim::{Image, SimConfig, SimDisk};
use slimio_storage::{Area, Media, SlotName};

pub(crate) const SUPER: usize = 0;
pub(crate) const WAL: usize = 1;

/// The space of a snapshot slot.
pub(crate) fn slot_space(slot: SlotName) -> usize {
    2 + slot.index()
}

/// What lies under a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Files: fresh blocks are zeroed, released ones keep their place.
    Files,
    /// A device: neither.
    Device,
}

/// A simulated medium.
pub(crate) struct SimMedia {
    pub(crate) disk: SimDisk,
    pub(crate) kind: Kind,
    /// Whether buffers can be mapped.
    pub(crate) can_map: bool,
    /// Only says that it maps: cheap, where nobody looks at what outlives the process.
    pub(crate) is_feigned: bool,
    mapped: Vec<u8>,
    missing: Vec<SlotName>,
}

impl SimMedia {
    pub(crate) fn new(config: SimConfig, kind: Kind) -> Self {
        Self {
            disk: SimDisk::new(config),
            kind,
            can_map: true,
            is_feigned: false,
            mapped: Vec::new(),
            missing: Vec::new(),
        }
    }

    pub(crate) fn from_image(config: SimConfig, kind: Kind, image: &Image) -> Self {
        let disk = SimDisk::from_image(config, image);
        let mapped = image.mapped.clone();
        Self { disk, kind, can_map: true, is_feigned: false, mapped, missing: Vec::new() }
    }

    /// Removes a slot.
    pub(crate) fn remove(&mut self, slot: SlotName) {
        self.disk.truncate(slot_space(slot), 0);
        self.missing.push(slot);
    }

    /// The slots that were removed and not made again.
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
        let space = match area {
            Area::Superblock => SUPER,
            Area::Wal => WAL,
            Area::Snapshot(slot) if self.missing.contains(&slot) => {
                return Err(OpenError::Missing { path: area.name().into() });
            }
            Area::Snapshot(slot) => slot_space(slot),
        };
        Ok(Box::new(self.disk.open_path(space)))
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.missing.retain(|&missing| missing != slot);
        Ok(())
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        if self.disk.space_count() == 0 {
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

fn private(count: usize, size: usize) -> Vec<Buffer> {
    (0..count).map(|_| Buffer::zeroed(size / slimio_device::LBA_SIZE)).collect()
}
