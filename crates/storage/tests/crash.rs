//! Loses power, and kills the process, at every operation and in every way; then lets a second life
//! write the same payloads again, and does the same to that.

mod common;

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use common::{Client, Kind, SimMedia, epoch, formatted, options, reopen, script};
use slimio_sim::{Crash, Image, Limits, Order, SimConfig};
use slimio_storage::Policy;

type Script = Vec<(u16, Vec<u8>)>;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Death {
    Power,
    Process,
}

/// What a life was promised when it ended.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// Records that must come back.
    at_least: usize,
    /// Records that were ever appended: nothing more may come back.
    at_most: usize,
}

fn promise(client: &Client, policy: Policy, death: Death) -> Promise {
    let at_least = match (death, policy) {
        (Death::Process, _) | (Death::Power, Policy::Always) => client.acknowledged,
        // What was acknowledged within the last second may go; what was flushed may not.
        (Death::Power, Policy::EverySec | Policy::No) => client.durable,
    };
    Promise { at_least, at_most: client.appended }
}

fn images(crash: &Crash, death: Death, limits: &Limits) -> Vec<Image> {
    match death {
        Death::Power => crash.power_images(limits),
        Death::Process => crash.process_images(limits),
    }
}

fn check(recovered: &Script, script: &Script, promise: Promise, context: &dyn Fn() -> String) {
    let count = recovered.len();
    assert!(count >= promise.at_least, "lost: {count} came back, {promise:?}; {}", context());
    assert!(count <= promise.at_most, "invented: {count} came back, {promise:?}; {}", context());
    assert!(script.starts_with(recovered), "what came back is no prefix; {}", context());
}

struct Plan {
    policy: Policy,
    kind: Kind,
    config: SimConfig,
    first_life: usize,
    second_life: usize,
    deaths: [Death; 2],
    per_turn: usize,
    /// Every so many images of the first life, a second one is lived.
    second_every: usize,
}

const FIRST: Limits = Limits { exhaustive_max: 4, random_count: 4, torn: true };
const SECOND: Limits = Limits { exhaustive_max: 2, random_count: 1, torn: false };

/// Returns how many images were checked in the first and the second life.
fn enumerate(plan: &Plan) -> (usize, usize) {
    let script = script(plan.first_life + plan.second_life);
    let (mut first_count, mut second_count) = (0_usize, 0);
    let mut seen = HashSet::new();
    for crash_point in 0.. {
        let mut media = formatted(plan.config, plan.kind);
        let disk = media.disk.clone();
        disk.crash_after(crash_point);
        let Ok((volume, _)) = reopen(&mut media, &options(plan.policy)) else {
            // The power went while an empty volume was opened.
            let crash = disk.crashed().expect("nothing else fails");
            for image in images(&crash, plan.deaths[0], &FIRST) {
                let mut media = SimMedia::from_image(plan.config, plan.kind, &image);
                let (_, recovered) = reopen(&mut media, &options(plan.policy)).expect("it opens");
                assert!(recovered.is_empty());
                first_count += 1;
            }
            continue;
        };
        let mut client = Client::new(volume, disk.clone(), 0);
        client.write(&script[..plan.first_life], plan.per_turn);
        client.settle();
        let Some(crash) = disk.crashed() else { break };
        let promise = promise(&client, plan.policy, plan.deaths[0]);
        for image in images(&crash, plan.deaths[0], &FIRST) {
            let context = || format!("crash point {crash_point}, {}", image.origin);
            let mut media = SimMedia::from_image(plan.config, plan.kind, &image);
            let (_, recovered) = reopen(&mut media, &options(plan.policy))
                .unwrap_or_else(|error| panic!("{error}; {}", context()));
            check(&recovered, &script, promise, &context);
            first_count += 1;
            let mut hasher = DefaultHasher::new();
            (crash_point, recovered.len(), image.mapped.is_empty()).hash(&mut hasher);
            let is_new = seen.insert(hasher.finish());
            if is_new || first_count.is_multiple_of(plan.second_every) {
                second_count += second_life(plan, &image, &script, recovered.len(), &context);
            }
        }
    }
    (first_count, second_count)
}

/// Opens an image, writes the next records of the script (the same payloads that the first life
/// may have lost), and crashes at every operation of that.
fn second_life(
    plan: &Plan,
    image: &Image,
    script: &Script,
    before: usize,
    first_context: &dyn Fn() -> String,
) -> usize {
    let mut count = 0;
    for crash_point in 0.. {
        let mut media = SimMedia::from_image(plan.config, plan.kind, image);
        let disk = media.disk.clone();
        disk.crash_after(crash_point);
        let end = (before + plan.second_life).min(script.len());
        let (crash, promise) = match reopen(&mut media, &options(plan.policy)) {
            Ok((volume, recovered)) => {
                let mut client = Client::new(volume, disk.clone(), recovered.len());
                client.write(&script[before..end], 1);
                client.settle();
                let Some(crash) = disk.crashed() else { break };
                (crash, promise(&client, plan.policy, plan.deaths[1]))
            }
            // Recovery was interrupted: what it would have brought back still comes back, unless
            // power took what only the mapped buffers held.
            Err(_) => {
                let crash = disk.crashed().expect("nothing else fails");
                let is_kept = plan.deaths[1] == Death::Process;
                let at_least = if is_kept { before } else { 0 };
                (crash, Promise { at_least, at_most: end })
            }
        };
        for image in images(&crash, plan.deaths[1], &SECOND) {
            let context = || {
                format!("{}; second crash point {crash_point}, {}", first_context(), image.origin)
            };
            let mut media = SimMedia::from_image(plan.config, plan.kind, &image);
            let (_, recovered) = reopen(&mut media, &options(plan.policy))
                .unwrap_or_else(|error| panic!("{error}; {}", context()));
            check(&recovered, script, promise, &context);
            count += 1;
        }
    }
    count
}

fn plan(policy: Policy, deaths: [Death; 2], order: Order) -> Plan {
    let config = SimConfig { order, seed: 7, ..SimConfig::default() };
    Plan {
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

/// Enumerations must not rot: they check at least as many images as when they were written.
fn assert_counts((first, second): (usize, usize), at_least: (usize, usize)) {
    assert!(epoch().elapsed().as_secs() < 600, "an enumeration ends");
    assert!(first >= at_least.0, "the first life shrank to {first} images");
    assert!(second >= at_least.1, "the second life shrank to {second} images");
    println!("{first} and {second} images");
}

#[test]
fn always_loses_nothing_when_power_is_cut() {
    let plan = plan(Policy::Always, [Death::Power, Death::Power], Order::Fifo);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn always_loses_nothing_when_writes_complete_in_any_order() {
    let plan = plan(Policy::Always, [Death::Power, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn always_survives_process_death_and_then_power_cut() {
    let plan = plan(Policy::Always, [Death::Process, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn everysec_loses_nothing_when_the_process_dies_twice() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Process], Order::Random);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn everysec_loses_nothing_flushed_when_power_is_cut() {
    let plan = plan(Policy::EverySec, [Death::Power, Death::Power], Order::Random);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn everysec_survives_process_death_and_then_power_cut() {
    let plan = plan(Policy::EverySec, [Death::Process, Death::Power], Order::Lifo);
    assert_counts(enumerate(&plan), (1, 1));
}

#[test]
fn no_policy_loses_nothing_when_the_process_dies() {
    let plan = plan(Policy::No, [Death::Process, Death::Process], Order::Lifo);
    assert_counts(enumerate(&plan), (1, 1));
}
