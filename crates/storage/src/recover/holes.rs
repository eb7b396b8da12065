//! Space for the blocks that a sparse copy left out.
//!
//! `cp --sparse=always` and similar tools make holes of blocks that hold zeros. They read as
//! before, but the first write to each changes metadata of the file system, and fails when that has
//! become full. So holes are filled before anything depends on them: where copies of the superblock
//! are, and in the log from where it goes on.
//!
//! Filling them does not change what they hold: interrupted anywhere, a start finds the same.

use slimio_device::{Device, Lba, LbaRange};
use slimio_planted::is_planted;

use super::chain::Place;
use crate::superblock::{VolumeGeometry, copy_lba};
use crate::{Error, layout};

/// Fills the holes of the superblock's area.
pub(crate) fn fill_superblock(
    superblock_path: &mut dyn Device,
    geometry: &VolumeGeometry,
) -> Result<(), Error> {
    for copy in 0..layout::SUPERBLOCK_COPIES {
        let start = copy_lba(copy, geometry.super_lbas);
        let end = Lba(start.0 + layout::SUPERBLOCK_COPY_LBAS);
        fill(
            superblock_path,
            LbaRange { start, end },
            "giving the superblock the space that a sparse copy left out",
        )?;
    }
    Ok(())
}

/// Fills the holes of the log behind `place`: in the segment of `place`, and in the prepared ones.
/// `segments` are all segments of the log, each with its slot.
pub(crate) fn fill_log(
    wal: &mut dyn Device,
    geometry: &VolumeGeometry,
    segments: &[(u64, u32)],
    place: &Place,
) -> Result<(), Error> {
    for &(segment, wal_slot) in segments.iter().filter(|(segment, _)| *segment >= place.segment) {
        let slot = u64::from(wal_slot) * geometry.segment_lbas;
        let used_lbas = if segment == place.segment { place.lba } else { 0 };
        let end = slot + geometry.segment_lbas - u64::from(is_planted("holes-off-by-one"));
        let range = LbaRange { start: Lba(slot + used_lbas), end: Lba(end) };
        fill(wal, range, "giving the log the space that a sparse copy left out")?;
    }
    Ok(())
}

fn fill(device: &mut dyn Device, range: LbaRange, doing: &'static str) -> Result<(), Error> {
    if is_planted("holes-unfilled") {
        return Ok(());
    }
    device.fill_holes(range).map_err(|error| Error::Device { doing, error })
}
