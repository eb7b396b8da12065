//! The keeper, which owns the superblock and makes room for the log.
//!
//! The invariant: whatever a job releases or hands out depends on a superblock that is durable in
//! both of its copies before the job's outcome is told.

use std::ops::Range;

use slimio_device::{Buffer, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op};
use slimio_planted::is_planted;

use crate::superblock::Superblock;
use crate::{Area, Lifetime, LogStart, Lsn, Media, Pool, SlotSummary, Snapshots, io};

/// Blocks written at once when a segment is zeroed.
const ZERO_LBAS: u64 = 256;

/// Bytes of free slots in a file that always keep their blocks, to be overwritten: a durable write
/// to a hole is slow, and zeroing a slot again costs work.
const FREE_SIZE_KEPT: u64 = 1 << 30;

/// Owner of the superblock: prepares segments ahead of the log and releases those behind it.
///
/// Plain state; runs where blocking is allowed (a thread of its own), on paths of its own.
#[derive(Clone, Debug)]
pub struct Keeper {
    superblock: Superblock,
    /// Checksum of `superblock`.
    checksum: u64,
    needs_zeroing: bool,
    /// The extent pool, on a device. Its map is written with each update.
    pool: Option<Pool>,
    /// For each slot of the log's area, whether its blocks were written and not given back since.
    written_slots: Vec<bool>,
}

/// The keeper's own paths.
pub struct KeeperPaths {
    /// Path to the superblock's area.
    pub superblock: Box<dyn Device + Send>,
    /// Path to the log's area.
    pub wal: Box<dyn Device + Send>,
}

impl std::fmt::Debug for KeeperPaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("KeeperPaths").finish_non_exhaustive()
    }
}

/// What the log asks of the keeper. One at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Prepare one more segment. Where areas are files, this many bytes of the file system must stay
    /// free behind it.
    Prepare {
        /// Bytes that snapshots will need.
        leave: u64,
    },
    /// The log starts from here on, where the data set was empty: everything before is free, and
    /// there is no root.
    Release(LogStart),
    /// Take a complete snapshot into its role.
    Adopt(Adoption),
    /// The log ends here: nothing behind it counts.
    EndLog(Lsn),
    /// Give back the space of slots that hold nothing: somebody else lacks it.
    GiveBack,
}

/// A complete snapshot, and how the log goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The snapshot. It is stable, and all records that it needs are durable.
    pub summary: SlotSummary,
    /// Where the log starts when it goes on from this snapshot.
    pub start: Option<LogStart>,
    /// The log had ended, and goes on from this snapshot.
    pub continues_log: bool,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The segment may be written: the superblock that says so is durable.
    Prepared {
        /// Its sequence.
        segment: u64,
        /// Which slot of the log's area it is in.
        wal_slot: u32,
        /// Sequence of the superblock in force.
        superblock_sequence: u64,
    },
    /// No segment could be prepared. Nothing has changed.
    PrepareFailed(DeviceError),
    /// The log starts there; everything before may be used again.
    Released {
        /// Where it starts.
        start: LogStart,
        /// Which snapshots there are now.
        snapshots: Box<Snapshots>,
        /// Sequence of the superblock in force.
        superblock_sequence: u64,
    },
    /// The snapshot is in its role; the slot that it replaced is a reserve.
    Adopted {
        /// What was adopted.
        adoption: Adoption,
        /// Which snapshots there are now.
        snapshots: Box<Snapshots>,
        /// Sequence of the superblock in force.
        superblock_sequence: u64,
    },
    /// The log has ended.
    LogEnded {
        /// Which snapshots there are, and where the log has ended.
        snapshots: Box<Snapshots>,
        /// Sequence of the superblock in force.
        superblock_sequence: u64,
    },
    /// Slots that hold nothing have no space of their own any more.
    GivenBack,
    /// The superblock could not be updated: the log must be latched.
    SuperblockFailed(DeviceError),
}

impl Keeper {
    /// `superblock` is on the device, with this checksum.
    pub(crate) fn new(superblock: Superblock, checksum: u64, media: &dyn Media) -> Self {
        // An earlier process may have given some back; that is noticed when they are used.
        let written_slots = vec![true; superblock.wal_slots.len()];
        let (needs_zeroing, pool) = (media.fresh_blocks_need_zeroing(), media.pool().cloned());
        Self { superblock, checksum, needs_zeroing, pool, written_slots }
    }

    /// The superblock in force.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Does a job. Blocks until it is done and durable.
    pub fn run(&mut self, paths: &mut KeeperPaths, job: Job) -> Outcome {
        match job {
            Job::Prepare { leave } => self.prepare(paths, leave),
            Job::Release(start) => self.release(paths, start),
            Job::Adopt(adoption) => self.adopt(paths, adoption),
            Job::EndLog(lsn) => self.end_log(paths, lsn),
            Job::GiveBack => self.give_back_unused(&mut *paths.wal),
        }
    }

    fn prepare(&mut self, paths: &mut KeeperPaths, leave: u64) -> Outcome {
        let wal_slot = match self.free_slot(&mut *paths.wal, leave) {
            Ok(wal_slot) => wal_slot,
            Err(error) => return Outcome::PrepareFailed(error),
        };
        let newest = self.superblock.segments().last().map_or(0, |&(segment, _)| segment);
        let segment = newest.max(self.superblock.start.segment) + 1;
        let updated = self.update(&mut *paths.superblock, |superblock| {
            if superblock.wal_slots.len() <= wal_slot {
                superblock.wal_slots.resize(wal_slot + 1, None);
            }
            superblock.wal_slots[wal_slot] = Some(segment);
        });
        match updated {
            Ok(()) => Outcome::Prepared {
                segment,
                wal_slot: wal_slot as u32,
                superblock_sequence: self.superblock.sequence,
            },
            Err(error) => Outcome::SuperblockFailed(error),
        }
    }

    /// A slot that holds nothing: one used before, or a new one at the area's end. Its blocks are
    /// zeroed where that is needed. Fails when less than `leave` bytes would stay free where areas are
    /// files, even without the blocks of the other free slots.
    fn free_slot(&mut self, wal: &mut dyn Device, leave: u64) -> Result<usize, DeviceError> {
        let wal_slot = self.next_free_slot(wal)?;
        let range = self.slots_range(wal_slot as u64..wal_slot as u64 + 1);
        let is_written = self.is_written(wal_slot);
        let is_given_back = !is_written && wal_slot < self.superblock.wal_slots.len();
        let has_blocks = !is_given_back && range.end.0 <= wal.geometry().lba_count;
        let takes = if has_blocks { 0 } else { self.superblock.geometry.segment_size() };
        let has_space = self.leave_free(wal, wal_slot, takes.saturating_add(leave));
        if !has_space && self.has_second_segment() {
            return Err(DeviceError::NoSpace);
        }
        wal.reserve(range)?;
        if !is_written {
            if self.needs_zeroing {
                zero(wal, Lifetime::Wal, range.start, self.superblock.geometry.segment_lbas)?;
            }
            self.written_slots.resize(self.written_slots.len().max(wal_slot + 1), false);
            self.written_slots[wal_slot] = true;
        }
        Ok(wal_slot)
    }

    /// The free slot to be used next: one that already has its blocks, for there may be no more.
    fn next_free_slot(&mut self, wal: &mut dyn Device) -> Result<usize, DeviceError> {
        let slots = self.superblock.wal_slots.clone();
        let free = || (0..slots.len()).filter(|&slot| slots[slot].is_none());
        let ready = if self.pool.is_some() {
            free().find(|&slot| self.has_extents(slot as u64))
        } else {
            free().find(|&slot| self.is_written(slot) && self.fill_slot_holes(wal, slot))
        };
        let ready = ready.filter(|_| !is_planted("extents-passed-over"));
        let slot = ready.or_else(|| free().next()).unwrap_or(slots.len());
        let is_possible = slot < self.superblock.geometry.wal_slots_max as usize;
        is_possible.then_some(slot).ok_or(DeviceError::NoSpace)
    }

    /// Gives their blocks again to the parts of a slot that an earlier process has given back: a hole
    /// would hit a full disk only when the log gets there. Returns whether the slot has all of them.
    fn fill_slot_holes(&mut self, wal: &mut dyn Device, slot: usize) -> bool {
        if is_planted("given-back-unfilled") {
            return true;
        }
        let range = self.slots_range(slot as u64..slot as u64 + 1);
        self.written_slots[slot] = wal.fill_holes(range).is_ok();
        self.written_slots[slot]
    }

    fn is_written(&self, slot: usize) -> bool {
        self.written_slots.get(slot).is_some_and(|is_written| *is_written)
    }

    /// Sees that the file system has `free_size` bytes free: gives back the blocks of slots that hold
    /// nothing, except for `kept`, one after the other until it has. Returns whether it has. True on a
    /// device, which is no file system.
    fn leave_free(&mut self, wal: &mut dyn Device, kept: usize, free_size: u64) -> bool {
        let mut unused = self.unused_slots();
        unused.retain(|&slot| slot != kept as u64);
        while self.pool.is_none() && wal.free_space().is_some_and(|free| free < free_size) {
            let Some(slot) = unused.pop() else { return false };
            self.give_back(wal, &runs(&[slot]));
        }
        true
    }

    /// Whether a slot of the log has all its blocks, on a device.
    fn has_extents(&self, slot: u64) -> bool {
        let range = self.slots_range(slot..slot + 1);
        self.pool.as_ref().is_some_and(|pool| pool.has(Area::Wal, range.start.0, range.end.0))
    }

    fn release(&mut self, paths: &mut KeeperPaths, start: LogStart) -> Outcome {
        let updated = self.start_log_at(paths, start, Snapshots::forget_root);
        self.outcome(updated, |snapshots, superblock_sequence| Outcome::Released {
            start,
            snapshots,
            superblock_sequence,
        })
    }

    fn adopt(&mut self, paths: &mut KeeperPaths, adoption: Adoption) -> Outcome {
        let Adoption { summary, start, continues_log } = adoption;
        let change = |snapshots: &mut Snapshots| snapshots.adopt(summary, continues_log);
        let updated = match start {
            Some(start) if is_planted("start-before-root") => self
                .start_log_at(paths, start, |_| {})
                .and_then(|()| self.start_log_at(paths, start, change)),
            Some(start) => self.start_log_at(paths, start, change),
            None => self.update(&mut *paths.superblock, |new| change(&mut new.snapshots)),
        };
        self.outcome(updated, |snapshots, superblock_sequence| Outcome::Adopted {
            adoption,
            snapshots,
            superblock_sequence,
        })
    }

    fn end_log(&mut self, paths: &mut KeeperPaths, lsn: Lsn) -> Outcome {
        let has_ended = self.superblock.snapshots.log_end().is_some();
        let updated = if has_ended && !is_planted("log-end-moved") {
            Ok(())
        } else {
            self.update(&mut *paths.superblock, |new| new.snapshots.set_log_end(Some(lsn)))
        };
        self.outcome(updated, |snapshots, superblock_sequence| Outcome::LogEnded {
            snapshots,
            superblock_sequence,
        })
    }

    /// The outcome of a job, from the result of its update of the superblock.
    fn outcome(
        &self,
        updated: Result<(), DeviceError>,
        done: impl FnOnce(Box<Snapshots>, u64) -> Outcome,
    ) -> Outcome {
        match updated {
            Ok(()) => done(Box::new(self.superblock.snapshots), self.superblock.sequence),
            Err(error) => Outcome::SuperblockFailed(error),
        }
    }

    /// Lets the log start there, with one update of the superblock, then gives back what is before.
    fn start_log_at(
        &mut self,
        paths: &mut KeeperPaths,
        start: LogStart,
        change: impl FnOnce(&mut Snapshots),
    ) -> Result<(), DeviceError> {
        let surplus = self.surplus_slots(start);
        if is_planted("release-before-superblock") {
            self.give_back(&mut *paths.wal, &surplus);
        }
        self.update(&mut *paths.superblock, |superblock| superblock.start_log_at(start, change))?;
        self.give_back(&mut *paths.wal, &surplus);
        Ok(())
    }

    /// Slots that hold nothing once the log starts there, and whose space is to be given back: in
    /// order, as ranges as long as possible.
    fn surplus_slots(&self, start: LogStart) -> Vec<Range<u64>> {
        let slots = &self.superblock.wal_slots;
        let is_free = |segment: Option<u64>| segment.is_none_or(|segment| segment < start.segment);
        let free = (0..).zip(slots).filter(|(_, segment)| is_free(**segment)).map(|(slot, _)| slot);
        let mut free: Vec<u64> = if self.pool.is_some() {
            // A log in its last segment needs another one before it can release that, and a
            // snapshot may take all free extents: so one free slot keeps its extents. Slots that
            // were free before are included: together with them an extent may now be free as a
            // whole.
            let used = slots.iter().flatten().filter(|&&segment| segment >= start.segment).count();
            let free: Vec<u64> = free.collect();
            let is_alone = used < 2 && !is_planted("last-segment-alone");
            let kept = free.iter().copied().find(|&slot| is_alone && self.has_extents(slot));
            free.into_iter().filter(|&slot| Some(slot) != kept).collect()
        } else {
            free.filter(|&slot| self.written_slots[slot as usize]).collect()
        };
        if self.pool.is_none() {
            // The log will need as many slots again as it had. Those beyond are given back.
            let used = slots.iter().flatten().count();
            let kept =
                used.max((FREE_SIZE_KEPT / self.superblock.geometry.segment_size()) as usize);
            free.drain(..free.len().min(kept));
        }
        runs(&free)
    }

    /// On a device the extents of unused slots are free already.
    fn give_back_unused(&mut self, wal: &mut dyn Device) -> Outcome {
        if self.pool.is_none() {
            let mut unused = self.unused_slots();
            if !self.has_second_segment() && !is_planted("second-segment-given-back") {
                let kept =
                    unused.iter().copied().find(|&slot| self.fill_slot_holes(wal, slot as usize));
                unused.retain(|&slot| Some(slot) != kept);
            }
            self.give_back(wal, &runs(&unused));
        }
        Outcome::GivenBack
    }

    /// Whether the log could leave its first segment. One that could not would never become shorter.
    fn has_second_segment(&self) -> bool {
        self.superblock.segments().len() >= 2
    }

    /// Slots that hold nothing by the superblock in force, and have blocks all the same.
    fn unused_slots(&self) -> Vec<u64> {
        let slots = (0..).zip(&self.superblock.wal_slots).zip(&self.written_slots);
        let unused = slots.filter(|((_, segment), is_written)| segment.is_none() && **is_written);
        unused.map(|((slot, _), _)| slot).collect()
    }

    /// Gives the space of slots back: extents to their pool, blocks of a file to the file system.
    fn give_back(&mut self, wal: &mut dyn Device, runs: &[Range<u64>]) {
        for run in runs {
            let mut range = self.slots_range(run.clone());
            if self.pool.is_some() {
                if run.end == self.superblock.wal_slots.len() as u64 {
                    // An extent may reach beyond the last slot.
                    range.end = Lba(u64::MAX);
                }
                // The result does not matter here: the pool knows what is free.
                drop(wal.release(range));
                continue;
            }
            // A device may refuse to deallocate, which does no harm. The range may be used again as
            // soon as this returns, so the operation must be over by then.
            drop(io::run(wal, Op::Deallocate { range }));
            self.written_slots[run.start as usize..run.end as usize].fill(false);
        }
    }

    /// The blocks of some slots.
    fn slots_range(&self, slots: Range<u64>) -> LbaRange {
        let segment_lbas = self.superblock.geometry.segment_lbas;
        LbaRange { start: Lba(slots.start * segment_lbas), end: Lba(slots.end * segment_lbas) }
    }

    /// Changes the superblock and makes that durable.
    ///
    /// # Errors
    /// When it could not be written: it is then unknown which superblock is in force.
    pub(crate) fn update(
        &mut self,
        device: &mut dyn Device,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), DeviceError> {
        let version = self.superblock.version();
        self.update_once(device, change)?;
        if self.superblock.version() > version && !is_planted("upgrade-half") {
            // An older program must not find copies of its own version and take them for current.
            self.update_once(device, |_| {})?;
        }
        Ok(())
    }

    fn update_once(
        &mut self,
        device: &mut dyn Device,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), DeviceError> {
        change(&mut self.superblock);
        if let Some(pool) = &self.pool {
            let before = self.superblock.extents.replace(pool.map());
            if is_planted("extents-one-behind") {
                self.superblock.extents = before;
            }
        }
        self.superblock.sequence += 1;
        self.superblock.parent = self.checksum;
        self.checksum = self.superblock.encode().1;
        if is_planted("segment-before-superblock") && self.superblock.sequence % 2 == 1 {
            return Ok(());
        }
        if is_planted("one-copy") {
            return self
                .superblock
                .write_copies(device, self.superblock.copies().into_iter().take(1));
        }
        self.superblock.write(device)
    }
}

/// Slots in order, as ranges as long as possible.
fn runs(slots: &[u64]) -> Vec<Range<u64>> {
    let runs = slots.chunk_by(|a, b| a + 1 == *b);
    runs.filter_map(|run| Some(*run.first()?..*run.last()? + 1)).collect()
}

/// Zeroes blocks whose data will have `lifetime`, and makes them stable.
///
/// Piece by piece, each stable before the next: a flush has to write out everything in the device's
/// cache, whoever wrote it, and the log's durable writes flush all the time.
pub(crate) fn zero(
    device: &mut dyn Device,
    lifetime: Lifetime,
    start: Lba,
    lbas: u64,
) -> Result<(), DeviceError> {
    let step = ZERO_LBAS.min(u64::from(device.geometry().transfer_lbas_max)).min(lbas);
    let mut buffer = Buffer::zeroed(step as usize);
    let mut done = 0;
    while done < lbas {
        let now = step.min(lbas - done);
        buffer.set_len_lbas(now as usize);
        let lba = Lba(start.0 + done);
        let placement = lifetime.placement();
        let op = Op::Write { lba, buffer, placement, durable: true };
        buffer = io::run(device, op)?.expect("a write brings its buffer back");
        done += now;
    }
    Ok(())
}

const _: () = assert!(ZERO_LBAS as usize * LBA_SIZE <= 1 << 20);
