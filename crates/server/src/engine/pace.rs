//! How many bytes of keys and values the running snapshot may encode per second. A rate of 0 means
//! that there is no limit.

use slimio_planted::is_planted;

use super::Engine;
use crate::connections::Connections;
use crate::snapshot::{RateInputs, SnapshotThread};
use crate::waiting::Line;
use crate::wal::Wal;

impl Engine {
    /// Sets the running snapshot's rate to suit the load and the room in the log. `is_awaited` says
    /// whether a client waits for this snapshot.
    pub(crate) fn pace_snapshot(&mut self, is_awaited: bool) {
        self.snapshots.is_rate_due = false;
        let (now, commands) = (self.clock.now, self.stats.commands);
        let written = self.gate.wal.as_ref().map(|wal| wal.stats().log_bytes);
        let Some(running) = &mut self.snapshots.running else { return };
        let is_served = running.traffic.is_served(now, commands);
        if let Some(written) = written {
            running.growth.look(now, written);
        }
        let full = self.settings.snapshot_rate;
        let rate = if !is_served || full == 0 || self.is_snapshot_pressing() {
            0
        } else if is_awaited || self.is_snapshot_wanted() {
            full
        } else {
            self.rate_unasked(full)
        };
        if let Some(thread) = &self.snapshots.thread {
            thread.set_rate(rate);
        }
    }

    /// Whether the snapshot must run without a limit, either to release memory or to make room in
    /// the log.
    fn is_snapshot_pressing(&self) -> bool {
        let holds_much = self.snapshot_memory() > self.snapshot_memory_limit() / 2;
        (holds_much && !is_planted("memory-unhurried"))
            || (self.is_log_short() && !is_planted("urgent-unhurried"))
    }

    /// Whether the running snapshot was asked for or is needed, or whether something has to wait
    /// for its end: an on-demand snapshot, the log that was turned on again, or the shutdown.
    fn is_snapshot_wanted(&self) -> bool {
        let snapshots = &self.snapshots;
        let is_automatic = snapshots.running.as_ref().is_some_and(|running| running.is_automatic);
        !is_automatic
            || snapshots.saves.is_scheduled
            || (self.gate.is_log_resuming() && !is_planted("resuming-unhurried"))
            || self.phase.shutdown.is_some()
    }

    /// Makes the running snapshot as fast as one that a client has asked for. Called when a client
    /// asks for a snapshot, or for something that can begin only after the running snapshot.
    pub(crate) fn snapshot_asked_for(&mut self) {
        if let Some(running) = &mut self.snapshots.running
            && !is_planted("asked-for-unheard")
        {
            running.is_automatic = false;
            self.snapshots.is_rate_due = true;
        }
    }

    /// Bytes per second for a WAL-snapshot that nobody waits for.
    fn rate_unasked(&self, full: u64) -> u64 {
        let data = self.data.keyspace.used_bytes() as u64;
        let stats = self.data.keyspace.capture_stats();
        let untaken = stats.total.saturating_sub(stats.taken) as f64 / stats.total.max(1) as f64;
        let waiting = self.snapshots.thread.as_ref().map_or(0, SnapshotThread::waiting_size);
        let log = self.gate.wal.as_ref().map(Wal::stats);
        let used = log.map_or(0, |log| log.used_bytes());
        let used = if is_planted("room-of-an-empty-log") { 0 } else { used };
        let inputs = RateInputs {
            data,
            left: (data as f64 * untaken) as u64 + waiting + stats.owned_size as u64,
            room: self.rewrite_rule().room_at_ease(used),
            memory: self.snapshot_memory(),
            memory_max: self.snapshot_memory_limit(),
        };
        let growth = self.snapshots.running.as_ref().map(|running| &running.growth);
        growth.map_or(full, |growth| growth.rate(full, inputs))
    }
}

impl Connections {
    /// Whether a client waits for the end of a snapshot, or for the room in the log that a snapshot
    /// makes.
    pub(crate) fn is_snapshot_awaited(&self) -> bool {
        !self.waiting.is_empty(Line::Snapshot)
            || !self.waiting.is_empty(Line::Pin)
            || (self.has_parked() && !is_planted("parked-not-awaited"))
    }
}

#[cfg(test)]
mod tests {
    use std::time::{Duration, Instant};

    use slimio_keyspace::CaptureState;
    use slimio_storage::{Error, SnapshotKind};

    use crate::engine::opened::{CONN, Opened, opened, send, settle, settle_log};
    use crate::snapshot::Checked;
    use crate::waiting::{Reason, Then};

    /// Begins a WAL-snapshot that nobody has asked for. The snapshot does not end,
    /// because the test never calls `drive_snapshots`.
    fn begin_unasked(opened: &mut Opened) {
        opened.engine.snapshots.rewrites.is_automatic = true;
        opened.engine.begin_snapshot(SnapshotKind::Wal).unwrap();
    }

    /// Sets the rate of the running snapshot as if many commands were served, and returns this
    /// rate.
    fn rate(opened: &mut Opened) -> u64 {
        opened.engine.clock.now =
            opened.engine.clock.now.max(Instant::now()) + Duration::from_secs(1);
        opened.engine.stats.commands += 1_000_000;
        opened.engine.pace_snapshot(opened.connections.is_snapshot_awaited());
        opened.engine.snapshots.thread.as_ref().unwrap().rate()
    }

    fn full(opened: &Opened) -> u64 {
        opened.engine.settings.snapshot_rate
    }

    #[test]
    fn one_that_nobody_waits_for_takes_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), true);
        begin_unasked(&mut opened);
        assert!((1..full(&opened)).contains(&rate(&mut opened)));
        for _ in 0..10 {
            opened.engine.clock.now += Duration::from_secs(1);
            opened.engine.pace_snapshot(opened.connections.is_snapshot_awaited());
        }
        assert_eq!(
            opened.engine.snapshots.thread.as_ref().unwrap().rate(),
            0,
            "without load, there must be no limit"
        );
    }

    #[test]
    fn one_that_is_asked_for_meanwhile_goes_faster() {
        for request in ["BGREWRITEAOF", "BGSAVE", "BGSAVE SCHEDULE", "SAVE"] {
            let dir = tempfile::tempdir().unwrap();
            let mut opened = opened(dir.path(), true);
            begin_unasked(&mut opened);
            assert!(rate(&mut opened) < full(&opened));
            send(&mut opened, &format!("{request}\r\n"));
            assert_eq!(rate(&mut opened), full(&opened), "{request}");
        }
    }

    #[test]
    fn who_waits_for_room_makes_it_go_faster() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), true);
        begin_unasked(&mut opened);
        assert!(rate(&mut opened) < full(&opened));
        // A parked client waits for room in the log. If the client's write is large, the client may
        // lack room although the log is far from full.
        let mut client = opened.connections.clients.take(CONN).unwrap();
        opened.connections.wait(&mut opened.engine, &mut client, Reason::Room, Then::Answer);
        opened.connections.clients.put(client);
        assert_eq!(rate(&mut opened), full(&opened));
    }

    #[test]
    fn a_log_that_lacks_room_makes_it_go_as_fast_as_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), true);
        send(&mut opened, &format!("SET k {}\r\n", "x".repeat(5000)));
        settle_log(&mut opened);
        opened.engine.begin_snapshot(SnapshotKind::Wal).unwrap();
        assert_eq!(rate(&mut opened), full(&opened), "the snapshot was asked for");
        opened.engine.settings.log_size_max = 8192;
        assert_eq!(rate(&mut opened), 0);
    }

    #[test]
    fn the_less_room_a_growing_log_has_the_faster_it_goes() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), true);
        opened.engine.settings.snapshot_rate = 64 << 20;
        let fill = |opened: &mut Opened, name: &str| {
            for index in 0..20 {
                send(opened, &format!("SET {name}{index} {}\r\n", "x".repeat(5000)));
            }
        };
        fill(&mut opened, "old");
        settle_log(&mut opened);
        begin_unasked(&mut opened);
        fill(&mut opened, "new");
        settle_log(&mut opened);
        assert!(rate(&mut opened) < full(&opened), "the snapshot is fast, but the log has room");
        let stats = opened.engine.gate.wal.as_ref().unwrap().stats();
        let used = stats.used_bytes();
        opened.engine.settings.log_size_max = used.div_ceil(75) * 100;
        assert!(
            rate(&mut opened) >= full(&opened),
            "the snapshot is slow, but the log has little room"
        );
    }

    #[test]
    fn the_memory_that_it_holds_makes_it_go_as_fast_as_it_can() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), true);
        let set = format!("SET k {}\r\n", "x".repeat(5000));
        send(&mut opened, &set);
        opened.engine.begin_snapshot(SnapshotKind::OnDemand).unwrap();
        send(&mut opened, &set);
        let held = opened.engine.snapshot_memory();
        assert!(held > 5000, "the snapshot holds only {held} bytes, so it lacks the old value");
        opened.engine.settings.snapshot_memory_limit = 2 * held;
        assert_eq!(rate(&mut opened), full(&opened));
        opened.engine.settings.snapshot_memory_limit = 2 * held - 2;
        assert_eq!(rate(&mut opened), 0);
    }

    /// A log that was turned on again needs a snapshot before it can go on. This snapshot runs at
    /// the configured rate even if it is marked as automatic. It has this mark if a snapshot was
    /// scheduled for another reason before the log was turned on.
    #[test]
    fn one_that_a_log_needs_to_go_on_does_not_take_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), false);
        opened.engine.gate.wal.as_mut().unwrap().log_mut().resume();
        begin_unasked(&mut opened);
        assert_eq!(rate(&mut opened), full(&opened));
    }

    #[test]
    fn one_that_replaces_a_damaged_root_does_not_take_its_time() {
        let dir = tempfile::tempdir().unwrap();
        let mut opened = opened(dir.path(), true);
        opened.engine.begin_snapshot(SnapshotKind::Wal).unwrap();
        settle(&mut opened, |opened| {
            let is_idle = opened.engine.data.keyspace.capture_state() == CaptureState::Idle;
            is_idle && opened.engine.snapshots.running.is_none()
        });
        let log = opened.engine.gate.wal.as_ref().unwrap().log();
        let root = *log.snapshots().root().unwrap();
        let error = Error::ChunkRefused { index: Some(0), why: "a bit was flipped".into() };
        opened.engine.snapshots.checks.slot_ended(&Checked::Read(root, Some(error)), 0);
        opened.engine.schedule_snapshots();
        assert!(opened.engine.snapshots.rewrites.is_scheduled);
        opened.engine.begin_snapshot(SnapshotKind::Wal).unwrap();
        assert_eq!(rate(&mut opened), full(&opened));
    }
}
