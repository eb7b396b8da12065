//! How fast the running snapshot may go.

use super::Core;
use crate::snapshot::{Means, SnapshotThread};
use crate::wal::Wal;

impl Core {
    /// Sets the snapshot's rate to fit the other work that goes on.
    pub(crate) fn pace_snapshot(&mut self) {
        let (now, commands) = (self.now, self.stats.commands);
        let appended = self.wal.as_ref().map(|wal| wal.log().appended());
        let Some(running) = &mut self.snapshots.running else { return };
        let is_served = running.traffic.is_served(now, commands);
        if let Some(appended) = appended {
            running.growth.look(now, appended);
        }
        let full = self.settings.snapshot_rate;
        let rate = if !is_served || full == 0 || self.is_snapshot_pressing() {
            0
        } else if self.is_snapshot_awaited() {
            full
        } else {
            self.rate_unasked(full)
        };
        if let Some(thread) = &self.snapshots.thread {
            thread.set_rate(rate);
        }
    }

    /// Whether the snapshot must run at full speed: to release memory, or to make room in the log.
    fn is_snapshot_pressing(&self) -> bool {
        self.snapshot_memory() > self.snapshot_memory_limit() / 2 || self.is_rewrite_urgent()
    }

    /// Whether somebody waits for the end of the running snapshot, or for what can begin only then.
    fn is_snapshot_awaited(&self) -> bool {
        let snapshots = &self.snapshots;
        let is_unasked = snapshots.running.as_ref().is_some_and(|running| running.is_unasked);
        !is_unasked
            || snapshots.saves.is_scheduled
            || !snapshots.saving.is_empty()
            || !snapshots.pinning.is_empty()
            || self.is_log_resuming()
            || self.has_parked()
            || self.shutdown.is_some()
    }

    /// A client asked for a snapshot, or for something that can begin only after the running one.
    pub(crate) fn snapshot_asked_for(&mut self) {
        if let Some(running) = &mut self.snapshots.running {
            running.is_unasked = false;
            self.pace_snapshot();
        }
    }

    /// Bytes per second for a WAL-snapshot that nobody waits for.
    fn rate_unasked(&self, full: u64) -> u64 {
        let data = self.keyspace.used_bytes() as u64;
        let stats = self.keyspace.capture_stats();
        let untaken = stats.total.saturating_sub(stats.taken) as f64 / stats.total.max(1) as f64;
        let waiting = self.snapshots.thread.as_ref().map_or(0, SnapshotThread::waiting_size);
        let log = self.wal.as_ref().map(Wal::stats);
        let used = log.map_or(0, |log| log.capacity_bytes.saturating_sub(log.free_bytes));
        let means = Means {
            data,
            left: (data as f64 * untaken) as u64 + waiting + stats.owned_size as u64,
            room: self.rewrite_rule().room_at_ease(used),
            memory: self.snapshot_memory(),
            memory_max: self.snapshot_memory_limit(),
        };
        let growth = self.snapshots.running.as_ref().map(|running| &running.growth);
        growth.map_or(full, |growth| growth.rate(full, means))
    }
}
