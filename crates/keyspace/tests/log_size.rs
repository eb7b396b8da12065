//! Before a command runs, it asks for room in the log. It must not append more than it asked for.

mod common;

use std::collections::BTreeMap;

use common::Driver;
use slimio_keyspace::{
    Context, DbIndex, Effects, EvictionConfig, EvictionPolicy, Flags, Mode, Outcome, Payload,
    Steps, command_table, debug_populate, populate_log_size_max,
};
use slimio_resp::{OwnedRequest, ReplyBuf};
use slimio_testing::random::{Generator, seed};

/// At most this many commands are tried to reach every row of the command table.
const COMMANDS_MAX: usize = 200_000;
/// How often each row of the table must have had an effect.
const REACHED_MIN: u32 = 20;

/// How much additional room a request asks for because of the values of its keys.
fn weigh(driver: &Driver, words: &[Vec<u8>]) -> u64 {
    let request = OwnedRequest::from_args(words);
    let weigh = command_table().lookup(&words[0]).and_then(|row| row.weigh);
    weigh.map_or(0, |weigh| weigh(&driver.keyspace, driver.db, request.args()).log_size)
}

/// Runs a whole command. Returns its reply and the size of its log payload.
fn run(driver: &mut Driver, words: &[Vec<u8>], limit: u64) -> Option<(Vec<u8>, u64)> {
    let request = OwnedRequest::from_args(words);
    let args = request.args();
    let row = command_table().lookup(&args.bytes(0))?;
    if !row.accepts(args.len()) {
        return None;
    }
    let (mut reply, mut effects) = (ReplyBuf::new(driver.protocol), Effects::new());
    effects.limit(limit);
    effects.limit_values(weigh(driver, words));
    let outcome = (row.run)(&mut Context {
        keyspace: &mut driver.keyspace,
        db: driver.db,
        args,
        now_ms: driver.now_ms,
        reply: &mut reply,
        effects: &mut effects,
        mode: Mode::Atomic,
    });
    match outcome {
        Outcome::Reply => {}
        Outcome::Block(block) => block.nothing.reply(&mut reply),
        other => panic!("unexpected outcome: {other:?}"),
    }
    let mut payload = Payload::default();
    payload.begin(driver.db);
    payload.add(&effects, args);
    Some((common::bytes(&reply), payload.bytes().len() as u64))
}

fn words(line: &str) -> Vec<Vec<u8>> {
    line.split(' ').map(|word| word.as_bytes().to_vec()).collect()
}

fn drivers<const COUNT: usize>(seed: u64) -> ([Driver; COUNT], Generator) {
    let drivers = std::array::from_fn(|_| {
        let mut driver = Driver::new(seed);
        driver.now_ms = 1_000_000;
        driver
    });
    (drivers, Generator { now_ms: 1_000_000, ..Generator::new(seed, 300) })
}

#[test]
fn every_command_logs_at_most_what_it_asks_for() {
    let seed = seed();
    let ([mut driver], mut generator) = drivers(seed);
    let writes = command_table().rows().iter().filter(|row| row.flags.has(Flags::WRITE));
    let mut reached: BTreeMap<&str, u32> = writes.map(|row| (row.name, 0)).collect();
    for _ in 0..COMMANDS_MAX {
        if reached.values().all(|&count| count >= REACHED_MIN) {
            break;
        }
        driver.db = DbIndex(generator.rng.usize(..3) as u16);
        driver.now_ms += [0, 0, 1, 50][generator.rng.usize(..4)];
        generator.now_ms = driver.now_ms;
        let words = generator.command();
        let request = OwnedRequest::from_args(&words);
        let row = command_table().lookup(&words[0]).unwrap();
        if !row.accepts(words.len()) {
            continue;
        }
        let asked = row.log_size_max(request.args()) + weigh(&driver, &words);
        let Some((reply, size)) = run(&mut driver, &words, u64::MAX) else { continue };
        assert!(!reply.starts_with(b"-MISCONF"), "{words:?} lacks the room that it asked for");
        driver.check();
        let Some(count) = reached.get_mut(row.name) else { continue };
        assert!(size <= asked, "{words:?} takes {size} bytes, and asked for {asked}");
        *count += u32::from(size > 0);
    }
    let missed: Vec<_> = reached.iter().filter(|(_, count)| **count < REACHED_MIN).collect();
    assert!(missed.is_empty(), "hardly ever had an effect: {missed:?}");
}

/// A payload can be longer than its request. The difference is largest if the payload has absolute
/// times, computed numbers, or expired keys in other databases. Such a payload must still fit into
/// the room that the request asked for.
#[test]
fn what_is_longer_than_its_request_is_within_what_it_asks_for() {
    let cases: [(&[&str], &str); 9] = [
        (&["SET k v"], "EXPIRE k 9"),
        (&["SET k v"], "GETEX k EX 9"),
        (&[], "SETEX k 9 v"),
        (&[], "SET k v EX 9"),
        (&["SET k 1e4900"], "INCRBYFLOAT k 1"),
        (&["HSET k f 1e4900"], "HINCRBYFLOAT k f 1"),
        (&["HSET k f 3"], "HINCRBYFLOAT k f 1e-1"),
        (&["SET k v PX 1", "SET l w PX 1"], "MSET k v l w"),
        (&["SET k v PX 1", "SET l w PX 1"], "DEL k l nothing"),
    ];
    let mut longer = 0;
    for (before, line) in cases {
        let ([mut driver], _) = drivers(1);
        driver.now_ms = 1_700_000_000_000;
        for line in before {
            driver.run(&words(line));
        }
        driver.now_ms += 2;
        let (request, words) = (OwnedRequest::from_args(words(line)), words(line));
        let asked = command_table().lookup(&words[0]).unwrap().log_size_max(request.args());
        let (reply, size) = run(&mut driver, &words, u64::MAX).unwrap();
        assert_ne!(reply[0], b'-', "{line}");
        assert!((1..=asked).contains(&size), "{line} takes {size} bytes, and asked for {asked}");
        longer += u32::from(size > words.iter().map(|word| word.len() as u64 + 2).sum());
    }
    assert!(longer >= 6, "few of these cases exceed their request");

    let ([mut driver], _) = drivers(1);
    for db in [4, 15] {
        driver.db = DbIndex(db);
        driver.run(&["SET", "k", "v", "PX", "1"]);
        driver.run(&["SET", "l", "v", "PX", "1"]);
    }
    driver.now_ms += 2;
    for line in ["COPY k l DB 4 REPLACE", "MOVE l 4"] {
        let (request, words) = (OwnedRequest::from_args(words(line)), words(line));
        let asked = command_table().lookup(&words[0]).unwrap().log_size_max(request.args());
        let (_, size) = run(&mut driver, &words, u64::MAX).unwrap();
        assert!((1..=asked).contains(&size), "{line} takes {size} bytes, and asked for {asked}");
    }
}

/// The room for a request is computed in three ways. Many arguments are counted in one pass, few
/// arguments are counted by their indices, and the arguments of a long request are counted in
/// parts. All three ways must give the same size.
#[test]
fn many_arguments_ask_for_what_their_parts_ask_for() {
    for name in ["mset", "del", "hset", "unlink", "exists"] {
        let row = command_table().lookup(name.as_bytes()).unwrap();
        for count in [3, 15, 16, 17, 18, 300] {
            let mut words = vec![name.as_bytes().to_vec()];
            words.extend((0..count).map(|n| vec![b'w'; n * 7 % 150]));
            let request = OwnedRequest::from_args(&words);
            let args = request.args();
            let parts = (0..words.len()).map(|n| row.log_size_of(args, n..n + 1));
            let beside = row.log_size_max(args) - parts.sum::<u64>();
            assert_eq!(beside, slimio_keyspace::EFFECT_SIZE_BESIDE, "{name} of {count}");
        }
    }
}

/// `DEBUG POPULATE` also logs no more than it asked for. It may make all keys at once, or in steps,
/// each of which asks for its own room.
#[test]
fn keys_that_are_made_at_once_are_within_what_was_asked_for() {
    let prefixes = [String::new(), format!(" {}", "p".repeat(300))];
    let sizes = ["", " 0", " 1", " 200", " 9000"];
    for (prefix, size) in prefixes.iter().flat_map(|prefix| sizes.map(|size| (prefix, size))) {
        let prefix = if prefix.is_empty() && !size.is_empty() { " k" } else { prefix };
        let line = format!("DEBUG POPULATE 120{prefix}{size}");
        let request = OwnedRequest::from_args(words(&line));
        for mode in [Mode::Atomic, Mode::Client] {
            let ([mut driver], _) = drivers(1);
            // The payload belongs to a record that names database 0 (see `begin` below). Because
            // the command runs in database 15, the payload needs a `SELECT`.
            driver.db = DbIndex(15);
            let (mut reply, mut payload) = (ReplyBuf::new(driver.protocol), Payload::default());
            let mut asked = populate_log_size_max(request.args());
            let mut before: Option<Box<dyn Steps>> = None;
            loop {
                let mut effects = Effects::new();
                let context = &mut Context {
                    keyspace: &mut driver.keyspace,
                    db: driver.db,
                    args: request.args(),
                    now_ms: driver.now_ms,
                    reply: &mut reply,
                    effects: &mut effects,
                    mode,
                };
                let outcome = match before.take() {
                    Some(steps) => steps.resume(context),
                    None => debug_populate(context),
                };
                payload.begin(DbIndex(0));
                payload.add(&effects, request.args());
                let took = payload.bytes().len() as u64;
                assert!(took <= asked, "{line} takes {took} bytes, and asked for {asked}");
                let Outcome::Yield(next) = outcome else { break };
                asked = next.log_size_max().unwrap();
                before = Some(next);
            }
            assert_eq!(driver.keyspace.dbsize(driver.db), 120, "{line}");
        }
    }
}

/// These commands count or find expired keys that were not deleted, or reply with something random.
const OTHERS: &str = "dbsize randomkey scan hscan sscan hrandfield srandmember spop keys";
/// These commands reply in no particular order.
const UNORDERED: &str = "hgetall hkeys hvals smembers sinter sunion sdiff";

/// However little room the log has, a read replies as if expired keys had been deleted.
#[test]
fn a_read_answers_the_same_whatever_room_there_is() {
    let seed = seed();
    let ([mut limited, mut free], mut generator) = drivers(seed);
    let (mut stayed, mut went) = (0, 0);
    for _ in 0..60_000 {
        let db = DbIndex(generator.rng.usize(..2) as u16);
        let passed = [0, 0, 1, 50][generator.rng.usize(..4)];
        for driver in [&mut limited, &mut free] {
            driver.db = db;
            driver.now_ms += passed;
        }
        generator.now_ms = limited.now_ms;
        let words = generator.command();
        let row = command_table().lookup(&words[0]).unwrap();
        if OTHERS.split(' ').any(|name| name == row.name) {
            continue;
        }
        let is_write = row.flags.has(Flags::WRITE);
        let limit = if is_write { u64::MAX } else { generator.rng.usize(..120) as u64 };
        let there = |driver: &Driver| driver.keyspace.dbsize(db);
        let before = there(&limited);
        let Some((reply, size)) = run(&mut limited, &words, limit) else { continue };
        let (expected, all) = run(&mut free, &words, u64::MAX).unwrap();
        let is_ordered = !UNORDERED.split(' ').any(|name| name == row.name);
        assert!(reply == expected || !is_ordered, "{words:?}: {reply:?}, not {expected:?}");
        assert_eq!(reply.len(), expected.len(), "{words:?}");
        assert!(size <= limit, "{words:?} takes {size} of {limit} bytes");
        if !is_write {
            went += u32::from(there(&limited) < before);
            stayed += u32::from(size < all);
        }
    }
    assert!(stayed > 20 && went > 20, "{stayed} stayed, {went} went");
}

#[test]
fn what_nobody_asked_for_keeps_to_its_room() {
    for is_eviction in [false, true] {
        let ([mut driver], _) = drivers(1);
        driver.keyspace.set_eviction(EvictionConfig {
            policy: EvictionPolicy::AllKeysLru,
            ..EvictionConfig::default()
        });
        for number in 0..500 {
            let key = format!("{}{number}", "k".repeat(number * 7 % 3000));
            driver.run(&["SET", &key, "v", "PX", "1"]);
        }
        driver.now_ms += 2;
        let (mut effects, mut payload) = (Effects::new(), Payload::default());
        let mut rounds = 0;
        while driver.keyspace.dbsize(driver.db) > 0 {
            effects.clear();
            effects.limit(5000);
            let before = driver.keyspace.dbsize(driver.db);
            // A step of expiry that ends the walk over the keys may find no key. The next step
            // begins a new walk.
            let has_ended = if is_eviction {
                while driver.keyspace.evict(driver.now_ms, &mut effects).is_some() {}
                false
            } else {
                let (db, now_ms) = (driver.db, driver.now_ms);
                driver.keyspace.expire_step(db, now_ms, 10_000, &mut effects).wrapped
            };
            payload.begin(driver.db);
            payload.add(&effects, slimio_keyspace::no_args());
            assert!(payload.bytes().len() <= 5000, "{}", payload.bytes().len());
            let is_fewer = driver.keyspace.dbsize(driver.db) < before;
            assert!(is_fewer || has_ended, "there was room for another deletion");
            rounds += 1;
        }
        assert!(rounds > 100, "{rounds}");
        // If there is no room, neither expiry nor eviction deletes a key.
        driver.run(&["SET", "k", "v", "PX", "1"]);
        driver.now_ms += 2;
        effects.clear();
        effects.limit(0);
        driver.keyspace.expire_step(driver.db, driver.now_ms, 100, &mut effects);
        assert_eq!(driver.keyspace.evict(driver.now_ms, &mut effects), None);
        assert!(effects.lacked_room() && effects.is_empty());
        assert_eq!(driver.keyspace.dbsize(driver.db), 1);
    }
}
