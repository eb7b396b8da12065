//! How fast the snapshot that runs may go.

use slimio_storage::Policy;

use super::Core;
use crate::snapshot::{Means, SnapshotThread};
use crate::wal::Wal;

impl Core {
    /// Lets the snapshot go as fast as fits what else goes on.
    pub(crate) fn pace_snapshot(&mut self) {
        let is_pressing =
            self.snapshot_memory() > self.snapshot_memory_limit() / 2 || self.is_rewrite_urgent();
        let (now, commands) = (self.now, self.stats.commands);
        let is_awaited = self.is_snapshot_awaited();
        let means = self.means_of_snapshot();
        let appended = self.wal.as_ref().map(|wal| wal.log().appended());
        let Some(running) = &mut self.snapshots.running else { return };
        let is_served = running.traffic.is_served(now, commands);
        if let Some(appended) = appended {
            running.growth.look(now, appended);
        }
        let full = self.settings.snapshot_rate;
        let rate = if !is_served || is_pressing || full == 0 {
            0
        } else if is_awaited {
            full
        } else {
            running.growth.rate(full, means)
        };
        if let Some(thread) = &self.snapshots.thread {
            thread.set_rate(rate);
        }
    }

    /// Whether somebody waits for the end of the snapshot that runs, or for what can begin only then.
    fn is_snapshot_awaited(&self) -> bool {
        let snapshots = &self.snapshots;
        let is_unasked = snapshots.running.as_ref().is_some_and(|running| running.is_unasked);
        // Writers that wait for the device are no faster beside a slow one, which only lasts longer:
        // 47,800 SETs a second for 10.3 s, and at the full rate 45,700 for 2.6 s.
        let do_all_wait = self.wal.as_ref().is_some_and(|wal| wal.log().policy() == Policy::Always);
        !is_unasked
            || do_all_wait
            || snapshots.saves.is_scheduled
            || !snapshots.saving.is_empty()
            || !snapshots.pinning.is_empty()
            || self.is_log_resuming()
            || self.has_parked()
            || self.shutdown.is_some()
    }

    /// Somebody has asked for a snapshot, or for what can begin only behind the one that runs.
    pub(crate) fn snapshot_asked_for(&mut self) {
        if let Some(running) = &mut self.snapshots.running {
            running.is_unasked = false;
            self.pace_snapshot();
        }
    }

    /// What a WAL-snapshot that nobody waits for has to get by with.
    fn means_of_snapshot(&self) -> Means {
        let data = self.keyspace.used_bytes() as u64;
        let stats = self.keyspace.capture_stats();
        let untaken = stats.total.saturating_sub(stats.taken) as f64 / stats.total.max(1) as f64;
        let waiting = self.snapshots.thread.as_ref().map_or(0, SnapshotThread::waiting_size);
        let log = self.wal.as_ref().map(Wal::stats);
        let used = log.map_or(0, |log| log.capacity_bytes.saturating_sub(log.free_bytes));
        Means {
            data,
            left: (data as f64 * untaken) as u64 + waiting + self.snapshot_memory(),
            room: self.rewrite_rule().room_at_ease(used),
            memory: self.snapshot_memory(),
            memory_max: self.snapshot_memory_limit(),
        }
    }
}
