//! Snapshots and the log as `INFO` shows them.
//!
//! Redis's fields keep their meaning. A `bgsave` is an on-demand snapshot, and a `rewrite` is a
//! WAL-snapshot. In Redis, the fields `*_cow_size` count memory that was copied on write. In
//! SlimIO, they count the memory that is held only for the snapshot.

use slimio_storage::{LogState, SnapshotKind};

use super::Text;
use crate::engine::Engine;
use crate::snapshot::{History, SnapshotThread};

fn status(history: &History) -> &'static str {
    if history.failed.is_some() { "err" } else { "ok" }
}

/// Seconds that the last snapshot took; -1 if there was none.
fn seconds(history: &History) -> i64 {
    history.took.map_or(-1, |took| took.as_secs() as i64)
}

pub(super) fn section(text: &mut Text, engine: &Engine) {
    loading(text, engine);
    let snapshots = &engine.snapshots;
    let capture = engine.data.keyspace.capture_stats();
    let running = snapshots.running.as_ref();
    let running_s = |kind| match running {
        Some(running) if running.kind == kind => running.began.elapsed().as_secs() as i64,
        _ => -1,
    };
    let (done, total) = running.map_or((0, 0), |_| (capture.taken, capture.total));
    let held = running.map_or(0, |_| engine.snapshot_memory());
    text.field("current_cow_peak", running.map_or(0, |running| running.memory_max.max(held)));
    text.field("current_cow_size", held);
    text.field("current_cow_size_age", 0);
    let percent = done as f64 / total.max(1) as f64 * 100.0;
    text.field("current_fork_perc", format_args!("{percent:.2}"));
    text.field("current_save_keys_processed", done);
    text.field("current_save_keys_total", total);
    let saves = &snapshots.saves;
    text.field("rdb_changes_since_last_save", snapshots.changes);
    let is_saving = snapshots.is_saving();
    text.field("rdb_bgsave_in_progress", u8::from(is_saving));
    text.field("rdb_last_save_time", snapshots.saved_at_s);
    text.field("rdb_last_bgsave_status", status(saves));
    text.field("rdb_last_bgsave_time_sec", seconds(saves));
    text.field("rdb_current_bgsave_time_sec", running_s(SnapshotKind::OnDemand));
    text.field("rdb_saves", saves.tries);
    text.field("rdb_last_cow_size", saves.memory_max);
    // Recovery expires no keys itself, because the log has a record of each expiry.
    text.field("rdb_last_load_keys_expired", 0);
    text.field("rdb_last_load_keys_loaded", snapshots.loaded_keys);
    let rewrites = &snapshots.rewrites;
    text.field("aof_enabled", u8::from(engine.gate.is_log_on()));
    text.field("aof_rewrite_in_progress", u8::from(snapshots.runs(SnapshotKind::Wal)));
    text.field("aof_rewrite_scheduled", u8::from(rewrites.is_scheduled));
    text.field("aof_last_rewrite_time_sec", seconds(rewrites));
    text.field("aof_current_rewrite_time_sec", running_s(SnapshotKind::Wal));
    text.field("aof_last_bgrewrite_status", status(rewrites));
    text.field("aof_rewrites", rewrites.tries);
    text.field("aof_rewrites_consecutive_failures", rewrites.failures);
    text.field("aof_last_write_status", if engine.gate.is_latched() { "err" } else { "ok" });
    text.field("aof_last_cow_size", rewrites.memory_max);
    text.field("module_fork_in_progress", 0);
    text.field("module_fork_last_cow_size", 0);
    if let Some(wal) = engine.gate.wal.as_ref().filter(|_| engine.gate.is_log_on()) {
        let stats = wal.stats();
        let (base, log) = engine.gate.root_and_log();
        text.field("aof_current_size", base + log);
        text.field("aof_base_size", base);
        text.field("aof_pending_rewrite", u8::from(rewrites.is_scheduled));
        text.field("aof_buffer_length", stats.backlog_bytes);
        text.field("aof_pending_bio_fsync", stats.in_flight);
        text.field("aof_delayed_fsync", engine.stats.delayed_flushes);
    }
}

fn loading(text: &mut Text, engine: &Engine) {
    text.field("loading", u8::from(engine.phase.loading.is_some()));
    text.field("async_loading", 0);
    let Some(loading) = &engine.phase.loading else { return };
    let (done, total) = (loading.progress.bytes_done, loading.progress.bytes_total);
    let seconds = engine.clock.now.saturating_duration_since(loading.since).as_secs_f64();
    let left = total.saturating_sub(done) as f64 * seconds / done.max(1) as f64;
    let percent = done as f64 / total.max(1) as f64 * 100.0;
    text.field("loading_start_time", loading.since_ms / 1000);
    text.field("loading_total_bytes", total);
    // This is 0, because a snapshot does not record how much memory its server used.
    text.field("loading_rdb_used_mem", 0);
    text.field("loading_loaded_bytes", done);
    text.field("loading_loaded_perc", format_args!("{percent:.2}"));
    text.field("loading_eta_seconds", left as u64);
}

/// Fields that only SlimIO has.
pub(super) fn own_fields(text: &mut Text, engine: &Engine) {
    let snapshots = &engine.snapshots;
    let running = snapshots.running.as_ref();
    text.field("snapshot_running", running.map_or("none", |running| running.kind.name()));
    text.field("snapshot_stage", running.map_or("none", |running| running.stage.name()));
    text.field("snapshot_memory_bytes", engine.snapshot_memory());
    text.field("snapshot_memory_limit_bytes", engine.snapshot_memory_limit());
    let thread = snapshots.thread.as_ref();
    text.field("snapshot_rate_limit_bytes", thread.map_or(0, SnapshotThread::rate));
    text.field("snapshot_starved_turns", thread.map_or(0, SnapshotThread::starved_turns));
    text.field("snapshot_writes_waited", snapshots.waits);
    text.field("snapshot_step_us_max", snapshots.step_max.as_micros());
    text.field("snapshot_step_cpu_us_max", snapshots.step_cpu_max.as_micros());
    text.field("snapshot_queue_bytes", thread.map_or(0, SnapshotThread::waiting_size));
    text.field("snapshot_written_bytes", thread.map_or(0, SnapshotThread::written));
    for (name, history) in [("save", &snapshots.saves), ("rewrite", &snapshots.rewrites)] {
        text.field(&format!("snapshot_{name}s_complete"), history.count);
        if let Some(why) = &history.failed {
            text.field(&format!("snapshot_{name}_error"), why);
        }
    }
    let Some(wal) = &engine.gate.wal else { return };
    let held = wal.log().snapshots();
    let checks = &snapshots.checks;
    let damaged = held.all().filter(|held| checks.damage(held).is_some()).count();
    text.field("snapshot_check_running", u8::from(checks.is_running()));
    text.field("snapshot_check_last_time", checks.ended_at_s);
    text.field("snapshot_check_bytes", thread.map_or(0, SnapshotThread::checked_bytes));
    text.field("snapshot_check_damaged", damaged);
    for snapshot in held.all() {
        text.line(format_args!(
            "snapshot_slot_{}:kind={},root={},lsn={},consistent_lsn={},entries={},bytes={},begun_at={},checked_at={}",
            snapshot.slot.index(),
            if snapshot.kind == SnapshotKind::Wal { "wal" } else { "on-demand" },
            u8::from(held.root() == Some(snapshot)),
            snapshot.lsn,
            snapshot.consistent_lsn,
            snapshot.entry_count,
            snapshot.payload_size,
            snapshot.created_ms / 1000,
            checks.finding(snapshot).map_or(0, |finding| finding.at_s),
        ));
        if let Some(damage) = checks.damage(snapshot) {
            text.field(&format!("snapshot_damage_{}", snapshot.slot.index()), damage);
        }
    }
    let state = match wal.log().log_state() {
        LogState::On => "on",
        LogState::Ending => "ending",
        LogState::Off => "off",
        LogState::Resuming => "resuming",
    };
    text.field("log_state", state);
}
