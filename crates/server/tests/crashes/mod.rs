//! Random commands, snapshots and deaths of the whole server on a simulated disk, life after life.
//! A life is the time from a start of the server to its death. After each death, the server must
//! come back with a state that was in memory at one moment, and this state must not be earlier than
//! promised.
//!
//! A second server without a volume runs the same units (commands or transactions) at the same time
//! of day, and shows what was in memory after each unit. So these tests need not know what a
//! command does. Both servers' clocks move only between batches, between lives, and during
//! recovery. So a key has expired on both servers or on neither, whichever command touches it
//! first.

mod life;
#[path = "../../../storage/tests/suite/common/media.rs"]
#[expect(dead_code, reason = "the storage's tests use the rest of this module")]
mod media;
mod oracle;
mod script;
mod state;
mod volume;

use std::cell::Cell;
use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher as _, Hasher as _};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestCaseError, TestRunner};

use crate::common::until;
use life::World;
pub(crate) use life::launch_on;
pub(crate) use media::{Kind, SimMedia, WAL};
use script::{Batch, Life, Step, Unit, life};
use slimio_server::WallClock;
use slimio_sim::SimConfig;
pub(crate) use volume::storage;

/// Number of cases of one run, unless `PROPTEST_CASES` says otherwise.
const CASES: u32 = 24;
/// Environment variable with the seconds of a long run; `cargo x sim` sets it.
const SECONDS: &str = "SLIMIO_SIM_SECONDS";
/// A volume has fewer lives than this.
const LIVES_MAX: usize = 5;
/// Limit of the attempts to shrink a failing case. It is low because each attempt runs the lives of
/// a few servers.
const SHRINKS_MAX: u32 = 300;

fn config() -> ProptestConfig {
    let mut config = ProptestConfig { failure_persistence: None, ..ProptestConfig::default() };
    if std::env::var_os("PROPTEST_CASES").is_none() {
        config.cases = CASES;
    }
    if matches!(config.rng_seed, RngSeed::Random) {
        config.rng_seed = RngSeed::Fixed(RandomState::new().build_hasher().finish());
    }
    config.max_shrink_iters = SHRINKS_MAX;
    config
}

#[test]
fn what_comes_back_was_in_memory_and_was_promised() {
    let began = Instant::now();
    let seconds = std::env::var(SECONDS).ok().and_then(|seconds| seconds.parse().ok());
    let long = seconds.map(Duration::from_secs);
    let (volumes, lived) = (Cell::new(0_u64), Cell::new(0_u64));
    loop {
        let config = config();
        let seed = config.rng_seed;
        let lives = proptest::collection::vec(life(), 1..LIVES_MAX);
        let input = (lives, any::<u64>(), any::<bool>());
        let outcome = TestRunner::new(config).run(&input, |(lives, seed, is_device)| {
            volumes.set(volumes.get() + 1);
            lived.set(lived.get() + lives.len() as u64);
            check(&lives, seed, is_device).map_err(TestCaseError::fail)
        });
        if let Err(error) = outcome {
            panic!("PROPTEST_RNG_SEED={seed}: {error}");
        }
        if long.is_none_or(|long| began.elapsed() >= long) {
            break;
        }
    }
    let took = began.elapsed().as_secs();
    println!("server: {} lives on {} volumes in {took} s", lived.get(), volumes.get());
}

/// A life that ends by SIGKILL. Each batch consists of the milliseconds that pass before it, and of
/// the lines that are sent at once, in database 0.
fn killed(rests_ms: i64, batches: &[(i64, &[&str])]) -> Life {
    let step = |line: &&str| match *line {
        "BGREWRITEAOF" => Step::Rewrite,
        "SAVE" => Step::Save,
        line => {
            let commands = vec![line.to_owned()];
            Step::Run(Unit { db: 0, commands, is_transaction: false })
        }
    };
    let batch = |(passes_ms, lines): &(i64, &[&str])| {
        Batch::of(*passes_ms, lines.iter().map(step).collect())
    };
    let batches = batches.iter().map(batch).collect();
    let (dies_after, is_power_cut, image, untaken_polls) = (u64::MAX / 2, false, 0, 0);
    let (recovers_ms, end) = (0, None);
    Life { rests_ms, recovers_ms, batches, dies_after, is_power_cut, image, untaken_polls, end }
}

#[test]
fn a_key_that_has_expired_is_no_part_of_what_comes_behind() {
    let first = killed(0, &[(0, &["SET k0 1 PX 50", "HSET k1 f 1", "PEXPIRE k1 50"])]);
    let second = killed(20, &[(40, &["APPEND k0 2", "HSET k1 g 2"]), (0, &["INCRBY k0 3"])]);
    for is_device in [false, true] {
        check(&[first.clone(), second.clone()], 1, is_device).unwrap();
    }
}

#[test]
fn a_date_that_was_taken_back_does_not_count_at_a_restart() {
    let first = killed(0, &[(0, &["SET k0 1 PX 50", "HSET k1 f 1", "PEXPIRE k1 50"])]);
    let second = killed(20, &[(0, &["PERSIST k0", "PEXPIRE k1 9999", "SET k2 1 PX 10"])]);
    for is_device in [false, true] {
        check(&[first.clone(), second.clone(), killed(100, &[])], 1, is_device).unwrap();
    }
}

#[test]
fn databases_that_change_places_do_not_change_a_snapshot_that_runs() {
    let fill = ["SET k0 1", "COPY k0 k1 DB 1", "COPY k0 k2 DB 2"];
    let swap: &[&str] = &["BGREWRITEAOF", "SWAPDB 0 1", "MOVE k1 2", "RENAME k1 k0", "SWAPDB 2 0"];
    for is_device in [false, true] {
        // `SAVE` begins when the rewrite has ended.
        check(&[killed(0, &[(0, &fill), (0, swap), (0, &["SAVE"])])], 1, is_device).unwrap();
    }
}

/// A rewrite may leave out values that the log after the rewrite sets. It must not leave out values
/// that records of this log read or compute with.
#[test]
fn a_rewrite_and_the_log_behind_it_are_all_there_is() {
    let fill =
        ["SET k0 1", "SET k1 2", "SET k2 3 PXAT 4102444800000", "HSET k3 f 1 g 2", "SET k4 5"];
    let beside: &[&str] = &[
        "BGREWRITEAOF",
        "COPY k0 k5",
        "SET k0 7",
        "INCRBY k1 1",
        "INCRBYFLOAT k2 1.5",
        "COPY k3 k6",
        "DEL k3",
        "RENAME k4 k1",
        "GETDEL k1",
    ];
    for is_device in [false, true] {
        // `SAVE` begins when the rewrite has ended.
        check(&[killed(0, &[(0, &fill), (0, beside), (0, &["SAVE"])])], 1, is_device).unwrap();
    }
}

#[test]
fn a_full_log_refuses_and_a_flush_gives_its_room_back() {
    let unit = |commands: &[&str]| {
        let is_transaction = commands.len() > 1;
        let commands = commands.iter().map(|line| (*line).to_owned()).collect();
        Step::Run(Unit { db: 0, commands, is_transaction })
    };
    let large = unit(&["SET k0 @290000"]);
    let reads = unit(&["GET k1", "GET k2", "EXISTS k1 k2"]);
    let mut steps = vec![unit(&["SET k1 1 PX 50"]), unit(&["SET k2 1 PX 50"]), Step::Full(true)];
    steps.extend(std::iter::repeat_n(large, 12));
    let behind = vec![
        reads,
        unit(&["EXPIRE k0 9"; 2000]),
        Step::Rewrite,
        unit(&["FLUSHALL"]),
        unit(&["FLUSHALL"]),
        unit(&["SET k3 1"]),
        Step::WaitUntilDurable,
    ];
    let batches = vec![Batch::of(0, steps), Batch::of(60, behind)];
    let full = Life { batches, ..killed(0, &[]) };
    let mut world = World::new(1, false);
    world.live(&full).unwrap();
    assert!(world.refused > 3, "only {} units were refused", world.refused);
    world.live(&killed(0, &[(0, &["SET k4 1"])])).unwrap();
    world.check_last().unwrap();
}

#[test]
fn who_waits_for_a_log_that_stops_is_answered() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let disk = media.disk.clone();
    let directives = World::new(0, false).directives();
    let starting = launch_on(media, false, directives, WallClock::System);
    let server = starting.served().unwrap();
    let mut client = server.connect();
    assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
    disk.crash_now();
    for _ in 0..2 {
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:0\r\n:0\r\n");
    }
    assert!(server.abandon().is_err(), "a log that cannot be durable must cause an error");
}

#[test]
fn who_waits_is_answered_though_the_kernel_had_no_memory_and_nothing_else_happens() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let disk = media.disk.clone();
    let mut directives = World::new(0, false).directives();
    directives.set("hz", "10").unwrap();
    let server = launch_on(media, false, directives, WallClock::System).served().unwrap();
    let (mut client, _idle) = (server.connect(), server.connect());
    // Operations stay queued for 40 polls. The background work after the last request makes fewer
    // than 40 polls, so it alone would not be enough.
    disk.faults(|faults| faults.untaken_polls = 40);
    for policy in ["everysec", "always"] {
        assert_eq!(client.call(&["CONFIG", "SET", "appendfsync", policy]), "+OK\r\n");
        assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n", "{policy}");
        assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n", "{policy}");
    }
    disk.faults(|faults| faults.untaken_polls = 0);
    server.stop();
}

#[test]
fn who_waits_for_a_log_that_goes_on_is_answered_when_there_is_space() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let disk = media.disk.clone();
    let directives = World::new(0, false).directives();
    let server = launch_on(media, false, directives, WallClock::System).served().unwrap();
    let mut client = server.connect();
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "no"]), "+OK\r\n");
    let value = "x".repeat(290_000);
    for key in 0..8 {
        assert_eq!(client.call(&["SET", &format!("k{key}"), &value]), "+OK\r\n");
    }
    disk.faults(|faults| faults.full = true);
    assert_eq!(client.call(&["CONFIG", "SET", "appendonly", "yes"]), "+OK\r\n");
    assert_eq!(client.call(&["SET", "k", "v"]), "+OK\r\n");
    assert_eq!(client.call(&["WAITAOF", "1", "0", "200"]), "*2\r\n:0\r\n:0\r\n");
    disk.faults(|faults| faults.full = false);
    assert_eq!(client.call(&["WAITAOF", "1", "0", "0"]), "*2\r\n:1\r\n:0\r\n");
    server.stop();
}

#[test]
fn who_waits_for_a_log_that_is_ended_is_told() {
    let media = SimMedia::new(SimConfig::default(), Kind::Files);
    let disk = media.disk.clone();
    let directives = World::new(0, false).directives();
    let server = launch_on(media, false, directives, WallClock::System).served().unwrap();
    let (mut one, mut two) = (server.connect(), server.connect());
    let mut turn = |on| assert_eq!(two.call(&["CONFIG", "SET", "appendonly", on]), "+OK\r\n");
    turn("no");
    let value = "x".repeat(290_000);
    for key in 0..8 {
        assert_eq!(one.call(&["SET", &format!("k{key}"), &value]), "+OK\r\n");
    }
    // The log can resume only after a snapshot, and there is no space for one. So no write reaches
    // the log.
    disk.faults(|faults| faults.full = true);
    turn("yes");
    one.send(&["WAITAOF", "1", "0", "0"]);
    until("the client does not wait", || {
        server.connect().call(&["INFO", "clients"]).contains("blocked_clients:1")
    });
    turn("no");
    let reply = one.read();
    let reply = String::from_utf8_lossy(&reply);
    assert!(reply.starts_with("-ERR WAITAOF cannot be used"), "{reply}");
    // A `WAITAOF` that does not ask for the log is answered, but the reply does not say that the
    // log has the writes.
    assert_eq!(one.call(&["WAITAOF", "0", "0", "0"]), "*2\r\n:0\r\n:0\r\n");
    disk.faults(|faults| faults.full = false);
    server.stop();
}

fn check(lives: &[Life], seed: u64, is_device: bool) -> Result<(), String> {
    let mut world = World::new(seed, is_device);
    for (number, life) in lives.iter().enumerate() {
        world.live(life).map_err(|why| format!("life {number}: {why}"))?;
    }
    world.check_last()
}
