//! Space for the blocks that a sparse copy left out.
//!
//! `cp --sparse=always` and similar tools make holes of blocks that hold zeros. They read as
//! before, but the first write to each changes metadata of the file system, and fails when that has
//! become full. So holes are filled before anything depends on them: where copies of the superblock
//! are, and in the log from where it goes on.
//!
//! Filling them does not change what they hold: interrupted anywhere, a start finds the same. Where the
//! room is not enough, those that were filled become holes again: the disk is full, and the volume not
//! in use.

use slimio_device::{Device, FilledHoles, Lba, LbaRange};
use slimio_planted::is_planted;

use super::chain::Place;
use crate::superblock::{VolumeGeometry, copy_lba};
use crate::{Error, layout};

/// Fills the holes of the superblock's area, and those of the log behind `place`: in the segment of
/// `place`, and in the prepared ones. `segments` are all segments of the log, each with its slot.
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
        "giving the superblock the space that a sparse copy left out",
        &mut of_superblock,
    )
    .and_then(|()| {
        let doing = "giving the log the space that a sparse copy left out";
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

/// Adds what has got space to `filled`, also when some can't get any.
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
