//! How deallocations take effect: first in the mapping, then in the file.
//!
//! ```text
//! due ──► entry, mapping ──► space given back, piece by piece ──► acknowledged
//!         (under the lock)   (a piece under the lock)
//! ```
//!
//! A write maps its blocks before their bytes are in the file. If the process is killed in between,
//! such a block is mapped, but has the bytes that were in the file before. So the file must have no
//! old bytes for a block that holds nothing. Therefore the space is given back before the
//! deallocation is acknowledged, and before a checkpoint is made. Until then, the next process
//! finds the deallocation in the journal, and finishes it.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use slimio_device::{DeviceError, LBA_SIZE, Lba, LbaRange};
use slimio_planted::is_planted;

use super::Shared;
use super::core::{Core, OpKind, StartedOp};
use super::data::Data;
use super::journal::Journal;
use super::request::Request;
use crate::Ftl;

/// The most blocks whose space is given back at once: 4 MiB. The drive is locked meanwhile. With 2
/// GiB at once, it was locked for 700 ms. In pieces, it was locked for at most 5 ms at a time
/// (`--example locked`).
const PIECE_LBAS_MAX: u64 = 1024;

/// The time between two pieces, in which others can take the lock.
const PAUSE: Duration = Duration::from_micros(50);

/// A deallocation that has begun, but has not taken effect yet.
#[derive(Debug)]
pub(super) struct Pending {
    /// When the deallocation takes effect.
    pub(super) due: Duration,
    pub(super) range: LbaRange,
    /// The canceller of the deallocation's queue.
    pub(super) canceller: Canceller,
}

/// Cancels the deallocations of a [`DriveQueue`](super::DriveQueue) that have begun, but have not
/// taken effect yet. A host that learns that its queue is gone may write to the blocks at once. If
/// an old deallocation took effect after that, it would destroy the new data.
#[derive(Clone, Debug, Default)]
pub struct Canceller(Arc<AtomicBool>);

impl Canceller {
    /// Cancels the queue's deallocations. Each of them either takes effect before the next
    /// operation begins on the drive, or never takes effect.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst) && !is_planted("late-deallocation")
    }
}

impl Core {
    /// Changes the mapping for all deallocations that are due. A deallocation that can't be stored
    /// in the journal has no effect, and its request fails.
    pub(super) fn deallocate_until(&mut self, now: Duration) {
        while let Some(first) = self.deallocating.front()
            && first.due <= now
            && let Some(Pending { due, range, canceller }) = self.deallocating.pop_front()
        {
            if canceller.is_cancelled() {
                if let Some(journal) = &mut self.journal {
                    journal.forget_one_reserved();
                }
                continue;
            }
            let LbaRange { start, end } = range;
            let time = self.wall_ms(due.min(now));
            if let Some(journal) = &mut self.journal {
                let (lba, count) = (start.0 as u32, (end.0 - start.0) as u32);
                let request = Request::Deallocate { lba, count };
                if journal.append_reserved(request, time).is_err() {
                    continue;
                }
            }
            if let Some(undo) = &mut self.undo {
                let ftl = self.drive.ftl();
                // If the old data can't be read, the deallocation can't be undone.
                if let Ok(id) = undo.begin(&self.data, start.0..end.0, |lba| ftl.writer_of(lba)) {
                    undo.end(id, self.cache.is_none());
                }
            }
            self.forget(range);
        }
    }

    /// Deallocates blocks in the mapping, and notes that their space has to be given back.
    pub(super) fn forget(&mut self, range: LbaRange) {
        let freed = self.drive.deallocate(range.start.0, range.end.0 - range.start.0);
        freed.expect("it was within the drive when it was asked for");
        self.freeing.push_back(range);
        self.deallocations.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes sure that there is room in the journal for `count` more entries.
    pub(super) fn make_ready(&mut self, count: u64) -> Result<(), DeviceError> {
        let Some(journal) = &self.journal else { return Ok(()) };
        if journal.is_short(count) {
            self.give_back_all()?;
        }
        let Some(journal) = &mut self.journal else { return Ok(()) };
        journal.make_ready(self.drive.ftl(), count, !self.freeing.is_empty())
    }

    /// Whether the next change of the mapping will make a checkpoint.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        let is_due = |journal: &Journal| journal.is_due(self.drive.ftl());
        self.freeing.is_empty() && self.journal.as_ref().is_some_and(is_due)
    }

    /// Gives back the space of everything that was deallocated.
    pub(super) fn give_back_all(&mut self) -> Result<(), DeviceError> {
        while self.give_back_piece()? {}
        Ok(())
    }

    /// Gives back the space of the next piece of deallocated blocks that still hold nothing.
    /// Returns whether there are more pieces.
    fn give_back_piece(&mut self) -> Result<bool, DeviceError> {
        let Some(first) = self.freeing.front_mut() else { return Ok(false) };
        let piece = first.start.0..first.end.0.min(first.start.0 + PIECE_LBAS_MAX);
        give_back_free(&self.data, self.drive.ftl(), piece.clone())?;
        first.start = Lba(piece.end);
        if first.start >= first.end {
            self.freeing.pop_front();
        }
        Ok(!self.freeing.is_empty())
    }

    /// Gives back the space of deallocated blocks that are about to be written again. The blocks
    /// are mapped before their new bytes arrive. If the new bytes never arrive, the blocks must not
    /// have their old bytes.
    pub(super) fn give_back_within(&self, range: LbaRange) -> Result<(), DeviceError> {
        for freeing in &self.freeing {
            let (start, end) = (freeing.start.max(range.start), freeing.end.min(range.end));
            if start < end && !is_planted("reused-keep-bytes") {
                give_back_free(&self.data, self.drive.ftl(), start.0..end.0)?;
            }
        }
        Ok(())
    }
}

/// Gives back the space of all blocks in the range that hold nothing.
fn give_back_free(data: &Data, ftl: &Ftl, blocks: Range<u64>) -> Result<(), DeviceError> {
    let is_free = |lba: &u64| ftl.page_of(*lba).is_none();
    let mut at = blocks.start;
    while at < blocks.end {
        let start = (at..blocks.end).find(is_free).unwrap_or(blocks.end);
        let end = (start..blocks.end).find(|lba| !is_free(lba)).unwrap_or(blocks.end);
        if start < end {
            data.deallocate(LbaRange { start: Lba(start), end: Lba(end) })?;
        }
        at = end;
    }
    Ok(())
}

impl Shared {
    /// Gives back the space of everything that was deallocated. Others get the lock between two
    /// pieces.
    pub(super) fn give_back<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
    ) -> Result<(), DeviceError> {
        while core.give_back_piece()? {
            drop(core);
            std::thread::sleep(PAUSE);
            core = self.lock();
        }
        Ok(())
    }

    /// Is called when an operation has moved its bytes. Meanwhile, another path may have
    /// deallocated some of the operation's blocks. These blocks hold nothing, no matter which of
    /// the two came first. So the bytes of a write are removed there, and a read returns bytes of
    /// the value `nothing`.
    pub(super) fn settle(&self, begun: &mut StartedOp, nothing: u8) {
        let is_same = self.deallocations.load(Ordering::SeqCst) == begun.deallocations;
        if is_same || is_planted("late-bytes-stay") {
            return;
        }
        let blocks = begun.blocks();
        let mut core = self.lock();
        match (&begun.what, &mut begun.buffer) {
            (OpKind::Write { .. }, _) => {
                core.freeing.push_back(blocks);
                begun.result = begun.result.clone().and(self.give_back(core));
            }
            (OpKind::Read { .. }, Some(buffer)) => {
                let ftl = core.drive.ftl();
                for (lba, bytes) in (blocks.start.0..).zip(buffer.chunks_exact_mut(LBA_SIZE)) {
                    if ftl.page_of(lba).is_none() {
                        bytes.fill(nothing);
                    }
                }
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use slimio_device::{Buffer, Op, PlacementId};

    use super::super::core::{Opened, Scratch};
    use super::*;
    use crate::{Clock, Clocked, Config, DataPlace, DriveOptions, EmulatedDrive};

    fn range(start: u64, end: u64) -> LbaRange {
        LbaRange { start: Lba(start), end: Lba(end) }
    }

    /// One path writes blocks, and another path deallocates some of them. The bytes of the write
    /// arrive last.
    #[test]
    fn bytes_that_arrive_after_a_deallocation_do_not_stay() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
        let drive = EmulatedDrive::open(DriveOptions { data, ..options }).expect("it can be made");
        let (shared, mut scratch) = (drive.core.clone(), Scratch::default());
        let mut buffer = Buffer::zeroed(4);
        buffer.fill(7);
        let placement = PlacementId(0);
        let write = Op::Write { lba: Lba(1), buffer, placement, durable: false };
        let now = Duration::from_secs(1);
        let mut begun = shared.lock().begin(write, now, &Opened::default(), &mut scratch);
        let free = Op::Deallocate { range: range(2, 4) };
        shared.lock().begin(free, now, &Opened::default(), &mut scratch);
        let mut core = shared.lock();
        core.deallocate_until(now);
        assert_eq!(shared.give_back(core), Ok(()));
        begun.transfer(&drive.data, &scratch, 0);
        shared.settle(&mut begun, 0);
        assert_eq!(begun.result, Ok(()));
        let mut found = vec![0; 5 * LBA_SIZE];
        drive.data.read(1, &mut found).expect("it can be read");
        let bytes: Vec<u8> = found.chunks(LBA_SIZE).map(|block| block[0]).collect();
        assert_eq!(bytes, [7, 0, 0, 7, 0]);
    }

    /// A block is deallocated. Before its space was given back, a write of the block begins. The
    /// write then fails, or its process is killed.
    #[test]
    fn a_block_that_is_written_anew_never_has_the_bytes_of_before() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
        let drive = EmulatedDrive::open(DriveOptions { data, ..options }).expect("it can be made");
        let (shared, mut scratch) = (drive.core.clone(), Scratch::default());
        drive.data.write(1, &[7; 2 * LBA_SIZE]).expect("there is room");
        let mut core = shared.lock();
        core.forget(range(0, 3));
        let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
        let write = Op::Write { lba: Lba(2), buffer, placement, durable: false };
        core.begin(write, Duration::from_secs(1), &Opened::default(), &mut scratch);
        assert_eq!(shared.give_back(core), Ok(()));
        let mut found = [1; 2 * LBA_SIZE];
        drive.data.read(1, &mut found).expect("it can be read");
        assert_eq!(found, [0; 2 * LBA_SIZE]);
    }

    /// After a checkpoint, the next process no longer knows which space has to be given back.
    #[test]
    fn what_was_deallocated_has_no_bytes_when_a_checkpoint_is_made() {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let data = DataPlace::File(folder.path().join("drive"));
        let options = DriveOptions::new(Config::scaled(64 << 20), Clock::Virtual);
        let drive = EmulatedDrive::open(DriveOptions { data, ..options }).expect("it can be made");
        let shared = drive.core.clone();
        let mut core = shared.lock();
        let lbas = core.drive.ftl().config().lba_count;
        for lba in [0, lbas - 1] {
            drive.data.write(lba, &[7; LBA_SIZE]).expect("there is room");
        }
        core.forget(range(0, lbas));
        assert_eq!(core.give_back_piece(), Ok(true), "it takes several pieces");
        core.set_mapped(0..1).expect("it can be stored");
        assert!(core.freeing.is_empty());
        let mut found = [1; LBA_SIZE];
        drive.data.read(lbas - 1, &mut found).expect("it can be read");
        assert_eq!(found, [0; LBA_SIZE]);
    }

    /// Paths read the clock before they lock the drive, so a request that begins later may have an
    /// earlier time. The test begins two deallocations like that. The second one must take effect
    /// at its own time, and must not wait for the first one.
    #[test]
    fn a_late_deallocation_has_its_effect_when_it_is_acknowledged_whoever_else_waits() {
        let millis = Duration::from_millis;
        let mut options = DriveOptions::new(Config::scaled(64 << 20), Clock::Virtual);
        options.deallocate_latency = millis(20);
        let drive = Clocked::new(options.config.clone()).expect("such a drive works");
        let mut scratch = Scratch::default();
        let mut core = Core::new(drive, Arc::new(Data::Dropped), None, &options);
        for lba in [Lba(1), Lba(2)] {
            let buffer = Buffer::zeroed(1);
            let write = Op::Write { lba, buffer, placement: PlacementId(0), durable: true };
            core.begin(write, millis(1), &Opened::default(), &mut scratch);
        }
        let free = |lba| Op::Deallocate { range: LbaRange { start: Lba(lba), end: Lba(lba + 1) } };
        core.begin(free(1), millis(10), &Opened::default(), &mut scratch);
        let earlier = core.begin(free(2), millis(9), &Opened::default(), &mut scratch);
        assert_eq!(earlier.due, millis(29));
        core.deallocate_until(earlier.due);
        let is_mapped = |core: &Core, lba| core.drive.ftl().page_of(lba).is_some();
        assert!(is_mapped(&core, 1) && !is_mapped(&core, 2));
        core.deallocate_until(millis(30));
        assert!(!is_mapped(&core, 1));
    }
}
