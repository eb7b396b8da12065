//! A data set stays the same if it is captured, encoded as chunks, decoded on other threads and
//! loaded.

mod common;
#[path = "common/contents.rs"]
mod contents;
#[path = "common/entries.rs"]
mod entries;

use common::Driver;
use entries::contents;
use fastrand::Rng;
use slimio_keyspace::{
    CHUNK_SIZE, CaptureBudget, CaptureKind, CaptureState, Chunk, ChunkEncoder, ChunkError,
    ChunkOptions, Config, Context, DataFn, DbIndex, Effects, EvictionConfig, EvictionPolicy,
    Keyspace, Loader, Mode, WHOLE_SIZE_MAX, decode_chunk, inspect,
};
use slimio_resp::{BLOB_PIECE_SIZE, OwnedRequest, ReplyBuf};
use slimio_testing::random::{Generator, seed};

const NOW_MS: i64 = 1_700_000_000_000;

/// The chunks of a snapshot.
fn snapshot(keyspace: &mut Keyspace, compresses: bool) -> Vec<Vec<u8>> {
    keyspace.begin_capture(CaptureKind::PointInTime);
    let options = ChunkOptions { compresses, eviction: *keyspace.eviction(), now_ms: NOW_MS };
    let mut encoder = ChunkEncoder::new(options);
    for db in (0..16).map(DbIndex).filter(|db| keyspace.dbsize(*db) > 0) {
        encoder.resize_db(db, keyspace.dbsize(db), keyspace.expiring(db));
    }
    let (mut chunks, mut keys) = (Vec::new(), 0);
    let mut emit = |chunk: Chunk<'_>| -> Result<(), ()> {
        assert!(chunk.payload.starts_with(b"\xfe"), "a chunk must begin with its database");
        keys += chunk.keys;
        chunks.push(chunk.payload.to_vec());
        Ok(())
    };
    while keyspace.capture_state() == CaptureState::Running {
        let mut out = Vec::new();
        keyspace.capture_step(CaptureBudget { size: 100_000, entries: 100 }, &mut out);
        for captured in &out {
            encoder.encode(captured, &mut emit).expect("`emit` never fails");
        }
    }
    encoder.finish(&mut emit).expect("`emit` never fails");
    assert_eq!(keys, keyspace.capture_stats().total);
    keyspace.end_capture();
    chunks
}

/// Loads a keyspace from chunks. The chunks are decoded on two threads.
fn load(chunks: &[Vec<u8>], eviction: EvictionConfig) -> Result<Keyspace, ChunkError> {
    // The seed is not that of the captured keyspace, because chunks must not depend on the seed.
    let mut keyspace = Keyspace::new(Config::default(), 0xfeed);
    keyspace.set_eviction(eviction);
    let context = keyspace.decode_context(NOW_MS);
    let half = chunks.len() / 2;
    let decode = |chunks: &[Vec<u8>]| -> Vec<_> {
        chunks.iter().map(|chunk| decode_chunk(chunk, &context)).collect()
    };
    let decoded = std::thread::scope(|scope| {
        let second = scope.spawn(|| decode(&chunks[half..]));
        let mut decoded = decode(&chunks[..half]);
        decoded.extend(second.join().expect("the thread does not panic"));
        decoded
    });
    let mut loader = Loader::new();
    for decoded in decoded {
        keyspace.load(loader.join(decoded?, &context)?)?;
    }
    loader.finish()?;
    assert!(keyspace.used_bytes() > 0, "loading must count the memory");
    Ok(keyspace)
}

#[test]
fn what_is_loaded_is_what_was_captured() {
    let seed = seed();
    let mut generator = Generator { now_ms: NOW_MS, ..Generator::new(seed, 100_000) };
    let mut driver = Driver::new(seed);
    driver.now_ms = NOW_MS;
    for round in 0..300 {
        for _ in 0..50 {
            driver.db = DbIndex(generator.rng.usize(..3) as u16);
            driver.run(&generator.command());
            driver.keyspace.take_garbage();
            driver.check();
        }
        let chunks = snapshot(&mut driver.keyspace, generator.rng.usize(..2) == 0);
        let loaded =
            load(&chunks, EvictionConfig::default()).expect("chunks that were just encoded");
        let (expected, found) = (contents(&driver.keyspace), contents(&loaded));
        assert!(found == expected, "round {round}: {found:?}\n{expected:?}");
        loaded.check();
        for db in (0..16).map(DbIndex) {
            assert_eq!(loaded.expiring(db), driver.keyspace.expiring(db));
            assert_eq!(loaded.dbsize(db), driver.keyspace.dbsize(db));
        }
    }
}

/// Strings and hashes of many megabytes, and a key of half a megabyte, are written in chunks of
/// bounded size.
#[test]
fn large_values_come_in_parts() {
    let mut rng = Rng::with_seed(9);
    let mut noise = |size: usize| -> Vec<u8> { (0..size).map(|_| rng.u64(..) as u8).collect() };
    let mut driver = Driver::new(1);
    for index in 0..1000 {
        driver.run(&[b"SET", format!("before:{index}").as_bytes(), &noise(100)]);
    }
    driver.run(&[b"SET", &b"long"[..], &noise(10 * BLOB_PIECE_SIZE + 77)]);
    driver.run(&[&b"SET"[..], b"zeros", &vec![0; 20 * BLOB_PIECE_SIZE], b"PX", b"100000"]);
    driver.run(&[b"SET", &noise(600_000)[..], &noise(300_000)]);
    driver.run(&[b"HSET", &noise(600_000)[..], b"field", b"value"]);
    driver.run(&[b"SET", &noise(600_000)[..], b"7"]);
    driver.run(&[&b"SET"[..], b"edge", &noise(BLOB_PIECE_SIZE)]);
    for index in 0..20_000 {
        let field = format!("field:{index}");
        driver.run(&[&b"HSET"[..], b"many", field.as_bytes(), &noise(index % 200)]);
    }
    driver.run(&[&b"HSET"[..], b"wide", b"value", &noise(1_000_000)]);
    driver.run(&[&b"HSET"[..], b"wide", &noise(700_000), b"of a long field"]);
    driver.run(&[&b"HSET"[..], b"wide", &noise(300_000), &noise(300_000)]);
    driver.run(&[&b"HSET"[..], b"wide", b"", &noise(100_000), &noise(100_000), b""]);
    for compresses in [true, false] {
        let chunks = snapshot(&mut driver.keyspace, compresses);
        let longest = chunks.iter().map(Vec::len).max().expect("there are chunks");
        assert!(longest < CHUNK_SIZE + 2 * WHOLE_SIZE_MAX + 1000, "a chunk has {longest} bytes");
        assert!(chunks.len() > 30, "only {} chunks", chunks.len());
        let loaded =
            load(&chunks, EvictionConfig::default()).expect("chunks that were just encoded");
        assert!(contents(&loaded) == contents(&driver.keyspace));
        // If a missing chunk holds a part of a value, the load fails.
        let noticed = (0..chunks.len()).filter(|missing| {
            let mut chunks = chunks.clone();
            chunks.remove(*missing);
            load(&chunks, EvictionConfig::default()).is_err()
        });
        assert!(noticed.count() > chunks.len() / 2);
    }
}

/// A snapshot keeps the LFU frequency or the LRU idle time of keys.
#[test]
fn the_last_use_of_keys_is_kept() {
    let cases: [(_, DataFn); 2] = [
        (EvictionPolicy::AllKeysLfu, inspect::object_freq),
        (EvictionPolicy::VolatileLru, inspect::object_idletime),
    ];
    for (policy, ask) in cases {
        let eviction = EvictionConfig { policy, ..EvictionConfig::default() };
        let mut driver = Driver::new(1);
        driver.keyspace.set_eviction(eviction);
        for index in 0..50 {
            let key = format!("key:{index}");
            driver.now_ms = NOW_MS - 100_000 + index * 1000;
            driver.run(&["SET", &key, "value"]);
            for _ in 0..index * 10 {
                driver.run(&["GET", &key]);
            }
        }
        let mut expected = last_uses(&mut driver.keyspace, ask);
        let chunks = snapshot(&mut driver.keyspace, true);
        let mut loaded = load(&chunks, eviction).expect("chunks that were just encoded");
        assert_eq!(last_uses(&mut loaded, ask), expected);
        expected.dedup();
        assert!(expected.len() > 5, "{expected:?}");
    }
}

/// The reply of a subcommand of `OBJECT` for each key.
fn last_uses(keyspace: &mut Keyspace, ask: DataFn) -> Vec<Vec<u8>> {
    let ask = |index: usize| {
        let request = OwnedRequest::from_args(["OBJECT", "of", &format!("key:{index}")]);
        let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
        ask(&mut Context {
            keyspace: &mut *keyspace,
            db: DbIndex(0),
            args: request.args(),
            now_ms: NOW_MS,
            reply: &mut reply,
            effects: &mut effects,
            mode: Mode::Client,
        });
        common::bytes(&reply)
    };
    (0..50).map(ask).collect()
}

#[test]
fn a_chunk_that_is_none_is_refused() {
    let context = Keyspace::new(Config { db_count: 2, ..Config::default() }, 1).decode_context(0);
    let load = |chunk: &[u8]| -> Result<(), ChunkError> {
        let mut keyspace = Keyspace::new(Config { db_count: 2, ..Config::default() }, 1);
        let mut loader = Loader::new();
        keyspace.load(loader.join(decode_chunk(chunk, &context)?, &context)?)?;
        loader.finish()
    };
    load(b"").expect("an empty chunk is valid");
    load(b"\xfe\x01\x00\x01k\x01v").expect("a key with a value");
    assert!(matches!(load(b"\xfe\x01\x00\x01k\x05v"), Err(ChunkError::Malformed(_))));
    assert!(matches!(load(b"\xfe\x01\x03\x01k\x01\x01v"), Err(ChunkError::Unknown(3))));
    assert!(matches!(
        load(b"\xfe\x00\xff"),
        Err(ChunkError::Malformed(_) | ChunkError::Unknown(_))
    ));
    assert!(matches!(load(b"\xfe\x02\x00\x01k\x01v"), Err(ChunkError::NoSuchDb(2))));
    let twice = load(b"\xfe\x00\x00\x01k\x01v\x00\x01k\x01w");
    assert!(matches!(twice, Err(ChunkError::Twice(key)) if key == b"k"));
    for parts in [
        &b"\xe0\x03abc"[..],
        b"\xe0\x03abc\xe0\x03def",
        b"\xe0\x00",
        b"\xe1",
        b"\xe1\xe1",
        b"\xe2\x01f\x01v",
        b"\xe3",
        b"\xe4",
        b"\xe4\xe4",
        b"\xe0\x03abc\xe8\x01k\x04",
        b"\xe9\x01k\x01",
        b"\xe5\x00\x00\x01v",
        b"\xe2\x01f\x01v\xe9\x01k\x02",
        b"\x04\x01k\x00",
    ] {
        assert!(matches!(load(parts), Err(ChunkError::Parts)), "{parts:?}");
    }
    for hash in [&b"\x10\x01k\x07\x07\0\0\0\0\0\xff"[..], b"\x10\x01k\x03abc"] {
        assert!(matches!(load(hash), Err(ChunkError::Malformed(_))), "{hash:?}");
    }
}

/// Decoding damaged chunks does not panic. Reading data that was loaded from damaged chunks does
/// not panic either.
#[test]
fn chunks_with_damage_are_survived() {
    let seed = seed();
    let mut generator = Generator { now_ms: NOW_MS, ..Generator::new(seed, 100_000) };
    let mut driver = Driver::new(seed);
    driver.now_ms = NOW_MS;
    let (mut refused, mut taken) = (0, 0);
    for _ in 0..2_000 {
        driver.run(&generator.command());
        driver.keyspace.take_garbage();
        if generator.rng.usize(..20) != 0 {
            continue;
        }
        for mut chunk in snapshot(&mut driver.keyspace, true) {
            for _ in 0..20 {
                let at = generator.rng.usize(..chunk.len());
                let before = chunk[at];
                chunk[at] = generator.rng.u64(..) as u8;
                match load(&[chunk.clone()], EvictionConfig::default()) {
                    Ok(keyspace) => taken += usize::from(contents(&keyspace).len() < 1000),
                    Err(_) => refused += 1,
                }
                chunk[at] = before;
            }
        }
    }
    assert!(refused > 100 && taken > 100, "{refused} refused, {taken} taken");
}

/// In volumes of format 5 and before, a hash that is written in parts has other opcodes. Such a
/// hash can still be read.
#[test]
fn large_hashes_of_older_volumes_are_read() {
    let text = |text: &str| [&[text.len() as u8][..], text.as_bytes()].concat();
    let mut chunk = b"\xfe\x00".to_vec();
    chunk.extend([b"\xe2", &text("f")[..], &text("v")].concat());
    chunk.extend([b"\xe0", &text("field")[..], b"\xe1\xe0", &text("value"), b"\xe3"].concat());
    chunk.extend([b"\xe2", &text("g")[..], &text("w")].concat());
    chunk.extend([b"\xe9", &text("key")[..], b"\x03"].concat());
    let keyspace = load(&[chunk], EvictionConfig::default()).expect("a valid chunk");
    let hash = keyspace.get(DbIndex(0), b"key", NOW_MS).expect("the key exists");
    let words = contents::words(hash);
    assert_eq!(words, ["hash", "f", "v", "field", "value", "g", "w"].map(str::as_bytes));
}

/// A user may go back to an older version of the program. The error then names the type that this
/// older version lacks.
#[test]
fn a_type_of_a_later_version_is_refused_by_its_name() {
    for (chunk, name) in [
        (&b"\xfe\x00\xea\x03\x01m"[..], "a zset (type 3)"),
        (b"\xfe\x00\xeb\x03", "a zset (type 3)"),
        (b"\xfe\x00\xec\x01k\x03\x01", "a zset (type 3)"),
        (b"\xfe\x00\xea\x05\x01m", "a stream (type 5)"),
        (b"\xfe\x00\xea\x07\x01m", "a value (type 7)"),
        (b"\xfe\x00\x11\x01k\x00", "a zset (RDB type 17)"),
    ] {
        let refused =
            load(&[chunk.to_vec()], EvictionConfig::default()).expect_err("an unsupported type");
        let why = refused.to_string();
        assert!(why.contains(name) && why.contains("this version cannot read"), "{why}");
    }
}
