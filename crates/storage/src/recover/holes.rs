//! Allocates space for the blocks that a sparse copy of the volume left out.
//!
//! `cp --sparse=always` and similar tools turn blocks that hold zeros into holes. A hole reads as
//! zeros, too, but the first write to it changes metadata of the file system, and fails if the file
//! system has become full. So recovery fills some holes before anything is written to them: the
//! holes in the copies of the superblock, and those in the log after the place where it goes on.
//!
//! Filling holes does not change what is read. So if the filling is interrupted anywhere, the next
//! start reads the same data. If there is too little space, the filled holes become holes again,
//! because a volume that does not open must not fill the disk.

use slimio_device::{Device, FilledHoles, Lba, LbaRange};
use slimio_planted::is_planted;

use super::chain::Place;
use crate::superblock::{VolumeGeometry, copy_lba};
use crate::{Error, layout};

/// Fills the holes in the copies of the superblock, and those in the log after `place`. In the log,
/// these are the holes in the rest of the segment of `place` and in the prepared segments.
/// `segments` are all segments of the log, each with its slot.
pub(crate) fn fill(
    superblock_path: &mut dyn Device,
    wal: &mut dyn Device,
    geometry: &VolumeGeometry,
    segments: &[(u64, u32)],
    place: &Place,
) -> Result<(), Error> {
    let copies = (0..layout::SUPERBLOCK_COPIES).map(|copy| {
        let start = copy_lba(copy, geometry.super_lbas);
        LbaRange { start, end: Lba(start.0 + layout::SUPERBLOCK_COPY_LBAS) }
    });
    let ahead = segments.iter().filter(|(segment, _)| *segment >= place.segment);
    let behind = ahead.map(|&(segment, wal_slot)| {
        let slot = u64::from(wal_slot) * geometry.segment_lbas;
        let used_lbas = if segment == place.segment { place.lba } else { 0 };
        let end = slot + geometry.segment_lbas - u64::from(is_planted("holes-off-by-one"));
        LbaRange { start: Lba(slot + used_lbas), end: Lba(end) }
    });
    let (mut of_superblock, mut of_log) = (Vec::new(), Vec::new());
    let filled = fill_all(
        superblock_path,
        copies,
        "filling the holes that a sparse copy left in the superblock's area",
        &mut of_superblock,
    )
    .and_then(|()| {
        let doing = "filling the holes that a sparse copy left in the log's area";
        fill_all(wal, behind, doing, &mut of_log)
    });
    if filled.is_err() {
        for holes in &of_superblock {
            superblock_path.empty_holes(holes);
        }
        for holes in &of_log {
            wal.empty_holes(holes);
        }
    }
    filled
}

/// Fills the holes in `ranges`. If a range can't be filled, `filled` has the ranges before it.
fn fill_all(
    device: &mut dyn Device,
    ranges: impl Iterator<Item = LbaRange>,
    doing: &'static str,
    filled: &mut Vec<FilledHoles>,
) -> Result<(), Error> {
    if is_planted("holes-unfilled") {
        return Ok(());
    }
    for range in ranges {
        filled.push(device.fill_holes(range).map_err(|error| Error::Device { doing, error })?);
    }
    Ok(())
}
