//! Blocks that are mapped into memory. The drive does not see stores to them.

use std::ops::Range;

use slimio_device::{DeviceError, LBA_SIZE, LbaRange, MappedFile, OpenError};

use super::EmulatedDrive;
use super::core::Core;

impl EmulatedDrive {
    /// Maps a range of bytes into memory.
    pub(super) fn map_range(&self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        let failed =
            |doing, error| OpenError::Device { doing, path: self.data.to_string().into(), error };
        let lba = LBA_SIZE as u64;
        let blocks = offset / lba..(offset + size as u64).div_ceil(lba);
        let mut core = self.core.lock();
        // While blocks are mapped, their space can't be given back to the file system. So the space
        // of blocks that were deallocated before is given back now.
        core.give_back_within(&blocks).map_err(|error| failed("deallocating in", error))?;
        let mapped = self.data.map(offset, size)?;
        core.set_mapped(blocks).map_err(|error| failed("writing beside", error))?;
        Ok(mapped)
    }
}

impl Core {
    /// Called when a host is about to change `range`. The caller has checked that no block of
    /// `range` is mapped into memory now. If the journal still has a block of `range` as mapped,
    /// that mapping has ended. This call then takes the whole mapping out of the journal. So all
    /// blocks of the mapping belong to the drive again.
    pub(super) fn take_from_memory(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        let mapped = journal.mapped();
        if range.end.0 <= mapped.start || mapped.end <= range.start.0 {
            return Ok(());
        }
        self.set_mapped(0..0)
    }

    /// Notes that these blocks, and no others, are mapped into memory.
    pub(super) fn set_mapped(&mut self, mapped: Range<u64>) -> Result<(), DeviceError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        // Data that was stored in mapped memory was never written to the drive, so the drive must
        // not return that data.
        self.freeing.add(journal.mapped().clone());
        self.freeing.remove(&mapped);
        journal.set_mapped(self.drive.ftl(), mapped)
    }
}
