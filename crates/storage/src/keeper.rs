//! Who owns the superblock and makes room for the log.
//!
//! The invariant: what a job releases or hands out depends on a superblock that is durable in both
//! of its copies before the job's outcome is told.

use slimio_device::{Buffer, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op, PlacementId, Token};

use crate::superblock::Superblock;
use crate::{LogStart, io};

/// Blocks written at once when a segment is zeroed.
const ZERO_LBAS: u64 = 256;

/// Owner of the superblock: prepares segments ahead of the log and releases those behind it.
///
/// Plain state; runs where blocking is allowed (a thread of its own), on paths of its own.
#[derive(Clone, Debug)]
pub struct Keeper {
    superblock: Superblock,
    /// Checksum of `superblock`.
    checksum: u64,
    needs_zeroing: bool,
    /// Slots of the log's area up to here have been written to.
    zeroed_slots: usize,
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
    /// Prepare one more segment.
    Prepare,
    /// The log starts here from now on; what is before is free.
    Release(LogStart),
}

/// What became of a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The segment may be written: the superblock that says so is durable.
    Prepared {
        /// Its sequence.
        segment: u64,
        /// Which piece of the log's area it is.
        wal_slot: u32,
        /// The superblock in force.
        superblock_sequence: u64,
    },
    /// No segment could be prepared. Nothing has changed.
    PrepareFailed(DeviceError),
    /// The log starts there; what was before may be used again.
    Released {
        /// Where it starts.
        start: LogStart,
        /// The superblock in force.
        superblock_sequence: u64,
    },
    /// The superblock could not be updated: the log must be latched.
    SuperblockFailed(DeviceError),
}

impl Keeper {
    /// `superblock` is on the device, with this checksum.
    pub(crate) fn new(superblock: Superblock, checksum: u64, needs_zeroing: bool) -> Self {
        let zeroed_slots = superblock.wal_slots.len();
        Self { superblock, checksum, needs_zeroing, zeroed_slots }
    }

    /// The superblock in force.
    pub fn superblock(&self) -> &Superblock {
        &self.superblock
    }

    /// Does a job. Blocks until it is done and durable.
    pub fn run(&mut self, paths: &mut KeeperPaths, job: Job) -> Outcome {
        match job {
            Job::Prepare => self.prepare(paths),
            Job::Release(start) => self.release(paths, start),
        }
    }

    fn prepare(&mut self, paths: &mut KeeperPaths) -> Outcome {
        let wal_slot = match self.free_slot(&mut *paths.wal) {
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

    /// A slot that holds nothing: one used before, or a new one at the area's end, written over
    /// where that is needed.
    fn free_slot(&mut self, wal: &mut dyn Device) -> Result<usize, DeviceError> {
        let known = self.superblock.wal_slots.len();
        let wal_slot = self.superblock.wal_slots.iter().position(Option::is_none).unwrap_or(known);
        if wal_slot >= self.superblock.geometry.wal_slots_max as usize {
            return Err(DeviceError::NoSpace);
        }
        if wal_slot >= self.zeroed_slots {
            let segment_lbas = self.superblock.geometry.segment_lbas;
            let end = (wal_slot as u64 + 1) * segment_lbas;
            if wal.geometry().lba_count < end {
                wal.grow(end)?;
            }
            if self.needs_zeroing {
                zero(wal, Lba(end - segment_lbas), segment_lbas)?;
            }
            self.zeroed_slots = wal_slot + 1;
        }
        Ok(wal_slot)
    }

    fn release(&mut self, paths: &mut KeeperPaths, start: LogStart) -> Outcome {
        let segment_lbas = self.superblock.geometry.segment_lbas;
        let mut free: Vec<u64> = (0..)
            .zip(&self.superblock.wal_slots)
            .filter(|(_, segment)| segment.is_some_and(|segment| segment < start.segment))
            .map(|(wal_slot, _)| wal_slot)
            .collect();
        free.sort_unstable();
        if cfg!(feature = "plant-release-before-superblock") {
            deallocate(&mut *paths.wal, &free, segment_lbas);
        }
        let updated = self.update(&mut *paths.superblock, |superblock| {
            superblock.start = start;
            for wal_slot in &mut superblock.wal_slots {
                wal_slot.take_if(|segment| *segment < start.segment);
            }
        });
        if let Err(error) = updated {
            return Outcome::SuperblockFailed(error);
        }
        deallocate(&mut *paths.wal, &free, segment_lbas);
        Outcome::Released { start, superblock_sequence: self.superblock.sequence }
    }

    /// Changes the superblock and makes that durable.
    ///
    /// # Errors
    /// When it could not be written: what is in force is then not known.
    pub(crate) fn update(
        &mut self,
        device: &mut dyn Device,
        change: impl FnOnce(&mut Superblock),
    ) -> Result<(), DeviceError> {
        change(&mut self.superblock);
        self.superblock.sequence += 1;
        self.superblock.parent = self.checksum;
        self.checksum = self.superblock.encode().1;
        if cfg!(feature = "plant-segment-before-superblock") && self.superblock.sequence % 2 == 1 {
            return Ok(());
        }
        if cfg!(feature = "plant-one-copy") {
            return self
                .superblock
                .write_copies(device, self.superblock.copies().into_iter().take(1));
        }
        self.superblock.write(device)
    }
}

/// Writes zeros over blocks and makes them stable.
///
/// Piece by piece, each stable before the next: a device's flush takes as long as what it has not
/// kept yet, whoever wrote that, and the log's durable writes flush all the time.
pub(crate) fn zero(device: &mut dyn Device, start: Lba, lbas: u64) -> Result<(), DeviceError> {
    let step = ZERO_LBAS.min(u64::from(device.geometry().transfer_lbas_max)).min(lbas);
    let mut buffer = Buffer::zeroed(step as usize);
    let mut done = 0;
    while done < lbas {
        let now = step.min(lbas - done);
        buffer.set_len_lbas(now as usize);
        let lba = Lba(start.0 + done);
        let placement = PlacementId::default();
        let op = Op::Write { lba, buffer, placement, durable: true };
        buffer = io::run(device, op)?.expect("a write brings its buffer back");
        done += now;
    }
    Ok(())
}

/// Tells the device that slots hold nothing, in ranges as large as they come. A device may refuse:
/// that is its loss.
fn deallocate(device: &mut dyn Device, wal_slots: &[u64], segment_lbas: u64) {
    for run in wal_slots.chunk_by(|a, b| a + 1 == *b) {
        let (Some(first), Some(last)) = (run.first(), run.last()) else { continue };
        let range =
            LbaRange { start: Lba(first * segment_lbas), end: Lba((last + 1) * segment_lbas) };
        if cfg!(feature = "plant-reuse-in-flight") {
            assert!(device.submit(Token(0), Op::Deallocate { range }).is_ok());
            device.kick();
            continue;
        }
        // The range may be used again as soon as this returns, so it must be over by then.
        drop(io::run(device, Op::Deallocate { range }));
    }
}

const _: () = assert!(ZERO_LBAS as usize * LBA_SIZE <= 1 << 20);
