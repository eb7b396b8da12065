//! Runs random lives of a volume, and compares what comes back with an oracle, which is a list of
//! records. A life lasts from one start to the next. The logs are small, the media become full, and
//! a life may end at any operation, even in recovery.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::common::random::{Oracle, Step, policy};
use crate::common::{Client, Kind, SMALL, Script, SimMedia, options, reopen};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use slimio_sim::{Crash, Image, Limits, Order, Random, SimConfig};
use slimio_storage::{FormatOptions, LogState, Policy, RecoverOptions, Room, Volume, format};

/// Name of the environment variable that holds the seconds of a long run. `cargo x sim` sets the
/// variable.
const SECONDS: &str = "SLIMIO_SIM_SECONDS";

/// More operations than a life has.
const NEVER: u64 = u64::MAX / 2;

const LIMITS: Limits = Limits { exhaustive_max: 3, random_count: 8, torn: true };

/// How a life ends.
#[derive(Clone, Debug)]
struct Death {
    is_power_cut: bool,
    /// The life ends within this many further operations.
    within: u64,
    /// Selects one of the possible images of the disk.
    image: usize,
    /// If set, the next start ends in the same way, at this operation.
    in_recovery: Option<u64>,
    /// Whether the log is on when the volume is opened after this death.
    is_log_on: bool,
}

#[derive(Clone, Debug)]
enum Event {
    Step(Step),
    Die(Death),
    /// Empties the data set. The log must then get room again, whatever happened before.
    WayOut,
}

/// The medium of the volume.
#[derive(Clone, Debug)]
struct Place {
    is_device: bool,
    seed: u64,
    /// The largest number of segments that the log may have.
    wal_slots_max: u32,
    /// Blocks by which files may grow beyond the superblock and the first two segments. Not used
    /// for a device, which has a fixed size.
    lbas_left: u64,
    /// Extents of a device, two for each segment. A real device has at least 64 segments.
    extent_count: u64,
    buffer_count: usize,
    /// The policy of the first life.
    policy: u8,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        8 => prop_oneof![0..200_usize, 0..9000_usize, 0..25_000_usize].prop_map(Step::Append),
        1 => (1..10_usize).prop_map(Step::Commits),
        4 => Just(Step::Turn),
        2 => Just(Step::Idle),
        1 => (0..1500_u64).prop_map(Step::Pass),
        1 => (0..3_u8).prop_map(Step::Policy),
        1 => Just(Step::RequestDurable),
        1 => Just(Step::Release),
        3 => any::<bool>().prop_map(Step::Snapshot),
        1 => Just(Step::CancelSnapshot),
        1 => Just(Step::GiveBack),
        1 => Just(Step::End),
        2 => Just(Step::Resume),
    ]
}

fn death() -> impl Strategy<Value = Death> {
    let within = prop_oneof![Just(0), 0..40_u64];
    let in_recovery = prop_oneof![2 => Just(None), 1 => (0..80_u64).prop_map(Some)];
    let is_log_on = prop::bool::weighted(0.9);
    (any::<bool>(), within, any::<usize>(), in_recovery, is_log_on).prop_map(
        |(is_power_cut, within, image, in_recovery, is_log_on)| Death {
            is_power_cut,
            within,
            image,
            in_recovery,
            is_log_on,
        },
    )
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        25 => step().prop_map(Event::Step),
        3 => death().prop_map(Event::Die),
        1 => Just(Event::WayOut),
    ]
}

fn place() -> impl Strategy<Value = Place> {
    let lbas_left = prop_oneof![2 => 0..40_u64, 1 => Just(1 << 20)];
    (any::<bool>(), any::<u64>(), 3..9_u32, lbas_left, 16..48_u64, 2..7_usize, 0..3_u8).prop_map(
        |(is_device, seed, wal_slots_max, lbas_left, extent_count, buffer_count, policy)| Place {
            is_device,
            seed,
            wal_slots_max,
            lbas_left,
            extent_count,
            buffer_count,
            policy,
        },
    )
}

/// Totals of a run.
#[derive(Debug, Default)]
struct Tally {
    events: AtomicU64,
    /// Starts, including those that were interrupted.
    starts: AtomicU64,
    power_cuts: AtomicU64,
    kills: AtomicU64,
    /// Records that found no room.
    refused: AtomicU64,
}

fn add(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[test]
fn what_comes_back_is_what_was_promised() {
    let tally = Tally::default();
    let began = Instant::now();
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
    let long = seconds.map(Duration::from_secs);
    loop {
        let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
        if matches!(config.rng_seed, RngSeed::Random) {
            config.rng_seed = RngSeed::Fixed(rand_seed());
        }
        let seed = config.rng_seed;
        let input = (proptest::collection::vec(event(), 1..80), place());
        let outcome = TestRunner::new(config).run(&input, |(events, place)| {
            live(events, &place, &tally);
            Ok(())
        });
        if let Err(error) = outcome {
            panic!("PROPTEST_RNG_SEED={seed}: {error}");
        }
        if long.is_none_or(|long| began.elapsed() >= long) {
            break;
        }
    }
    println!("storage: {tally:?} in {} s", began.elapsed().as_secs());
    assert!(tally.refused.into_inner() > 0, "no log was ever full");
}

/// A kill within this many operations, followed by a start.
fn killed(within: u64, image: usize) -> Death {
    Death { is_power_cut: false, within, image, in_recovery: None, is_log_on: true }
}

/// On a device, a log that has only one segment also keeps the extents for a second segment. They
/// lie in one free slot of the log's area. The process is killed while the other free slots have no
/// extents. After the restart, the log must go on in the slot that has extents, instead of asking
/// for other extents.
#[test]
fn a_log_goes_on_where_its_extents_are() {
    let append = |size: usize| Event::Step(Step::Append(size));
    let first = [43, 101, 171, 75, 0, 8201, 2073, 1387, 6946, 4145, 12_602].map(append);
    let second = [19_907, 17_064, 8099].map(append);
    let snapshot = || [Event::Step(Step::Snapshot(true))];
    let mut events = Vec::from(first);
    events.extend(snapshot());
    events.extend(second);
    events.extend(snapshot());
    events.extend([append(0), Event::Die(killed(0, 0)), Event::WayOut]);
    let place = Place {
        is_device: true,
        seed: 0,
        wal_slots_max: 4,
        lbas_left: 0,
        extent_count: 21,
        buffer_count: 2,
        policy: 1,
    };
    live(events, &place, &Tally::default());
}

/// A record takes two batches. A recovery ends the log before the first of them, so the record is
/// cut off. The life after this recovery does not overwrite the record's second batch, because the
/// first batch of the new life does not fit where that second batch lies. The second batch must not
/// come back.
#[test]
fn the_rest_of_a_record_that_was_cut_off_stays_dead() {
    let append = |size: usize| Event::Step(Step::Append(size));
    let killed = |within, image| Event::Die(killed(within, image));
    let turns = |count| std::iter::repeat_n(Event::Step(Step::Turn), count);
    let mut events = vec![Event::Step(Step::Turn)];
    events.extend([5818, 3589, 192].map(append));
    events.extend(turns(2));
    events.extend([append(6477), append(65), Event::Step(Step::RequestDurable), append(8099)]);
    events.extend([Event::Step(Step::End), append(0), append(0), Event::Step(Step::Resume)]);
    events.extend([Event::Step(Step::Pass(201)), append(0), append(6180)]);
    events.extend([Event::Step(Step::Snapshot(false)), append(1891)]);
    events.extend(turns(2));
    events.push(Event::Step(Step::End));
    events.extend(turns(3));
    events.extend([Event::Step(Step::Idle), killed(1, 2_970_937_626_793_075)]);
    events.extend([append(4003), Event::Step(Step::Snapshot(false))]);
    events.extend([killed(1, 5_516_292_789_620_996_612), killed(0, 0)]);
    let place = Place {
        is_device: true,
        seed: 2_749_522_985_837_795_844,
        wal_slots_max: 3,
        lbas_left: 0,
        extent_count: 18,
        buffer_count: 3,
        policy: 1,
    };
    live(events, &place, &Tally::default());
}

/// A new random seed for each run. A failing run prints its seed.
fn rand_seed() -> u64 {
    use std::hash::{BuildHasher as _, Hasher as _, RandomState};
    RandomState::new().build_hasher().finish()
}

/// A volume in the state that its last life left.
struct World<'a> {
    place: &'a Place,
    config: SimConfig,
    kind: Kind,
    policy: Policy,
    is_log_on: bool,
    oracle: Oracle,
    tally: &'a Tally,
}

fn live(events: Vec<Event>, place: &Place, tally: &Tally) {
    let kind = if place.is_device { Kind::Device } else { Kind::Files };
    let layout = FormatOptions { wal_slots_max: place.wal_slots_max, ..SMALL };
    let lbas_max =
        if place.is_device { 1 << 20 } else { 16 + 2 * layout.segment_lbas + place.lbas_left };
    let config =
        SimConfig { order: Order::Random, seed: place.seed, lbas_max, ..SimConfig::default() };
    let mut media = SimMedia::new(config, kind);
    media.extent_count = place.extent_count;
    format(&mut media, &layout).expect("the medium has room for a volume");
    media.disk.crash_after(NEVER);
    let policy = policy(place.policy);
    let (is_log_on, oracle) = (true, Oracle::default());
    let mut world = World { place, config, kind, policy, is_log_on, oracle, tally };
    let (volume, _) = reopen(&mut media, &world.options()).expect("the volume opens");
    let mut client = Client::new(volume, media.disk.clone(), 0);
    for event in events {
        add(&tally.events);
        match event {
            Event::Step(step) => {
                let before = world.oracle.len();
                world.oracle.perform(&mut client, &step);
                let is_refused = matches!(step, Step::Append(_)) && world.oracle.len() == before;
                tally.refused.fetch_add(u64::from(is_refused), Ordering::Relaxed);
                world.policy = client.volume.log.policy();
            }
            Event::Die(death) => client = world.die(client, &death),
            Event::WayOut => world.way_out(&mut client),
        }
        let log = &client.volume.log;
        assert!(log.durable() <= log.written());
        assert!(log.written() <= log.kept());
        assert!(log.kept() <= log.appended());
        assert!(log.latched().is_none());
    }
}

impl World<'_> {
    fn options(&self) -> RecoverOptions {
        RecoverOptions {
            buffer_count: self.place.buffer_count,
            is_log_on: self.is_log_on,
            ..options(self.policy)
        }
    }

    /// Ends a life, and begins the next.
    fn die(&mut self, mut client: Client, death: &Death) -> Client {
        client.disk.crash_after(death.within);
        if death.within > 0 {
            client.settle();
        }
        let mut crash = client.disk.crashed().unwrap_or_else(|| client.disk.crash_now());
        let at_least = if death.is_power_cut {
            client.durable
        } else {
            client.durable.max(client.acknowledged)
        };
        drop(client);
        self.is_log_on = death.is_log_on;
        let mut in_recovery = death.in_recovery;
        loop {
            let image = self.image(&crash, death);
            let mut media = SimMedia::from_image(self.config, self.kind, &image);
            media.disk.crash_after(in_recovery.take().unwrap_or(NEVER));
            match self.start(&mut media, &image) {
                Ok((volume, recovered)) => {
                    self.oracle.recovered(&recovered, at_least, &image.origin);
                    media.disk.crash_after(NEVER);
                    let mut client = Client::new(volume, media.disk.clone(), self.oracle.len());
                    client.history = recovered;
                    return client;
                }
                Err(interrupted) => crash = *interrupted,
            }
        }
    }

    fn image(&self, crash: &Crash, death: &Death) -> Image {
        add(if death.is_power_cut { &self.tally.power_cuts } else { &self.tally.kills });
        let mut images = if death.is_power_cut {
            crash.power_images(&LIMITS)
        } else {
            crash.process_images(&LIMITS)
        };
        let choice = death.image % images.len();
        images.swap_remove(choice)
    }

    /// Opens the volume. Returns `Err` if the start was interrupted.
    fn start(&self, media: &mut SimMedia, image: &Image) -> Result<(Volume, Script), Box<Crash>> {
        add(&self.tally.starts);
        match reopen(media, &self.options()) {
            Ok(opened) => match media.disk.crashed() {
                // The disk has crashed, so the server would not see this result.
                Some(crash) => Err(Box::new(crash)),
                None => Ok(opened),
            },
            Err(error) => {
                let crash = media.disk.crashed();
                Err(Box::new(crash.unwrap_or_else(|| panic!("{error}; {}", image.origin))))
            }
        }
    }

    /// Empties the data set, and checks that the log then gets room.
    fn way_out(&mut self, client: &mut Client) {
        if client.volume.log.log_state() != LogState::On || client.is_over() {
            return;
        }
        client.cancel();
        self.oracle.perform(client, &Step::Release);
        client.settle();
        let mut random = Random::new(self.place.seed);
        for _ in 0..4 {
            let size = random.below(300);
            for _ in 0..100 {
                if client.volume.log.room(size) != Room::Wait {
                    break;
                }
                client.turn(true);
            }
            let room = client.volume.log.room(size);
            let log = &client.volume.log;
            let used = log.pool().map(slimio_storage::Pool::usage);
            let (stats, why) = (log.stats(), log.prepare_failed());
            assert!(
                matches!(room, Room::Free | Room::Scarce),
                "{room:?} after a release of all records: {used:?}, {stats:?}, {why:?}"
            );
        }
    }
}
