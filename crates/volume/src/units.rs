//! Counts the blocks of each kind of data (superblock, log, snapshots) in each reclaim unit of an
//! emulated SSD.

use std::path::Path;

use slimio_device::OpenError;
use slimio_ssd::{DriveOptions, DriveWatch, EmulatedDrive, Ftl, UnitReport, UnitState};
use slimio_storage::{Area, ExtentMap, Inspection, SnapshotKind, Storage};

/// The possible owners of a block. [`Unit::valid`] has a count for each owner, in this order.
pub const OWNERS: [&str; 5] =
    ["superblock", "log", "WAL-snapshot", "on-demand snapshot", "nobody's any more"];

/// The owner of a block that is in no area, or in a snapshot slot that holds no snapshot.
const NOBODY: usize = 4;

/// Contents of a reclaim unit, in pages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unit {
    /// Whether the unit is free, open or filled.
    pub state: UnitState,
    /// Number of pages of the unit.
    pub pages: u32,
    /// Number of pages that are written.
    pub written: u32,
    /// Number of valid pages of each of [`OWNERS`].
    pub valid: [u32; OWNERS.len()],
}

/// Opens the volume on an existing emulated SSD. Also returns a [`DriveWatch`] of the drive. `path`
/// is the drive's name.
///
/// # Errors
/// When the drive does not exist, or the volume can't be opened.
pub fn open_watched(
    path: &Path,
    options: DriveOptions,
) -> Result<(Storage, DriveWatch), OpenError> {
    options.check_exists()?;
    let drive = EmulatedDrive::open(options)?;
    let watch = drive.watch();
    Ok((crate::open_on(path, Box::new(drive), u64::MAX)?, watch))
}

/// The reclaim units of a drive and their contents.
pub fn units(ftl: &Ftl, found: &Inspection) -> Vec<Unit> {
    let pages = ftl.config().geometry.unit_pages();
    let unit = |UnitReport { state, written, .. }| Unit {
        state,
        pages,
        written,
        valid: [0; OWNERS.len()],
    };
    let mut units: Vec<Unit> = ftl.units().map(unit).collect();
    for lba in 0..ftl.config().lba_count {
        if let Some(page) = ftl.page_of(lba) {
            units[(page.0 / pages) as usize].valid[owner(lba, found)] += 1;
        }
    }
    units
}

/// A line about a drive: how many reclaim units there are of each kind, and the drive's write
/// amplification.
pub fn summary(watch: &DriveWatch, found: &Inspection) -> String {
    let (units, waf) = watch.with_ftl(|ftl| (units(ftl, found), ftl.counters().waf()));
    let of_state = |state| units.iter().filter(|unit| unit.state == state).count();
    let lifetimes = |unit: &Unit| unit.valid.iter().filter(|valid| **valid > 0).count();
    let apart = units.iter().filter(|unit| lifetimes(unit) == 1).count();
    let mixed = units.iter().filter(|unit| lifetimes(unit) > 1).count();
    let waf = waf.map_or_else(|| "unknown: nothing was written".into(), |waf| format!("{waf:.3}"));
    format!(
        "{} reclaim units: {} free, {} open, {} filled; {apart} hold data of one owner, {mixed} of \
         several; write amplification {waf}",
        units.len(),
        of_state(UnitState::Free),
        of_state(UnitState::Open),
        of_state(UnitState::Closed),
    )
}

/// The owner of a block, as an index in [`OWNERS`].
fn owner(lba: u64, found: &Inspection) -> usize {
    let extents = found.superblock.as_ref().and_then(|superblock| superblock.extents.as_ref());
    match extents.map_or(Some(Area::Superblock), |extents| area(extents, lba)) {
        Some(Area::Superblock) => 0,
        Some(Area::Wal) => 1,
        Some(Area::Snapshot(slot)) => {
            let held = found.slots.iter().find(|(held, _)| held.slot == slot);
            held.map_or(NOBODY, |(held, _)| match held.kind {
                SnapshotKind::Wal => 2,
                SnapshotKind::OnDemand => 3,
            })
        }
        None => NOBODY,
    }
}

/// The area of a block. A block that is in no extent belongs to the superblock.
fn area(extents: &ExtentMap, lba: u64) -> Option<Area> {
    let extent = lba.checked_sub(extents.first_lba).map(|behind| behind / extents.extent_lbas);
    let owner = extent.and_then(|extent| extents.owners.get(extent as usize));
    owner.map_or(Some(Area::Superblock), |owner| owner.map(|(area, _)| area))
}

#[cfg(test)]
mod tests {
    use slimio_storage::SlotName;

    use super::*;

    #[test]
    fn a_block_belongs_to_the_area_of_its_extent() {
        let owners = vec![Some((Area::Wal, 0)), None, Some((Area::Snapshot(SlotName::B), 3))];
        let extents = ExtentMap { device_lbas: 1000, first_lba: 100, extent_lbas: 50, owners };
        let found = [0, 99, 100, 149, 150, 200, 249, 250].map(|lba| area(&extents, lba));
        let (head, log) = (Some(Area::Superblock), Some(Area::Wal));
        let slot = Some(Area::Snapshot(SlotName::B));
        assert_eq!(found, [head, head, log, log, None, slot, slot, head]);
    }
}
