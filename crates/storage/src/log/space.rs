//! Space on the volume that the log shares with snapshots: a log that takes all of it could never be
//! shortened again.
//!
//! On a device the [pool](Pool) leaves to the next snapshot what it needs. Where each area is a file,
//! the file system knows nothing of that. So the log knows how long the slots are, and each
//! [`Job::Prepare`] says how many bytes must stay free behind it.

use slimio_device::LBA_SIZE;
use slimio_planted::is_planted;

use super::{Log, LogState};
use crate::layout::SLOT_COUNT;
use crate::snapshot::SnapshotPlan;
#[cfg(doc)]
use crate::{Job, Pool};
use crate::{SlotName, SnapshotKind};

/// What becomes of the space of segments that hold nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnusedSpace {
    /// The log will use them again, and need not zero them then.
    Kept,
    /// A snapshot lacks space: the keeper gives it back.
    Wanted,
}

/// What snapshots need, as the caller said last.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotNeed {
    /// Blocks that a snapshot of the data set takes at most.
    data_lbas: u64,
    /// Blocks that each slot has.
    slot_lbas: [u64; SLOT_COUNT],
}

impl Log {
    /// Leaves room for a snapshot of a data set of `data_lbas` blocks, and of what may be appended
    /// before the log asks for more room. `slot_lbas`: the blocks that each slot has, where slots are
    /// files. Call it again whenever one of them may have grown, before [`next_job`](Self::next_job).
    pub fn leave_room_for_snapshot(&mut self, data_lbas: u64, slot_lbas: [u64; SLOT_COUNT]) {
        self.snapshot_need = SnapshotNeed { data_lbas, slot_lbas };
        if let Some(pool) = &self.pool {
            pool.set_need(self.longest_snapshot(self.is_job_running));
        }
    }

    /// Blocks that the next snapshot takes at most. What the log has room for may be appended before
    /// that begins; a segment that `is_coming` is room, too.
    fn longest_snapshot(&self, is_coming: bool) -> u64 {
        let (_, ready) = self.segments.capacity_and_free();
        let coming = if is_coming { self.geometry.segment_size() } else { 0 };
        let growth = if is_planted("log-forgets-growth") { 0 } else { ready + coming };
        self.snapshot_need.data_lbas + growth / LBA_SIZE as u64
    }

    /// Bytes of the file system that snapshots need beside what their slots have: the running one, and
    /// the one behind that. 0 on a device.
    pub(super) fn snapshot_space(&self) -> u64 {
        if self.pool.is_some() || is_planted("snapshot-space-taken") {
            return 0;
        }
        match self.writing_slot() {
            Some((slot, next)) => self.lacks(Some(slot)) + self.lacks(next),
            None => self.lacks(self.next_slot()),
        }
    }

    /// Bytes of the file system that the snapshot behind the planned one will need. 0 on a device, where
    /// the [pool](Pool) sees to it, and for a WAL-snapshot, behind which the log is short.
    pub fn space_behind(&self, plan: &SnapshotPlan) -> u64 {
        let needs_none = plan.kind == SnapshotKind::Wal || self.log_state() != LogState::On;
        if self.pool.is_some() || needs_none || is_planted("save-takes-all") {
            return 0;
        }
        let next = self.writing_slot().and_then(|(_, next)| next);
        self.lacks(next)
    }

    /// Bytes that the longest snapshot needs beyond what a slot has.
    fn lacks(&self, slot: Option<SlotName>) -> u64 {
        let has = slot.map_or(0, |slot| self.snapshot_need.slot_lbas[slot.index()]);
        self.longest_snapshot(true).saturating_sub(has) * LBA_SIZE as u64
    }

    /// Blocks that a slot has: the longer of two reserves is written next.
    pub(super) fn slot_lbas(&self, slot: SlotName) -> u64 {
        match &self.pool {
            Some(pool) => pool.usage().slots[slot.index()],
            None => self.snapshot_need.slot_lbas[slot.index()],
        }
    }

    /// A snapshot lacks space on the volume: what the log's area has and does not use goes back to the
    /// file system before the next snapshot can be begun. Returns whether there may be any: on a device
    /// the log keeps none.
    pub fn give_back_space(&mut self) -> bool {
        let may_have = self.pool.is_none() && self.latch.is_none();
        if may_have {
            self.unused_space = UnusedSpace::Wanted;
        }
        may_have
    }
}
