//! Random lives against an oracle that is a list of records.

use crate::common::random::{Oracle, Step};
use crate::common::{Client, Kind, SimMedia, formatted, options, reopen};
use proptest::prelude::*;
use slimio_sim::{Limits, Order, SimConfig};
use slimio_storage::Policy;

#[derive(Clone, Debug)]
enum Event {
    Step(Step),
    PowerCut(usize),
    ProcessDeath(usize),
}

fn event() -> impl Strategy<Value = Event> {
    let step = prop_oneof![
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
    ];
    prop_oneof![
        25 => step.prop_map(Event::Step),
        1 => any::<usize>().prop_map(Event::PowerCut),
        1 => any::<usize>().prop_map(Event::ProcessDeath),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn what_comes_back_is_what_was_promised(
        events in proptest::collection::vec(event(), 1..60),
        seed in any::<u64>(),
        is_device in any::<bool>(),
    ) {
        live(events, seed, is_device);
    }
}

fn live(events: Vec<Event>, seed: u64, is_device: bool) {
    let kind = if is_device { Kind::Device } else { Kind::Files };
    let config = SimConfig { order: Order::Random, seed, ..SimConfig::default() };
    let limits = Limits { exhaustive_max: 3, random_count: 8, torn: true };
    let mut media = formatted(config, kind);
    media.disk.crash_after(u64::MAX / 2);
    let mut now_policy = Policy::EverySec;
    let (volume, _) = reopen(&mut media, &options(now_policy)).expect("it opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    let mut oracle = Oracle::default();
    for event in events {
        match event {
            Event::Step(step) => {
                oracle.perform(&mut client, &step);
                now_policy = client.volume.log.policy();
            }
            Event::PowerCut(choice) | Event::ProcessDeath(choice) => {
                let is_power = matches!(event, Event::PowerCut(_));
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
                oracle.recovered(&recovered, at_least, &image.origin);
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
