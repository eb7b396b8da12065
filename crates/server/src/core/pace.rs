//! How fast the snapshot that runs may go.

use super::Core;

impl Core {
    /// Lets the snapshot go as fast as becomes what else goes on.
    pub(crate) fn pace_snapshot(&mut self) {
        let is_pressing =
            self.snapshot_memory() > self.snapshot_memory_limit() / 2 || self.is_rewrite_urgent();
        let (now, commands) = (self.now, self.stats.commands);
        let Some(running) = &mut self.snapshots.running else { return };
        let is_served = running.traffic.is_served(now, commands);
        let rate = if is_served && !is_pressing { self.settings.snapshot_rate } else { 0 };
        if let Some(thread) = &self.snapshots.thread {
            thread.set_rate(rate);
        }
    }
}
