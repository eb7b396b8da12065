//! What recovery found on a volume, and what it decided, in words.

use std::fmt;

use crate::{Area, Lsn, SlotName, SlotSummary, VolumeId};

/// What recovery found on a volume, and what it decided. `Display` is one paragraph for the
/// server's log file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The state of each copy of the superblock.
    pub copies: Vec<String>,
    /// Sequence of the superblock that was in force.
    pub sequence: u64,
    /// Id of the volume.
    pub volume_id: VolumeId,
    /// Epoch of the superblock that was in force.
    pub epoch: u64,
    /// The snapshot that was loaded, if any.
    pub root: Option<SlotSummary>,
    /// Whether recovery from the on-demand snapshot was asked for. If so, the log was not used.
    pub is_on_demand: bool,
    /// Where the log starts.
    pub start: Lsn,
    /// Where the log's batches end.
    pub log_end: Lsn,
    /// Where the last complete record ends, whether it was in the log or in the mapped buffers.
    pub end: Lsn,
    /// Batches read.
    pub batches: u64,
    /// Whole batches after the end of the log. Normally, nothing on the volume says that any of
    /// them was durable. But if salvage or the on-demand snapshot was asked for, some of them may
    /// have been durable.
    pub batches_ignored: u64,
    /// Records applied.
    pub records: u64,
    /// Bytes that were only in the mapped buffers.
    pub rescued_bytes: u64,
    /// Bytes of the fragments of an incomplete record, which were dropped.
    pub dropped_bytes: u64,
    /// The device that the volume was last written on, if it is not this device. A recovery has
    /// then stored this device's identity in place of the other's. An inspection stores nothing; it
    /// only reports that the volume is a copy.
    pub other_device: Option<String>,
    /// Snapshot slots that were missing, each with the snapshot that it should have held. None of
    /// these snapshots was needed.
    pub missing_slots: Vec<(SlotName, Option<SlotSummary>)>,
    /// The damage that was accepted because salvage was asked for, in sentences. If the log is
    /// damaged in several places, only the first is listed.
    pub salvaged: Vec<String>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sequence, epoch, start, end, batches, records, .. } = self;
        write!(f, "volume {:032x}: superblock {sequence} (", self.volume_id.0)?;
        for (index, copy) in self.copies.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}copy {index} {copy}")?;
        }
        write!(f, "), epoch {epoch}; ")?;
        if let Some(root) = &self.root {
            let SlotSummary { slot, kind, lsn, entry_count, .. } = root;
            let (kind, area) = (kind.name(), Area::Snapshot(*slot).name());
            write!(f, "{kind} in {area} with {entry_count} entries at LSN {lsn}; ")?;
        }
        let unused = if self.is_on_demand { ", none of them used" } else { "" };
        write!(f, "log from LSN {start} to {end}: {records} records in {batches}")?;
        write!(f, " batches{unused}")?;
        if self.rescued_bytes > 0 {
            write!(f, ", and {} bytes from the mapped buffers", self.rescued_bytes)?;
        }
        if self.dropped_bytes > 0 {
            write!(f, "; dropped {} bytes of an incomplete record", self.dropped_bytes)?;
        }
        if self.batches_ignored > 0 {
            write!(f, "; ignored {} batches after the end of the log", self.batches_ignored)?;
        }
        if let Some(other) = &self.other_device {
            write!(f, "; it was last written on another device ({other})")?;
        }
        for (slot, held) in &self.missing_slots {
            write!(f, "; the file {} is missing", Area::Snapshot(*slot).name())?;
            match held {
                Some(held) => write!(f, ", which held the {}", held.kind.name())?,
                None => f.write_str(", which held no snapshot")?,
            }
        }
        if !self.salvaged.is_empty() {
            write!(f, "; SALVAGED, the damaged data is lost: {}", self.salvaged.join("; "))?;
        }
        f.write_str(".")
    }
}
