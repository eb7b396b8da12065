//! Tests of snapshots when the log is turned on or off.

use super::*;
use crate::engine::opened::{opened, send};

/// Without a log, a WAL-snapshot is of no use, whether it is running or only scheduled.
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

/// An on-demand snapshot continues without a log.
#[test]
fn a_log_that_is_ended_gives_up_no_other_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let mut opened = opened(dir.path(), true);
    opened.engine.begin_snapshot(SnapshotKind::OnDemand).unwrap();
    send(&mut opened, "CONFIG SET appendonly no\r\n");
    assert!(opened.engine.snapshots.runs(SnapshotKind::OnDemand));
}

/// The log can't go on from a snapshot that was begun while the log was off. Clients that asked for
/// that snapshot get a later one.
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
