//! A capture hands out the data set as it was when the capture began, although commands change the
//! data set meanwhile.

mod common;
#[path = "common/contents.rs"]
mod contents;
#[path = "common/entries.rs"]
mod entries;

use common::Driver;
use entries::{Entry, contents, sorted};
use fastrand::Rng;
use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Captured, Context, DbIndex, Effects, EvictionConfig,
    EvictionPolicy, Keyspace, Mode, Outcome, Part, command_table,
};
use slimio_resp::{BLOB_PIECE_SIZE, OwnedRequest, ReplyBuf};
use slimio_testing::random::{Generator, seed};

/// Count of rounds. Each round has one capture.
const ROUNDS: usize = 10_000;

/// Count of databases that the random commands use.
const DBS: u16 = 3;

/// The captured entries, sorted.
fn captured(batches: &[Captured]) -> Vec<Entry> {
    sorted(batches.iter().flat_map(Captured::entries))
}

fn step(keyspace: &mut Keyspace, entries: usize, out: &mut Vec<Captured>) {
    let first = out.len();
    let step = keyspace.capture_step(CaptureBudget { size: 100_000, entries }, out);
    let batches = &out[first..];
    assert_eq!(step.entries, batches.iter().map(Captured::len).sum::<usize>());
    assert_eq!(step.size, batches.iter().map(Captured::size).sum::<usize>());
    assert!(batches.iter().all(|batch| batch.entries().count() == batch.len()));
    assert!(batches.iter().all(|batch| !batch.is_empty()));
}

/// Runs steps of the capture until everything has been taken.
fn finish(keyspace: &mut Keyspace, out: &mut Vec<Captured>) {
    while keyspace.capture_state() == CaptureState::Running {
        step(keyspace, 1000, out);
    }
    assert_eq!(keyspace.capture_state(), CaptureState::Complete);
    assert_eq!(keyspace.capture_stats().taken, keyspace.capture_stats().total);
    keyspace.end_capture();
    assert_eq!(keyspace.capture_state(), CaptureState::Idle);
}

/// Runs some random commands, and sometimes a step of active expiry or an eviction.
fn commands(driver: &mut Driver, generator: &mut Generator, count: usize) {
    for _ in 0..count {
        driver.now_ms += generator.rng.usize(..20) as i64;
        generator.now_ms = driver.now_ms;
        if generator.rng.usize(..20) == 0 {
            driver.db = DbIndex(generator.rng.usize(..usize::from(DBS)) as u16);
        }
        driver.run(&generator.command());
        if generator.rng.usize(..50) == 0 {
            driver.keyspace.expire_step(driver.db, driver.now_ms, 1000, &mut Effects::new());
        }
        if generator.rng.usize(..50) == 0 {
            driver.keyspace.evict(driver.now_ms, &mut Effects::new());
        }
        driver.keyspace.take_garbage();
        driver.check();
    }
}

/// Runs random commands of all kinds before, during and after captures. Some captures are given up,
/// and databases are flushed and swapped. Each complete capture must equal the data set at its
/// beginning.
#[test]
fn what_is_captured_is_what_was_there() {
    let seed = seed();
    let mut generator = Generator::new(seed, 3_000);
    let mut driver = Driver::new(seed);
    driver.now_ms = 1_700_000_000_000;
    let policy = EvictionPolicy::AllKeysRandom;
    driver.keyspace.set_eviction(EvictionConfig { policy, ..EvictionConfig::default() });
    let (mut complete, mut flushed, mut given_up, mut changed, mut entries) = (0, 0, 0, 0, 0);
    for round in 0..ROUNDS {
        let count = generator.rng.usize(..40);
        commands(&mut driver, &mut generator, count);
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        let expected = contents(&driver.keyspace);
        assert_eq!(driver.keyspace.capture_stats().total, expected.len());
        let mut out = Vec::new();
        let pace = 1 + generator.rng.usize(..6);
        while driver.keyspace.capture_state() == CaptureState::Running {
            let count = generator.rng.usize(..pace);
            commands(&mut driver, &mut generator, count);
            if generator.rng.usize(..400) == 0 {
                driver.run(&["FLUSHALL"]);
            }
            let budget = 1 + generator.rng.usize(..10);
            step(&mut driver.keyspace, budget, &mut out);
            driver.check();
            if generator.rng.usize(..200) == 0 {
                break;
            }
        }
        changed += usize::from(contents(&driver.keyspace) != expected);
        match driver.keyspace.capture_state() {
            CaptureState::Complete => {
                let found = captured(&out);
                assert!(found == expected, "round {round}: {found:?}\n{expected:?}");
                complete += 1;
                entries += expected.len();
            }
            CaptureState::Flushed => flushed += 1,
            _ => given_up += 1,
        }
        driver.keyspace.end_capture();
        let stats = driver.keyspace.capture_stats();
        assert_eq!((stats.owned_size, stats.shared_size, stats.flushed_size), (0, 0, 0));
        while driver.keyspace.capture_state() == CaptureState::Settling {
            commands(&mut driver, &mut generator, 1);
            let mut out = Vec::new();
            step(&mut driver.keyspace, 3, &mut out);
            assert!(out.is_empty(), "a capture that was given up hands out nothing");
        }
        assert_eq!(driver.keyspace.capture_state(), CaptureState::Idle);
    }
    eprintln!("{complete} complete, {flushed} flushed, {given_up} given up, {changed} changed");
    assert!(complete > ROUNDS / 2 && changed > ROUNDS / 2 && entries > 10 * complete);
    assert!(flushed > ROUNDS / 200 && given_up > ROUNDS / 200);
}

/// Thousands of buckets are split and merged while the capture goes through them. No entry may be
/// missed or taken twice.
#[test]
fn a_capture_survives_splits_and_merges() {
    let seed = seed();
    let mut rng = Rng::with_seed(seed);
    for (before, after) in [(3_000, 60_000), (60_000, 500), (20_000, 20_000), (0, 3_000)] {
        let mut driver = Driver::new(rng.u64(..));
        let set = |driver: &mut Driver, key: usize, value: u64| {
            driver.run(&["SET", &format!("key:{key}"), &format!("value {value}")]);
        };
        for key in 0..before {
            set(&mut driver, key, 0);
        }
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        let expected = contents(&driver.keyspace);
        let mut out = Vec::new();
        let (mut live, mut steps) = (before, 0);
        while driver.keyspace.capture_state() == CaptureState::Running {
            for _ in 0..40 {
                if live < after {
                    set(&mut driver, live, 1);
                    live += 1;
                } else if live > after {
                    live -= 1;
                    driver.run(&["DEL", &format!("key:{live}")]);
                }
                if live > 0 {
                    let key = rng.usize(..live);
                    set(&mut driver, key, rng.u64(..));
                }
            }
            step(&mut driver.keyspace, 20, &mut out);
            steps += 1;
        }
        assert!(captured(&out) == expected, "{before} to {after} in {steps} steps");
        driver.keyspace.end_capture();
        // The next capture finds every entry again.
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        let (expected, mut out) = (contents(&driver.keyspace), Vec::new());
        finish(&mut driver.keyspace, &mut out);
        assert!(captured(&out) == expected, "after {before} to {after}");
    }
}

/// A value of one piece and a value of several pieces are changed in every way. The capture must
/// hand out the values from before the changes.
#[test]
fn large_values_are_captured_before_they_are_changed() {
    let long = vec![b'l'; 3 * BLOB_PIECE_SIZE + 5];
    let page = vec![b'p'; 4096];
    let changes: [&[&str]; 16] = [
        &["SET", "k", "small"],
        &["APPEND", "k", "more"],
        &["SETRANGE", "k", "100", "patch"],
        &["SETRANGE", "k", "700000", "patch"],
        &["DEL", "k"],
        &["GETDEL", "k"],
        &["PEXPIREAT", "k", "5000"],
        &["PEXPIREAT", "k", "-5000"],
        &["PERSIST", "k"],
        &["GETEX", "k", "PERSIST"],
        &["RENAME", "k", "other"],
        &["RENAME", "other", "k"],
        &["MOVE", "k", "1"],
        &["COPY", "other", "k", "REPLACE"],
        &["FLUSHDB"],
        &["SWAPDB", "0", "1"],
    ];
    for value in [&long, &page] {
        for change in changes {
            let mut driver = Driver::new(7);
            driver.run(&[&b"SET"[..], b"k", value, b"PXAT", b"100000"]);
            driver.run(&[&b"SET"[..], b"other", &page]);
            driver.db = DbIndex(1);
            driver.run(&["SET", "third", "value"]);
            driver.db = DbIndex(0);
            driver.keyspace.begin_capture(CaptureKind::PointInTime);
            let expected = contents(&driver.keyspace);
            driver.run(change);
            // Further changes of the same keys must not affect what is captured.
            for db in [0, 1] {
                driver.db = DbIndex(db);
                driver.run(&["APPEND", "k", "again"]);
                driver.run(&[&b"SET"[..], b"other", &page]);
            }
            let mut out = Vec::new();
            finish(&mut driver.keyspace, &mut out);
            assert!(captured(&out) == expected, "{change:?} of {} bytes", value.len());
        }
    }
}

/// Hashes of few fields and of many fields are changed in every way. The capture must hand out the
/// hashes from before the changes.
#[test]
fn hashes_are_captured_before_they_are_changed() {
    let changes: [&[&str]; 10] = [
        &["HSET", "k", "field:1", "other", "new", "field"],
        &["HDEL", "k", "field:1", "field:2"],
        &["HINCRBY", "k", "count", "7"],
        &["HSETNX", "k", "field:x", "value"],
        &["SET", "k", "a string"],
        &["DEL", "k"],
        &["EXPIRE", "k", "100"],
        &["RENAME", "k", "other"],
        &["COPY", "k", "other"],
        &["HSET", "new", "field", "value"],
    ];
    for fields in [2, 100, 20_000] {
        let mut driver = Driver::new(7);
        for index in 0..fields {
            driver.run(&["HSET", "k", &format!("field:{index}"), &format!("value {index}")]);
        }
        for change in changes {
            driver.run(&["COPY", "k", "kept"]);
            driver.keyspace.begin_capture(CaptureKind::PointInTime);
            let expected = contents(&driver.keyspace);
            let request = OwnedRequest::from_args(change);
            let info = allocation_counter::measure(|| drop(driver.run_request(&request)));
            assert!(info.bytes_total < 100_000, "{change:?}: {} bytes copied", info.bytes_total);
            for index in (0..fields).step_by(7) {
                driver.run(&["HSET", "other", &format!("field:{index}"), "changed"]);
                driver.run(&["HDEL", "kept", &format!("field:{index}")]);
            }
            let mut out = Vec::new();
            finish(&mut driver.keyspace, &mut out);
            assert!(captured(&out) == expected, "{change:?} of {fields} fields");
            driver.run(&["DEL", "k", "other", "new"]);
            driver.run(&["RENAME", "kept", "k"]);
        }
    }
}

/// Runs a prepared command, and counts its allocations.
fn allocated(
    keyspace: &mut Keyspace,
    request: &OwnedRequest,
) -> allocation_counter::AllocationInfo {
    let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
    effects.touch_db(DbIndex(0));
    effects.log(DbIndex(0), &[Part::Bytes(&[0; 64])]);
    reply.bulk(&[0; 64]);
    reply.clear();
    effects.clear();
    effects.log_request(DbIndex(0));
    effects.clear();
    let command = command_table().lookup(&request.args().bytes(0)).expect("a command");
    allocation_counter::measure(|| {
        let outcome = (command.run)(&mut Context {
            keyspace,
            db: DbIndex(0),
            args: request.args(),
            now_ms: 1,
            reply: &mut reply,
            effects: &mut effects,
            mode: Mode::Client,
        });
        assert!(matches!(outcome, Outcome::Reply));
    })
}

/// Beginning a capture allocates nothing, and after a capture, a command allocates no more than
/// before the capture.
#[test]
fn without_a_capture_a_value_is_replaced_in_place() {
    let mut driver = Driver::new(1);
    let value = vec![b'v'; 4096];
    for index in 0..2000 {
        let key = format!("key:{index:04}");
        let size = if index % 2 == 0 { 4096 } else { 64 };
        driver.run(&[b"SET", key.as_bytes(), &value[..size]]);
    }
    let large = OwnedRequest::from_args([&b"SET"[..], b"key:0010", &value]);
    let small = OwnedRequest::from_args([&b"SET"[..], b"key:0011", &value[..64]]);
    let nothing = |keyspace: &mut Keyspace| {
        for request in [&large, &small] {
            assert_eq!(allocated(keyspace, request).count_total, 0);
        }
    };
    nothing(&mut driver.keyspace);
    let info =
        allocation_counter::measure(|| driver.keyspace.begin_capture(CaptureKind::PointInTime));
    assert_eq!(info.count_total, 0, "allocations to begin a capture");
    // The first write moves the old value to the capture. The capture does not share the new value,
    // so later writes are in place again.
    assert!(allocated(&mut driver.keyspace, &large).count_total <= 4);
    assert!(allocated(&mut driver.keyspace, &small).count_total <= 1);
    nothing(&mut driver.keyspace);
    let mut out = Vec::new();
    finish(&mut driver.keyspace, &mut out);
    drop(out);
    nothing(&mut driver.keyspace);
}

/// A pre-image is an entry that the capture takes because a command is about to change it. The
/// counted size of the pre-images that wait to be handed out agrees with what the allocator counts.
#[test]
fn the_memory_of_pre_images_is_counted() {
    for size in [40, 4096] {
        let mut driver = Driver::new(1);
        let requests: Vec<_> = (0..2000)
            .map(|index| {
                let key = format!("key:{index:04}");
                OwnedRequest::from_args([b"SET", key.as_bytes(), &vec![b'v'; size]])
            })
            .collect();
        for request in &requests {
            driver.run_request(request);
        }
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        let mut grown = 0;
        for request in &requests {
            grown += allocated(&mut driver.keyspace, request).bytes_current;
        }
        let stats = driver.keyspace.capture_stats();
        assert_eq!((stats.taken, stats.shared_size), (2000, 0));
        let owned = stats.owned_size as i64;
        assert!((owned - grown).abs() < grown / 20, "{owned} of {grown} bytes counted");
        let mut out = Vec::new();
        while driver.keyspace.capture_stats().owned_size > 0 {
            step(&mut driver.keyspace, 1, &mut out);
        }
        let handed: usize = out.iter().map(Captured::owned_size).sum();
        assert!(handed >= stats.owned_size);
        finish(&mut driver.keyspace, &mut out);
        assert_eq!(captured(&out).len(), 2000);
    }
}

/// One of several databases is flushed. The capture still takes the entries of this database step
/// by step. The memory of the database is freed step by step, too.
#[test]
fn a_flushed_database_is_captured_in_steps() {
    let mut driver = Driver::new(1);
    for index in 0..20_000 {
        driver.db = DbIndex(index % 2);
        driver.run(&["SET", &format!("key:{index}"), "value"]);
    }
    driver.keyspace.begin_capture(CaptureKind::PointInTime);
    let expected = contents(&driver.keyspace);
    let mut out = Vec::new();
    step(&mut driver.keyspace, 2000, &mut out);
    for _ in 0..2 {
        driver.db = DbIndex(0);
        driver.run(&["FLUSHDB"]);
        driver.run(&["SET", "key:0", "new"]);
    }
    assert_eq!(driver.keyspace.dbsize(DbIndex(0)), 1);
    let mut held = driver.keyspace.capture_stats().flushed_size;
    assert!(held > 8_000 * 40, "{held} bytes");
    let mut steps = 0;
    while held > 0 {
        let info = allocation_counter::measure(|| step(&mut driver.keyspace, 100, &mut out));
        assert!(info.bytes_current > -20_000, "{} freed", info.bytes_current);
        let now = driver.keyspace.capture_stats().flushed_size;
        assert!(now < held);
        held = now;
        steps += 1;
    }
    assert!(steps > 50, "{steps} steps");
    finish(&mut driver.keyspace, &mut out);
    assert!(captured(&out) == expected);
    assert!(
        driver.keyspace.take_garbage().is_some(),
        "the entries of the second flush are garbage"
    );
}

/// As in Redis, flushing everything ends a capture. The next capture can begin at once.
#[test]
fn flushing_everything_ends_a_capture() {
    for (command, all) in [("FLUSHALL", true), ("FLUSHDB", true), ("FLUSHDB", false)] {
        let mut driver = Driver::new(1);
        driver.run(&["SET", "a", "1"]);
        if !all {
            driver.db = DbIndex(2);
            driver.run(&["SET", "b", "2"]);
            driver.db = DbIndex(0);
        }
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        driver.run(&["SET", "a", "3"]);
        driver.run(&[command]);
        let state = driver.keyspace.capture_state();
        assert_eq!(state, if all { CaptureState::Flushed } else { CaptureState::Running });
        let mut out = Vec::new();
        step(&mut driver.keyspace, 1000, &mut out);
        assert_eq!(out.is_empty(), all);
        driver.keyspace.end_capture();
        assert_eq!(driver.keyspace.capture_state(), CaptureState::Idle);
        driver.run(&["SET", "c", "4"]);
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        let (expected, mut out) = (contents(&driver.keyspace), Vec::new());
        finish(&mut driver.keyspace, &mut out);
        assert_eq!(captured(&out), expected);
    }
    // Flushing also ends a complete capture, because the capture is not a snapshot yet.
    let mut driver = Driver::new(1);
    driver.run(&["SET", "a", "1"]);
    driver.keyspace.begin_capture(CaptureKind::PointInTime);
    step(&mut driver.keyspace, 1000, &mut Vec::new());
    assert_eq!(driver.keyspace.capture_state(), CaptureState::Complete);
    driver.run(&["FLUSHALL"]);
    assert_eq!(driver.keyspace.capture_state(), CaptureState::Flushed);
    driver.keyspace.end_capture();
    // After a capture was given up, the next capture can begin only after further steps (the state
    // is `Settling`). If everything is flushed, no further steps are needed.
    for index in 0..100 {
        driver.run(&["SET", &format!("key:{index}"), "1"]);
    }
    driver.keyspace.begin_capture(CaptureKind::PointInTime);
    driver.keyspace.end_capture();
    assert_eq!(driver.keyspace.capture_state(), CaptureState::Settling);
    driver.run(&["FLUSHALL"]);
    assert_eq!(driver.keyspace.capture_state(), CaptureState::Idle);
}

/// If databases are swapped during a capture, each entry is handed out with the number that its
/// database had when the capture began.
#[test]
fn databases_that_change_places_are_captured_as_they_were() {
    let mut driver = Driver::new(1);
    for db in 0..3 {
        driver.db = DbIndex(db);
        for index in 0..500 {
            driver.run(&["SET", &format!("key:{index}"), &format!("of {db}")]);
        }
    }
    for first in 0..20 {
        driver.keyspace.begin_capture(CaptureKind::PointInTime);
        let expected = contents(&driver.keyspace);
        let mut out = Vec::new();
        step(&mut driver.keyspace, first * 100, &mut out);
        for (a, b) in [("0", "1"), ("1", "2"), ("0", "15")] {
            driver.run(&["SWAPDB", a, b]);
            driver.run(&["MOVE", "key:77", "4"]);
            driver.run(&["INCR", "key:1"]);
            driver.run(&["EXPIRE", "key:2", "-1"]);
            step(&mut driver.keyspace, 100, &mut out);
        }
        finish(&mut driver.keyspace, &mut out);
        assert!(captured(&out) == expected, "swapped after a step of {first} hundred entries");
        for (a, b) in [("0", "15"), ("1", "2"), ("0", "1")] {
            driver.run(&["SWAPDB", a, b]);
        }
    }
}
