//! What was in blocks before writes that a power cut may still undo.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use slimio_device::{DeviceError, LBA_SIZE};

use super::data::Data;

type Block = Box<[u8]>;

/// Writes that are not stable, and what they have replaced.
#[derive(Debug, Default)]
pub(super) struct Undo {
    next_id: u64,
    /// For each block, the writes to it that are not stable, oldest first, each with what was there
    /// before it.
    layers: BTreeMap<u64, Vec<(u64, Block)>>,
    /// Writes that are not stable: their blocks, and whether they are over.
    writes: HashMap<u64, (Range<u64>, bool)>,
}

impl Undo {
    /// A write begins; what it replaces is read. Returns its id.
    pub(super) fn begin(&mut self, data: &Data, lba: u64, lbas: u64) -> Result<u64, DeviceError> {
        let mut before = vec![0; lbas as usize * LBA_SIZE];
        data.read(lba, &mut before)?;
        let id = self.next_id;
        self.next_id += 1;
        for (lba, block) in (lba..).zip(before.chunks_exact(LBA_SIZE)) {
            self.layers.entry(lba).or_default().push((id, block.into()));
        }
        self.writes.insert(id, (lba..lba + lbas, false));
        Ok(id)
    }

    /// A write is over.
    pub(super) fn end(&mut self, id: u64, is_stable: bool) {
        if is_stable {
            self.make_stable(&[id]);
        } else if let Some((_, is_over)) = self.writes.get_mut(&id) {
            *is_over = true;
        }
    }

    /// Writes that are over and not stable.
    pub(super) fn over(&self) -> Vec<u64> {
        self.writes.iter().filter(|(_, (_, is_over))| *is_over).map(|(id, _)| *id).collect()
    }

    /// Lets writes be stable, and with them what they have replaced.
    pub(super) fn make_stable(&mut self, ids: &[u64]) {
        for id in ids {
            let Some((range, _)) = self.writes.remove(id) else { continue };
            for lba in range {
                let Some(layers) = self.layers.get_mut(&lba) else { continue };
                layers.retain(|(other, _)| other > id);
                if layers.is_empty() {
                    self.layers.remove(&lba);
                }
            }
        }
    }

    /// Blocks that were deallocated are nobody's any more.
    pub(super) fn forget(&mut self, range: Range<u64>) {
        let mut behind = self.layers.split_off(&range.start);
        self.layers.append(&mut behind.split_off(&range.end));
    }

    /// Brings back what was before, except where the latest write survives.
    pub(super) fn restore(&mut self, data: &Data, mut survives: impl FnMut(u64) -> bool) {
        for (lba, layers) in std::mem::take(&mut self.layers) {
            if let Some((_, before)) = layers.first()
                && !survives(lba)
            {
                data.write(lba, before).expect("it has been written there before");
            }
        }
        self.writes.clear();
    }
}
