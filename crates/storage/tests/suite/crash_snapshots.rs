//! Cuts power or kills the process at every operation of a volume's life. A life begins when the
//! volume is opened, and ends with the power cut or the kill. During a life, snapshots are taken,
//! the log is turned off and on, and segments and slots are reused.

use crate::common::enumerate::{Death, Plan, assert_counts, enumerate};
use crate::common::snapshots::Action;
use crate::common::{Kind, SMALL};
use slimio_sim::{Order, SimConfig};
use slimio_storage::{FormatOptions, Policy, SnapshotKind};

const POWER: [Death; 2] = [Death::Power, Death::Power];

fn plan(policy: Policy, deaths: [Death; 2], actions: &'static [(usize, Action)]) -> Plan {
    Plan {
        layout: FormatOptions { wal_slots_max: 4, ..SMALL },
        small: false,
        is_waiting: false,
        actions,
        second_snapshot: None,
        release_every: None,
        policy,
        kind: Kind::Device,
        config: SimConfig { order: Order::Random, seed: 11, ..SimConfig::default() },
        first_life: 18,
        second_life: 1,
        deaths,
        per_turn: 1,
        second_every: 250,
        second_at_every: 7,
    }
}

/// Two WAL-snapshots, one after the other. While the second is written, the first is the root.
const REWRITES: &[(usize, Action)] =
    &[(2, Action::Snapshot(SnapshotKind::Wal)), (9, Action::Snapshot(SnapshotKind::Wal))];

/// When the snapshot is finished, all records are durable except those that were appended while the
/// snapshot was written.
const DURABLE_BEFORE: &[(usize, Action)] =
    &[(4, Action::Settle), (4, Action::Snapshot(SnapshotKind::Wal))];

/// Snapshots of both kinds in turn, so that all three slots are used.
const BOTH_KINDS: &[(usize, Action)] = &[
    (1, Action::Snapshot(SnapshotKind::OnDemand)),
    (5, Action::Snapshot(SnapshotKind::Wal)),
    (10, Action::Snapshot(SnapshotKind::OnDemand)),
];

/// The log ends, a snapshot is taken without the log, and the log goes on.
const OFF_AND_ON: &[(usize, Action)] =
    &[(3, Action::End), (5, Action::Snapshot(SnapshotKind::OnDemand)), (9, Action::Resume)];

#[test]
fn snapshots_replace_the_log_when_power_is_cut() {
    let plan = plan(Policy::Always, POWER, REWRITES);
    assert_counts(enumerate(&plan), (4179, 2227));
}

#[test]
fn a_snapshot_does_not_outrun_the_log_when_power_is_cut() {
    let plan = plan(Policy::No, POWER, REWRITES);
    assert_counts(enumerate(&plan), (4346, 3640));
}

#[test]
fn a_fuzzy_snapshot_does_not_outrun_what_it_needs_when_power_is_cut() {
    let plan = plan(Policy::No, POWER, DURABLE_BEFORE);
    assert_counts(enumerate(&plan), (2714, 2437));
}

#[test]
fn snapshots_of_both_kinds_when_power_is_cut() {
    let plan = Plan {
        second_snapshot: Some(SnapshotKind::Wal),
        ..plan(Policy::EverySec, POWER, BOTH_KINDS)
    };
    assert_counts(enumerate(&plan), (5003, 13331));
}

#[test]
fn snapshots_of_both_kinds_when_the_process_dies() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Power], BOTH_KINDS);
    assert_counts(enumerate(&plan), (507, 2692));
}

#[test]
fn snapshots_of_both_kinds_when_power_is_cut_and_then_the_process_dies() {
    let plan = Plan {
        second_snapshot: Some(SnapshotKind::Wal),
        kind: Kind::Files,
        ..plan(Policy::EverySec, [Death::Power, Death::Process], BOTH_KINDS)
    };
    assert_counts(enumerate(&plan), (8446, 15_393));
}

#[test]
fn the_log_goes_off_and_on_when_power_is_cut() {
    let plan = Plan { first_life: 20, ..plan(Policy::Always, POWER, OFF_AND_ON) };
    assert_counts(enumerate(&plan), (2003, 752));
}

#[test]
fn the_log_goes_off_and_on_when_the_process_dies() {
    let deaths = [Death::Process, Death::Process];
    let plan = Plan { first_life: 20, ..plan(Policy::EverySec, deaths, OFF_AND_ON) };
    assert_counts(enumerate(&plan), (226, 337));
}

/// Emptying the data set drops the root. A later snapshot becomes the new root.
#[test]
fn an_emptied_data_set_drops_the_root_when_power_is_cut() {
    let plan = Plan { release_every: Some(7), ..plan(Policy::Always, POWER, REWRITES) };
    assert_counts(enumerate(&plan), (3554, 2030));
}
