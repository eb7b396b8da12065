//! The encodings of stored results, and of collections that are loaded from a snapshot.

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::Driver;
use slimio_keyspace::{
    CaptureBudget, CaptureKind, CaptureState, Chunk, ChunkEncoder, ChunkOptions, HashLimits,
    Keyspace, Loader, PackedLimits, SetLimits, ValueRef, decode_chunk,
};

fn encoding(keyspace: &Keyspace, key: &str) -> &'static str {
    let value = keyspace.get(slimio_keyspace::DbIndex(0), key.as_bytes(), 0);
    let Some(ValueRef::Collection(collection)) = value else { panic!("{key}: {value:?}") };
    collection.encoding_name()
}

fn add(driver: &mut Driver, key: &str, mark: &str, numbers: std::ops::Range<usize>) {
    let members = numbers.map(|number| format!("{mark}{number}"));
    let words: Vec<String> =
        ["SADD".to_owned(), key.to_owned()].into_iter().chain(members).collect();
    driver.run(&words);
}

/// A small result is packed, whatever the sources are. (`t_set.c` of Redis 7.2 and later.)
#[test]
fn a_small_result_of_large_sets_is_packed() {
    let mut driver = Driver::new(1);
    add(&mut driver, "words", "m", 0..300);
    add(&mut driver, "rest", "m", 5..300);
    add(&mut driver, "integers", "", 0..1024);
    add(&mut driver, "more", "", 1000..2100);
    add(&mut driver, "few", "m", 0..300);
    add(&mut driver, "one", "x", 0..1);
    let members: Vec<String> = (3..300).map(|number| format!("m{number}")).collect();
    driver.run(&[["SREM", "few"].map(str::to_owned).to_vec(), members].concat());
    assert_eq!(encoding(&driver.keyspace, "few"), "hashtable", "a set must not become packed");
    for (line, expected) in [
        ("SINTERSTORE d words few", "listpack"),
        ("SINTERSTORE d few", "listpack"),
        ("SINTERSTORE d integers more", "intset"),
        ("SUNIONSTORE d few one", "listpack"),
        ("SUNIONSTORE d words one", "hashtable"),
        ("SDIFFSTORE d words rest", "listpack"),
        // In these two cases, Redis first adds all members of the first set to a new set, and then
        // removes members from it. The 300 members of `words` make the new set a hashtable, and it
        // stays a hashtable. The three members of `few` leave the new set a listpack.
        ("SDIFFSTORE d words rest one one one one", "hashtable"),
        ("SDIFFSTORE d few one one one one one", "listpack"),
    ] {
        driver.run(&line.split(' ').collect::<Vec<_>>());
        assert_eq!(encoding(&driver.keyspace, "d"), expected, "{line}");
        driver.keyspace.check();
    }
}

/// A packed collection is still packed after a restart, even if the configuration now allows only
/// shorter elements. It is converted only if it has more elements than the configuration now
/// allows.
#[test]
fn what_is_packed_stays_so_in_a_snapshot() {
    let mut driver = Driver::new(1);
    driver.run(&["SADD", "words", "a", "bb"]);
    driver.run(&["SADD", "integers", "1", "2"]);
    driver.run(&["HSET", "hash", "f", "v"]);
    driver.run(&["RPUSH", "list", "a", "1"]);
    let set = SetLimits { member_size: 0, ..SetLimits::default() };
    let hash = HashLimits { element_size: 0, ..HashLimits::default() };
    let options =
        ChunkOptions { compresses: true, eviction: *driver.keyspace.eviction(), now_ms: 0 };
    let mut reloaded = driver.keyspace.emptied();
    let list = PackedLimits::default().list;
    reloaded.set_packed_limits(PackedLimits { set, hash, list });
    let context = reloaded.decode_context(0);
    let (mut encoder, mut loader) = (ChunkEncoder::new(options), Loader::new());
    let mut load = |chunk: Chunk<'_>| {
        let decoded = decode_chunk(chunk.payload, &context)?;
        reloaded.load(loader.join(decoded, &context)?)
    };
    driver.keyspace.begin_capture(CaptureKind::PointInTime);
    let mut taken = Vec::new();
    while driver.keyspace.capture_state() == CaptureState::Running {
        driver.keyspace.capture_step(CaptureBudget { size: 1 << 20, entries: 100 }, &mut taken);
    }
    for batch in &taken {
        encoder.encode(batch, &mut load).expect("what was encoded can be decoded");
    }
    encoder.finish(&mut load).expect("what was encoded can be decoded");
    driver.keyspace.end_capture();
    for (key, expected) in
        [("words", "listpack"), ("integers", "intset"), ("hash", "listpack"), ("list", "listpack")]
    {
        assert_eq!(encoding(&reloaded, key), expected, "{key}");
    }
}
