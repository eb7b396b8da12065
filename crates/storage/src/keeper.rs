//! The keeper, which owns the superblock and makes room for the log.
//!
//! Some jobs release space, others hand it out. Each such change needs a superblock that allows it.
//! Each update of the superblock writes two of its four copies. The invariant: the two written
//! copies are durable before the keeper returns the job's outcome.

use std::ops::Range;

use slimio_device::{Buffer, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op};
use slimio_planted::is_planted;

use crate::superblock::Superblock;
use crate::{Area, Lifetime, LogStart, Lsn, Media, Pool, SlotSummary, Snapshots, io};

/// The most blocks that one write zeroes. Several writes zero a segment, which is a fixed-size
/// piece of the log.
const ZERO_LBAS: u64 = 256;

/// If the log's area is a file, free slots (places for segments) with at least this many bytes
/// together keep their blocks, so that the log can overwrite these blocks. A durable write to a
/// hole is slow, and zeroing a slot again costs work.
const FREE_SIZE_KEPT: u64 = 1 << 30;

/// Owner of the superblock. It prepares segments that the log will need, and releases those that
/// the log no longer needs.
///
/// The keeper is plain state, and works on its own paths. Because its calls block, it runs on its
/// own thread.
#[derive(Clone, Debug)]
pub struct Keeper {
    superblock: Superblock,
    /// Checksum of `superblock`.
    checksum: u64,
    needs_zeroing: bool,
    /// The extent pool, if the volume is on a device. The pool's map is written with each update of
    /// the superblock.
    pool: Option<Pool>,
    /// For each slot of the log's area, whether its blocks were written and were not given back
    /// afterwards.
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

/// A job that the log gives to the keeper. Only one job runs at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Job {
    /// Prepare one more segment. If areas are files, `leave` bytes of the file system must still be
    /// free afterwards.
    Prepare {
        /// Bytes that snapshots will need.
        leave: u64,
    },
    /// Let the log start at this place, where the data set was empty. Everything before this place
    /// is then free, and the volume has no root: recovery starts without a snapshot.
    Release(LogStart),
    /// Adopt a complete snapshot: it becomes the volume's WAL-snapshot or on-demand snapshot, and
    /// may become the root.
    Adopt(Adoption),
    /// End the log at this LSN, so that recovery ignores all later records.
    EndLog(Lsn),
    /// A snapshot lacks space, so give back the space of the log's unused slots.
    GiveBack,
}

/// A complete snapshot, and how the log goes on with it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Adoption {
    /// The snapshot. It is stable, and all records that it needs are durable.
    pub summary: SlotSummary,
    /// Where the log starts, if the log goes on from this snapshot; `None` if the log's start does
    /// not change.
    pub start: Option<LogStart>,
    /// Whether the log had ended, and now goes on from this snapshot.
    pub continues_log: bool,
}

/// The outcome of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The segment may be written, because the superblock that gives it to the log is durable.
    Prepared {
        /// Sequence of the segment.
        segment: u64,
        /// Slot of the log's area that the segment is in.
        wal_slot: u32,
        /// Sequence of the superblock in force.
        superblock_sequence: u64,
    },
    /// No segment could be prepared. Nothing has changed.
    PrepareFailed(DeviceError),
    /// The log starts at `start`. The space before `start` may be used again.
    Released {
        /// Where the log starts.
        start: LogStart,
        /// Which snapshots there are now.
        snapshots: Box<Snapshots>,
        /// Sequence of the superblock in force.
        superblock_sequence: u64,
    },
    /// The snapshot was adopted. The slots of the snapshots that it has replaced, if any, are now
    /// reserves.
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
    /// The space of slots that hold nothing was given back.
    GivenBack,
    /// The superblock could not be updated, so the log must be latched.
    SuperblockFailed(DeviceError),
}

impl Keeper {
    /// `superblock` must be on the device already; `checksum` is its checksum.
    pub(crate) fn new(superblock: Superblock, checksum: u64, media: &dyn Media) -> Self {
        // At first, every slot is treated as written. If an earlier process gave back the blocks of
        // a slot, the keeper finds the holes when it uses the slot.
        let written_slots = vec![true; superblock.wal_slots.len()];
        let (needs_zeroing, pool) = (media.fresh_blocks_need_zeroing(), media.pool().cloned());
        Self { superblock, checksum, needs_zeroing, pool, written_slots }
    }

    /// The superblock in force.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Does a job. Blocks until the job is done and its effects are durable.
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

    /// Returns a slot that holds nothing: a slot that was used before, or a new one at the area's
    /// end. Zeroes the slot's blocks if they need zeroing.
    ///
    /// If areas are files, `leave` bytes of the file system must stay free. If necessary, the
    /// blocks of other free slots are given back. If that is not enough, the function fails. But a
    /// log with a single segment gets a second one even then, because it could never get shorter
    /// otherwise.
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

    /// The free slot to be used next. A slot that already has its blocks is preferred, because the
    /// medium may have no free blocks for another slot.
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

    /// Allocates blocks for the parts of a slot that an earlier process has given back. Otherwise
    /// the log would notice a full disk only when it writes to such a hole. Returns whether the
    /// slot now has all its blocks.
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

    /// Gives back the blocks of slots that hold nothing, one slot after the other, until the file
    /// system has `free_size` bytes free. The slot `kept` keeps its blocks. Returns whether the
    /// file system has that many bytes free. On a device, which has no file system, returns true.
    fn leave_free(&mut self, wal: &mut dyn Device, kept: usize, free_size: u64) -> bool {
        let mut unused = self.unused_slots();
        unused.retain(|&slot| slot != kept as u64);
        while self.pool.is_none() && wal.free_space().is_some_and(|free| free < free_size) {
            let Some(slot) = unused.pop() else { return false };
            self.give_back(wal, &runs(&[slot]));
        }
        true
    }

    /// Whether a slot of the log has all its extents; false if areas are files.
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

    /// Turns the result of a job's superblock update into the job's outcome.
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

    /// Lets the log start at `start`, with one update of the superblock. Then gives back the space
    /// before `start`.
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

    /// Slots that hold nothing once the log starts at `start`, and whose space is to be given back.
    /// The slots are in order, and contiguous slots are one range.
    fn surplus_slots(&self, start: LogStart) -> Vec<Range<u64>> {
        let slots = &self.superblock.wal_slots;
        let is_free = |segment: Option<u64>| segment.is_none_or(|segment| segment < start.segment);
        let free = (0..).zip(slots).filter(|(_, segment)| is_free(**segment)).map(|(slot, _)| slot);
        let mut free: Vec<u64> = if self.pool.is_some() {
            // A log that has only one segment needs a second one before it can release the first. A
            // snapshot may take all free extents, so one free slot keeps its extents for such a
            // log. Slots that were free before are given back too, because they may share an extent
            // with a slot that becomes free only now.
            let used = slots.iter().flatten().filter(|&&segment| segment >= start.segment).count();
            let free: Vec<u64> = free.collect();
            let is_alone = used < 2 && !is_planted("last-segment-alone");
            let kept = free.iter().copied().find(|&slot| is_alone && self.has_extents(slot));
            free.into_iter().filter(|&slot| Some(slot) != kept).collect()
        } else {
            free.filter(|&slot| self.written_slots[slot as usize]).collect()
        };
        if self.pool.is_none() {
            // The log will need as many slots as it had before. So as many free slots keep their
            // blocks, or more if these have less than `FREE_SIZE_KEPT` bytes. The rest is given
            // back.
            let used = slots.iter().flatten().count();
            let kept =
                used.max((FREE_SIZE_KEPT / self.superblock.geometry.segment_size()) as usize);
            free.drain(..free.len().min(kept));
        }
        runs(&free)
    }

    /// Gives back the space of slots that hold nothing. On a device there is nothing to do, because
    /// the extents of unused slots are free already.
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

    /// Whether the log has a second segment. A log with only one segment can never release that
    /// segment, so the log never becomes shorter.
    fn has_second_segment(&self) -> bool {
        self.superblock.segments().len() >= 2
    }

    /// Slots that have blocks, but hold nothing according to the superblock in force.
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
                    // If an extent reaches beyond the last slot, it is given back whole.
                    range.end = Lba(u64::MAX);
                }
                // The result does not matter here, because the pool knows which extents are free.
                drop(wal.release(range));
                continue;
            }
            // A device may refuse to deallocate, which does no harm. The range may be used again as
            // soon as this function returns, so the operation must be complete by then.
            drop(io::run(wal, Op::Deallocate { range }));
            self.written_slots[run.start as usize..run.end as usize].fill(false);
        }
    }

    /// The blocks of some slots.
    fn slots_range(&self, slots: Range<u64>) -> LbaRange {
        let segment_lbas = self.superblock.geometry.segment_lbas;
        LbaRange { start: Lba(slots.start * segment_lbas), end: Lba(slots.end * segment_lbas) }
    }

    /// Changes the superblock and makes the change durable.
    ///
    /// # Errors
    /// If the superblock could not be written. It is then unknown which superblock is in force.
    pub(crate) fn update(
        &mut self,
        device: &mut dyn Device,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), DeviceError> {
        let version = self.superblock.version();
        self.update_once(device, change)?;
        if self.superblock.version() > version && !is_planted("upgrade-half") {
            // The other two copies are written too, because an older program must not find copies
            // of its own version and take them for current.
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

/// Joins contiguous slots into ranges. `slots` is sorted.
fn runs(slots: &[u64]) -> Vec<Range<u64>> {
    let runs = slots.chunk_by(|a, b| a + 1 == *b);
    runs.filter_map(|run| Some(*run.first()?..*run.last()? + 1)).collect()
}

/// Zeroes blocks whose data will have `lifetime`, and makes them stable.
///
/// Writes piece by piece, and makes each piece stable before it writes the next. Otherwise the
/// zeros would fill the device's cache and slow down the log: each durable write of the log
/// flushes, and each flush has to write out everything in the cache.
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
        buffer = io::run(device, op)?.expect("a write returns its buffer");
        done += now;
    }
    Ok(())
}

const _: () = assert!(ZERO_LBAS as usize * LBA_SIZE <= 1 << 20);
