//! Space on the volume that the log shares with snapshots. If the log took all of this space, the
//! log could never be shortened again, because no snapshot could be written.
//!
//! On a device, the [pool](Pool) leaves the next snapshot the space that it needs. A file system
//! leaves no space for the snapshot. So if each area is a file, the caller tells the log how long
//! the files of the snapshots (the slots) are, and each [`Job::Prepare`] says how many bytes must
//! still be free after the job.

use slimio_device::LBA_SIZE;
use slimio_planted::is_planted;

use super::{Log, LogState};
use crate::layout::SLOT_COUNT;
use crate::snapshot::SnapshotPlan;
#[cfg(doc)]
use crate::{Job, Pool};
use crate::{SlotName, SnapshotKind};

/// What happens to the space of unused segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UnusedSpace {
    /// The log keeps the space. When it uses these segments again, it need not zero them.
    Kept,
    /// A snapshot lacks space, so the keeper (the thread that works ahead for the log) gives the
    /// segments' space back.
    Wanted,
}

/// The space that snapshots need, according to the last call of [`Log::leave_room_for_snapshot`].
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct SnapshotNeed {
    /// The largest number of blocks that a snapshot of the data set takes.
    data_lbas: u64,
    /// Blocks that each slot has.
    slot_lbas: [u64; SLOT_COUNT],
}

impl Log {
    /// Leaves room for a snapshot that holds a data set of `data_lbas` blocks and everything that
    /// may be appended before the log asks for more room. `slot_lbas` says how many blocks each
    /// slot has, if slots are files. Call this again before [`next_job`](Self::next_job) whenever
    /// the data set or a slot may have grown.
    pub fn leave_room_for_snapshot(&mut self, data_lbas: u64, slot_lbas: [u64; SLOT_COUNT]) {
        self.snapshot_need = SnapshotNeed { data_lbas, slot_lbas };
        if let Some(pool) = &self.pool {
            pool.set_need(self.longest_snapshot(self.is_job_running));
        }
    }

    /// The largest number of blocks that the next snapshot can take. All free room in the log's
    /// segments is counted, because records may fill this room before the snapshot begins. If
    /// `is_coming`, the segment that is being prepared is counted, too.
    fn longest_snapshot(&self, is_coming: bool) -> u64 {
        let (_, ready) = self.segments.capacity_and_free();
        let coming = if is_coming { self.geometry.segment_size() } else { 0 };
        let growth = if is_planted("log-forgets-growth") { 0 } else { ready + coming };
        self.snapshot_need.data_lbas + growth / LBA_SIZE as u64
    }

    /// Bytes of the file system that snapshots need in addition to the blocks of their slots.
    /// Counts the next snapshot, and the running one if there is one. 0 on a device.
    pub(super) fn snapshot_space(&self) -> u64 {
        if self.pool.is_some() || is_planted("snapshot-space-taken") {
            return 0;
        }
        match self.writing_slot() {
            Some((slot, next)) => self.lacks(Some(slot)) + self.lacks(next),
            None => self.lacks(self.next_slot()),
        }
    }

    /// Bytes of the file system that the snapshot after the planned one will need in addition to
    /// the blocks of its slot. 0 on a device, because the [pool](Pool) leaves the space that this
    /// snapshot needs. Also 0 if the planned snapshot is a WAL-snapshot, because the log is short
    /// after a WAL-snapshot. Also 0 if the log is not on.
    pub fn space_behind(&self, plan: &SnapshotPlan) -> u64 {
        let needs_none = plan.kind == SnapshotKind::Wal || self.log_state() != LogState::On;
        if self.pool.is_some() || needs_none || is_planted("save-takes-all") {
            return 0;
        }
        let next = self.writing_slot().and_then(|(_, next)| next);
        self.lacks(next)
    }

    /// Bytes that the longest possible snapshot needs in addition to the blocks of a slot.
    fn lacks(&self, slot: Option<SlotName>) -> u64 {
        let has = slot.map_or(0, |slot| self.snapshot_need.slot_lbas[slot.index()]);
        self.longest_snapshot(true).saturating_sub(has) * LBA_SIZE as u64
    }

    /// Count of the blocks of a slot. The log compares free slots by this count, because the next
    /// snapshot goes to the longest of them.
    pub(super) fn slot_lbas(&self, slot: SlotName) -> u64 {
        match &self.pool {
            Some(pool) => pool.usage().slots[slot.index()],
            None => self.snapshot_need.slot_lbas[slot.index()],
        }
    }

    /// Asks the keeper to return unused blocks of the log's area to the file system, because a
    /// snapshot lacks space. No snapshot can be begun before these blocks are returned. Returns
    /// whether there may be such blocks. On a device there are none.
    pub fn give_back_space(&mut self) -> bool {
        let may_have = self.pool.is_none() && self.latch.is_none();
        if may_have {
            self.unused_space = UnusedSpace::Wanted;
        }
        may_have
    }
}
