//! Looks at a volume without opening it, and writes nothing.

use slimio_device::Device;

use crate::recover::examine::{
    Examined, Wanted, choose, examine, load_extents, read_on_demand, versions_of,
};
use crate::superblock::{Superblock, SuperblockCopy, read_copies};
use crate::{
    Area, Chunk, Error, Media, Progress, READ_AHEAD_CHUNKS, Record, RecoverSink, Report,
    RootChoice, SlotCheck, SlotName, SlotPaths, SlotSummary, VolumeId,
};

/// What is on a volume.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// The state of each copy of the superblock.
    pub copies: Vec<SuperblockCopy>,
    /// The superblock in force, if there is one.
    pub superblock: Option<Superblock>,
    /// The segments of the log in order, each with its slot.
    pub segments: Vec<(u64, u32)>,
    /// The snapshots on the volume. A snapshot's result is an error if something is wrong with the
    /// snapshot.
    pub slots: Vec<(SlotSummary, Result<(), Error>)>,
    /// The slots that are missing. Opening the volume makes a missing slot again, if the slot held
    /// nothing that is needed.
    pub missing_slots: Vec<SlotName>,
    /// What opening the volume would find. The device's identity is not checked, so a copy of a
    /// volume on another device is read like any other volume.
    pub log: Result<Report, Error>,
}

/// Shows what is on a volume. The volume may be damaged, and may be a copy from another device.
///
/// # Errors
/// If the superblock's area can't be opened or is too short, or if a slot exists but can't be
/// opened.
pub fn inspect(media: &mut dyn Media) -> Result<Inspection, Error> {
    let copies = read_copies(&mut *media.open_path(Area::Superblock)?)?;
    let superblock = in_force(&copies);
    if let Some(superblock) = &superblock {
        // If loading the extents fails, examining the volume below reports the same error.
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

/// The superblock in force.
///
/// # Errors
/// If no copy of the superblock is valid, for example because all copies have another format
/// version. Also if the superblock's area can't be opened or is too short, or if the superblock's
/// extent map does not fit the medium.
pub fn superblock(media: &mut dyn Media) -> Result<Superblock, Error> {
    let copies = read_copies(&mut *media.open_path(Area::Superblock)?)?;
    let (superblock, _) = choose(&copies, versions_of(media))?;
    load_extents(media, &superblock)?;
    Ok(superblock)
}

fn in_force(copies: &[SuperblockCopy]) -> Option<Superblock> {
    let valid = copies.iter().filter_map(|copy| match copy {
        SuperblockCopy::Valid(superblock, _) => Some(superblock.as_ref()),
        _ => None,
    });
    valid.max_by_key(|superblock| superblock.sequence).cloned()
}

/// A sink that checks chunks, and does nothing with records.
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

/// Reads and checks everything that opening the volume would read, and also the snapshots that it
/// would not read. A copy of a volume on another device is read like any other volume;
/// [`Report::other_device`] says that it is a copy.
///
/// # Errors
/// The error that [`recover`](crate::recover) would return, but never [`Error::OtherDevice`]. If
/// `recover` would succeed but a snapshot other than the root is damaged, the error of that
/// snapshot.
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
    // Any device is accepted, because reading a copy of a volume does no harm.
    let wanted = Wanted { salvage: false, root, accept_device: true };
    examine(media, &mut *superblock_path, &mut *wal, &mut slots, wanted, sink)
}

/// Like [`check_slot`], but also fails if the slot is missing.
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
/// If the snapshot is damaged, or if the device fails.
pub fn check_slot(
    device: &mut dyn Device,
    volume_id: VolumeId,
    summary: SlotSummary,
) -> Result<(), Error> {
    let mut check = SlotCheck::new(volume_id, summary, READ_AHEAD_CHUNKS);
    while check.step(device)?.is_some() {}
    Ok(())
}

/// Reads the same snapshot and log as opening the volume would, and hands them to `sink`. Nothing
/// is written, and no log is opened for appending. A copy of a volume on another device is read
/// like any other volume. If `root` is the on-demand snapshot, the log is not read, so it may be
/// missing.
///
/// # Errors
/// The errors of [`recover`](crate::recover), but never [`Error::OtherDevice`].
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
