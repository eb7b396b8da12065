//! Loses power, and kills the process, at every operation and in every way; then lets a second life
//! write the same payloads again, and does the same to that.

mod common;

use common::enumerate::{Death, Plan, assert_counts, enumerate};
use common::{Kind, SMALL};
use slimio_sim::{Order, SimConfig};
use slimio_storage::{FormatOptions, Policy};

fn plan(policy: Policy, deaths: [Death; 2], order: Order) -> Plan {
    let config = SimConfig { order, seed: 7, ..SimConfig::default() };
    Plan {
        layout: SMALL,
        release_every: None,
        policy,
        kind: Kind::Files,
        config,
        first_life: 9,
        second_life: 2,
        deaths,
        per_turn: 2,
        second_every: 16,
    }
}

/// As [`plan`], on a volume with few segments that are released and used again.
fn releasing(policy: Policy, deaths: [Death; 2], kind: Kind) -> Plan {
    let layout = FormatOptions { wal_slots_max: 4, ..SMALL };
    Plan {
        kind,
        layout,
        first_life: 16,
        release_every: Some(4),
        second_every: 64,
        ..plan(policy, deaths, Order::Random)
    }
}

#[test]
fn always_loses_nothing_when_power_is_cut() {
    let plan = plan(Policy::Always, [Death::Power, Death::Power], Order::Fifo);
    assert_counts(enumerate(&plan), (757, 10794));
}

#[test]
fn always_loses_nothing_when_writes_complete_in_any_order() {
    let plan = plan(Policy::Always, [Death::Power, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (1492, 12782));
}

#[test]
fn always_survives_process_death_and_then_power_cut() {
    let plan = plan(Policy::Always, [Death::Process, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (367, 7302));
}

#[test]
fn everysec_loses_nothing_when_the_process_dies_twice() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Process], Order::Random);
    assert_counts(enumerate(&plan), (327, 6437));
}

#[test]
fn everysec_loses_nothing_flushed_when_power_is_cut() {
    let plan = plan(Policy::EverySec, [Death::Power, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (1763, 17651));
}

#[test]
fn everysec_survives_process_death_and_then_power_cut() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Power], Order::Lifo);
    assert_counts(enumerate(&plan), (141, 6436));
}

#[test]
fn no_policy_loses_nothing_when_the_process_dies() {
    let plan = plan(Policy::No, [Death::Process, Death::Process], Order::Lifo);
    assert_counts(enumerate(&plan), (141, 4284));
}

#[test]
fn released_segments_are_used_again_when_power_is_cut() {
    let plan = releasing(Policy::Always, [Death::Power, Death::Power], Kind::Files);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn deallocated_segments_are_used_again_when_power_is_cut() {
    let plan = releasing(Policy::Always, [Death::Power, Death::Power], Kind::Device);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn released_segments_are_used_again_when_the_process_dies() {
    let plan = releasing(Policy::EverySec, [Death::Process, Death::Process], Kind::Device);
    assert_counts(enumerate(&plan), (1, 1));
}
