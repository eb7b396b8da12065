//! Checks a snapshot in its slot, a piece at a time.

use slimio_device::{Device, LBA_SIZE};

use super::{SlotReader, SlotSummary};
use crate::{Error, VolumeId};

/// A check of a snapshot: the whole snapshot is read, and nothing of it is kept in memory.
///
/// A check has no thread and no path of its own. The caller decides how long to wait between two
/// pieces, and must make sure that nobody writes to the slot until the check has ended. When the
/// check is created, it copies the superblock's entry for the slot. If the check finds damage, the
/// caller must find out whether this entry is still in force.
#[derive(Debug)]
pub struct SlotCheck {
    volume_id: VolumeId,
    summary: SlotSummary,
    ahead: usize,
    reader: Option<SlotReader>,
    done_bytes: u64,
}

impl SlotCheck {
    /// Begins a check that keeps the reads of `ahead` chunks in flight at once.
    pub(crate) fn new(volume_id: VolumeId, summary: SlotSummary, ahead: usize) -> Self {
        Self { volume_id, summary, ahead, reader: None, done_bytes: 0 }
    }

    /// The snapshot that is being checked.
    pub fn summary(&self) -> &SlotSummary {
        &self.summary
    }

    /// Reads and checks the next piece, and returns its size in bytes. The first piece is header,
    /// index and trailer; each later piece is one chunk. Returns `None` once everything was read
    /// and is whole. Blocks until the piece is read.
    ///
    /// # Errors
    /// If the snapshot is damaged or the device fails. The check has then ended.
    pub fn step(&mut self, device: &mut dyn Device) -> Result<Option<u64>, Error> {
        let reader = match &mut self.reader {
            None => {
                let reader = SlotReader::open(device, self.volume_id, self.summary, self.ahead)?;
                self.reader.insert(reader)
            }
            Some(reader) => {
                let Some(chunk) = reader.next_chunk(device)? else { return Ok(None) };
                chunk.payload()?;
                reader.give_back(chunk.into_buffer());
                reader
            }
        };
        // Index and trailer lie after the chunks, but are read before them.
        let behind = self.summary.len_lbas * LBA_SIZE as u64 - reader.total_bytes();
        let before = std::mem::replace(&mut self.done_bytes, behind + reader.done_bytes());
        Ok(Some(self.done_bytes - before))
    }
}
