//! Keeps the earlier contents of blocks, for writes and deallocations that a power cut may still
//! undo.

use std::collections::{BTreeMap, HashMap};
use std::ops::Range;

use slimio_device::{DeviceError, LBA_SIZE};

use super::data::Data;

/// The earlier contents of a block: its bytes, and the handle that wrote them. `None` if the block
/// held nothing.
pub(super) type Held = Option<(Box<[u8]>, u16)>;

/// Writes and deallocations that are not stable (a power cut may undo them), and what they have
/// replaced.
#[derive(Debug, Default)]
pub(super) struct Undo {
    next_id: u64,
    /// For each block, its writes and deallocations that are not stable, oldest first. Each comes
    /// with the earlier contents of the block.
    layers: BTreeMap<u64, Vec<(u64, Held)>>,
    /// Writes and deallocations that are not stable: their blocks, and whether they have completed.
    writes: HashMap<u64, (Range<u64>, bool)>,
}

impl Undo {
    /// Begins a write or a deallocation, and reads the data that it replaces. `writer` gives the
    /// handle that wrote a block. Returns the id of the write or deallocation.
    pub(super) fn begin(
        &mut self,
        data: &Data,
        blocks: Range<u64>,
        writer: impl Fn(u64) -> Option<u16>,
    ) -> Result<u64, DeviceError> {
        let mut before = Vec::with_capacity((blocks.end - blocks.start) as usize);
        for lba in blocks.clone() {
            before.push(match writer(lba) {
                Some(handle) => {
                    let mut bytes = vec![0; LBA_SIZE].into_boxed_slice();
                    data.read(lba, &mut bytes)?;
                    Some((bytes, handle))
                }
                None => None,
            });
        }
        let id = self.next_id;
        self.next_id += 1;
        for (lba, held) in blocks.clone().zip(before) {
            self.layers.entry(lba).or_default().push((id, held));
        }
        self.writes.insert(id, (blocks, false));
        Ok(id)
    }

    /// Notes that a write or deallocation has completed.
    pub(super) fn end(&mut self, id: u64, is_stable: bool) {
        if is_stable {
            self.make_stable(&[id]);
        } else if let Some((_, is_over)) = self.writes.get_mut(&id) {
            *is_over = true;
        }
    }

    /// Notes that a write was refused after it had begun, and has replaced nothing.
    pub(super) fn forget(&mut self, id: u64) {
        let Some((range, _)) = self.writes.remove(&id) else { return };
        for lba in range {
            if let Some(layers) = self.layers.get_mut(&lba) {
                layers.retain(|(other, _)| *other != id);
            }
        }
        self.layers.retain(|_, layers| !layers.is_empty());
    }

    /// Ids of writes and deallocations that have completed but are not stable.
    pub(super) fn over(&self) -> Vec<u64> {
        self.writes.iter().filter(|(_, (_, is_over))| *is_over).map(|(id, _)| *id).collect()
    }

    /// Makes writes and deallocations stable, so that a power cut does not bring back the data that
    /// they replaced.
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

    /// Cuts the power. Returns the blocks that have to be restored, each with its last stable
    /// contents. Blocks for which `survives` returns true keep their latest contents, and are left
    /// out. Afterwards, nothing is left to undo.
    pub(super) fn cut(&mut self, mut survives: impl FnMut(u64) -> bool) -> Vec<(u64, Held)> {
        self.writes.clear();
        std::mem::take(&mut self.layers)
            .into_iter()
            .filter_map(|(lba, layers)| Some((lba, layers.into_iter().next()?.1)))
            .filter(|(lba, _)| !survives(*lba))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_write_that_was_refused_is_not_undone() {
        let mut undo = Undo::default();
        let first =
            undo.begin(&Data::Dropped, 0..2, |_| Some(1)).expect("the replaced data can be read");
        let refused =
            undo.begin(&Data::Dropped, 1..3, |_| Some(2)).expect("the replaced data can be read");
        undo.forget(refused);
        undo.end(first, false);
        let handles = |held: Vec<(u64, Held)>| -> Vec<(u64, u16)> {
            held.into_iter().filter_map(|(lba, held)| Some((lba, held?.1))).collect()
        };
        assert_eq!(handles(undo.cut(|_| false)), [(0, 1), (1, 1)]);
    }
}
