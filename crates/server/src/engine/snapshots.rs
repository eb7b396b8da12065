//! Begins snapshots, takes them in steps, adopts them, and says when writers must wait for a
//! snapshot.
//!
//! There are two kinds. A WAL-snapshot (`BGREWRITEAOF`) is the one that the log goes on from. An
//! on-demand snapshot (`BGSAVE`, `SAVE`) keeps a point in time. To adopt a snapshot is to make it
//! the volume's snapshot of its kind, once it is complete.

use std::time::{Duration, Instant};

use slimio_keyspace::{CaptureBudget, CaptureKind, CaptureState, ChunkOptions, DbIndex};
use slimio_planted::is_planted;
use slimio_storage::{LogState, SlotSummary, SnapshotEvent, SnapshotKind, WriterOptions};

use super::checks::lacks_space;
use super::{Engine, Shutdown};
use crate::cpu::thread_cpu_time;
use crate::snapshot::{
    Answer, DbSize, Growth, RewriteRule, Running, SnapshotEnd, SnapshotThread, Stage, Traffic,
};

/// Limit of the command thread's time that a snapshot may take in one turn.
const STEP_TIME_MAX: Duration = Duration::from_micros(200);
/// Time that a snapshot may take in every turn, even if there is other work.
const STEP_TIME_MIN: Duration = Duration::from_micros(30);
/// In a turn with other work, the time that this work has taken is divided by this number. The
/// result, within the two limits above, is the time that a snapshot may take.
const STEP_SHARE: u32 = 8;
/// Limit of the part of the data set that is taken between two readings of the clock.
const STEP_BUDGET: CaptureBudget = CaptureBudget { size: 64 << 10, entries: 512 };
/// Lower bound of the default of `snapshot-memory-limit`, in bytes.
const MEMORY_LIMIT_MIN: u64 = 64 << 20;
/// The default of `snapshot-memory-limit` is the data set's size divided by this number.
const MEMORY_SHARE: u64 = 8;

/// Why no snapshot was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotBegun {
    /// A snapshot is running, the last snapshot is still being given up, or the data set is in the
    /// middle of a change. Try later.
    Busy,
    /// A pinned snapshot occupies the place where the new snapshot would be written.
    Pinned,
    /// There is no volume, or its log has stopped.
    Never,
}

impl Engine {
    /// Begins a snapshot of the data set as it is in memory now.
    pub(crate) fn begin_snapshot(&mut self, kind: SnapshotKind) -> Result<(), NotBegun> {
        let is_half_done = self.data.is_long_writing() && !is_planted("snapshot-within-long");
        let mut writer = WriterOptions {
            reserve_lbas: self.snapshot_lbas_max(),
            must_reserve: !self.snapshots.of(kind).is_second_try,
            ..WriterOptions::default()
        };
        let (Some(thread), Some(wal)) = (&self.snapshots.thread, &mut self.gate.wal) else {
            return Err(NotBegun::Never);
        };
        if wal.log().latched().is_some() {
            return Err(NotBegun::Never);
        }
        // No snapshot begins within a transaction, because the transaction is logged only when it
        // ends.
        let is_idle = self.data.keyspace.capture_state() == CaptureState::Idle;
        let is_within = self.data.transaction.is_some() && !is_planted("snapshot-in-transaction");
        if self.snapshots.running.is_some() || is_within || is_half_done || !is_idle {
            let is_pinned = is_planted("pins-dropped-when-busy");
            return Err(if is_pinned { NotBegun::Pinned } else { NotBegun::Busy });
        }
        let (began, cpu_began) = (Instant::now(), thread_cpu_time());
        let dbs = (0..self.data.keyspace.config().db_count).map(|db| DbIndex(db as u16));
        let sizes = dbs.map(|db| {
            let (keys, expiring) = (self.data.keyspace.dbsize(db), self.data.keyspace.expiring(db));
            DbSize { db, keys, expiring }
        });
        let sizes = sizes.filter(|size| size.keys > 0).collect();
        let growth = Growth::new(began, wal.stats().log_bytes);
        let plan = wal.log_mut().begin_snapshot(kind, self.clock.now_ms as u64);
        let Some(plan) = plan else {
            let is_pinned = wal.log().lacks_pinned();
            return Err(if is_pinned { NotBegun::Pinned } else { NotBegun::Busy });
        };
        writer.leave = wal.log().space_behind(&plan);
        self.data.keyspace.begin_capture(if plan.is_fuzzy {
            CaptureKind::Fuzzy
        } else {
            CaptureKind::PointInTime
        });
        let options = ChunkOptions {
            compresses: self.settings.compresses,
            eviction: *self.data.keyspace.eviction(),
            now_ms: self.clock.now_ms,
        };
        thread.begin(plan, options, writer, sizes);
        log::info!("{} begun at LSN {}", kind.name(), plan.lsn);
        let changes = self.snapshots.changes;
        let history = self.snapshots.of_mut(kind);
        history.is_scheduled = false;
        let is_automatic = std::mem::take(&mut history.is_automatic);
        history.begun += 1;
        history.tries += 1;
        history.tried_at = Some(began);
        self.count_snapshot_step(began.elapsed(), cpu_began);
        self.snapshots.running = Some(Running {
            kind,
            stage: Stage::Taking,
            began,
            changes,
            memory_max: 0,
            is_automatic,
            growth,
            traffic: Traffic::new(began, self.stats.commands),
            taken: Vec::new(),
        });
        self.snapshots.is_rate_due = true;
        Ok(())
    }

    /// Gives up the running snapshot, unless it is about to be adopted.
    pub(crate) fn cancel_snapshot(&mut self, why: &str) {
        if self.snapshots.running.as_ref().is_none_or(|r| r.stage == Stage::Adopting) {
            return;
        }
        if let Some(thread) = &self.snapshots.thread {
            thread.cancel();
        }
        self.give_up(why);
    }

    /// Ends the running snapshot, which is no longer needed. This is not a failure: as in Redis,
    /// INFO still shows the status of the previous snapshot. If the running snapshot was an
    /// on-demand snapshot, another one is scheduled for the clients that asked for it.
    pub(super) fn give_up(&mut self, why: &str) {
        let Some(running) = self.drop_running() else { return };
        log::info!("{} given up: {why}", running.kind.name());
        if running.kind == SnapshotKind::OnDemand {
            self.snapshots.saves.is_scheduled = !is_planted("asked-for-forgotten");
            self.snapshots.saves.took = Some(running.began.elapsed());
        }
    }

    /// Ends the running snapshot without adopting it.
    fn drop_running(&mut self) -> Option<Running> {
        let running = self.snapshots.running.take()?;
        self.data.keyspace.end_capture();
        if running.stage != Stage::Adopting
            && let Some(wal) = &mut self.gate.wal
        {
            wal.log_mut().snapshot_failed();
            // On a device, the log or another snapshot may need the extents that this snapshot has
            // taken.
            self.shorten_reserves();
        }
        Some(running)
    }

    /// Processes what the snapshot thread and the log's keeper thread have finished.
    pub(crate) fn take_snapshot_results(&mut self) {
        self.take_answers();
        self.take_event();
    }

    /// Runs steps of the running snapshot for a bounded time, if there is a step to run. `has_time`
    /// says whether there is nothing else to do. Returns whether a step was run.
    pub(crate) fn snapshot_steps(&mut self, has_time: bool) -> bool {
        if !self.wants_snapshot_step() {
            return false;
        }
        let (began, cpu_began) = (Instant::now(), thread_cpu_time());
        let spent = began.saturating_duration_since(self.clock.now);
        let time_max = if has_time {
            STEP_TIME_MAX
        } else {
            (spent / STEP_SHARE).clamp(STEP_TIME_MIN, STEP_TIME_MAX)
        };
        loop {
            self.snapshot_step();
            if began.elapsed() >= time_max || !self.wants_snapshot_step() {
                break;
            }
        }
        let took = began.elapsed();
        self.count_snapshot_step(took, cpu_began);
        self.latency.note(
            "snapshot-step",
            self.clock.now_ms / 1000,
            took,
            self.settings.latency_from,
        );
        if let Some(garbage) = self.data.keyspace.take_garbage() {
            self.data.free(garbage);
        }
        true
    }

    fn count_snapshot_step(&mut self, took: Duration, cpu_began: Duration) {
        let cpu = thread_cpu_time().saturating_sub(cpu_began);
        self.snapshots.step_max = self.snapshots.step_max.max(took);
        self.snapshots.step_cpu_max = self.snapshots.step_cpu_max.max(cpu);
    }

    /// Whether a snapshot has a step to take. If so, the next turn must not sleep.
    pub(crate) fn wants_snapshot_step(&self) -> bool {
        let thread_has_room =
            || self.snapshots.thread.as_ref().is_some_and(SnapshotThread::has_room);
        match self.data.keyspace.capture_state() {
            CaptureState::Running => self.snapshots.running.is_some() && thread_has_room(),
            CaptureState::Settling => true,
            CaptureState::Complete | CaptureState::Flushed => self.snapshots.running.is_some(),
            CaptureState::Idle => false,
        }
    }

    fn snapshot_step(&mut self) {
        // The memory is measured before the step, because the step hands the memory to the snapshot
        // thread. A measurement after the step would miss the maximum.
        let held = self.snapshot_memory();
        let Some(running) = &mut self.snapshots.running else {
            self.data.keyspace.capture_step(STEP_BUDGET, &mut Vec::new());
            return;
        };
        running.memory_max = running.memory_max.max(held);
        let Some(thread) = &self.snapshots.thread else { return };
        self.data.keyspace.capture_step(STEP_BUDGET, &mut running.taken);
        running.taken.drain(..).for_each(|batch| thread.give(batch));
        match self.data.keyspace.capture_state() {
            CaptureState::Complete => {
                if let Some(thread) = &self.snapshots.thread {
                    thread.finish();
                }
                running.stage = Stage::Writing;
                self.data.keyspace.end_capture();
            }
            CaptureState::Flushed => {
                let kind = running.kind;
                self.cancel_snapshot("all data was deleted");
                // A new snapshot is scheduled. It holds the data set as it is after the deletion.
                self.snapshots.of_mut(kind).is_scheduled = true;
            }
            CaptureState::Running | CaptureState::Settling | CaptureState::Idle => {}
        }
    }

    /// Bytes of memory that are held only for the snapshot.
    pub(crate) fn snapshot_memory(&self) -> u64 {
        let stats = self.data.keyspace.capture_stats();
        let waiting = self.snapshots.thread.as_ref().map_or(0, SnapshotThread::waiting_memory);
        (stats.owned_size + stats.flushed_size) as u64 + waiting
    }

    /// Limit of the memory that a snapshot may hold, in bytes.
    pub(crate) fn snapshot_memory_limit(&self) -> u64 {
        match self.settings.snapshot_memory_limit {
            0 => (self.data.keyspace.used_bytes() as u64 / MEMORY_SHARE).max(MEMORY_LIMIT_MIN),
            limit => limit,
        }
    }

    /// Whether writers have to wait until a snapshot holds less memory. The waiting writers try
    /// again after each batch that the snapshot writes. So they proceed evenly, at the snapshot's
    /// rate.
    pub(crate) fn is_snapshot_full(&mut self) -> bool {
        let is_taking = self.snapshots.running.as_ref().is_some_and(|r| r.stage == Stage::Taking);
        let is_full = is_taking && self.snapshot_memory() >= self.snapshot_memory_limit();
        if is_full {
            self.snapshots.waits += 1;
            if let Some(thread) = &self.snapshots.thread {
                thread.wake_when_less();
            }
        }
        is_full
    }

    fn take_answers(&mut self) {
        let plan = self.gate.wal.as_ref().and_then(|wal| wal.log().running_snapshot());
        let is_fuzzy = plan.is_some_and(|plan| plan.is_fuzzy);
        // A fuzzy snapshot may lack a value that was overwritten while the snapshot was taken. It
        // relies on the log for the new value. But a long request (one that runs in steps)
        // overwrites values before the log has its record. So a fuzzy snapshot is not adopted
        // before the long request has ended.
        if is_fuzzy && self.data.is_long_writing() && !is_planted("adopted-within-long") {
            return;
        }
        let Some(answer) = self.snapshots.thread.as_ref().and_then(SnapshotThread::answer) else {
            return;
        };
        if let Answer::Failed(error) = &answer
            && lacks_space(error)
        {
            self.snapshots.lbas_per_byte = None;
        }
        match answer {
            Answer::Written(summary, payload) => {
                self.snapshots.was_written(summary.len_lbas, payload);
                let Some(running) = &mut self.snapshots.running else { return };
                running.stage = Stage::Adopting;
                if let Some(wal) = &mut self.gate.wal {
                    wal.log_mut().adopt(summary);
                }
            }
            Answer::Failed(error) if self.goes_behind_rewrite(&error) => {}
            Answer::Failed(error) if self.goes_with_more_space(&error) => {}
            Answer::Failed(error) => {
                let why = crate::explain::explain(&error);
                self.snapshot_failed(&why);
            }
        }
    }

    fn take_event(&mut self) {
        let event = self.gate.wal.as_mut().and_then(|wal| wal.log_mut().take_snapshot_event());
        match event {
            None => {
                if self.gate.is_latched()
                    && self.snapshots.running.as_ref().is_some_and(|r| r.stage == Stage::Adopting)
                {
                    self.snapshot_failed("the log has stopped");
                }
            }
            Some(SnapshotEvent::Adopted(summary)) => self.snapshot_adopted(&summary),
            Some(SnapshotEvent::Obsolete(_)) => self.give_up("all data was deleted"),
        }
    }

    fn snapshot_adopted(&mut self, summary: &SlotSummary) {
        let kind = summary.kind;
        let Some(running) = self.snapshots.running.take() else { return };
        let took = running.began.elapsed();
        log::info!("{} done in {:.1} s", kind.name(), took.as_secs_f64());
        self.shorten_reserves();
        let history = self.snapshots.of_mut(kind);
        history.count += 1;
        history.failures = 0;
        history.failed = None;
        history.is_second_try = false;
        history.took = Some(took);
        history.memory_max = running.memory_max;
        if kind == SnapshotKind::OnDemand {
            self.snapshots.is_of_flush &= self.snapshots.saves.is_scheduled;
            self.snapshots.is_behind_rewrite = false;
            self.snapshots.changes -= running.changes.min(self.snapshots.changes);
            self.snapshots.saved_at_s = self.clock.now_ms / 1000;
            let begun = self.snapshots.saves.begun;
            self.snapshots.ends.push(SnapshotEnd::Saved(begun, *summary));
        }
    }

    /// Ends the running snapshot, which has failed, and reports why.
    fn snapshot_failed(&mut self, why: &str) {
        let Some(running) = self.drop_running() else { return };
        let kind = running.kind;
        log::warn!("{} failed: {why}", kind.name());
        let history = self.snapshots.of_mut(kind);
        history.failures += 1;
        history.failed = Some(why.to_owned());
        history.took = Some(running.began.elapsed());
        history.memory_max = running.memory_max;
        if kind == SnapshotKind::OnDemand {
            self.snapshots.is_of_flush = false;
            self.snapshots.is_behind_rewrite = false;
            let begun = self.snapshots.saves.begun;
            self.snapshots.ends.push(SnapshotEnd::Failed(begun, why.to_owned()));
        }
    }

    /// Begins snapshots that were asked for and had to wait. `is_save_awaited` says whether a
    /// client waits in `SAVE`.
    pub(crate) fn begin_scheduled(&mut self, is_save_awaited: bool) {
        if self.snapshots.running.is_some() {
            return;
        }
        for kind in [SnapshotKind::Wal, SnapshotKind::OnDemand] {
            let is_wanted = self.snapshots.of(kind).is_scheduled
                || (kind == SnapshotKind::OnDemand && is_save_awaited);
            if !is_wanted {
                continue;
            }
            match self.begin_snapshot(kind) {
                Err(NotBegun::Never) => {
                    self.snapshots.of_mut(kind).is_scheduled = false;
                    let why = "there is no volume, or its log has stopped";
                    self.snapshots.ends.push(SnapshotEnd::Failed(u64::MAX, why.into()));
                }
                Err(NotBegun::Pinned) if kind == SnapshotKind::Wal && self.is_rewrite_urgent() => {
                    self.snapshots.ends.push(SnapshotEnd::Unpinned("the log needs room"));
                }
                Ok(()) | Err(NotBegun::Busy | NotBegun::Pinned) => {}
            }
        }
    }

    /// Called when a client asks for an on-demand snapshot. A running snapshot that was begun only
    /// to keep the effect of `FLUSHALL` or `FLUSHDB` is cancelled, because the new snapshot keeps
    /// this effect, too, and also holds later writes.
    pub(crate) fn make_way_for_save(&mut self) {
        if std::mem::take(&mut self.snapshots.is_of_flush)
            && self.snapshots.runs(SnapshotKind::OnDemand)
        {
            self.cancel_snapshot("a client has asked for a later snapshot");
        }
    }

    /// Schedules snapshots that are due by time or size. Called once per round of background work.
    pub(crate) fn schedule_snapshots(&mut self) {
        if self.snapshots.thread.is_none() || self.phase.loading.is_some() || self.gate.is_latched()
        {
            return;
        }
        if self.is_rewrite_urgent() && self.snapshots.rewrites.may_retry(self.clock.now) {
            self.begin_urgent();
        }
        if self.snapshots.running.is_some() {
            self.snapshots.is_rate_due = true;
            return;
        }
        let is_due = self.is_rewrite_due();
        let is_needed = self.needs_rewrite();
        let rewrites = &mut self.snapshots.rewrites;
        if (is_due || is_needed) && rewrites.may_retry(self.clock.now) {
            let was_scheduled = std::mem::replace(&mut rewrites.is_scheduled, true);
            let is_asked = is_needed && !is_planted("needed-is-unasked");
            rewrites.is_automatic = !is_asked && (rewrites.is_automatic || !was_scheduled);
        }
        if self.is_save_due() && self.snapshots.saves.may_retry(self.clock.now) {
            self.snapshots.is_of_flush = false;
            log::info!("{} changes since the last snapshot. Saving...", self.snapshots.changes);
            self.snapshots.saves.is_scheduled = true;
        }
    }

    /// Schedules a WAL-snapshot, because a WAL-snapshot makes room in the log. Cancels a running
    /// on-demand snapshot.
    fn begin_urgent(&mut self) {
        if self.snapshots.runs(SnapshotKind::Wal) {
            return;
        }
        self.snapshots.rewrites.is_scheduled = true;
        if self.snapshots.runs(SnapshotKind::OnDemand) {
            self.cancel_snapshot("the log needs room first");
        }
    }

    /// Whether a WAL-snapshot is running or is now scheduled, so that writes may wait for the room
    /// that it makes. Schedules a WAL-snapshot if one is urgent.
    pub(crate) fn may_gain_room(&mut self) -> bool {
        if self.snapshots.runs(SnapshotKind::Wal) || self.snapshots.rewrites.is_scheduled {
            return true;
        }
        let may = self.snapshots.thread.is_some()
            && self.is_rewrite_urgent()
            && self.snapshots.rewrites.may_retry(self.clock.now);
        if may {
            self.begin_urgent();
        }
        may
    }

    pub(super) fn rewrite_rule(&self) -> RewriteRule {
        RewriteRule {
            percentage: self.settings.rewrite_percentage,
            size_min: self.settings.rewrite_size_min,
            room: self
                .gate
                .wal
                .as_ref()
                .map_or(u64::MAX, |wal| wal.log().size_max().min(self.settings.log_size_max)),
        }
    }

    fn is_rewrite_due(&self) -> bool {
        let is_on = self.gate.wal.as_ref().is_some_and(|wal| wal.log().log_state() == LogState::On);
        let (base, log) = self.gate.root_and_log();
        is_on && self.rewrite_rule().is_due(base, log)
    }

    /// Whether the log is short of room.
    pub(super) fn is_log_short(&self) -> bool {
        let Some(wal) = &self.gate.wal else { return false };
        self.rewrite_rule().is_short(wal.stats().used_bytes(), wal.log().prepare_failed().is_some())
    }

    fn is_rewrite_urgent(&self) -> bool {
        let Some(wal) = &self.gate.wal else { return false };
        let stats = wal.stats();
        let used = stats.used_bytes();
        let is_full = wal.log().prepare_failed().is_some();
        // A snapshot releases more than the size of the records, because a batch takes whole
        // blocks, however small its records are.
        let gain = if is_planted("urgent-by-records") {
            self.gate.root_and_log().1
        } else {
            stats.released_by_snapshot
        };
        self.rewrite_rule().is_urgent(used, gain, is_full)
    }

    fn is_save_due(&self) -> bool {
        self.next_save_in() == Some(0)
    }

    /// Seconds until `save` asks for a snapshot.
    pub(crate) fn next_save_in(&self) -> Option<i64> {
        if self.snapshots.thread.is_none() || self.snapshots.running.is_some() {
            return None;
        }
        let since = self.clock.now_ms / 1000 - self.snapshots.saved_at_s;
        let points = &self.settings.save_points;
        points.iter().filter_map(|point| point.due_in(since, self.snapshots.changes)).min()
    }

    /// Whether writes are refused because the last `BGSAVE` failed while `save` is set.
    pub(crate) fn is_save_broken(&self) -> bool {
        self.snapshots.saves.failed.is_some()
            && self.settings.stops_writes
            && !self.settings.save_points.is_empty()
    }

    /// Whether the server takes a snapshot before it ends.
    pub(crate) fn saves_at_shutdown(&self, shutdown: Shutdown) -> bool {
        let is_usual = !self.settings.save_points.is_empty() && !self.gate.is_latched();
        self.snapshots.thread.is_some() && shutdown.save.unwrap_or(is_usual)
    }

    /// `CONFIG SET appendonly`: ends the log, or makes it resume after a new snapshot. Within a
    /// transaction, this change is put off until the transaction ends. The reason is that the
    /// transaction is logged as a whole or not at all, and its room in the log was granted
    /// accordingly.
    pub(crate) fn turn_log(&mut self) {
        if let Some(transaction) = &mut self.data.transaction
            && !is_planted("turned-within")
        {
            transaction.turns_log = true;
            return;
        }
        let is_on = self.config.yes("appendonly");
        let Some(wal) = &mut self.gate.wal else { return };
        let wanted_before = if is_planted("log-state-believed") {
            matches!(wal.log().log_state(), LogState::On | LogState::Resuming)
        } else {
            wal.log().is_wanted()
        };
        if is_on == wanted_before {
            return;
        }
        // `emptied_at`, the log's end when the data set was last found empty, is not valid any
        // longer. The reason is that writes without a log change the data set but not the end of
        // the log.
        if !is_planted("empty-behind-the-end") {
            self.gate.emptied_at = None;
        }
        if is_on {
            wal.log_mut().resume();
            // A snapshot that was begun earlier is useless, because it may lack writes that are not
            // in the log either.
            if !is_planted("resumed-from-before") {
                self.cancel_snapshot("the log is on again, and needs a new snapshot");
            }
            self.snapshots.rewrites.is_scheduled = true;
        } else {
            wal.log_mut().end();
            self.snapshots.rewrites.is_scheduled &= is_planted("rewritten-when-ended");
            if self.snapshots.runs(SnapshotKind::Wal) {
                self.cancel_snapshot("the log was turned off");
            }
        }
    }
}

#[cfg(test)]
mod tests;
