//! Reads a volume without changing it.

use slimio_device::{Buffer, Device, DeviceError, LBA_SIZE, Lba, Op};
use slimio_planted::is_planted;

use super::chain::{Chain, Claims, Place};
use super::rescue::{self, Rescued};
use super::root::{self, LogSink};
use crate::batch::{is_whole, read_header};
use crate::layout::{self, FIRST_SEGMENT};
use crate::superblock::{Superblock, SuperblockCopy, read_copies};
use crate::{
    Area, Error, Lsn, Media, RecoverSink, Report, RootChoice, SlotPaths, SlotSummary, SnapshotKind,
    identity, io,
};

/// The state of a volume, and the end of its log.
pub(crate) struct Examined {
    pub(crate) superblock: Superblock,
    pub(crate) checksum: u64,
    /// Copies of the superblock that must be written again before anything else is written.
    pub(crate) missing: Vec<usize>,
    pub(crate) segments: Vec<(u64, u32)>,
    pub(crate) chain: Chain,
    /// Where and with which LSN the log goes on.
    pub(crate) cut: (Place, Lsn),
    pub(crate) rescued: Vec<Rescued>,
    /// The log's mapped buffers, as the last process left them.
    pub(crate) buffers: Vec<Buffer>,
    pub(crate) report: Report,
}

/// The root that is to be read, and the faults that are accepted.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    /// Accept damage. Damage in the log counts as the log's end.
    pub(crate) salvage: bool,
    /// The root that recovery starts from.
    pub(crate) root: RootChoice,
    /// Accept a volume that was last written on another device.
    pub(crate) accept_device: bool,
}

/// Reads everything and decides how the log ends.
///
/// If the on-demand snapshot is to be the root, only the end of the log matters, because the next
/// log starts there. So in this case a damaged log is no reason to refuse the volume.
pub(crate) fn examine(
    media: &mut dyn Media,
    superblock_path: &mut dyn Device,
    wal: &mut dyn Device,
    slots: &mut SlotPaths,
    wanted: Wanted,
    sink: &mut dyn RecoverSink,
) -> Result<Examined, Error> {
    let Wanted { salvage, root: choice, accept_device } = wanted;
    let copies = read_copies(superblock_path)?;
    let (superblock, checksum) = choose(&copies, versions_of(media))?;
    let other_device = identity::check(&superblock, media, accept_device)?;
    load_extents(media, &superblock)?;
    check_areas(&superblock, superblock_path, wal)?;
    let segments = log_segments(&superblock)?;
    let mut report = Report {
        copies: copies.iter().map(|copy| describe(copy, &superblock)).collect(),
        sequence: superblock.sequence,
        volume_id: superblock.volume_id,
        epoch: superblock.epoch,
        start: superblock.start.lsn,
        other_device,
        ..Report::default()
    };

    let buffers = match media.open_buffers(superblock.geometry.batch_size()) {
        Err(error) if salvage => {
            report.salvaged.push(error.to_string());
            Vec::new()
        }
        opened => opened?,
    };
    let snapshots = &superblock.snapshots;
    let chosen = match choice {
        RootChoice::InForce => snapshots.root(),
        RootChoice::OnDemand => Some(on_demand(&superblock)?),
    };
    if let Some(summary) = chosen.filter(|_| sink.wants_snapshot()) {
        let device = slots.find(summary.slot)?;
        root::load(device, &superblock, summary, salvage, sink, &mut report)?;
    }
    report.missing_slots =
        slots.missing().map(|slot| (slot, snapshots.get(slot).copied())).collect();
    let is_log_used = choice == RootChoice::InForce;
    let sink = &mut LogSink { sink, is_log_used };
    let mut chain = Chain::new(&superblock);
    let mut claims = chain.follow(wal, &superblock, &segments, sink)?;
    let in_buffers = rescue::claims(&buffers, &superblock);
    if !is_planted("buffers-claim-nothing") {
        claims.durable = claims.durable.max(in_buffers.durable);
    }
    claims.superblock_sequence = claims
        .superblock_sequence
        .max(in_buffers.superblock_sequence)
        .max(if is_planted("outside-unseen") { 0 } else { newest_outside(&superblock, wal)? })
        .max(if may_be_older(&copies, &superblock) {
            newest_in_free(&superblock, media)?
        } else {
            0
        })
        .max(if is_planted("headers-unseen") {
            0
        } else {
            root::newest_header(slots, &superblock)
        });
    if let Some(end) = superblock.snapshots.log_end() {
        // Under `appendonly no`, the log ends at `end`. Records that were appended after this end
        // say nothing about the log before it.
        claims.durable = claims.durable.min(end);
    }
    report.batches = chain.batches;
    report.batches_ignored = claims.batches;

    // The log may end with fragments of an incomplete record. If the fragments are older than the
    // buffers, the recovery that made the buffers has cut the fragments off. If they are not older,
    // the rest of their record may be in the buffers.
    let mut was_cut = chain.epoch < superblock.buffers_epoch && !is_planted("pending-kept");
    if is_planted("pending-kept-by-interrupted") {
        was_cut &= superblock.buffers_epoch == superblock.epoch;
    }
    if was_cut {
        chain.drop_pending();
    }
    let damage = damage(&superblock, &chain, &claims);
    report.log_end = chain.next;
    if let Some(what) = damage.filter(|_| choice == RootChoice::InForce) {
        if !salvage {
            return Err(Error::Damaged { lsn: chain.complete, what });
        }
        report.salvaged.push(what);
    }

    let log_end = (chain.place, chain.next);
    let rescued = match choice {
        RootChoice::InForce => rescue::follow(&mut chain, &buffers, &superblock, sink)?,
        RootChoice::OnDemand => Vec::new(),
    };
    rescue::check_read(&buffers)?;
    let told = rescue::told_durable(&buffers, &superblock);
    let counts = choice == RootChoice::InForce || is_planted("told-hinders-rollback");
    // `told` is the end of a record, so the end of the last complete record is compared with
    // `told`.
    if chain.complete < told && counts {
        let what = format!(
            "the log ends too early: the mapped buffers say that it was durable up to LSN {told}"
        );
        if !salvage {
            return Err(Error::Damaged { lsn: chain.complete, what });
        }
        report.salvaged.push(what);
    }
    let cut = if rescued.is_empty() {
        report.dropped_bytes = chain.next.bytes_since(chain.complete);
        chain.drop_pending();
        (chain.place, chain.next)
    } else {
        log_end
    };
    report.records = chain.records;
    report.rescued_bytes = chain.complete.bytes_since(cut.1);
    report.end = chain.complete;
    report.is_on_demand = choice == RootChoice::OnDemand;

    // Both copies of the superblock in force must be intact before the next superblock is begun.
    let missing = superblock
        .copies()
        .into_iter()
        .filter(|&copy| !matches!(&copies[copy], SuperblockCopy::Valid(_, sum) if *sum == checksum))
        .filter(|_| !is_planted("missing-copy-unwritten"))
        .collect();
    Ok(Examined { superblock, checksum, missing, segments, chain, cut, rescued, buffers, report })
}

/// Hands the on-demand snapshot to `sink`, whatever is wrong with the rest of the volume.
pub(crate) fn read_on_demand(
    media: &mut dyn Media,
    sink: &mut dyn RecoverSink,
) -> Result<(), Error> {
    let copies = read_copies(&mut *media.open_path(Area::Superblock)?)?;
    let (superblock, _) = choose(&copies, versions_of(media))?;
    load_extents(media, &superblock)?;
    let summary = on_demand(&superblock)?;
    let mut slots = SlotPaths::open(media)?;
    let device = slots.find(summary.slot)?;
    root::load(device, &superblock, summary, false, sink, &mut Report::default())
}

fn on_demand(superblock: &Superblock) -> Result<&SlotSummary, Error> {
    superblock.snapshots.of_kind(SnapshotKind::OnDemand).ok_or(Error::NoOnDemandSnapshot)
}

/// The valid copy with the highest sequence, and its checksum.
pub(crate) fn choose(
    copies: &[SuperblockCopy],
    supported: &'static [u32],
) -> Result<(Superblock, u64), Error> {
    let newest = copies
        .iter()
        .filter_map(|copy| match copy {
            SuperblockCopy::Valid(superblock, checksum) => Some((superblock, *checksum)),
            _ => None,
        })
        .max_by_key(|(superblock, _)| superblock.sequence);
    if let Some((superblock, checksum)) = newest {
        return Ok((superblock.as_ref().clone(), checksum));
    }
    let other = copies.iter().find_map(|copy| match copy {
        SuperblockCopy::OtherVersion(found) => Some(*found),
        _ => None,
    });
    if let Some(found) = other {
        return Err(Error::OtherVersion { found, supported });
    }
    if !copies.iter().any(SuperblockCopy::has_magic) {
        return Err(Error::NoVolume);
    }
    let copies = copies
        .iter()
        .enumerate()
        .map(|(index, copy)| format!("copy {index}: {}", describe_fault(copy)))
        .collect();
    Err(Error::SuperblocksDamaged { copies })
}

/// Loads the superblock's extent map into the pool.
pub(crate) fn load_extents(media: &dyn Media, superblock: &Superblock) -> Result<(), Error> {
    match (media.pool(), &superblock.extents) {
        (Some(pool), Some(extents)) => pool.load(extents, &superblock.snapshots),
        (None, None) => Ok(()),
        _ => {
            let (found, supported) = (superblock.version(), versions_of(media));
            if supported.contains(&found) {
                // Somebody has copied a superblock from a file to a device, or from a device to a
                // file.
                let (on, of) = match media.pool() {
                    Some(_) => ("on a device", "in files"),
                    None => ("in files", "on a device"),
                };
                let what =
                    format!("the volume is {on}, but the superblock is that of a volume {of}");
                return Err(Error::SuperblocksDamaged { copies: vec![what] });
            }
            Err(Error::OtherVersion { found, supported })
        }
    }
}

/// The format versions that a volume on this medium may have.
pub(crate) fn versions_of(media: &dyn Media) -> &'static [u32] {
    match media.pool() {
        Some(_) => &[
            layout::FORMAT_VERSION_EXTENTS,
            layout::FORMAT_VERSION_IDENTITY,
            layout::FORMAT_VERSION_FUZZY,
            layout::FORMAT_VERSION_TYPES,
        ],
        None => {
            &[layout::FORMAT_VERSION, layout::FORMAT_VERSION_FUZZY, layout::FORMAT_VERSION_TYPES]
        }
    }
}

fn describe(copy: &SuperblockCopy, newest: &Superblock) -> String {
    match copy {
        SuperblockCopy::Valid(superblock, _) if superblock.sequence == newest.sequence => {
            "in force".into()
        }
        SuperblockCopy::Valid(superblock, _) => format!("sequence {}", superblock.sequence),
        _ => describe_fault(copy),
    }
}

fn describe_fault(copy: &SuperblockCopy) -> String {
    match copy {
        SuperblockCopy::Valid(..) => "valid".into(),
        SuperblockCopy::Empty => "empty".into(),
        SuperblockCopy::Unfinished => "the mark of a volume that was being made".into(),
        SuperblockCopy::OtherVersion(version) => format!("format version {version}"),
        SuperblockCopy::Damaged { why, .. } => why.clone(),
    }
}

/// Checks that the areas are at least as long as the superblock says.
fn check_areas(
    superblock: &Superblock,
    superblock_path: &dyn Device,
    wal: &dyn Device,
) -> Result<(), Error> {
    let used = superblock.wal_slots.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
    let lengths = [
        (Area::Superblock, superblock_path, superblock.geometry.super_lbas),
        (Area::Wal, wal, used as u64 * superblock.geometry.segment_lbas),
    ];
    for (area, path, expected_lbas) in lengths {
        let found_lbas = path.geometry().lba_count;
        if found_lbas < expected_lbas {
            return Err(Error::Truncated { area: area.name(), found_lbas, expected_lbas });
        }
    }
    Ok(())
}

/// The log's segments in order, from the one that the log starts in. A gap between them is an
/// error.
fn log_segments(superblock: &Superblock) -> Result<Vec<(u64, u32)>, Error> {
    let start = superblock.start;
    let segments: Vec<_> = superblock
        .segments()
        .into_iter()
        .filter(|&(segment, _)| segment >= start.segment)
        .collect();
    let is_gapless = (start.segment..).zip(&segments).all(|(want, &(segment, _))| want == segment);
    if segments.is_empty() || !is_gapless {
        let what = "the superblock's map lacks a segment of the log".to_owned();
        return Err(Error::Damaged { lsn: start.lsn, what });
    }
    Ok(segments)
}

/// Looks at the slots of the log's area that the superblock does not map. If a slot holds a
/// segment, the segment's first batch names a superblock sequence. Returns the highest of these
/// sequences.
fn newest_outside(superblock: &Superblock, wal: &mut dyn Device) -> Result<u64, Error> {
    let geometry = superblock.geometry;
    let slots = (wal.geometry().lba_count / geometry.segment_lbas) as usize;
    let mut newest = 0;
    for wal_slot in 0..slots.min(geometry.wal_slots_max as usize) {
        if superblock.wal_slots.get(wal_slot).is_some_and(Option::is_some) {
            continue;
        }
        newest = newest.max(sequence_at(superblock, wal, wal_slot as u64 * geometry.segment_lbas)?);
    }
    Ok(newest)
}

/// Whether there may have been a newer superblock whose two copies were damaged later. A newer
/// superblock would have overwritten the two copies that do not hold this superblock. So if either
/// of those two is valid, there was no newer superblock.
fn may_be_older(copies: &[SuperblockCopy], superblock: &Superblock) -> bool {
    let own = superblock.copies();
    let mut others = (0..).zip(copies).filter(|(copy, _)| !own.contains(copy));
    !is_planted("free-unsearched")
        && !others.any(|(_, copy)| matches!(copy, SuperblockCopy::Valid(..)))
}

/// Like [`newest_outside`], but in the free extents. The start of each extent is read, because a
/// segment in a new extent starts where the extent starts.
fn newest_in_free(superblock: &Superblock, media: &mut dyn Media) -> Result<u64, Error> {
    let (Some(mut free), Some(extents)) = (media.open_free()?, &superblock.extents) else {
        return Ok(0);
    };
    let mut newest = 0;
    let first = if is_planted("first-free-unsearched") { extents.extent_lbas } else { 0 };
    for lba in (first..free.geometry().lba_count).step_by(extents.extent_lbas as usize) {
        newest = newest.max(sequence_at(superblock, &mut *free, lba)?);
    }
    Ok(newest)
}

/// The superblock sequence that the batch at `lba` names; 0 if there is no batch at `lba`, or if
/// the batch's epoch is older than that of the superblock.
fn sequence_at(superblock: &Superblock, device: &mut dyn Device, lba: u64) -> Result<u64, Error> {
    let mut read = |lbas: u64| {
        let buffer = Buffer::zeroed(lbas as usize);
        match io::run(device, Op::Read { lba: Lba(lba), buffer }) {
            // The slot is a hole, or the last extent ends before these blocks do.
            Err(DeviceError::OutOfRange) => Ok(None),
            read => read.map_err(|error| Error::Device { doing: "reading the log", error }),
        }
    };
    let Some(first) = read(1)? else { return Ok(0) };
    let batch_size = superblock.geometry.batch_size();
    let header = read_header(&first, superblock.volume_id, batch_size);
    let Some(header) = header.filter(|header| header.epoch >= superblock.epoch) else {
        return Ok(0);
    };
    let Some(batch) = read(header.lbas())? else { return Ok(0) };
    let bytes = &batch[..header.lbas() as usize * LBA_SIZE];
    let is_batch = is_whole(bytes, superblock.volume_id, &header);
    Ok(if is_batch { header.superblock_sequence } else { 0 })
}

/// Why the log can't really end where `chain` ends; `None` if the log may end there.
fn damage(superblock: &Superblock, chain: &Chain, claims: &Claims) -> Option<String> {
    let Claims { durable, superblock_sequence, .. } = *claims;
    let (end, Place { segment, lba, .. }) = (chain.next, chain.place);
    // The first segment was zeroed when the volume was made, so it can't hold data that is older
    // than the volume. Other segments may hold old data of the device.
    if claims.is_foreign && superblock.start.segment == FIRST_SEGMENT {
        return Some("the log is another volume's: it does not belong to this superblock".into());
    }
    let place = format!("at block {lba} of segment {segment}");
    if superblock_sequence > superblock.sequence && !is_planted("no-fallback-check") {
        return Some(format!(
            "the superblock has sequence {}, but later data on the volume names sequence \
             {superblock_sequence}: the superblock's newest copies are lost",
            superblock.sequence
        ));
    }
    let ended = superblock.snapshots.log_end().unwrap_or_default();
    let fuzzy_root = superblock
        .snapshots
        .root()
        .filter(|root| root.is_fuzzy() && !is_planted("needed-unchecked"));
    let needed = fuzzy_root.map_or(Lsn(0), |root| root.consistent_lsn);
    let known = superblock.start.lsn.max(superblock.cut.lsn).max(ended).max(needed);
    if end < known {
        return Some(format!(
            "no batch continues the log {place}, but it was known to be whole up to LSN {known}"
        ));
    }
    if !chain.has_reached_cut && !is_planted("cut-unmet") {
        return Some(format!(
            "the log does not lead to the batch at which the last recovery cut it (LSN {}): \
             another batch is in its place",
            superblock.cut.lsn
        ));
    }
    if end < durable && !is_planted("no-durable-check") {
        return Some(format!(
            "no batch continues the log {place}, but other batches say that the log was durable up \
             to LSN {durable}"
        ));
    }
    None
}
