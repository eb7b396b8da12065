//! A device as one pool of equal extents, of which the log and the snapshot slots are made.
//!
//! ```text
//! | superblock: first half | mapped buffers | extent | extent | ...    | superblock: second half |
//!                                              log      slot b   (free)
//! ```
//!
//! No area has a fixed share. Each area takes extents when it grows, and gives whole extents back.
//! The map in the superblock says which extent is which piece of which area. Taking an extent
//! changes only memory. The next update of the superblock writes the map. Until this update is
//! durable, recovery ignores the extent's contents.
//!
//! The invariant for each free extent: its deallocation is complete. And if there is a crash,
//! recovery ignores the extent's contents, whichever superblock is in force then. So an area that
//! takes a free extent may write to it at once.

mod path;
mod pool;

#[cfg(test)]
mod tests;

pub use pool::{Pool, PoolUse};

use crate::layout::{
    EXTENTS_MAX, put_u16, put_u32, put_u64, superblock as at, u16_at, u32_at, u64_at,
};
use crate::{Area, SlotName};

/// Areas that are made of extents.
pub(crate) const AREA_COUNT: usize = 1 + SlotName::ALL.len();

/// All areas that are made of extents, in the order of [`index_of`].
pub(crate) const AREAS: [Area; AREA_COUNT] = [
    Area::Wal,
    Area::Snapshot(SlotName::A),
    Area::Snapshot(SlotName::B),
    Area::Snapshot(SlotName::C),
];

/// Index of an area in [`AREAS`]; `None` for the superblock's area, which is not made of extents.
pub(crate) fn index_of(area: Area) -> Option<usize> {
    match area {
        Area::Superblock => None,
        Area::Wal => Some(0),
        Area::Snapshot(slot) => Some(1 + slot.index()),
    }
}

/// Where the extents of a device are, and which area each extent belongs to, as a superblock says.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct ExtentMap {
    /// Number of blocks of the device.
    pub device_lbas: u64,
    /// First block of the first extent.
    pub first_lba: u64,
    /// Number of blocks of an extent.
    pub extent_lbas: u64,
    /// For each extent, its area and which piece of the area it is, counted from 0; `None` if the
    /// extent is free.
    pub owners: Vec<Option<(Area, u32)>>,
}

impl ExtentMap {
    /// The extents of an area, by their place in the area; `None` for a hole.
    pub(crate) fn pieces(&self, area: Area) -> Vec<Option<u32>> {
        let mut pieces = Vec::new();
        for (extent, owner) in (0..).zip(&self.owners) {
            let Some((_, piece)) = owner.filter(|(owner, _)| *owner == area) else { continue };
            let piece = piece as usize;
            pieces.resize(pieces.len().max(piece + 1), None);
            pieces[piece] = Some(extent);
        }
        pieces
    }

    /// The number of extents of each area, and the number of free extents.
    pub fn counts(&self) -> ([(Area, usize); AREA_COUNT], usize) {
        let of = |wanted| self.owners.iter().flatten().filter(|(area, _)| *area == wanted).count();
        let counts = AREAS.map(|area| (area, of(area)));
        (counts, self.owners.iter().filter(|owner| owner.is_none()).count())
    }

    pub(crate) fn encode(&self, bytes: &mut [u8]) {
        assert!(self.owners.len() <= EXTENTS_MAX, "the superblock has no room for the map");
        put_u64(bytes, at::DEVICE_LBAS, self.device_lbas);
        put_u64(bytes, at::FIRST_EXTENT, self.first_lba);
        put_u64(bytes, at::EXTENT_LBAS, self.extent_lbas);
        put_u32(bytes, at::EXTENT_COUNT, self.owners.len() as u32);
        for (extent, owner) in self.owners.iter().enumerate() {
            let Some((area, piece)) = owner else { continue };
            let area = index_of(*area).expect("the superblock's area has no extents") as u16 + 1;
            let entry = area << at::EXTENT_AREA_SHIFT | *piece as u16;
            put_u16(bytes, at::EXTENTS + 2 * extent, entry);
        }
    }

    /// Reads the map from the bytes of a superblock. Does not check that the bytes outside the
    /// map's fields are zero. The caller checks this: it encodes the superblock again and compares.
    pub(crate) fn decode(bytes: &[u8]) -> Result<Self, String> {
        let count = u32_at(bytes, at::EXTENT_COUNT) as usize;
        if count > EXTENTS_MAX {
            return Err(format!("the extent map has too many extents ({count})"));
        }
        let mut taken = std::collections::HashSet::new();
        let mut owners = Vec::with_capacity(count);
        for extent in 0..count {
            let entry = u16_at(bytes, at::EXTENTS + 2 * extent);
            let piece = u32::from(entry & ((1 << at::EXTENT_AREA_SHIFT) - 1));
            let owner = match entry >> at::EXTENT_AREA_SHIFT {
                0 if piece == 0 => None,
                area => {
                    let area = usize::from(area).checked_sub(1).and_then(|area| AREAS.get(area));
                    let area = area.ok_or_else(|| format!("extent {extent} has no known area"))?;
                    Some((*area, piece))
                }
            };
            if owner.is_some_and(|owner| !taken.insert(owner)) {
                return Err(format!("extent {extent} has the place of another extent"));
            }
            owners.push(owner);
        }
        let map = Self {
            device_lbas: u64_at(bytes, at::DEVICE_LBAS),
            first_lba: u64_at(bytes, at::FIRST_EXTENT),
            extent_lbas: u64_at(bytes, at::EXTENT_LBAS),
            owners,
        };
        let end = (count as u64)
            .checked_mul(map.extent_lbas)
            .and_then(|lbas| lbas.checked_add(map.first_lba));
        if map.extent_lbas == 0 || end.is_none_or(|end| end > map.device_lbas) {
            return Err("the extents reach beyond the device".into());
        }
        Ok(map)
    }
}
