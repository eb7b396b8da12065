//! Looking at a volume without opening it: nothing is written.

use slimio_device::Device;

use crate::recover::examine::{Examined, Wanted, examine, load_extents, read_on_demand};
use crate::superblock::{Superblock, SuperblockCopy, read_copies};
use crate::{
    Area, Chunk, Error, Media, Progress, READ_AHEAD_CHUNKS, Record, RecoverSink, Report,
    RootChoice, SlotCheck, SlotName, SlotPaths, SlotSummary, VolumeId,
};

/// What is on a volume.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// What was found in the places of the superblock's copies.
    pub copies: Vec<SuperblockCopy>,
    /// The superblock in force, if there is one.
    pub superblock: Option<Superblock>,
    /// The segments of the log in order, each with its slot.
    pub segments: Vec<(u64, u32)>,
    /// The snapshots that are held, each with what is wrong with it, if anything.
    pub slots: Vec<(SlotSummary, Result<(), Error>)>,
    /// The slots that are missing. Opening the volume makes those again that held nothing it needs.
    pub missing_slots: Vec<SlotName>,
    /// What opening the volume would find if its device were accepted; copies are read like others.
    pub log: Result<Report, Error>,
}

/// Shows what is on a volume, damaged or not, and whatever device it was made on.
///
/// # Errors
/// When the superblock's area can't be opened or is too short.
pub fn inspect(media: &mut dyn Media) -> Result<Inspection, Error> {
    let copies = read_copies(&mut *media.open_path(Area::Superblock)?)?;
    let superblock = in_force(&copies);
    if let Some(superblock) = &superblock {
        // If that fails, examining the volume below reports it.
        let _ = load_extents(media, superblock);
    }
    let segments = superblock.as_ref().map_or_else(Vec::new, Superblock::segments);
    let mut slots = Vec::new();
    let mut paths = SlotPaths::open(media)?;
    if let Some(superblock) = &superblock {
        for held in superblock.snapshots.all() {
            slots.push((*held, check_found(&mut paths, superblock.volume_id, *held)));
        }
    }
    let missing_slots = paths.missing().collect();
    let log = examine_root(media, RootChoice::InForce, &mut Check(&mut |_| {}))
        .map(|examined| examined.report);
    Ok(Inspection { copies, superblock, segments, slots, missing_slots, log })
}

/// The superblock in force; `None` where no copy of one is valid.
///
/// # Errors
/// When the superblock's area can't be opened or is too short.
pub fn superblock(media: &mut dyn Media) -> Result<Option<Superblock>, Error> {
    let superblock = in_force(&read_copies(&mut *media.open_path(Area::Superblock)?)?);
    if let Some(superblock) = &superblock {
        load_extents(media, superblock)?;
    }
    Ok(superblock)
}

fn in_force(copies: &[SuperblockCopy]) -> Option<Superblock> {
    let valid = copies.iter().filter_map(|copy| match copy {
        SuperblockCopy::Valid(superblock, _) => Some(superblock.as_ref()),
        _ => None,
    });
    valid.max_by_key(|superblock| superblock.sequence).cloned()
}

/// Checks chunks, and does nothing with records.
struct Check<'a>(&'a mut dyn FnMut(Progress));

impl RecoverSink for Check<'_> {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        chunk.payload().map(drop)
    }

    fn record(&mut self, _: Record<'_>) -> Result<(), String> {
        Ok(())
    }

    fn progress(&mut self, progress: Progress) {
        (self.0)(progress);
    }
}

/// Reads everything that opening the volume would read, and the other snapshots, and checks it. A copy
/// on another device is read like any other; [`Report::other_device`] says that it is one.
///
/// # Errors
/// What [`recover`](crate::recover) would refuse the volume for, were its device accepted; then, what
/// is wrong with a snapshot that is not the root.
pub fn verify(media: &mut dyn Media, progress: &mut dyn FnMut(Progress)) -> Result<Report, Error> {
    let examined = examine_root(media, RootChoice::InForce, &mut Check(progress))?;
    let Superblock { volume_id, snapshots, .. } = &examined.superblock;
    let mut slots = SlotPaths::open(media)?;
    for summary in snapshots.all().filter(|held| snapshots.root() != Some(held)) {
        check_found(&mut slots, *volume_id, *summary)?;
    }
    Ok(examined.report)
}

fn examine_root(
    media: &mut dyn Media,
    root: RootChoice,
    sink: &mut dyn RecoverSink,
) -> Result<Examined, Error> {
    let mut superblock_path = media.open_path(Area::Superblock)?;
    let mut wal = media.open_path(Area::Wal)?;
    let mut slots = SlotPaths::open(media)?;
    // Reading a copy does no harm.
    let wanted = Wanted { salvage: false, root, accept_device: true };
    examine(media, &mut *superblock_path, &mut *wal, &mut slots, wanted, sink)
}

/// As [`check_slot`], of a slot that may be missing.
fn check_found(
    paths: &mut SlotPaths,
    volume_id: VolumeId,
    summary: SlotSummary,
) -> Result<(), Error> {
    check_slot(paths.find(summary.slot)?, volume_id, summary)
}

/// Reads a whole snapshot, and checks it.
///
/// # Errors
/// What is wrong with it, or with the device.
pub fn check_slot(
    device: &mut dyn Device,
    volume_id: VolumeId,
    summary: SlotSummary,
) -> Result<(), Error> {
    let mut check = SlotCheck::new(volume_id, summary, READ_AHEAD_CHUNKS);
    while check.step(device)?.is_some() {}
    Ok(())
}

/// Reads what opening the volume would read, and hands it to `sink`. Nothing is written, and no log
/// is opened for appending. A copy on another device is read like any other. With the on-demand
/// snapshot as the root, the log is not read, so it may be missing.
///
/// # Errors
/// As [`recover`](crate::recover), but never [`Error::OtherDevice`].
pub fn read(
    media: &mut dyn Media,
    root: RootChoice,
    sink: &mut dyn RecoverSink,
) -> Result<(), Error> {
    match root {
        RootChoice::InForce => examine_root(media, root, sink).map(drop),
        RootChoice::OnDemand if sink.wants_snapshot() => read_on_demand(media, sink),
        RootChoice::OnDemand => Ok(()),
    }
}
