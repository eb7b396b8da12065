//! Makes the disk crash at every operation, and checks images of the disk. An image is a state that
//! the crash can leave. A life is the time from opening a volume to a crash. A second life begins
//! on some of the images of the first life.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};

use slimio_sim::{Crash, Image, Limits, SimConfig};
use slimio_storage::{FormatOptions, Policy, SnapshotKind};

use super::snapshots::Action;
use super::{Client, Kind, Script, SimMedia, formatted_as, options, reopen, script, small_script};

/// How a life ends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Death {
    Power,
    Process,
}

/// The smallest and the largest number of records that the next recovery can rightly bring back.
#[derive(Clone, Copy, Debug)]
struct Promise {
    /// Records that must come back.
    at_least: usize,
    /// Records that were ever appended. No more than this number may come back.
    at_most: usize,
}

fn promise(client: &Client, policy: Policy, death: Death) -> Promise {
    let at_least = match (death, policy) {
        (Death::Process, _) | (Death::Power, Policy::Always) => client.acknowledged,
        // In a power cut, records that were acknowledged but not flushed yet may be lost. Recovery
        // must bring back every record that was flushed.
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

/// Checks the recovered records. Returns how many records of the script the volume has seen: those
/// that came back, plus those before them that were released.
fn check(
    recovered: &Script,
    script: &Script,
    plan: &Plan,
    promise: Promise,
    context: &dyn Fn() -> String,
) -> usize {
    let every = plan.release_every.unwrap_or(usize::MAX);
    let mut starts = (0..=promise.at_most).step_by(every.min(promise.at_most + 1));
    let start = starts.find(|&start| {
        script[start..].starts_with(recovered) && start + recovered.len() >= promise.at_least
    });
    let Some(start) = start else {
        let is_prefix = script.starts_with(recovered);
        let count = recovered.len();
        panic!(
            "{count} records came back, which are not the promised ones ({promise:?}); they are a \
             prefix of the script: {is_prefix}; {}",
            context()
        );
    };
    let end = start + recovered.len();
    assert!(
        end <= promise.at_most,
        "more records than were appended: {end}, {promise:?}; {}",
        context()
    );
    end
}

#[derive(Clone, Copy)]
pub(crate) struct Plan {
    pub(crate) policy: Policy,
    pub(crate) kind: Kind,
    pub(crate) config: SimConfig,
    pub(crate) layout: FormatOptions,
    /// Records that the first life writes.
    pub(crate) first_life: usize,
    /// Records that the second life writes.
    pub(crate) second_life: usize,
    pub(crate) deaths: [Death; 2],
    /// Number of records that are appended before each turn of the client's loop.
    pub(crate) per_turn: usize,
    /// A second life begins on each image of the first life whose number is a multiple of this.
    pub(crate) second_every: usize,
    /// At a crash point whose number is a multiple of this, a second life also begins on the first
    /// image of each outcome. Two images have the same outcome if equally many records came back,
    /// and if the mapped memory was lost in both or in neither.
    pub(crate) second_at_every: u64,
    /// Whenever the number of appended records is a multiple of this, all of them are released: the
    /// log may drop them, and recovery need not bring them back.
    pub(crate) release_every: Option<usize>,
    /// Whether all records have between 700 and 800 bytes. Otherwise their sizes are mixed.
    pub(crate) small: bool,
    /// Whether the client waits for each record before it writes the next.
    pub(crate) is_waiting: bool,
    /// Other actions of the first life, each with the number of records before it.
    pub(crate) actions: &'static [(usize, Action)],
    /// The kind of snapshot that the second life takes first; `None` if it takes no snapshot.
    pub(crate) second_snapshot: Option<SnapshotKind>,
}

/// Limits on the images of the first life.
const FIRST: Limits = Limits { exhaustive_max: 4, random_count: 4, torn: true };
const SECOND: Limits = Limits { exhaustive_max: 2, random_count: 1, torn: false };

/// Returns how many images were checked in the first and the second life.
pub(crate) fn enumerate(plan: &Plan) -> (usize, usize) {
    let len = plan.first_life + plan.second_life;
    let script = if plan.small { small_script(len) } else { script(len) };
    let (mut first_count, mut second_count) = (0_usize, 0);
    let mut seen = HashSet::new();
    for crash_point in 0.. {
        let mut media = formatted_as(plan.config, plan.kind, &plan.layout);
        let disk = media.disk.clone();
        disk.crash_after(crash_point);
        let Ok((volume, _)) = reopen(&mut media, &options(plan.policy)) else {
            // The disk crashed while an empty volume was opened.
            let crash = disk.crashed().expect("only the crash makes opening fail");
            for image in images(&crash, plan.deaths[0], &FIRST) {
                let mut media = SimMedia::from_image(plan.config, plan.kind, &image);
                media.is_feigned = true;
                let (_, recovered) =
                    reopen(&mut media, &options(plan.policy)).expect("the volume opens");
                assert!(recovered.is_empty());
                first_count += 1;
            }
            continue;
        };
        let mut client = Client::new(volume, disk.clone(), 0);
        client.release_every = plan.release_every;
        client.is_waiting = plan.is_waiting;
        client.actions.extend(plan.actions);
        client.write(&script[..plan.first_life], plan.per_turn);
        client.settle();
        let Some(crash) = disk.crashed() else { break };
        let promise = promise(&client, plan.policy, plan.deaths[0]);
        let durable = client.durable;
        for image in images(&crash, plan.deaths[0], &FIRST) {
            let context = || format!("crash point {crash_point}, {}", image.origin);
            let mut media = SimMedia::from_image(plan.config, plan.kind, &image);
            media.is_feigned = true;
            let (_, recovered) = reopen(&mut media, &options(plan.policy))
                .unwrap_or_else(|error| panic!("{error}; {}", context()));
            let before = check(&recovered, &script, plan, promise, &context);
            first_count += 1;
            let mut hasher = DefaultHasher::new();
            (crash_point, before, image.mapped.is_empty()).hash(&mut hasher);
            let is_new = seen.insert(hasher.finish());
            let is_new = is_new && crash_point.is_multiple_of(plan.second_at_every);
            if is_new || first_count.is_multiple_of(plan.second_every) {
                second_count += second_life(plan, &image, &script, (before, durable), &context);
            }
        }
    }
    (first_count, second_count)
}

/// Opens an image with `before` records, of which `durable` were known to be durable. Then writes
/// the next records of the script. Crashes at every operation of the opening and the writing. The
/// first life may have written and lost records with the same payloads, which recovery must not
/// confuse with the new ones.
fn second_life(
    plan: &Plan,
    image: &Image,
    script: &Script,
    (before, durable): (usize, usize),
    first_context: &dyn Fn() -> String,
) -> usize {
    let mut count = 0;
    for crash_point in 0.. {
        let mut media = SimMedia::from_image(plan.config, plan.kind, image);
        // With `Always`, every acknowledged record is durable, whatever the mapped buffers hold. So
        // private memory, which is cheaper, can stand in for the mapped buffers.
        media.is_feigned = plan.policy == Policy::Always;
        let disk = media.disk.clone();
        disk.crash_after(crash_point);
        let end = (before + plan.second_life).min(script.len());
        let opened = reopen(&mut media, &options(plan.policy));
        let (crash, promise) = if let Ok((volume, recovered)) = opened {
            let mut client = Client::new(volume, disk.clone(), before);
            client.history = recovered;
            client.actions.extend(plan.second_snapshot.map(|kind| (0, Action::Snapshot(kind))));
            client.release_every = plan.release_every;
            client.is_waiting = plan.is_waiting;
            client.write(&script[before..end], 1);
            client.settle();
            let Some(crash) = disk.crashed() else { break };
            (crash, promise(&client, plan.policy, plan.deaths[1]))
        } else {
            // Recovery was interrupted. The next recovery must bring back the records that the
            // interrupted one would have brought back. Records that were not durable may be
            // missing, but only after a power cut.
            let crash = disk.crashed().expect("only the crash makes opening fail");
            let is_kept = plan.deaths[1] == Death::Process;
            let at_least = if is_kept { before } else { durable };
            (crash, Promise { at_least, at_most: end })
        };
        for image in images(&crash, plan.deaths[1], &SECOND) {
            let context = || {
                format!("{}; second crash point {crash_point}, {}", first_context(), image.origin)
            };
            let mut media = SimMedia::from_image(plan.config, plan.kind, &image);
            media.is_feigned = true;
            let (_, recovered) = reopen(&mut media, &options(plan.policy))
                .unwrap_or_else(|error| panic!("{error}; {}", context()));
            check(&recovered, script, plan, promise, &context);
            count += 1;
        }
    }
    count
}

/// Checks that an enumeration has not shrunk: it must check at least as many images as when its
/// test was written.
pub(crate) fn assert_counts((first, second): (usize, usize), at_least: (usize, usize)) {
    let is_enough = first >= at_least.0 && second >= at_least.1;
    assert!(is_enough, "the enumeration has shrunk to {first} and {second} images");
}
