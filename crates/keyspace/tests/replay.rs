//! Replaying the log of random commands gives the same data set.

mod common;
#[path = "common/contents.rs"]
mod contents;

use common::Driver;
use slimio_keyspace::{ApplyError, Config, DbIndex, Effects, Keyspace, Payload, Touched, no_args};
use slimio_resp::OwnedRequest;
use slimio_testing::random::{Generator, seed};

const COMMANDS: usize = 60_000;

type Contents = Vec<(Vec<u8>, Vec<Vec<u8>>, Option<i64>)>;

/// Every key of a database with its value and expiry, sorted.
fn contents(keyspace: &Keyspace, db: u16) -> Contents {
    let mut contents: Contents = keyspace
        .entries(DbIndex(db))
        .map(|entry| (entry.key.to_vec(), contents::words(entry.value), entry.expires_at_ms))
        .collect();
    contents.sort();
    contents
}

#[test]
fn replaying_the_log_gives_the_same_data() {
    let seed = seed();
    let mut generator = Generator::new(seed, 3_000);
    let mut live = Driver::new(seed);
    live.now_ms = 1_700_000_000_000;
    // The replayed keyspace has a different seed, because nothing may depend on the order of the
    // keys.
    let mut replayed = Keyspace::new(Config::default(), u128::from(seed) << 64 | 1);
    let (mut logged, mut expired) = (0, 0);
    for step in 0..COMMANDS {
        live.now_ms += generator.rng.usize(..20) as i64;
        generator.now_ms = live.now_ms;
        if generator.rng.usize(..50) == 0 {
            live.db = DbIndex(generator.rng.usize(..3) as u16);
        }
        let record_db = live.db;
        if generator.rng.usize(..20) == 0 {
            live.payload.begin(record_db);
            live.in_transaction = true;
            for _ in 0..generator.rng.usize(..5) {
                live.run(&generator.command());
                live.db = DbIndex(generator.rng.usize(..3) as u16);
            }
            live.in_transaction = false;
        } else {
            live.run(&generator.command());
        }
        logged += usize::from(!live.payload.bytes().is_empty());
        replayed.apply(record_db, live.payload.bytes()).expect("a logged command can be replayed");
        if generator.rng.usize(..100) == 0 {
            expired += expire(&mut live, &mut replayed);
        }
        live.check();
        if step % 50 == 0 || step + 1 == COMMANDS {
            for db in 0..3 {
                let (ours, theirs) = (contents(&live.keyspace, db), contents(&replayed, db));
                assert!(ours == theirs, "step {step}, db {db}: {ours:?}\n{theirs:?}");
                let expiring = ours.iter().filter(|entry| entry.2.is_some()).count();
                assert_eq!(live.keyspace.expiring(DbIndex(db)), expiring);
                assert_eq!(replayed.expiring(DbIndex(db)), expiring);
                assert_eq!(live.keyspace.dbsize(DbIndex(db)), ours.len());
            }
            replayed.check();
        }
    }
    assert!(logged > COMMANDS / 6, "too little was logged: {logged}");
    assert!(expired > 0, "active expiry deleted nothing");
    assert!(live.keyspace.stats().expired_keys > expired as u64, "no command found an expired key");
}

/// Runs a step of active expiry, and replays its log record. Returns the count of expired keys.
fn expire(live: &mut Driver, replayed: &mut Keyspace) -> usize {
    let mut effects = Effects::new();
    let step = live.keyspace.expire_step(live.db, live.now_ms, 1000, &mut effects);
    assert_eq!(effects.touched(no_args()).count(), step.expired);
    let mut payload = Payload::default();
    payload.begin(live.db);
    payload.add(&effects, no_args());
    replayed.apply(live.db, payload.bytes()).expect("deletions can be replayed");
    step.expired
}

#[test]
fn touched_keys_are_those_that_changed() {
    let seed = seed();
    let mut generator = Generator::new(seed, 3_000);
    let mut live = Driver::new(seed);
    live.now_ms = 1_700_000_000_000;
    for _ in 0..10_000 {
        live.now_ms += generator.rng.usize(..20) as i64;
        generator.now_ms = live.now_ms;
        let before: Vec<_> = (0..3).map(|db| contents(&live.keyspace, db)).collect();
        let request = OwnedRequest::from_args(generator.command());
        let (_, effects) = live.run_request(&request);
        let mut dbs = [false; 3];
        let (mut keys, mut named) = (Vec::new(), Vec::new());
        for touched in effects.iter().flat_map(|effects| effects.touched(request.args())) {
            match touched {
                Touched::Db(db) => {
                    if let Some(all) = dbs.get_mut(usize::from(db.0)) {
                        *all = true;
                    }
                }
                Touched::Key { db, hash, key } => {
                    assert_eq!(hash, live.keyspace.hash(&key.to_bytes()));
                    keys.push((db.0, key.to_bytes().into_owned()));
                }
            }
        }
        // Every changed key must have an event, so that a listener, which is told only of events,
        // misses no change.
        for noted in effects.iter().flat_map(|e| e.noted(0..e.noted_count(), request.args())) {
            if let Some(key) = noted.key
                && noted.events().next().is_some()
            {
                named.push((noted.db.0, key.to_bytes().into_owned()));
            }
        }
        assert!(keys.iter().all(|key| named.contains(key)), "{request:?}: {keys:?}, {named:?}");
        for db in 0..3u16 {
            let after = contents(&live.keyspace, db);
            let before = &before[usize::from(db)];
            let changed = before
                .iter()
                .filter(|entry| !after.contains(entry))
                .chain(after.iter().filter(|entry| !before.contains(entry)));
            for (key, ..) in changed {
                let told = dbs[usize::from(db)] || keys.contains(&(db, key.clone()));
                assert!(
                    told,
                    "{request:?} changed {key:?} of db {db}, but does not report the key as touched"
                );
            }
        }
    }
}

#[test]
fn a_payload_that_is_none_is_refused() {
    let mut keyspace = Keyspace::new(Config { db_count: 2, ..Config::default() }, 1);
    let mut apply = |payload: &[u8]| keyspace.apply(DbIndex(0), payload);
    assert_eq!(apply(b""), Ok(0));
    assert_eq!(apply(b"\x03\x03SET\x01k\x01v"), Ok(1));
    for malformed in [
        &b"\x03"[..],
        b"\x00",
        b"\x01\x05abc",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01",
        b"\x01\x80",
    ] {
        assert_eq!(apply(malformed), Err(ApplyError::Malformed), "{malformed:?}");
    }
    assert_eq!(apply(b"\x01\x04NOPE"), Err(ApplyError::UnknownCommand("NOPE".into())));
    assert_eq!(apply(b"\x01\x03SET"), Err(ApplyError::UnknownCommand("SET".into())));
    assert_eq!(apply(b"\x02\x06SELECT\x012"), Err(ApplyError::NoSuchDb(2)));
    let failed = "ERR value is not an integer or out of range";
    assert_eq!(apply(b"\x02\x04INCR\x01k"), Err(ApplyError::Failed(failed.into())));
    assert_eq!(keyspace.apply(DbIndex(2), b""), Err(ApplyError::NoSuchDb(2)));
    assert!(keyspace.contains(DbIndex(0), b"k", 0));
}

/// Replaying commands that are never logged may fail with an error, but must not panic.
#[test]
fn any_commands_in_a_log_are_survived() {
    let seed = seed();
    let mut generator = Generator::new(seed, 3_000);
    let mut keyspace = Keyspace::new(Config::default(), u128::from(seed));
    let mut effects = Effects::new();
    effects.log_request(DbIndex(0));
    let (mut payload, mut failed) = (Payload::default(), 0);
    for step in 0..20_000 {
        payload.begin(DbIndex(0));
        payload.add(&effects, OwnedRequest::from_args(generator.command()).args());
        failed += usize::from(keyspace.apply(DbIndex(0), payload.bytes()).is_err());
        let mut broken = payload.bytes().to_vec();
        let index = generator.rng.usize(..broken.len());
        broken[index] = generator.rng.u64(..) as u8;
        failed += usize::from(keyspace.apply(DbIndex(0), &broken).is_err());
        if step % 8 == 0 {
            keyspace.check();
        }
    }
    assert!(failed > 1_000, "only {failed} failed");
    assert_eq!(
        keyspace.apply(DbIndex(0), b"\x04\x08SETRANGE\x01f\x132000000000000000000\x01x"),
        Err(ApplyError::Failed(
            "ERR string exceeds maximum allowed size (proto-max-bulk-len)".into()
        ))
    );
}

/// Commands are logged with absolute times, with deletions in place of past expiries, and without
/// options that affect only the reply.
#[test]
fn effects_are_what_redis_would_propagate() {
    let now = 1_000_000;
    let cases: [(&[&str], &[&str]); 77] = [
        (&["SET", "k", "v"], &["SET k v"]),
        (&["SET", "k", "v", "EX", "10"], &["SET k v PXAT 1010000"]),
        (&["set", "k", "v", "px", "10", "nx"], &[]),
        (&["SET", "k", "v", "GET"], &["SET k v"]),
        (&["SET", "k", "v", "GET", "XX", "KEEPTTL"], &["SET k v XX KEEPTTL"]),
        (&["SETEX", "k", "10", "v"], &["SET k v PXAT 1010000"]),
        (&["PSETEX", "k", "10", "v"], &["SET k v PXAT 1000010"]),
        (&["GETEX", "k"], &[]),
        (&["GETEX", "k", "EX", "7"], &["PEXPIREAT k 1007000"]),
        (&["GETEX", "k", "PERSIST"], &["PERSIST k"]),
        (&["GETEX", "k", "PERSIST"], &[]),
        (&["EXPIRE", "k", "7", "GT"], &[]),
        (&["EXPIRE", "k", "7", "LT"], &["PEXPIREAT k 1007000"]),
        (&["PERSIST", "k"], &["PERSIST k"]),
        (&["GETSET", "k", "w"], &["SET k w"]),
        (&["INCRBYFLOAT", "f", "1.5"], &["SET f 1.5 KEEPTTL"]),
        (&["GETDEL", "f"], &["DEL f"]),
        (&["GETDEL", "f"], &[]),
        (&["DEL", "f", "g"], &[]),
        (&["UNLINK", "k", "g"], &["UNLINK k g"]),
        (&["SET", "k", "v"], &["SET k v"]),
        (&["EXPIRE", "k", "-1"], &["DEL k"]),
        (&["MSETNX", "a", "1", "b", "2"], &["MSETNX a 1 b 2"]),
        (&["COPY", "a", "c", "DB", "1"], &["COPY a c DB 1"]),
        (&["HSET", "h", "f", "1", "g", "2"], &["HSET h f 1 g 2"]),
        (&["HMSET", "h", "f", "1"], &["HMSET h f 1"]),
        (&["HSETNX", "h", "f", "3"], &[]),
        (&["HSETNX", "h", "i", "3"], &["HSETNX h i 3"]),
        (&["HINCRBY", "h", "i", "4"], &["HINCRBY h i 4"]),
        (&["HINCRBYFLOAT", "h", "i", "0.5"], &["HSET h i 7.5"]),
        (&["HDEL", "h", "none"], &[]),
        (&["HDEL", "h", "none", "f"], &["HDEL h none f"]),
        (&["HGETALL", "h"], &[]),
        (&["HDEL", "h", "g", "i"], &["HDEL h g i"]),
        (&["HDEL", "h", "g"], &[]),
        (&["HSET", "a", "f", "1"], &[]),
        (&["SADD", "s", "1"], &["SADD s 1"]),
        (&["SADD", "s", "1"], &[]),
        (&["SPOP", "s"], &["SREM s 1"]),
        (&["SPOP", "s"], &[]),
        (&["SADD", "s", "1", "2"], &["SADD s 1 2"]),
        (&["SPOP", "s", "0"], &[]),
        (&["SPOP", "s", "2"], &["DEL s"]),
        (&["SADD", "s", "1", "a"], &["SADD s 1 a"]),
        (&["SREM", "s", "b"], &[]),
        (&["SREM", "s", "b", "1"], &["SREM s b 1"]),
        (&["SMOVE", "s", "t", "b"], &[]),
        (&["SMOVE", "s", "t", "a"], &["SMOVE s t a"]),
        (&["SMOVE", "t", "t", "a"], &[]),
        (&["SUNIONSTORE", "u", "t", "none"], &["SUNIONSTORE u t none"]),
        (&["SINTERSTORE", "u", "t", "none"], &["DEL u"]),
        (&["SDIFFSTORE", "u", "none", "t"], &[]),
        (&["SINTERSTORE", "u", "a", "t"], &[]),
        (&["RPUSH", "l", "a", "b", "c"], &["RPUSH l a b c"]),
        (&["LPUSH", "l", "b"], &["LPUSH l b"]),
        (&["LPUSHX", "m", "b"], &[]),
        (&["RPUSHX", "l", "d", "e", "b"], &["RPUSHX l d e b"]),
        (&["LPOP", "l"], &["LPOP l"]),
        (&["RPOP", "l", "0"], &[]),
        (&["RPOP", "m", "3"], &[]),
        (&["RPOP", "l", "2"], &["RPOP l 2"]),
        (&["LSET", "l", "9", "x"], &[]),
        (&["LSET", "l", "-1", "x"], &["LSET l -1 x"]),
        (&["LINSERT", "l", "BEFORE", "none", "y"], &[]),
        (&["LINSERT", "l", "BEFORE", "x", "y"], &["LINSERT l BEFORE x y"]),
        (&["LREM", "l", "0", "none"], &[]),
        (&["LREM", "l", "-1", "y"], &["LREM l -1 y"]),
        (&["LTRIM", "m", "0", "1"], &[]),
        (&["LTRIM", "l", "0", "2"], &["LTRIM l 0 2"]),
        (&["LMOVE", "m", "n", "LEFT", "LEFT"], &[]),
        (&["LMOVE", "l", "m", "LEFT", "RIGHT"], &["LMOVE l m LEFT RIGHT"]),
        (&["RPOPLPUSH", "l", "l"], &["RPOPLPUSH l l"]),
        (&["LMPOP", "2", "none", "l", "LEFT", "COUNT", "7"], &["LPOP l 2"]),
        (&["LMPOP", "1", "m", "RIGHT"], &["RPOP m 1"]),
        (&["LMPOP", "2", "l", "m", "RIGHT"], &[]),
        (&["RPUSH", "m", "a"], &["RPUSH m a"]),
        (&["LTRIM", "m", "5", "7"], &["LTRIM m 5 7"]),
    ];
    let mut driver = Driver::new(1);
    driver.now_ms = now;
    for (command, expected) in cases {
        driver.run(command);
        assert_eq!(words(driver.payload.bytes()), expected, "{command:?}");
    }
    // The key has expired in a database other than the client's. The deletion is logged in that
    // database; the other effects are logged in the client's database.
    driver.run(&["SET", "x", "1"]);
    driver.db = DbIndex(1);
    driver.run(&["SET", "x", "old", "PX", "5"]);
    driver.db = DbIndex(0);
    driver.now_ms += 6;
    driver.run(&["MOVE", "x", "1"]);
    let expected = ["SELECT 1", "DEL x", "SELECT 0", "MOVE x 1"];
    assert_eq!(words(driver.payload.bytes()), expected);
}

/// The commands of a payload, as words.
fn words(payload: &[u8]) -> Vec<String> {
    let mut bytes = payload.iter().copied();
    let mut commands = Vec::new();
    while let Some(count) = bytes.next() {
        let words: Vec<String> = (0..count)
            .map(|_| {
                let size = usize::from(bytes.next().expect("a size"));
                String::from_utf8(bytes.by_ref().take(size).collect()).expect("text")
            })
            .collect();
        commands.push(words.join(" "));
    }
    commands
}
