//! How deallocations take effect: first in the mapping, then in the file.
//!
//! ```text
//! due ──► journal, mapping ──► space given back, piece by piece ──► acknowledged
//!         (under the lock)     (each piece under the lock)
//! ```
//!
//! A write maps its blocks before their bytes are in the file. If the process is killed in between,
//! such a block is mapped, but has the bytes that were in the file before. So when a write maps a
//! block that held nothing, the file must have no old bytes for that block. Such a block can have
//! old bytes for three reasons: its space was not given back yet; it could not be given back; or a
//! write was under way at the deallocation, and stored its bytes afterwards. This process remembers
//! these blocks. The next process finds the last deallocations in the journal, and finishes them.
//! After a checkpoint, the journal's older deallocations are not read any more. So the next process
//! also searches the drive, one part at a time: before it first maps a block in a part, it looks
//! for that part's blocks that hold nothing, but have bytes in the file. Because of this search, a
//! checkpoint need not wait until the space of deallocated blocks was given back.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, MutexGuard};
use std::time::Duration;

use slimio_device::{DeviceError, LBA_SIZE, Lba, LbaRange};
use slimio_planted::is_planted;

use super::Shared;
use super::core::{Core, OpKind, StartedOp};
use super::journal::Journal;
use super::request::Request;

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
        let (start, end) = (range.start.0, range.end.0);
        let freed = self.drive.deallocate(start, end - start);
        freed.expect("the range was within the drive when the request began");
        self.freeing.add(start..end);
        self.deallocations.fetch_add(1, Ordering::SeqCst);
    }

    /// Makes sure that there is room in the journal for `count` more entries.
    pub(super) fn make_ready(&mut self, count: u64) -> Result<(), DeviceError> {
        let Some(journal) = &mut self.journal else { return Ok(()) };
        if journal.is_short(count) {
            // It may be long until cancelled deallocations are due, so they give their reserved
            // entries back now.
            let before = self.deallocating.len();
            self.deallocating.retain(|pending| !pending.canceller.is_cancelled());
            for _ in self.deallocating.len()..before {
                journal.forget_one_reserved();
            }
        }
        journal.make_ready(self.drive.ftl(), count)
    }

    /// Whether the next change of the mapping will make a checkpoint.
    pub(super) fn is_checkpoint_due(&self) -> bool {
        self.journal.as_ref().is_some_and(|journal| journal.is_due(self.drive.ftl()))
    }

    /// Gives back the space of all blocks in the range that hold nothing, but may have bytes. If
    /// this fails for some blocks, the space of the others is still given back, and the caller can
    /// try again.
    pub(super) fn give_back_within(&mut self, blocks: &Range<u64>) -> Result<(), DeviceError> {
        while let Some(part) = self.freeing.take_unseen(blocks) {
            if is_planted("opened-unseen") {
                continue;
            }
            self.look_at(part);
        }
        let (mut given, mut at) = (Ok(()), blocks.start);
        while let Some(found) = self.freeing.first_in(&(at..blocks.end)) {
            at = found.end.min(found.start + PIECE_LBAS_MAX);
            let piece = found.start..at;
            match self.give_back_free(piece.clone()) {
                Ok(()) => self.freeing.remove(&piece),
                failure => given = given.and(failure),
            }
        }
        given
    }

    /// Gives back the space of all deallocated blocks.
    pub(super) fn give_back_all(&mut self) -> Result<(), DeviceError> {
        let (mut given, mut at) = (Ok(()), 0);
        while let Some(found) = self.freeing.first_in(&(at..u64::MAX)) {
            at = found.end;
            given = given.and(self.give_back_within(&found));
        }
        given
    }

    /// Finds the blocks in a part of the drive that hold nothing, but have bytes.
    fn look_at(&mut self, part: Range<u64>) {
        let part = part.start..part.end.min(self.drive.ftl().config().lba_count);
        let mut left = Vec::new();
        let seen = self.data.each_written_in(part.clone(), |lba| {
            if self.is_free(lba) {
                left.push(lba);
            }
        });
        if seen.is_err() {
            left = part.filter(|lba| self.is_free(*lba)).collect();
        }
        for lba in left {
            self.freeing.add(lba..lba + 1);
        }
    }

    /// Whether a block holds nothing. A block that a process has mapped into its memory never
    /// counts as free, because stores to that memory do not pass through the drive. So the drive
    /// does not know what the block holds.
    fn is_free(&self, lba: u64) -> bool {
        let is_mapped = |journal: &Journal| journal.mapped().contains(&lba);
        self.drive.ftl().page_of(lba).is_none() && !self.journal.as_ref().is_some_and(is_mapped)
    }

    /// Gives back the space of all blocks in the range that hold nothing.
    fn give_back_free(&self, blocks: Range<u64>) -> Result<(), DeviceError> {
        let mut at = blocks.start;
        while at < blocks.end {
            let start = (at..blocks.end).find(|lba| self.is_free(*lba)).unwrap_or(blocks.end);
            let end = (start..blocks.end).find(|lba| !self.is_free(*lba)).unwrap_or(blocks.end);
            if start < end {
                self.data.deallocate(LbaRange { start: Lba(start), end: Lba(end) })?;
            }
            at = end;
        }
        Ok(())
    }
}

impl Shared {
    /// Gives back the space of all deallocated blocks in the range, piece by piece. Other threads
    /// can take the lock between two pieces. If this fails for a piece, the other pieces are still
    /// given back. Only the caller gets the error.
    pub(super) fn give_back<'a>(
        &'a self,
        mut core: MutexGuard<'a, Core>,
        blocks: Range<u64>,
    ) -> Result<(), DeviceError> {
        let (mut given, mut at) = (Ok(()), blocks.start);
        while let Some(found) = core.freeing.first_in(&(at..blocks.end)) {
            if at > blocks.start {
                drop(core);
                std::thread::sleep(PAUSE);
                core = self.lock();
            }
            at = found.end.min(found.start + PIECE_LBAS_MAX);
            given = given.and(core.give_back_within(&(found.start..at)));
        }
        given
    }

    /// Called when an operation has moved its bytes. While it moved them, another path may have
    /// deallocated some of the operation's blocks. These blocks hold nothing, no matter whether the
    /// operation or the deallocation came first. So this call removes the bytes that a write put
    /// there, and makes a read return bytes of the value `nothing` for these blocks.
    pub(super) fn settle(&self, begun: &mut StartedOp, nothing: u8) {
        let is_same = self.deallocations.load(Ordering::SeqCst) == begun.deallocations;
        if is_same || is_planted("late-bytes-stay") {
            return;
        }
        let LbaRange { start: Lba(start), end: Lba(end) } = begun.blocks();
        let mut core = self.lock();
        match (&begun.what, &mut begun.buffer) {
            (OpKind::Write { .. }, _) => {
                let given = core.give_back_free(start..end);
                if given.is_err() {
                    core.freeing.add(start..end);
                }
                begun.result = begun.result.clone().and(given);
            }
            (OpKind::Read { .. }, Some(buffer)) => {
                let ftl = core.drive.ftl();
                for (lba, bytes) in (start..).zip(buffer.chunks_exact_mut(LBA_SIZE)) {
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
mod tests;
