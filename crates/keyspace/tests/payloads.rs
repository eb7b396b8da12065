//! Payloads of `RESTORE` and values of RDB files, in every encoding that is read, valid and
//! damaged.
//!
//! A damaged payload gives an error or another valid value, and never a panic. It takes no more
//! memory than an undamaged payload of the same size can take. What `RESTORE` accepts, an import
//! accepts, too.
#![expect(clippy::unwrap_used, reason = "an error fails the test")]

#[expect(dead_code, reason = "other tests use the rest")]
mod common;

use common::Driver;
use slimio_keyspace::{DbIndex, Incoming};
use slimio_rdb::{
    Crc64, Encoder, FileReader, Item, ListpackWriter, Version, ZiplistWriter, intset,
};
use slimio_testing::damage::{damage, fuzz};

/// A value is cut or changed at about this many places. A short value is cut and changed at every
/// place.
const PLACES: usize = 150;

/// Memory that a restore may take in addition to the value, in bytes.
const MEMORY_BESIDE: usize = 1 << 20;

/// One byte of a payload becomes at most this many bytes of memory. Three bytes of LZF become at
/// most 264 bytes, which is 88 bytes for each byte. A member then takes at most 16 times as many
/// bytes in a tree as in the unpacked payload.
const GROWTH_MAX: usize = 88 * 16;

/// A value, without its version and checksum.
type Value = Vec<u8>;

fn encoded(code: u8, encode: impl FnOnce(&mut Encoder)) -> Value {
    let mut encoder = Encoder::new(Version::DEFAULT);
    encoder.byte(code);
    encode(&mut encoder);
    encoder.bytes().to_vec()
}

fn listpack(strings: &[&[u8]]) -> Vec<u8> {
    let mut writer = ListpackWriter::new();
    for string in strings {
        writer.push(string);
    }
    writer.finish().to_vec()
}

fn ziplist(strings: &[&[u8]]) -> Vec<u8> {
    let mut writer = ZiplistWriter::new();
    for string in strings {
        writer.push(string);
    }
    writer.finish().to_vec()
}

fn integers(all: &[i64]) -> Vec<u8> {
    let mut bytes = intset::EMPTY.to_vec();
    for integer in all {
        intset::insert(&mut bytes, 0, *integer);
    }
    bytes
}

/// A value of each type in each encoding that is read.
fn values() -> Vec<Value> {
    let long = vec![b'l'; 5000];
    // Strings and integers of several sizes, because a listpack and a ziplist encode each range of
    // sizes in another way.
    let sizes: [&[u8]; 12] = [
        b"",
        b"a",
        b"12",
        b"-1",
        b"4000",
        b"-40000",
        b"8000000",
        b"-2000000000",
        b"1234567890123",
        b"9223372036854775807",
        &long[..70],
        &long,
    ];
    let pairs: [&[u8]; 4] = [b"f", b"1", b"gg", b"value"];
    let table: Vec<String> = (0..300).map(|number| format!("element {number}")).collect();
    let strings = |encoder: &mut Encoder, count: u64, strings: &[&[u8]]| {
        encoder.length(count);
        for string in strings {
            encoder.string(string);
        }
    };
    let table: Vec<&[u8]> = table.iter().map(String::as_bytes).collect();
    vec![
        encoded(0, |encoder| encoder.string(b"text")),
        encoded(0, |encoder| encoder.string(b"")),
        encoded(0, |encoder| encoder.string(b"-70000")),
        encoded(0, |encoder| encoder.string(&long)),
        encoded(0, |encoder| encoder.string(&long.repeat(100))),
        encoded(1, |encoder| strings(encoder, 3, &[b"a", b"-5", b"a"])),
        encoded(1, |encoder| strings(encoder, 12, &sizes)),
        encoded(1, |encoder| strings(encoder, 1, &[&long.repeat(3)])),
        encoded(10, |encoder| encoder.string(&ziplist(&sizes))),
        encoded(14, |encoder| {
            encoder.length(2);
            encoder.string(&ziplist(&pairs));
            encoder.string(&ziplist(&sizes));
        }),
        encoded(18, |encoder| {
            encoder.length(3);
            for (form, node) in [(2, &listpack(&sizes)), (1, &long), (2, &listpack(&table))] {
                encoder.length(form);
                encoder.string(node);
            }
        }),
        encoded(2, |encoder| strings(encoder, 3, &[b"a", b"-5", b""])),
        encoded(2, |encoder| strings(encoder, 12, &sizes)),
        encoded(2, |encoder| strings(encoder, 300, &table)),
        encoded(4, |encoder| strings(encoder, 2, &pairs)),
        encoded(4, |encoder| strings(encoder, 6, &sizes)),
        encoded(4, |encoder| strings(encoder, 150, &table)),
        encoded(9, |encoder| encoder.string(b"\x02\x01f\x01\x001\x02gg\x05\x02value__\xff")),
        encoded(11, |encoder| encoder.string(&integers(&[1, -3, 300]))),
        encoded(11, |encoder| encoder.string(&integers(&[1, -3, 70_000]))),
        encoded(11, |encoder| encoder.string(&integers(&[1, i64::MIN, i64::MAX]))),
        encoded(11, |encoder| encoder.string(&integers(&(0..700).collect::<Vec<_>>()))),
        encoded(13, |encoder| encoder.string(&ziplist(&pairs))),
        encoded(13, |encoder| encoder.string(&ziplist(&sizes))),
        encoded(16, |encoder| encoder.string(&listpack(&pairs))),
        encoded(16, |encoder| encoder.string(&listpack(&sizes))),
        encoded(16, |encoder| encoder.string(&listpack(&table))),
        encoded(20, |encoder| encoder.string(&listpack(&[b"a", b"17"]))),
        encoded(20, |encoder| encoder.string(&listpack(&sizes))),
        encoded(20, |encoder| encoder.string(&listpack(&table))),
    ]
}

fn payload(value: &[u8]) -> Vec<u8> {
    let mut payload = value.to_vec();
    payload.extend_from_slice(&Version::DEFAULT.number().to_le_bytes());
    let mut checksum = Crc64::new();
    checksum.update(&payload);
    payload.extend_from_slice(&checksum.value().to_le_bytes());
    payload
}

fn bulk(reply: &[u8]) -> &[u8] {
    let head = reply.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    &reply[head..reply.len() - 2]
}

/// The result of importing a value: whether the key exists afterwards, or the sentence that says
/// why the value was refused. An empty value is not refused, but makes no key. `None` if a file
/// cannot contain these bytes as a value.
fn import(value: &[u8]) -> Option<Result<bool, String>> {
    let (code, rest) = value.split_first()?;
    if *code > 25 {
        return None;
    }
    let file = [b"REDIS0010", &[*code, 1, b'k'][..], rest, &[0xff], &[0; 8]].concat();
    let mut keyspace = Driver::new(2).keyspace;
    Some((|| {
        let mut reader = FileReader::open(&file[..]).map_err(|e| e.to_string())?;
        let Some(Item::Key(key)) = reader.next_item().map_err(|e| e.to_string())? else {
            return Err("no key".to_owned());
        };
        let mut incoming = Incoming::new(key.value_type, &keyspace).map_err(|e| e.to_string())?;
        while let Some(part) = reader.next_part().map_err(|e| e.to_string())? {
            incoming.add(part).map_err(|e| e.to_string())?;
        }
        let loaded = keyspace.load_incoming(DbIndex(0), &key.name, incoming, None);
        loaded.map_err(|e| e.to_string())?;
        keyspace.check();
        Ok(keyspace.dbsize(DbIndex(0)) == 1)
    })())
}

/// Restores a value that may be damaged. Returns whether it was accepted.
fn check(value: &[u8]) -> bool {
    let mut driver = Driver::new(1);
    let payload = payload(value);
    let mut reply = Vec::new();
    let memory = allocation_counter::measure(|| {
        reply = driver.run(&[b"RESTORE", &b"k"[..], b"0", &payload]);
    });
    let limit = (payload.len() * GROWTH_MAX + MEMORY_BESIDE) as u64;
    assert!(memory.bytes_max <= limit, "{} bytes for {value:?}", memory.bytes_max);
    let is_accepted = reply == b"+OK\r\n";
    assert!(is_accepted || reply == b"-ERR Bad data format\r\n", "{}", reply.escape_ascii());
    match import(value) {
        // RESTORE does not read what follows the value. In a file, the end of the file follows. An
        // import can mistake this end for a part of the truncated value.
        Some(Ok(imported)) => assert!(imported == is_accepted || !is_accepted, "{value:?}"),
        Some(Err(why)) => assert!(!is_accepted && !why.is_empty(), "{why}: {value:?}"),
        None => {}
    }
    if is_accepted {
        driver.keyspace.check();
        let dumped = driver.run(&[b"DUMP", &b"k"[..]]);
        let again = driver.run(&[b"RESTORE", &b"again"[..], b"0", bulk(&dumped)]);
        assert_eq!(again, b"+OK\r\n", "the dump of an accepted value was refused: {value:?}");
        driver.keyspace.check();
    }
    is_accepted
}

#[test]
fn every_encoding_is_restored() {
    for value in values() {
        assert!(check(&value), "{value:?}");
    }
}

#[test]
fn every_cut_is_refused() {
    for value in values() {
        let step = 1 + value.len() / PLACES;
        for end in (0..value.len()).step_by(step) {
            assert!(!check(&value[..end]), "cut at {end}: {value:?}");
        }
    }
}

#[test]
fn every_changed_byte_is_survived() {
    let mut refused = 0;
    for mut value in values() {
        let step = 1 + value.len() / PLACES;
        let by = if value.len() <= 20 { 1 } else { 51 };
        for at in (0..value.len()).step_by(step) {
            let before = value[at];
            let near = [before ^ 1, before ^ 0x80, before.wrapping_add(1), before.wrapping_sub(1)];
            for byte in (0..=255).step_by(by).chain(near) {
                value[at] = byte;
                refused += u32::from(!check(&value));
            }
            value[at] = before;
        }
    }
    assert!(refused > 5000, "only {refused} damaged values were refused");
}

#[test]
fn random_damage_is_survived() {
    let values = values();
    fuzz(|rng| {
        let mut value = values[rng.usize(..values.len())].clone();
        damage(rng, &mut value, &values);
        check(&value);
    });
}

#[test]
fn what_an_import_refuses_is_named() {
    for (value, said) in [
        (
            encoded(3, |encoder| encoder.raw(b"\x01\x01a\x011")),
            "is a zset, a type that is not supported",
        ),
        (encoded(2, |encoder| encoder.raw(b"\x02\x01a\x01a")), "is damaged: it has 'a' twice"),
        (encoded(4, |encoder| encoder.raw(b"\x02\x01f\x01a\x01f\x01a")), "is damaged: it has 'f'"),
        (encoded(22, |encoder| encoder.raw(b"\x01\x05\x01f\x01a")), "has fields that expire"),
    ] {
        let why = import(&value).unwrap().unwrap_err();
        assert!(why.starts_with(said), "{why}");
    }
    for code in [1, 2, 14, 18] {
        let empty = encoded(code, |encoder| encoder.length(0));
        assert_eq!(import(&empty), Some(Ok(false)), "empty values of type {code}");
    }
}
