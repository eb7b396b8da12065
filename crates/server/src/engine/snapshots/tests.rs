//! Snapshots, when the log is turned on or off.

use super::*;
use crate::engine::opened::{opened, send};

/// A WAL-snapshot is of no use without a log, whether it runs or is to run.
#[test]
fn a_log_that_is_ended_gives_up_its_snapshots() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = opened(dir.path(), true);
    opened.engine.begin_snapshot(SnapshotKind::Wal).unwrap();
    opened.engine.snapshots.rewrites.is_scheduled = true;
    send(&mut opened, "CONFIG SET appendonly no\r\n");
    assert!(opened.engine.snapshots.running.is_none());
    assert!(!opened.engine.snapshots.rewrites.is_scheduled);
}

/// An on-demand snapshot goes on without a log.
#[test]
fn a_log_that_is_ended_gives_up_no_other_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = opened(dir.path(), true);
    opened.engine.begin_snapshot(SnapshotKind::OnDemand).unwrap();
    send(&mut opened, "CONFIG SET appendonly no\r\n");
    assert!(opened.engine.snapshots.runs(SnapshotKind::OnDemand));
}

/// A snapshot that was begun while the log was off can't be what the log goes on from. Whoever asked
/// for it gets a later one.
#[test]
fn a_log_that_goes_on_needs_a_new_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = opened(dir.path(), false);
    opened.engine.config.set("appendonly", "no").unwrap();
    opened.engine.begin_snapshot(SnapshotKind::OnDemand).unwrap();
    send(&mut opened, "CONFIG SET appendonly yes\r\n");
    assert!(opened.engine.snapshots.running.is_none());
    assert!(opened.engine.snapshots.rewrites.is_scheduled);
    assert!(opened.engine.snapshots.saves.is_scheduled);
}
