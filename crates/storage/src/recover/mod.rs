//! Makes a new volume, or recovers an existing one.
//!
//! Before recovery changes anything, it reads everything: the root snapshot, then the log after it.
//! Then it takes these steps, each of which is durable before the next begins:
//!
//! 1. It fills the holes that a sparse copy of the volume left.
//! 2. It makes the missing snapshot slots, which are empty.
//! 3. It writes the missing copies of the superblock.
//! 4. It flushes the log that was read.
//! 5. It writes a superblock with a new epoch (the log between two recoveries) and the cut (the
//!    place where recovery ended the log). This superblock has the newest format version, even if
//!    the volume had an older one.
//! 6. It appends, in the new epoch, the records that only the mapped buffers held. (These are
//!    buffers of the log whose contents outlive the process.)
//! 7. It notes in the superblock that the old buffers are no longer needed.
//!
//! If recovery is interrupted anywhere, the next recovery finds the same records.

mod ahead;
pub(crate) mod chain;
pub(crate) mod examine;
mod holes;
mod report;
mod rescue;
mod root;

use std::collections::VecDeque;
use std::time::Instant;

use slimio_device::{Buffer, Device, Lba, LbaRange, Op};
use slimio_planted::is_planted;

use crate::keeper::zero;
use crate::log::{LogSeed, Segments};
use crate::superblock::{Superblock, SuperblockCopy, VolumeGeometry, copy_lba, read_copies};
use crate::{
    Area, Cut, Error, Keeper, KeeperPaths, Lifetime, Log, LogStart, Lsn, Media, Policy, Pool,
    VolumeId,
};
use crate::{Chunk, SlotPaths, Snapshots, identity, io, layout, unfinished};
use examine::{Examined, Wanted, examine};
pub use report::Report;

/// How a new volume is laid out. The layout can't be changed later.
#[derive(Clone, Copy, Debug)]
pub struct FormatOptions {
    /// A random number that no other volume has.
    pub volume_id: VolumeId,
    /// Size of a segment of the log, in blocks.
    pub segment_lbas: u64,
    /// Size of the largest batch, and of each of the log's buffers, in blocks.
    pub batch_lbas_max: u32,
    /// The largest number of segments that the log may have at a time.
    pub wal_slots_max: u32,
    /// Whether to replace an existing volume, whose data is then lost.
    pub replace: bool,
}

/// How a volume is opened.
#[derive(Clone, Copy, Debug)]
pub struct RecoverOptions {
    /// Acknowledgement policy to start with.
    pub policy: Policy,
    /// How many buffers the log has.
    pub buffer_count: usize,
    /// Under [`Policy::Always`], a batch that is not full is submitted only if fewer batches than
    /// this are in flight. Otherwise it goes on gathering records.
    pub commits_in_flight: usize,
    /// Whether to accept damage. Chunks of the root snapshot that can't be read are then dropped,
    /// and so is everything in the log from the damage on.
    pub salvage: bool,
    /// The state that recovery starts from.
    pub root: RootChoice,
    /// Whether to open a volume that was last written on another device. The volume then belongs to
    /// this device.
    pub accept_device: bool,
    /// Whether the log is on from now on, as `appendonly` says. If not, the log ends where recovery
    /// found its end.
    pub is_log_on: bool,
    /// The present time.
    pub now: Instant,
}

impl RecoverOptions {
    /// The usual options: recover from the root in force, with the log on and one batch in flight
    /// at a time. The volume must be whole and on its own device.
    pub fn new(policy: Policy, buffer_count: usize, now: Instant) -> Self {
        Self {
            policy,
            buffer_count,
            commits_in_flight: 1,
            salvage: false,
            root: RootChoice::InForce,
            accept_device: false,
            is_log_on: true,
            now,
        }
    }
}

/// The state that recovery starts from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RootChoice {
    /// The root, and the log after it.
    #[default]
    InForce,
    /// The on-demand snapshot, and nothing else. This snapshot becomes the root, and all writes
    /// after the snapshot are lost.
    OnDemand,
}

/// Receives the chunks and records that recovery reads.
pub trait RecoverSink {
    /// Whether the root snapshot is wanted. If not, it is not read.
    fn wants_snapshot(&self) -> bool {
        true
    }

    /// Receives a chunk of the root snapshot. Chunks come in order. A chunk may be decoded on
    /// another thread. A later call may then return the chunk's error. [`Chunk::payload`] checks a
    /// chunk.
    ///
    /// # Errors
    /// The error of [`Chunk::payload`], or [`Error::ChunkRefused`]. Recovery ends with this error,
    /// unless the error is damage and salvage was asked for.
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error>;

    /// Called when all chunks were handed over. Waits until the chunks are loaded. If this returns
    /// an error that salvage accepts, recovery calls this again.
    ///
    /// # Errors
    /// Those of [`chunk`](Self::chunk).
    fn chunks_end(&mut self) -> Result<(), Error> {
        Ok(())
    }

    /// Applies a record. Records come in order, after the snapshot.
    ///
    /// # Errors
    /// The reason why the record can't be applied, worded as the end of a sentence. Recovery then
    /// ends with [`Error::Refused`].
    fn record(&mut self, record: Record<'_>) -> Result<(), String>;

    /// Called now and then with the progress of recovery.
    fn progress(&mut self, _progress: Progress) {}
}

/// The part of the volume that recovery is reading.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Phase {
    /// The root snapshot.
    #[default]
    Snapshot,
    /// The log after the root snapshot.
    Log,
}

/// A recovered record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record<'a> {
    /// The database that the record belongs to.
    pub db: u16,
    /// The position right after the record.
    pub lsn: Lsn,
    /// The bytes that were appended.
    pub payload: &'a [u8],
}

/// How far recovery has come.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// The part of the volume that is being read.
    pub phase: Phase,
    /// Bytes read in this phase.
    pub bytes_done: u64,
    /// Bytes that may have to be read in this phase.
    pub bytes_total: u64,
    /// The LSN that was reached.
    pub lsn: Lsn,
}

/// An open volume.
pub struct Volume {
    /// The log, open for appending.
    pub log: Log,
    /// The log's own path. The caller passes this path to the log's functions.
    pub log_path: Box<dyn Device + Send>,
    /// Owner of the superblock.
    pub keeper: Keeper,
    /// The keeper's own paths.
    pub keeper_paths: KeeperPaths,
    /// A path to each snapshot slot, for the writer of snapshots.
    pub slot_paths: SlotPaths,
    /// What recovery found on the volume, and what it decided.
    pub report: Report,
}

impl std::fmt::Debug for Volume {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Volume").field("log", &self.log).finish_non_exhaustive()
    }
}

/// Makes a new, empty volume, which is durable when this returns. If this is interrupted, the
/// medium holds one of four things: nothing, the volume that was to be replaced, an
/// [unfinished](crate::is_unfinished) volume, or the new volume.
///
/// # Errors
/// [`Error::AlreadyFormatted`] if the medium holds a volume that is not to be replaced; another
/// error if the medium can't be made or written.
pub fn format(media: &mut dyn Media, options: &FormatOptions) -> Result<(), Error> {
    // The log's area has space for two segments, because a log with only one segment can never
    // release that segment. With two segments, the log can make room even if something else fills
    // the medium later.
    media.create(layout::SUPERBLOCK_AREA_LBAS_MIN, 2 * options.segment_lbas)?;
    let mut superblock_path = media.open_path(Area::Superblock)?;
    let copies = read_copies(&mut *superblock_path)?;
    let is_volume =
        |copy: &SuperblockCopy| !matches!(copy, SuperblockCopy::Empty) && copy.has_magic();
    // If the making of a volume was interrupted, a torn copy of its superblock does not count as a
    // volume.
    let is_there = copies.iter().any(is_volume) && !unfinished::is_unfinished_by(&copies);
    if is_there && !options.replace {
        return Err(Error::AlreadyFormatted);
    }
    let geometry = VolumeGeometry {
        super_lbas: superblock_path.geometry().lba_count,
        segment_lbas: options.segment_lbas,
        batch_lbas_max: options.batch_lbas_max,
        wal_slots_max: options.wal_slots_max,
    };
    geometry.check().map_err(|what| Error::TooSmall { what })?;
    if let Some(pool) = media.pool() {
        pool.clear();
        let extent_lbas = pool.usage().extent;
        let fits = |a: u64, b: u64| a.is_multiple_of(b);
        if !fits(extent_lbas, geometry.segment_lbas) && !fits(geometry.segment_lbas, extent_lbas) {
            let what = "on a device the size of the log's segments must be a power of two".into();
            return Err(Error::TooSmall { what });
        }
    }
    let failed = |error| Error::Device { doing: "making the volume", error };

    // A mark takes the place of the superblock's first copy. If the making is interrupted from here
    // on, the mark lets the next start make the volume anew.
    let is_marked = !is_planted("making-unmarked");
    if is_marked {
        unfinished::mark(&mut *superblock_path).map_err(failed)?;
    }
    // The three copies after the mark are zeroed. Otherwise, an old copy with a higher sequence
    // would count as the superblock in force. The update at the end overwrites the mark.
    for copy in usize::from(is_marked)..layout::SUPERBLOCK_COPIES {
        let lba = copy_lba(copy, geometry.super_lbas);
        let lbas = layout::SUPERBLOCK_COPY_LBAS;
        let lifetime =
            if is_planted("superblock-as-log") { Lifetime::Wal } else { Lifetime::Superblock };
        zero(&mut *superblock_path, lifetime, lba, lbas).map_err(failed)?;
    }
    let mut wal = media.open_path(Area::Wal)?;
    // On a device, both segments get their extents here.
    let segments = if media.pool().is_some() { 2 } else { 1 };
    let reserved = LbaRange { start: Lba(0), end: Lba(segments * geometry.segment_lbas) };
    wal.reserve(reserved).map_err(failed)?;
    zero(&mut *wal, Lifetime::Wal, Lba(0), geometry.segment_lbas).map_err(failed)?;

    let start = LogStart { segment: layout::FIRST_SEGMENT, ..LogStart::default() };
    let superblock = Superblock {
        sequence: 1,
        parent: 0,
        volume_id: options.volume_id,
        geometry,
        epoch: 1,
        buffers_epoch: 1,
        start,
        cut: Cut { segment: start.segment, ..Cut::default() },
        snapshots: Snapshots::default(),
        wal_slots: vec![Some(start.segment)],
        extents: media.pool().map(Pool::map),
        identity: identity::of(media),
        has_types: true,
    };
    superblock.write(&mut *superblock_path).map_err(failed)?;
    // This write has filled two copies. An update fills the other two.
    let checksum = superblock.encode().1;
    let mut keeper = Keeper::new(superblock, checksum, media);
    keeper.update(&mut *superblock_path, |_| {}).map_err(failed)
}

/// Opens a volume. Reads what is on the volume. Hands the root snapshot's chunks to `sink`, in
/// order, and then every record after the root. Then makes the log ready for more records.
///
/// # Errors
/// If the volume can't be read exactly, or if `sink` refuses a chunk or a record: the volume is
/// then unchanged. If the device fails: the volume may then have changed, but the next recovery
/// finds the same records.
pub fn recover(
    media: &mut dyn Media,
    options: &RecoverOptions,
    sink: &mut dyn RecoverSink,
) -> Result<Volume, Error> {
    let mut superblock_path = media.open_path(Area::Superblock)?;
    let mut log_path = media.open_path(Area::Wal)?;
    let mut slot_paths = SlotPaths::open(media)?;
    let RecoverOptions { salvage, root, accept_device, .. } = *options;
    let wanted = Wanted { salvage, root, accept_device };
    let superblock_area = &mut *superblock_path;
    let examined = examine(media, superblock_area, &mut *log_path, &mut slot_paths, wanted, sink)?;
    let Examined { superblock, checksum, missing, segments, chain, cut, rescued, buffers, report } =
        examined;
    let failed = |error| Error::Device { doing: "writing the superblock", error };

    let geometry = &superblock.geometry;
    holes::fill(&mut *superblock_path, &mut *log_path, geometry, &segments, &cut.0)?;
    slot_paths.complete(media)?;
    superblock.write_copies(&mut *superblock_path, missing).map_err(failed)?;
    if !is_planted("no-flush-before-cut") {
        // Some of the log that was read may be only in the device's cache, because the last process
        // did not flush it.
        io::run(&mut *log_path, Op::Flush)
            .map_err(|error| Error::Device { doing: "flushing the log", error })?;
    }
    let mut keeper = Keeper::new(superblock, checksum, media);
    let device = identity::of(media);
    let (place, lsn) = cut;
    keeper
        .update(&mut *superblock_path, |superblock| {
            superblock.identity = device;
            superblock.has_types |= !is_planted("upgrade-unversioned");
            if !is_planted("no-epoch") {
                superblock.epoch += 1;
            }
            if rescued.is_empty() || is_planted("buffers-epoch-early") {
                superblock.buffers_epoch = superblock.epoch;
            }
            let (segment, lba, parent) = (place.segment, place.lba, place.parent);
            superblock.cut = Cut { segment, lba, lsn, parent };
            let mut start = LogStart { segment, lba, batch_lsn: lsn, lsn, parent };
            if is_planted("root-keeps-log") {
                start = superblock.start;
            }
            match options.root {
                // No record of the old log counts after this root, so the log starts anew at the
                // place where the old log ends.
                RootChoice::OnDemand => {
                    superblock.start_log_at(start, Snapshots::make_on_demand_root);
                }
                // The superblock says where the log starts. A salvaged log may end before that
                // place. The start then moves back to the log's end. If it did not, the next
                // recovery would skip the records that are appended from now on.
                RootChoice::InForce
                    if lsn < superblock.start.lsn && !is_planted("salvaged-uncounted") =>
                {
                    superblock.start_log_at(start, |_| {});
                }
                RootChoice::InForce => {}
            }
            // A salvaged log may end before the root's consistent LSN, which then moves back to the
            // log's end. A log that was not salvaged never ends before this LSN.
            superblock.snapshots.cap_consistent_lsn(lsn);
            if rescued.is_empty() || options.is_log_on || is_planted("log-end-early") {
                superblock.snapshots.set_log_end((!options.is_log_on).then_some(lsn));
            }
        })
        .map_err(failed)?;

    let superblock = keeper.superblock();
    // A change of the root may have moved the log's start. The slots of segments before the start
    // are then free.
    let first = if is_planted("used-before-start") { 0 } else { superblock.start.segment };
    let is_log = |segment: u64| (first..=place.segment).contains(&segment);
    let used = chain.used.iter().copied().filter(|used| is_log(used.segment));
    let mut used: VecDeque<_> = used.collect();
    if used.back().is_none_or(|used| used.segment != place.segment) {
        // No batch was found in the segment where the log goes on.
        let &(segment, wal_slot) = segments
            .iter()
            .find(|&&(segment, _)| segment == place.segment)
            .expect("the log ends in one of its segments");
        let parent = place.parent;
        used.push_back(crate::log::UsedSegment { segment, wal_slot, first_lsn: lsn, parent });
    }
    let prepared = segments.iter().copied().filter(|&(segment, _)| segment > place.segment);
    let geometry = superblock.geometry;
    let mut log = Log::new(LogSeed {
        volume_id: superblock.volume_id,
        geometry,
        epoch: superblock.epoch,
        superblock_sequence: superblock.sequence,
        write_cache: log_path.geometry().write_cache,
        lsn,
        parent: place.parent,
        segments: Segments::new(geometry, superblock.start, used, place.lba, prepared.collect()),
        commits_in_flight: options.commits_in_flight,
        snapshots: superblock.snapshots,
        pool: media.pool().cloned(),
    });
    let mut keeper_paths =
        KeeperPaths { superblock: superblock_path, wal: media.open_path(Area::Wal)? };

    if !rescued.is_empty() {
        // The rescued fragments (records, or parts of records) are appended in private memory,
        // because the old buffers are still needed until the fragments are durable.
        for (index, fragment) in rescued.iter().enumerate() {
            assert_eq!(fragment.start, log.appended(), "a rescued fragment keeps its LSN");
            let is_next = index > 0 && rescued[index - 1].buffer != fragment.buffer;
            if is_next && !is_planted("rescued-together") {
                // The records stay in the same batches as before. So they need no more room than
                // was counted when they were appended the first time.
                log.close_batch();
            }
            log.append_fragment(fragment.db, fragment.flags, fragment.payload(&buffers));
        }
        if !is_planted("rescued-unread") {
            // Appending has read the buffers again, and pages may have been lost since the first
            // check. So the buffers are checked again.
            rescue::check_read(&buffers)?;
        }
        make_durable(&mut log, &mut *log_path, &mut keeper, &mut keeper_paths, options.now)?;
        keeper
            .update(&mut *keeper_paths.superblock, |superblock| {
                superblock.buffers_epoch = superblock.epoch;
                let log_end = (!options.is_log_on).then_some(log.durable());
                superblock.snapshots.set_log_end(log_end);
            })
            .map_err(failed)?;
    }

    let is_right = buffers.len() == options.buffer_count;
    let buffers = if is_right && media.buffers_outlive_process() {
        let mut buffers = buffers;
        // Recovery has read all buffers into memory. This memory is given back, because a server
        // that is not busy uses only a few of the buffers.
        buffers.iter_mut().for_each(Buffer::let_go);
        buffers
    } else {
        drop(buffers);
        media.make_buffers(options.buffer_count, geometry.batch_size())?
    };
    log.start(options.policy, buffers, media.buffers_outlive_process(), keeper.superblock());
    Ok(Volume { log, log_path, keeper, keeper_paths, slot_paths, report })
}

/// Drives the log until everything in it is durable.
fn make_durable(
    log: &mut Log,
    log_path: &mut dyn Device,
    keeper: &mut Keeper,
    keeper_paths: &mut KeeperPaths,
    now: Instant,
) -> Result<(), Error> {
    while log.durable() < log.appended() {
        log.request_durable();
        // No kick is needed, because the wait below also starts the submitted operations.
        let _ = log.drive(log_path, now);
        let is_stuck = log.stats().in_flight == 0;
        log.wait(log_path, None);
        log.reap(log_path, now);
        if let Some(latch) = log.latched() {
            let error = latch.error.clone();
            let doing = "writing records from the mapped buffers to the log";
            return Err(Error::Device { doing, error });
        }
        if let Some(job) = log.next_job(now) {
            let outcome = keeper.run(keeper_paths, job);
            log.job_done(outcome, now);
        }
        if is_stuck && log.prepare_failed().is_some() {
            let bytes = log.appended().bytes_since(log.durable());
            let what = format!("the log has no room for {bytes} bytes from the mapped buffers");
            return Err(Error::TooSmall { what });
        }
    }
    Ok(())
}
