//! Looking at a volume without opening it: nothing is written.

use crate::recover::chain::Sink;
use crate::recover::examine::examine;
use crate::superblock::{Superblock, SuperblockCopy, read_copies};
use crate::{Area, Error, Media, Progress, Report};

/// What is on a volume.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// What is where the superblock's copies should be.
    pub copies: Vec<SuperblockCopy>,
    /// The superblock in force, if there is one.
    pub superblock: Option<Superblock>,
    /// The segments of the log in order, each with its slot.
    pub segments: Vec<(u64, u32)>,
    /// What opening the volume would find.
    pub log: Result<Report, Error>,
}

/// Shows what is on a volume, damaged or not.
///
/// # Errors
/// When the superblock's area can't be opened or is too short.
pub fn inspect(media: &mut dyn Media) -> Result<Inspection, Error> {
    let copies = read_copies(&mut *media.open_path(Area::Superblock)?)?;
    let valid = copies.iter().filter_map(|copy| match copy {
        SuperblockCopy::Valid(superblock, _) => Some(superblock.as_ref()),
        _ => None,
    });
    let superblock = valid.max_by_key(|superblock| superblock.sequence).cloned();
    let segments = superblock.as_ref().map_or_else(Vec::new, Superblock::segments);
    let log = verify(media, &mut |_| {});
    Ok(Inspection { copies, superblock, segments, log })
}

/// Reads everything that opening the volume would read, and checks it.
///
/// # Errors
/// What [`recover`](crate::recover) would refuse the volume for.
pub fn verify(media: &mut dyn Media, progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
    let mut superblock_path = media.open_path(Area::Superblock)?;
    let mut wal = media.open_path(Area::Wal)?;
    let mut sink = Sink { apply: &mut |_| Ok(()), progress };
    examine(media, &mut *superblock_path, &mut *wal, false, &mut sink)
        .map(|examined| examined.report)
}
