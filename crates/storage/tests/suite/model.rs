//! Random lives against an oracle that is a list of records.

use std::time::Duration;

use crate::common::{Client, Kind, SimMedia, formatted, options, reopen};
use proptest::prelude::*;
use slimio_sim::{Limits, Order, SimConfig};
use slimio_storage::{LogState, Policy, SnapshotKind};

#[derive(Clone, Debug)]
enum Step {
    Append(usize),
    Turn,
    Idle,
    Pass(u64),
    Policy(u8),
    RequestDurable,
    Release,
    Snapshot(bool),
    CancelSnapshot,
    End,
    Resume,
    PowerCut(usize),
    ProcessDeath(usize),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop_oneof![0..200_usize, 0..9000_usize, 0..25_000_usize].prop_map(Step::Append),
        4 => Just(Step::Turn),
        2 => Just(Step::Idle),
        1 => (0..1500_u64).prop_map(Step::Pass),
        1 => (0..3_u8).prop_map(Step::Policy),
        1 => Just(Step::RequestDurable),
        1 => Just(Step::Release),
        3 => any::<bool>().prop_map(Step::Snapshot),
        1 => Just(Step::CancelSnapshot),
        1 => Just(Step::End),
        2 => Just(Step::Resume),
        1 => any::<usize>().prop_map(Step::PowerCut),
        1 => any::<usize>().prop_map(Step::ProcessDeath),
    ]
}

fn policy(number: u8) -> Policy {
    match number % 3 {
        0 => Policy::Always,
        1 => Policy::EverySec,
        _ => Policy::No,
    }
}

fn record(number: usize, size: usize) -> (u16, Vec<u8>) {
    let mut payload = vec![number as u8; size];
    for (at, byte) in payload.iter_mut().enumerate() {
        *byte = byte.wrapping_mul(31).wrapping_add(at as u8);
    }
    ((number % 5) as u16, payload)
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_comes_back_is_what_was_promised(
        steps in proptest::collection::vec(step(), 1..60),
        seed in any::<u64>(),
        is_device in any::<bool>(),
    ) {
        live(steps, seed, is_device);
    }
}

fn live(steps: Vec<Step>, seed: u64, is_device: bool) {
    let kind = if is_device { Kind::Device } else { Kind::Files };
    let config = SimConfig { order: Order::Random, seed, ..SimConfig::default() };
    let limits = Limits { exhaustive_max: 3, random_count: 8, torn: true };
    let mut media = formatted(config, kind);
    media.disk.crash_after(u64::MAX / 2);
    let mut now_policy = Policy::EverySec;
    let (volume, _) = reopen(&mut media, &options(now_policy)).expect("it opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    // Everything appended since formatting, and how much of it was released, at most.
    let mut oracle: Vec<(u16, Vec<u8>)> = Vec::new();
    let mut released = vec![0];
    for step in steps {
        match step {
            Step::Append(size) => {
                let record = record(oracle.len(), size);
                if client.append(&record) {
                    oracle.push(record);
                }
            }
            Step::Turn => client.turn(false),
            Step::Idle => client.turn(true),
            Step::Pass(milliseconds) => client.pass(Duration::from_millis(milliseconds)),
            Step::Policy(number) => {
                now_policy = policy(number);
                client.volume.log.set_policy(now_policy);
            }
            Step::RequestDurable => client.volume.log.request_durable(),
            Step::Release => {
                // A log that is off says nothing of it: the next snapshot does.
                let lsn = client.volume.log.appended();
                client.volume.log.release_before(lsn);
                client.history.clear();
                released.push(oracle.len());
            }
            Step::Snapshot(is_wal) => {
                let kind = if is_wal { SnapshotKind::Wal } else { SnapshotKind::OnDemand };
                client.begin(kind);
            }
            Step::CancelSnapshot => client.cancel(),
            Step::End => client.volume.log.end(),
            Step::Resume => {
                if client.volume.log.log_state() != LogState::On {
                    client.cancel();
                    client.volume.log.resume();
                    client.begin(SnapshotKind::Wal);
                }
            }
            Step::PowerCut(choice) | Step::ProcessDeath(choice) => {
                let is_power = matches!(step, Step::PowerCut(_));
                let crash = client.disk.crash_now();
                let images = if is_power {
                    crash.power_images(&limits)
                } else {
                    crash.process_images(&limits)
                };
                let image = &images[choice % images.len()];
                let at_least =
                    if is_power { client.durable } else { client.durable.max(client.acknowledged) };
                media = SimMedia::from_image(config, kind, image);
                media.disk.crash_after(u64::MAX / 2);
                let (volume, recovered) =
                    reopen(&mut media, &options(now_policy)).expect("it opens");
                let start = released.iter().copied().find(|&start| {
                    oracle[start..].starts_with(&recovered) && start + recovered.len() >= at_least
                });
                assert!(
                    start.is_some(),
                    "{} of {} came back, {at_least} promised; {}",
                    recovered.len(),
                    oracle.len(),
                    image.origin
                );
                oracle.truncate(start.unwrap_or(0) + recovered.len());
                released.retain(|&released| released <= oracle.len());
                client = Client::new(volume, media.disk.clone(), oracle.len());
                client.history = recovered;
            }
        }
        let log = &client.volume.log;
        assert!(log.durable() <= log.written());
        assert!(log.written() <= log.kept());
        assert!(log.kept() <= log.appended());
        assert!(log.latched().is_none());
    }
}
