//! Reads files that a stock server has written. Also writes files, and checks that a stock server
//! loads them.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::PathBuf;
use std::process::Command;

use slimio_rdb::{
    Attributes, Checksum, Encoder, FileReader, FileWriter, Item, Key, StreamEntry, StreamId,
    StreamPart, Value, ValueType, Version,
};
use slimio_testing::client::{Client, Reply};
use slimio_testing::server::{Server, ServerConfig, find_program};
use tempfile::TempDir;

use crate::maker::{Maker, read_all};

/// A stock server that is not started yet, and its temporary folder. `None` if no stock server is
/// installed.
fn stock(flags: &[&str]) -> Option<(TempDir, ServerConfig)> {
    slimio_testing::stock(&[&["--enable-debug-command", "local"], flags].concat())
}

fn file_path(config: &ServerConfig) -> PathBuf {
    config.data_directory().join("dump.rdb")
}

/// Runs a command whose words contain no spaces.
fn run(client: &mut Client, line: &str) -> Reply {
    client.expect(&line.split(' ').collect::<Vec<_>>()).unwrap()
}

fn call(client: &mut Client, words: &[&[u8]]) -> Reply {
    let reply = client.call(words).unwrap();
    assert!(!matches!(reply, Reply::Error(_)), "{reply:?}");
    reply
}

/// The strings of an array.
fn strings(reply: Reply) -> Vec<Vec<u8>> {
    let Reply::Array(replies) = reply else { panic!("{reply:?}") };
    replies.into_iter().map(bulk).collect()
}

fn bulk(reply: Reply) -> Vec<u8> {
    let Reply::Bulk(bytes) = reply else { panic!("{reply:?}") };
    bytes
}

fn array(reply: Reply) -> Vec<Reply> {
    let Reply::Array(replies) = reply else { panic!("{reply:?}") };
    replies
}

fn pairs(strings: &[Vec<u8>]) -> BTreeMap<&[u8], &[u8]> {
    strings.chunks_exact(2).map(|pair| (&pair[0][..], &pair[1][..])).collect()
}

fn id_of(bytes: &[u8]) -> StreamId {
    let (ms, sequence) = std::str::from_utf8(bytes).unwrap().split_once('-').unwrap();
    StreamId { ms: ms.parse().unwrap(), sequence: sequence.parse().unwrap() }
}

/// Checks that the server has the key with this value and expiry.
fn check(client: &mut Client, db: u64, name: &[u8], value: &Value, expire_at_ms: Option<i64>) {
    let shown = format!("db {db}, {}", name.escape_ascii());
    call(client, &[b"SELECT", db.to_string().as_bytes()]);
    let expires = call(client, &[b"PEXPIRETIME", name]);
    assert_eq!(expires, Reply::Integer(expire_at_ms.unwrap_or(-1)), "{shown}");
    match value {
        Value::String(value) => {
            assert!(bulk(call(client, &[b"GET", name])) == *value, "{shown}");
        }
        Value::List(elements) => {
            let found = strings(call(client, &[b"LRANGE", name, b"0", b"-1"]));
            assert!(found == *elements, "{shown}");
        }
        Value::Set(members) => {
            let found = strings(call(client, &[b"SMEMBERS", name]));
            assert_eq!(found.len(), members.len(), "{shown}");
            assert!(found.iter().collect::<BTreeSet<_>>() == members.iter().collect(), "{shown}");
        }
        Value::SortedSet(members) => {
            let found = strings(call(client, &[b"ZRANGE", name, b"0", b"-1", b"WITHSCORES"]));
            assert_eq!(found.len(), 2 * members.len(), "{shown}");
            let found = pairs(&found);
            for (member, score) in members {
                let text = std::str::from_utf8(found[&member[..]]).unwrap();
                assert_eq!(text.parse(), Ok(*score), "{shown}");
            }
        }
        Value::Hash(fields) => {
            let found = strings(call(client, &[b"HGETALL", name]));
            assert_eq!(found.len(), 2 * fields.len(), "{shown}");
            let fields: BTreeMap<&[u8], &[u8]> =
                fields.iter().map(|field| (&field.name[..], &field.value[..])).collect();
            assert!(pairs(&found) == fields, "{shown}");
        }
        Value::Stream(parts) => check_stream(client, name, parts),
        Value::Module => panic!("{shown} belongs to a module"),
    }
}

fn check_stream(client: &mut Client, name: &[u8], parts: &[StreamPart]) {
    let mut entries: Vec<StreamEntry> = Vec::new();
    for part in parts {
        match part {
            StreamPart::Entries(some) => entries.extend_from_slice(some),
            StreamPart::Info { len, last_id, .. } => {
                assert_eq!(*len, entries.len() as u64);
                let info = array(call(client, &[b"XINFO", b"STREAM", name]));
                let at = info.iter().position(|it| *it == Reply::Bulk(b"last-generated-id".into()));
                assert_eq!(id_of(&bulk(info[at.unwrap() + 1].clone())), *last_id);
            }
            StreamPart::Group { name: group, last_id, .. } => {
                let groups = array(call(client, &[b"XINFO", b"GROUPS", name]));
                let last = groups.into_iter().map(array).find_map(|group_info| {
                    let is_it = group_info[1] == Reply::Bulk(group.clone());
                    is_it.then(|| id_of(&bulk(group_info[7].clone())))
                });
                assert_eq!(last, Some(*last_id));
            }
            _ => {}
        }
    }
    let found = array(call(client, &[b"XRANGE", name, b"-", b"+"]));
    let found: Vec<StreamEntry> = found
        .into_iter()
        .map(|entry| {
            let [id, fields] = array(entry).try_into().unwrap();
            let fields = strings(fields);
            let fields = fields.chunks_exact(2).map(|pair| (pair[0].clone(), pair[1].clone()));
            StreamEntry { id: id_of(&bulk(id)), fields: fields.collect() }
        })
        .collect();
    assert!(found == entries);

    let pending = parts.iter().filter(|part| matches!(part, StreamPart::Pending { .. })).count();
    let owned = parts.iter().filter(|part| matches!(part, StreamPart::ConsumerPending(_))).count();
    assert_eq!(pending, owned, "some pending entries have no consumer");
    let mut counted = 0;
    for part in parts {
        if let StreamPart::Group { name: group, .. } = part {
            let [Reply::Integer(count), ..] = array(call(client, &[b"XPENDING", name, group]))[..]
            else {
                panic!("the reply to XPENDING does not begin with a count")
            };
            counted += count;
        }
    }
    assert_eq!(counted, pending as i64);
}

/// Fills several databases with values of every type, in every encoding that Redis 7.0 has.
fn fill(client: &mut Client) {
    run(client, "SET empty 1");
    call(client, &[b"SET", b"empty", b""]);
    for number in ["0", "-1", "127", "-128", "128", "32767", "-32769", "2147483648", "-2147483649"]
    {
        run(client, &format!("SET number:{number} {number}"));
        run(client, &format!("PEXPIREAT number:{number} 4000000000123"));
    }
    let text = b"some words that come again and again, and words that come again ".repeat(70);
    call(client, &[b"SET", b"text", &text]);
    call(client, &[b"SET", b"large", &text.repeat(300)]);
    call(client, &[b"SET", b"binary", &(0..=255).collect::<Vec<u8>>()]);
    call(client, &[b"SET", b"large binary", &noise(700_000)]);

    run(client, "SELECT 3");
    run(client, "RPUSH list a bb 3 -4000 500000 -6000000000 99999999999999999999");
    run(client, "DEBUG QUICKLIST-PACKED-THRESHOLD 200b");
    call(client, &[b"RPUSH", b"list of large", &text[..300], b"small", &text[..250], b"7"]);
    run(client, "SADD intset:2 1 -2 300");
    run(client, "SADD intset:4 1 -2 70000");
    run(client, "SADD intset:8 1 -2 5000000000");
    run(client, "SADD set a 1 bb");
    run(client, "ZADD zset 1 a -2.5 b 1e300 c inf d -inf e 0 0.1");
    run(client, "ZADD zset:large 1 a 0.1 b");
    run(client, "HSET hash f 1 gg value number -70000");
    run(client, "HSET hash:large f 1");
    for index in 0..600_u32 {
        let index = index.to_string();
        let index = index.as_bytes();
        let padded = [index, &text[..index.len() * 30]].concat();
        call(client, &[b"RPUSH", b"list:large", &padded]);
        call(client, &[b"SADD", b"set:large", &padded]);
        call(client, &[b"ZADD", b"zset:large", index, &padded]);
        call(client, &[b"HSET", b"hash:large", &padded, index]);
    }

    run(client, "SELECT 15");
    for index in 1..=250 {
        run(client, &format!("XADD stream {index}-{} f v{index} gg {index}", index % 7));
    }
    run(client, "XADD stream 1000-0 other field");
    run(client, "XDEL stream 17-3 100-2");
    run(client, "XGROUP CREATE stream group 0");
    run(client, "XGROUP CREATE stream idle $");
    run(client, "XREADGROUP GROUP group ann COUNT 40 STREAMS stream >");
    run(client, "XREADGROUP GROUP group bob COUNT 3 STREAMS stream >");
    run(client, "XACK stream group 1-1 2-2 41-6");
    run(client, "XADD emptied 5-5 f v");
    run(client, "XDEL emptied 5-5");
    call(
        client,
        &[
            b"FUNCTION",
            b"LOAD",
            b"#!lua name=library\nredis.register_function('one', function() return 1 end)",
        ],
    );
}

/// Incompressible bytes.
fn noise(size: usize) -> Vec<u8> {
    let mut bytes = vec![0; size];
    fastrand::Rng::with_seed(1).fill(&mut bytes);
    bytes
}

#[test]
fn what_stock_saves_is_read() {
    let Some((_scratch, config)) = stock(&[]) else { return };
    let server = Server::start(&config).unwrap();
    let mut client = server.client().unwrap();
    fill(&mut client);
    let settings = [
        ["maxmemory-policy", "allkeys-lru", "rdbcompression", "yes", "rdbchecksum", "yes"],
        ["maxmemory-policy", "allkeys-lfu", "rdbcompression", "no", "rdbchecksum", "yes"],
    ];
    for setting in settings {
        client.expect(&[&["CONFIG", "SET"][..], &setting[..4]].concat()).unwrap();
        run(&mut client, "SAVE");
        let file = fs::read(file_path(&config)).unwrap();
        let contents = read_all(&file).unwrap();
        assert_eq!(contents.keys.len(), 28, "the file must have the keys of three databases");
        for (key, value) in &contents.keys {
            check(&mut client, key.db, &key.name, value, key.attributes.expire_at_ms);
            let is_lru = setting[1] == "allkeys-lru";
            assert_eq!(key.attributes.idle_s.is_some(), is_lru, "{key:?}");
            assert_eq!(key.attributes.freq.is_some(), !is_lru, "{key:?}");
        }
        let types: BTreeSet<u8> =
            contents.keys.iter().map(|(key, _)| key.value_type.code()).collect();
        assert_eq!(
            types,
            [0, 2, 4, 5, 11, 16, 17, 18, 19].into(),
            "the file must have every type of Redis 7.0"
        );
        let is_library = |item: &Item| matches!(item, Item::Function(source) if source.starts_with(b"#!lua name=library"));
        assert!(contents.others.iter().any(is_library));
        let sizes: Vec<(u64, u64)> = contents
            .others
            .iter()
            .filter_map(|item| match item {
                Item::ResizeDb { key_count, expiring_count, .. } => {
                    Some((*key_count, *expiring_count))
                }
                _ => None,
            })
            .collect();
        assert_eq!(sizes.iter().map(|(keys, _)| keys).sum::<u64>(), 28);
        assert_eq!(sizes.iter().map(|(_, expiring)| expiring).sum::<u64>(), 9);
        let mut reader = FileReader::open(&file[..]).unwrap();
        while reader.next_item().unwrap().is_some() {}
        assert_eq!(reader.checksum(), Some(Checksum::Matches));
        assert_eq!((reader.version(), reader.offset()), (Version::DEFAULT, file.len() as u64));
    }
}

#[test]
fn stock_without_checksums_is_read() {
    let Some((_scratch, config)) = stock(&["--rdbchecksum", "no"]) else { return };
    let server = Server::start(&config).unwrap();
    let mut client = server.client().unwrap();
    run(&mut client, "SET key value");
    run(&mut client, "SAVE");
    let file = fs::read(file_path(&config)).unwrap();
    let mut reader = FileReader::open(&file[..]).unwrap();
    while reader.next_item().unwrap().is_some() {}
    assert_eq!(reader.checksum(), Some(Checksum::Absent));
}

/// Puts the file in the server's directory, checks the file with `redis-check-rdb`, and starts the
/// server.
fn load(config: &ServerConfig, file: &[u8]) -> Server {
    fs::create_dir_all(config.data_directory()).unwrap();
    fs::write(file_path(config), file).unwrap();
    if let Some(checker) = find_program("redis-check-rdb") {
        let output = Command::new(checker).arg(file_path(config)).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout);
        assert!(output.status.success(), "{text}");
        assert!(text.contains("Checksum OK") && text.contains("\\o/ RDB looks OK! \\o/"), "{text}");
    } else {
        eprintln!("SKIPPED: redis-check-rdb is not installed, so the file is not checked with it");
    }
    Server::start(config).unwrap()
}

#[test]
fn stock_loads_types_of_every_age() {
    for number in [9, 10] {
        let Some((_scratch, config)) = stock(&[]) else { return };
        let mut maker = Maker::new(Version::to_write(number).unwrap());
        maker.old_types();
        maker.listpack_types();
        maker.streams(&[ValueType::Stream, ValueType::Stream2]);
        let server = load(&config, &maker.file());
        let mut client = server.client().unwrap();
        assert_eq!(run(&mut client, "DBSIZE"), Reply::Integer(maker.expected.len() as i64));
        for (name, value) in &maker.expected {
            let expire_at_ms = (name == b"integer").then_some(2_000_000_000_000);
            check(&mut client, 0, name, value, expire_at_ms);
        }
    }
}

/// A file of strings and hashes of all sizes, and the keys that a stock server must have after it
/// has loaded the file.
fn exported(version: Version) -> (Vec<u8>, Vec<(Key, Value)>) {
    let sizes =
        [0, 1, 10, 11, 12, 19, 20, 21, 22, 63, 64, 300, 4096, 16_383, 16_384, 70_000, 300_000];
    let text = b"The quick brown fox jumps over the lazy dog. ".repeat(7000);
    let noise = noise(300_000);
    let half: Vec<u8> =
        text.chunks(50).zip(noise.chunks(70)).flat_map(|both| [both.0, both.1].concat()).collect();
    let mut values: Vec<Vec<u8>> = Vec::new();
    for size in sizes {
        values
            .extend([&text, &noise, &half, &vec![b'z'; size]].map(|bytes| bytes[..size].to_vec()));
    }
    for value in [
        0,
        5,
        -128,
        128,
        32767,
        -32769,
        2_147_483_647,
        -2_147_483_648,
        2_147_483_648,
        i64::MAX,
        i64::MIN,
    ] {
        values.push(value.to_string().into_bytes());
    }
    values.extend([&b"-0"[..], b"007", b"+1", b" 1", b"1.5"].map(<[u8]>::to_vec));

    let mut writer = FileWriter::with(Vec::new(), Encoder::new(version)).unwrap();
    writer.encoder().unwrap().aux(b"redis-ver", b"7.0.15");
    let mut expected = Vec::new();
    for db in [0, 1, 15] {
        let encoder = writer.encoder().unwrap();
        encoder.select_db(db);
        encoder.resize_db(values.len() as u64 * 2, values.len() as u64 / 4);
        for (index, value) in values.iter().enumerate() {
            let expire_at_ms = (index % 4 == 1).then_some(3_000_000_000_000 + index as i64);
            let attributes = Attributes { expire_at_ms, ..Attributes::default() };
            let mut key = |name: String, value_type, value| {
                let name = name.into_bytes();
                let (module, offset) = (None, 0);
                expected.push((Key { db, name, value_type, attributes, module, offset }, value));
            };
            let encoder = writer.encoder().unwrap();
            encoder.key(format!("string:{index}").as_bytes(), ValueType::String, attributes);
            if db == 15 {
                // Writes the string in parts, as large strings are written.
                encoder.string_start(value.len() as u64);
                value.chunks(1000).for_each(|part| encoder.raw(part));
            } else {
                encoder.string(value);
            }
            key(format!("string:{index}"), ValueType::String, Value::String(value.clone()));

            let fields: Vec<slimio_rdb::Field> = (0..=index)
                .map(|field| slimio_rdb::Field {
                    name: format!("{}{field}", &"field-"[..index % 7]).into_bytes(),
                    value: if field < 2 { value.clone() } else { field.to_string().into_bytes() },
                    expire_at_ms: None,
                })
                .collect();
            let value_type = if index % 2 == 0 { ValueType::Hash } else { version.packed_hash() };
            encoder.key(format!("hash:{index}").as_bytes(), value_type, attributes);
            if value_type == ValueType::Hash {
                encoder.hash_start(fields.len() as u64);
                for field in &fields {
                    encoder.string(&field.name);
                    encoder.string(&field.value);
                }
            } else {
                encoder.packed_hash(fields.iter().map(|it| (&it.name[..], &it.value[..])));
            }
            key(format!("hash:{index}"), value_type, Value::Hash(fields));
        }
    }
    (writer.finish().unwrap(), expected)
}

#[test]
fn stock_loads_what_is_written() {
    for number in [9, 10] {
        let Some((_scratch, config)) = stock(&[]) else { return };
        let (file, expected) = exported(Version::to_write(number).unwrap());
        let server = load(&config, &file);
        let mut client = server.client().unwrap();
        for db in [0, 1, 15] {
            run(&mut client, &format!("SELECT {db}"));
            let keys = expected.iter().filter(|(key, _)| key.db == db).count();
            assert_eq!(run(&mut client, "DBSIZE"), Reply::Integer(keys as i64));
        }
        for (key, value) in &expected {
            check(&mut client, key.db, &key.name, value, key.attributes.expire_at_ms);
        }
        // The stock server saves the same keys again, and the reader reads the stock server's file.
        run(&mut client, "SAVE");
        let again = read_all(&fs::read(file_path(&config)).unwrap()).unwrap().keys;
        assert_eq!(again.len(), expected.len());
        for (key, value) in &again {
            check(&mut client, key.db, &key.name, value, key.attributes.expire_at_ms);
        }
    }
}

#[test]
fn stock_refuses_what_comes_after_it() {
    let Some((_scratch, config)) = stock(&[]) else { return };
    fs::create_dir_all(config.data_directory()).unwrap();
    let writer = FileWriter::new(Vec::new(), Version::WRITE_MAX).unwrap();
    fs::write(file_path(&config), writer.finish().unwrap()).unwrap();
    let error = Server::start(&config).unwrap_err().to_string();
    assert!(error.contains("Can't handle RDB format version 12"), "{error}");
}
