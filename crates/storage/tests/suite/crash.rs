//! Cuts power or kills the process at every operation, and checks states of the disk that the power
//! cut or the kill can leave. On some of these states, a second life begins: the volume is opened
//! again, and the next records are written. If the first life lost records, these are written again
//! with the same payloads. The second life also ends in a power cut or a kill.

use crate::common::enumerate::{Death, Plan, assert_counts, enumerate};
use crate::common::{Kind, SMALL};
use slimio_sim::{Order, SimConfig};
use slimio_storage::{FormatOptions, Policy};

fn plan(policy: Policy, deaths: [Death; 2], order: Order) -> Plan {
    let config = SimConfig { order, seed: 7, ..SimConfig::default() };
    Plan {
        layout: SMALL,
        small: false,
        is_waiting: false,
        actions: &[],
        second_snapshot: None,
        release_every: None,
        policy,
        kind: Kind::Files,
        config,
        first_life: 12,
        second_life: 2,
        deaths,
        per_turn: 2,
        second_every: 30,
        second_at_every: 1,
    }
}

/// Like [`plan`], but the volume has only a few segments, which are released and used again.
fn releasing(policy: Policy, deaths: [Death; 2], kind: Kind) -> Plan {
    let layout = FormatOptions { wal_slots_max: 4, ..SMALL };
    Plan {
        kind,
        layout,
        first_life: 26,
        release_every: Some(3),
        second_every: 80,
        ..plan(policy, deaths, Order::Random)
    }
}

#[test]
fn always_loses_nothing_when_power_is_cut() {
    let plan = plan(Policy::Always, [Death::Power, Death::Power], Order::Fifo);
    assert_counts(enumerate(&plan), (569, 6942));
}

#[test]
fn always_loses_nothing_when_writes_complete_in_any_order() {
    let plan = Plan {
        first_life: 16,
        ..plan(Policy::Always, [Death::Power, Death::Power], Order::Random)
    };
    assert_counts(enumerate(&plan), (1327, 7190));
}

#[test]
fn always_survives_process_death_and_then_power_cut() {
    let plan = Plan {
        first_life: 16,
        ..plan(Policy::Always, [Death::Process, Death::Power], Order::Random)
    };
    assert_counts(enumerate(&plan), (396, 4802));
}

#[test]
fn everysec_loses_nothing_when_the_process_dies_twice() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Process], Order::Random);
    assert_counts(enumerate(&plan), (151, 3313));
}

#[test]
fn everysec_loses_nothing_flushed_when_power_is_cut() {
    let plan = plan(Policy::EverySec, [Death::Power, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (1659, 11372));
}

#[test]
fn everysec_survives_process_death_and_then_power_cut() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Power], Order::Lifo);
    assert_counts(enumerate(&plan), (127, 6395));
}

#[test]
fn always_survives_a_power_cut_and_then_process_death() {
    let plan = Plan {
        first_life: 16,
        ..plan(Policy::Always, [Death::Power, Death::Process], Order::Random)
    };
    assert_counts(enumerate(&plan), (1327, 12_217));
}

#[test]
fn everysec_survives_a_power_cut_and_then_process_death() {
    let plan = plan(Policy::EverySec, [Death::Power, Death::Process], Order::Lifo);
    assert_counts(enumerate(&plan), (1756, 13_156));
}

#[test]
fn no_policy_loses_nothing_when_the_process_dies() {
    let plan = plan(Policy::No, [Death::Process, Death::Process], Order::Lifo);
    assert_counts(enumerate(&plan), (127, 3289));
}

#[test]
fn released_segments_are_used_again_when_power_is_cut() {
    let plan = Plan {
        first_life: 34,
        ..releasing(Policy::Always, [Death::Power, Death::Power], Kind::Files)
    };
    assert_counts(enumerate(&plan), (2112, 12263));
}

#[test]
fn deallocated_segments_are_used_again_when_power_is_cut() {
    let plan = releasing(Policy::Always, [Death::Power, Death::Power], Kind::Device);
    assert_counts(enumerate(&plan), (1371, 10389));
}

#[test]
fn released_segments_are_used_again_when_power_is_cut_and_then_the_process_dies() {
    let plan = releasing(Policy::EverySec, [Death::Power, Death::Process], Kind::Files);
    assert_counts(enumerate(&plan), (4108, 21_302));
}

#[test]
fn released_segments_are_used_again_when_the_process_dies() {
    let plan = releasing(Policy::EverySec, [Death::Process, Death::Process], Kind::Device);
    assert_counts(enumerate(&plan), (259, 6256));
}

/// Small records are committed one at a time, so the log's last batch is written alternately to two
/// blocks.
#[test]
fn a_tail_that_grows_loses_nothing_when_power_is_cut() {
    let plan = Plan {
        per_turn: 1,
        small: true,
        is_waiting: true,
        first_life: 12,
        ..plan(Policy::Always, [Death::Power, Death::Power], Order::Fifo)
    };
    assert_counts(enumerate(&plan), (334, 3227));
}

#[test]
fn a_tail_that_grows_loses_nothing_when_the_process_dies() {
    let plan = Plan {
        per_turn: 1,
        small: true,
        is_waiting: true,
        first_life: 12,
        ..plan(Policy::Always, [Death::Process, Death::Power], Order::Fifo)
    };
    assert_counts(enumerate(&plan), (108, 2142));
}
