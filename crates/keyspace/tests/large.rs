//! No step takes time in proportion to the size of a large value or a large database.

mod common;
#[path = "large/dumps.rs"]
mod dumps;
#[path = "large/hashes.rs"]
mod hashes;
#[path = "large/huge.rs"]
mod huge;
#[path = "large/lists.rs"]
mod lists;
#[path = "large/sets.rs"]
mod sets;
#[path = "large/steps.rs"]
mod steps;

use common::Driver;
use slimio_keyspace::{Context, DbIndex, Effects, Mode, Outcome, command_table};
use slimio_resp::{BLOB_PIECE_SIZE, Blob, OwnedRequest, ReplyBuf};
use slimio_testing::random::{Generator, seed};

const MB: usize = 1024 * 1024;

/// Runs a command. Returns its reply, and how many bytes the command has allocated.
fn allocated(driver: &mut Driver, args: &[&[u8]]) -> (Vec<u8>, usize) {
    let request = OwnedRequest::from_args(args);
    let mut reply = Vec::new();
    let info = allocation_counter::measure(|| reply = driver.run_request(&request).0);
    (reply, info.bytes_total as usize)
}

#[test]
fn parts_of_a_string_of_512_mb_touch_only_their_pieces() {
    let mut driver = Driver::new(1);
    let limit = 4 * BLOB_PIECE_SIZE;
    let (reply, cost) = allocated(&mut driver, &[b"SETRANGE", b"k", b"536870910", b"x"]);
    assert_eq!(reply, b":536870911\r\n");
    assert!(cost < limit, "{cost} bytes to make the string");
    let (reply, cost) = allocated(&mut driver, &[b"APPEND", b"k", b"y"]);
    assert_eq!(reply, b":536870912\r\n");
    assert!(cost < limit, "{cost} bytes to append");
    let (reply, cost) = allocated(&mut driver, &[b"SETRANGE", b"k", b"100000000", b"middle"]);
    assert_eq!(reply, b":536870912\r\n");
    assert!(cost < limit, "{cost} bytes to write in the middle");
    let (reply, cost) = allocated(&mut driver, &[b"GETRANGE", b"k", b"99999999", b"100000006"]);
    assert_eq!(reply, b"$8\r\n\0middle\0\r\n");
    assert!(cost < limit, "{cost} bytes to read a part");
    let (reply, _) = allocated(&mut driver, &[b"APPEND", b"k", b"z"]);
    let expected = b"-ERR string exceeds maximum allowed size (proto-max-bulk-len)\r\n";
    assert_eq!(reply, expected);
    let (reply, cost) = allocated(&mut driver, &[b"COPY", b"k", b"copy"]);
    assert_eq!(reply, b":1\r\n");
    assert!(cost < limit, "{cost} bytes to copy");
    let (_, cost) = allocated(&mut driver, &[b"SETRANGE", b"copy", b"0", b"other"]);
    assert!(cost < limit, "{cost} bytes to write to the copy");
    assert_eq!(driver.run(&["GETRANGE", "k", "0", "4"]), b"$5\r\n\0\0\0\0\0\r\n");
    let (_, cost) = allocated(&mut driver, &[b"RENAME", b"k", b"renamed"]);
    assert!(cost < limit, "{cost} bytes to rename");
}

#[test]
fn a_received_value_is_taken_over_and_sent_without_copying() {
    let mut driver = Driver::new(1);
    let value = Blob::from_bytes(&vec![b'v'; 10 * MB]);
    let mut request = OwnedRequest::from_args(["SET", "k"]);
    request.push_blob(value.clone());
    let run = |driver: &mut Driver, request: &OwnedRequest| {
        let mut reply = ReplyBuf::default();
        let name = request.args().bytes(0);
        let command = command_table().lookup(&name).expect("a command");
        let outcome = (command.run)(&mut Context {
            keyspace: &mut driver.keyspace,
            db: DbIndex(0),
            args: request.args(),
            now_ms: 1,
            reply: &mut reply,
            effects: &mut Effects::new(),
            mode: Mode::Client,
        });
        assert!(matches!(outcome, Outcome::Reply));
        reply
    };
    // The command table is built when it is first used. This must not happen during a measurement.
    command_table();
    let info = allocation_counter::measure(|| drop(run(&mut driver, &request)));
    assert!(info.bytes_total < 10_000, "{} bytes to set", info.bytes_total);
    let get = OwnedRequest::from_args(["GET", "k"]);
    let reply = run(&mut driver, &get);
    let segments: Vec<_> = reply.segments(0..reply.len()).collect();
    assert_eq!(segments.len(), value.pieces().len() + 2);
    assert!(std::ptr::eq(segments[1].as_ptr(), value.pieces()[0].as_ptr()));
}

#[test]
fn what_is_large_is_handed_out_to_be_freed() {
    let mut driver = Driver::new(1);
    let value = vec![b'v'; MB];
    let fill = |driver: &mut Driver| {
        driver.run(&[b"SET", &b"k"[..], &value]);
        assert!(driver.keyspace.take_garbage().is_none());
    };
    let cases: [&[&str]; 7] = [
        &["DEL", "k"],
        &["UNLINK", "k"],
        &["SET", "k", "small"],
        &["GETDEL", "k"],
        &["EXPIRE", "k", "-1"],
        &["FLUSHDB", "SYNC"],
        &["FLUSHALL"],
    ];
    for command in cases {
        fill(&mut driver);
        let request = OwnedRequest::from_args(command);
        let info = allocation_counter::measure(|| drop(driver.run_request(&request)));
        // The command itself has freed much less than the value takes, because it leaves the value
        // to the garbage.
        assert!(info.bytes_current > -100_000, "{command:?} freed {}", info.bytes_current);
        let garbage = driver.keyspace.take_garbage().expect("something to free");
        assert!(!garbage.is_empty());
        driver.run(&["FLUSHALL"]);
        driver.keyspace.take_garbage();
    }
}

/// Runs `KEYS` in steps, with other commands in between. A key that exists during all steps must be
/// found exactly once.
#[test]
fn keys_in_steps_finds_what_stays_exactly_once() {
    let mut driver = Driver::new(7);
    for index in 0..50_000 {
        driver.run(&["SET", &format!("stays:{index}"), "v"]);
    }
    let request = OwnedRequest::from_args(["KEYS", "stays:*"]);
    let mut reply = ReplyBuf::default();
    let (mut steps, mut outcome) = (0, None);
    loop {
        let mut effects = Effects::new();
        let mut context = Context {
            keyspace: &mut driver.keyspace,
            db: DbIndex(0),
            args: request.args(),
            now_ms: 1,
            reply: &mut reply,
            effects: &mut effects,
            mode: Mode::Client,
        };
        outcome = Some(match outcome.take() {
            None => (command_table().lookup(b"keys").expect("a command").run)(&mut context),
            Some(Outcome::Yield(yielded)) => yielded.resume(&mut context),
            Some(other) => panic!("unexpected outcome: {other:?}"),
        });
        assert!(effects.is_empty());
        if let Some(Outcome::Reply) = outcome {
            break;
        }
        assert!(reply.is_empty(), "nothing is replied before the end");
        // In the first steps, buckets are split; in the other steps, buckets are merged.
        for index in 0..20_000 {
            let command = if steps < 3 { "SET" } else { "DEL" };
            let key = format!("goes:{}", (steps % 3) * 20_000 + index);
            let args = [command, &key, "v"];
            driver.run(&args[..if steps < 3 { 3 } else { 2 }]);
        }
        steps += 1;
    }
    assert!(steps >= 3, "{steps} steps");
    let text = String::from_utf8(common::bytes(&reply)).expect("text");
    let mut found: Vec<&str> = text.lines().filter(|line| line.starts_with("stays:")).collect();
    found.sort_unstable();
    found.dedup();
    assert_eq!(found.len(), 50_000);
    assert!(text.starts_with("*50000\r\n"));
}

#[test]
fn random_keys_among_the_dead_are_found_in_steps() {
    let mut driver = Driver::new(7);
    for index in 0..1_000 {
        driver.run(&["SET", &format!("dead:{index}"), "v", "PXAT", "5"]);
    }
    driver.run(&["SET", "alive", "v"]);
    driver.now_ms = 6;
    let request = OwnedRequest::from_args(["RANDOMKEY"]);
    let (reply, steps) = driver.run_request(&request);
    assert_eq!(reply, b"$5\r\nalive\r\n");
    assert!(steps.len() <= 11);
    driver.run(&["DEL", "alive"]);
    assert_eq!(driver.run(&["RANDOMKEY"]), b"$-1\r\n");
    assert_eq!(driver.keyspace.dbsize(DbIndex(0)), 0);
    assert_eq!(driver.keyspace.stats().expired_keys, 1_000);
}

#[test]
fn active_expiry_keeps_to_its_budget_and_finds_everything() {
    let mut driver = Driver::new(7);
    for index in 0..20_000 {
        let key = format!("key:{index}");
        match index % 4 {
            0 => driver.run(&["SET", &key, "v", "PXAT", "5"]),
            1 => driver.run(&["SET", &key, "v", "PXAT", "100005"]),
            _ => driver.run(&["SET", &key, "v"]),
        };
    }
    let (mut expired, mut steps) = (0, 0);
    loop {
        let mut effects = Effects::new();
        let step = driver.keyspace.expire_step(DbIndex(0), 6, 100, &mut effects);
        assert!(step.examined < 200, "{step:?}");
        expired += step.expired;
        steps += 1;
        if step.wrapped {
            break;
        }
    }
    assert_eq!(expired, 5_000);
    assert!(steps > 100);
    assert_eq!(driver.keyspace.dbsize(DbIndex(0)), 15_000);
    assert_eq!(driver.keyspace.expiring(DbIndex(0)), 5_000);
    let mean_ms = driver.keyspace.ttl_mean_ms(DbIndex(0));
    assert!((90_000..=100_000).contains(&mean_ms), "{mean_ms}");
}

/// While nothing can be logged, reads reply as usual, but do not delete expired keys.
#[test]
fn frozen_reads_change_nothing() {
    let seed = seed();
    let mut generator = Generator { now_ms: 1_000_000, ..Generator::new(seed, 3_000) };
    let mut driver = Driver::new(seed);
    driver.now_ms = 1_000_000;
    for _ in 0..300 {
        driver.run(&generator.command());
        driver.check();
    }
    driver.now_ms += 1_500;
    let mut frozen_replies = Vec::new();
    for mode in [Mode::Frozen, Mode::Client] {
        let mut replies = Vec::new();
        for index in 0..10 {
            for name in ["EXISTS", "GET", "TTL", "TYPE", "STRLEN", "MGET"] {
                let request = OwnedRequest::from_args([name, &format!("k{index}")]);
                let mut reply = ReplyBuf::default();
                let mut effects = Effects::new();
                let command = command_table().lookup(name.as_bytes()).expect("a command");
                (command.run)(&mut Context {
                    keyspace: &mut driver.keyspace,
                    db: driver.db,
                    args: request.args(),
                    now_ms: driver.now_ms,
                    reply: &mut reply,
                    effects: &mut effects,
                    mode,
                });
                assert!(mode != Mode::Frozen || effects.is_empty());
                replies.push(common::bytes(&reply));
            }
        }
        if mode == Mode::Frozen {
            frozen_replies = replies;
        } else {
            assert!(frozen_replies == replies);
        }
    }
}
