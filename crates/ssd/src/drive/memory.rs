//! Blocks that are mapped into memory. The drive does not see stores to them.

use std::ops::Range;

use slimio_device::{DeviceError, LBA_SIZE, LbaRange, MappedFile, OpenError};

use super::EmulatedDrive;
use super::core::Core;

impl EmulatedDrive {
    /// Maps a range, in bytes.
    pub(super) fn map_range(&self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        let failed =
            |doing, error| OpenError::Device { doing, path: self.data.to_string().into(), error };
        let lba = LBA_SIZE as u64;
        let blocks = offset / lba..(offset + size as u64).div_ceil(lba);
        let mut core = self.core.lock();
        // While blocks are mapped, their space can't be given back.
        core.give_back_within(&blocks).map_err(|error| failed("deallocating in", error))?;
        let mapped = self.data.map(offset, size)?;
        core.set_mapped(blocks).map_err(|error| failed("writing beside", error))?;
        Ok(mapped)
    }
}

impl Core {
    /// Is called when a host changes blocks that are not mapped into memory now. If the drive has
    /// noted that they are mapped, the note is out of date, because whoever mapped them has given
    /// up the whole range. The note is then removed, and the range belongs to the drive again.
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
        // What was stored in memory was never written to the drive, so it must not show there.
        self.freeing.add(journal.mapped().clone());
        self.freeing.remove(&mapped);
        journal.set_mapped(self.drive.ftl(), mapped)
    }
}
