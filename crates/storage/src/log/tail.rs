//! Small commits in a row: the last batch of the log grows, and is written alternately to two
//! blocks.
//!
//! Under `appendfsync always`, if a client waits for each of its small writes, each write is a
//! commit of its own, which would take a whole block of log. To save blocks, such commits share one
//! batch. Each commit adds its records and writes the whole batch again. The batch has a pair of
//! blocks, and a commit writes the block that the last commit did not write. So a commit never
//! overwrites the only copy of acknowledged records, because the last commit's block holds them
//! too. A pair costs two blocks of log for one block of records.
//!
//! ```text
//! block 0 | r1      |         | r1 r2 r3 |
//! block 1 |         | r1 r2   |          | r1 r2 r3 r4
//! ```

use std::time::Instant;

use slimio_device::{Buffer, Device, LBA_SIZE, Lba};
use slimio_planted::is_planted;

use super::{Log, OpenBatch};
use crate::batch::{Kind, Records, write_closing_half};
use crate::checksum::chain;
use crate::layout::batch;
use crate::{Lsn, Policy};

/// The largest number of bytes of records in a small commit. A pair of blocks pays off if the
/// records of at least three small commits fit into one block.
const TAIL_COMMIT_SIZE_MAX: usize = (LBA_SIZE - batch::SIZE) / 3;

/// After this many lone commits in a row (small ones, with nothing else in flight), the log expects
/// more of them.
const LONE_COMMITS_MIN: u32 = 3;

/// A pair of blocks, and the batch that grows in it.
#[derive(Debug)]
pub(super) struct Tail {
    /// The first block of the pair.
    lba: Lba,
    first_lsn: Lsn,
    /// Checksum of the batch before the pair.
    parent: u64,
    /// Bytes of `image` that are used, header included.
    used: usize,
    records_chain: u64,
    is_second_next: bool,
    /// The block written last; `None` while it is in flight.
    pub(super) image: Option<Buffer>,
}

impl Log {
    /// Whether `batch` is a small commit and nothing else is in flight.
    pub(super) fn is_lone(&self, batch: &OpenBatch) -> bool {
        self.policy == Policy::Always
            && self.flight.is_empty()
            && self.closed.is_empty()
            && batch.used - batch::SIZE <= TAIL_COMMIT_SIZE_MAX
    }

    /// The pair that a lone commit goes to: the current pair if it has room, else a new one. `None`
    /// if a new pair is not worth its blocks or if the log has no room for it.
    pub(super) fn take_tail(&mut self, batch: &OpenBatch) -> Option<Tail> {
        let size = batch.used - batch::SIZE;
        let has_room = |tail: &Tail| tail.image.is_some() && tail.used + size <= LBA_SIZE;
        if let Some(tail) = self.tail.take().filter(has_room) {
            return Some(tail);
        }
        // If room is short, no new pair is begun, because a pair takes an additional block.
        let is_roomy = self.usable() >= self.reserve() + self.geometry.batch_size() as u64;
        if self.lone_commits < LONE_COMMITS_MIN || !is_roomy {
            return None;
        }
        let lba = self.segments.take(2, batch.first_lsn, self.parent)?;
        self.stats.log_bytes += 2 * LBA_SIZE as u64;
        let mut image = Buffer::zeroed(1);
        image[..batch::SIZE].copy_from_slice(&batch.buffer[..batch::SIZE]);
        Some(Tail {
            lba,
            first_lsn: batch.first_lsn,
            parent: self.parent,
            used: batch::SIZE,
            records_chain: 0,
            is_second_next: false,
            image: Some(image),
        })
    }

    /// Writes the pair's records, followed by the records of `batch`, to the block of the pair that
    /// was not written last.
    pub(super) fn submit_tail(
        &mut self,
        device: &mut dyn Device,
        mut tail: Tail,
        batch: OpenBatch,
        now: Instant,
    ) {
        let mut image =
            tail.image.take().expect("`take_tail` returns no tail whose image is still in flight");
        let records = &batch.buffer[batch::SIZE..batch.used];
        image[tail.used..tail.used + records.len()].copy_from_slice(records);
        let walk = Records::new(&batch.buffer[..batch.used], self.salt, batch.first_lsn);
        for view in walk {
            tail.records_chain = chain(tail.records_chain, view.checksum);
        }
        tail.used += records.len();
        let kind = if tail.is_second_next { Kind::TailSecond } else { Kind::TailFirst };
        let records_size = (tail.used - batch::SIZE) as u32;
        let header = self.header(kind, tail.first_lsn, records_size, tail.parent);
        self.parent = write_closing_half(&mut image, self.salt, &header, tail.records_chain);
        if !self.may_be_written(&image, &batch.buffer) {
            return;
        }
        let is_second = tail.is_second_next && !is_planted("tail-in-place");
        let lba = Lba(tail.lba.0 + u64::from(is_second));
        tail.is_second_next = !tail.is_second_next;
        self.tail = Some(tail);
        let mut flight = self.flight_of(&batch, now);
        flight.buffer = Some(batch.buffer);
        flight.is_tail = true;
        self.submit_write(device, lba, image, flight);
    }
}
