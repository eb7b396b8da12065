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
        // While blocks are mapped, their space can't be given back. So the space of deallocated
        // blocks is given back now.
        core.give_back_within(&blocks).map_err(|error| failed("deallocating in", error))?;
        let mapped = self.data.map(offset, size)?;
        core.set_mapped(blocks).map_err(|error| failed("writing beside", error))?;
        Ok(mapped)
    }
}

impl Core {
    /// If `range` has a block that was mapped into memory, gives all mapped blocks back to the
    /// drive. A host is about to change `range`, and the caller has checked that none of its blocks
    /// is mapped now. So if the journal still notes a block of `range` as mapped, the whole mapped
    /// range has been given up. This call then removes the note.
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
