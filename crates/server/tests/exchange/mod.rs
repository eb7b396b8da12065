//! The two ways to export a stopped volume give the same result: all of it in memory, and in parts.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use slimio_device::PathOptions;
use slimio_keyspace::{DbIndex, HashRef, Keyspace, StringRef, Usage, ValueRef};
use slimio_server::config::Config;
use slimio_server::exchange::{
    ExportOptions, Exporter, RdbVersion, export_volume, import_file, load_volume,
};
use slimio_storage::{RootChoice, Storage};

use crate::common::{Client, start, until};
use crate::info;

/// Databases that commands use.
const DBS: u64 = 3;
/// Keys that commands behind the snapshot use.
const KEYS: u64 = 40;
const SEEDS: u64 = 8;

fn command(random: &mut Rng) -> Vec<String> {
    let key = format!("k:{}", random.u64(..KEYS));
    let other = format!("k:{}", random.u64(..KEYS));
    let (db, number) = (random.u64(..DBS).to_string(), random.u64(..1000));
    let long = "y".repeat(10_000 + number as usize);
    let line = match random.u64(..26) {
        0..=3 => format!("SET {key} {number}"),
        4 => format!("SET {key} {long}"),
        5 => format!("SET {key} {number} PXAT 4000000000{number:03}"),
        6 | 7 => format!("DEL {key} {other}"),
        8..=10 => format!("HSET {key} f{number} {number} g x"),
        11 => format!("HDEL {key} g"),
        12 => format!("APPEND {key} {number}"),
        13 => format!("INCR {key}"),
        14 => format!("PEXPIREAT {key} 4000000000{number:03}"),
        15 => format!("PERSIST {key}"),
        16 | 17 => format!("RENAME {key} {other}"),
        18 => format!("COPY {key} {other} REPLACE"),
        19 => format!("COPY {key} {other} DB {db}"),
        20 | 21 => format!("MOVE {key} {db}"),
        22 => format!("SWAPDB {db} {}", random.u64(..DBS)),
        23 if number < 100 => "FLUSHDB".into(),
        23 if number < 150 => "FLUSHALL".into(),
        _ => format!("SELECT {db}"),
    };
    line.split(' ').map(str::to_owned).collect()
}

fn run(client: &mut Client, random: &mut Rng, count: u64) {
    for _ in 0..count {
        let is_transaction = random.u64(..10) == 0;
        let commands: Vec<_> = (0..=random.u64(..4)).map(|_| command(random)).collect();
        if is_transaction {
            client.call(&["MULTI"]);
        }
        for command in &commands {
            let args: Vec<&str> = command.iter().map(String::as_str).collect();
            // Some fail: there is no such key, or it is of another type.
            client.call(&args);
        }
        if is_transaction {
            client.call(&["EXEC"]);
        }
    }
}

/// Fills several chunks with keys that no later command uses, except the huge `k:0`. Huge values
/// are in parts.
fn fill(client: &mut Client, random: &mut Rng) {
    let (value, huge) = ("x".repeat(3000), "z".repeat(900_000));
    for db in 0..DBS {
        client.call(&["SELECT", &db.to_string()]);
        for number in 0..100 + random.u64(..100) {
            client.call(&["SET", &format!("u:{db}:{number}"), &value]);
        }
        client.call(&["SET", &format!("huge:{db}"), &huge]);
        client.call(&["SET", "k:0", &huge]);
    }
    client.call(&["SELECT", "0"]);
}

fn rewrite(client: &mut Client) {
    let before: u64 = info(client, "snapshot_rewrites_complete").parse().unwrap();
    client.call(&["BGREWRITEAOF"]);
    until("the log was not rewritten", || {
        info(client, "snapshot_rewrites_complete").parse::<u64>().unwrap() != before
    });
}

fn open(volume: &Path) -> Storage {
    slimio_volume::open(volume, PathOptions::default(), false, u64::MAX).unwrap()
}

type Contents = BTreeMap<(u16, Vec<u8>), (Vec<Vec<u8>>, Option<i64>)>;

fn contents(keyspace: &Keyspace) -> Contents {
    let elements = |value: ValueRef<'_>| match value {
        ValueRef::String(StringRef::Inline(bytes)) => vec![bytes.to_vec()],
        ValueRef::String(StringRef::Piece(piece)) => vec![piece.to_vec()],
        ValueRef::String(StringRef::Blob(blob)) => vec![blob.to_vec()],
        ValueRef::Hash(hash) => fields(hash),
    };
    let dbs = (0..keyspace.config().db_count).map(|db| DbIndex(db as u16));
    let entries = dbs.flat_map(|db| keyspace.entries(db).map(move |entry| (db, entry)));
    let of = |(db, entry): (DbIndex, slimio_keyspace::EntryView<'_>)| {
        ((db.0, entry.key.to_vec()), (elements(entry.value), entry.expires_at_ms))
    };
    entries.map(of).collect()
}

fn fields(hash: HashRef<'_>) -> Vec<Vec<u8>> {
    let pair = |(field, value): (slimio_keyspace::Element<'_>, slimio_keyspace::Element<'_>)| {
        [&*field.to_bytes(), b" = ", &*value.to_bytes()].concat()
    };
    let mut fields: Vec<_> = hash.iter().map(pair).collect();
    fields.sort();
    fields.insert(0, b"hash".to_vec());
    fields
}

/// The contents of an export of the volume, and how many keys the exporter reports.
fn exported(volume: &Path, folder: &Path, batch_size: usize) -> (Contents, u64) {
    let rdb = folder.join("dump.rdb");
    let options = ExportOptions { version: RdbVersion::DEFAULT, compresses: true, batch_size };
    let mut exporter = Exporter::create(&rdb, options).unwrap();
    export_volume(&mut open(volume), RootChoice::InForce, &mut exporter, &mut |_, _| {}).unwrap();
    let keys = exporter.keys();
    let size = exporter.finish().unwrap();
    let file = std::fs::File::open(&rdb).unwrap();
    let keyspace = import_file(file, size, &Config::default(), &mut |_, _| {}).unwrap();
    (contents(&keyspace), keys)
}

#[test]
fn an_export_in_parts_is_what_a_replay_in_memory_is() {
    for seed in 0..SEEDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "appendfsync no\nauto-aof-rewrite-percentage 0";
        let server = start("plain", &volume, directives).unwrap();
        let mut client = server.connect();
        let mut random = Rng::with_seed(seed);
        if seed % 4 > 0 {
            fill(&mut client, &mut random);
            run(&mut client, &mut random, 100);
            rewrite(&mut client);
        }
        let count = random.u64(..150);
        run(&mut client, &mut random, count);
        drop(client);
        server.stop();

        let loaded = load_volume(&mut open(&volume), RootChoice::InForce, &mut |_, _| {}).unwrap();
        let expected = contents(&loaded);
        for batch_size in [0, 500_000, ExportOptions::BATCH_SIZE] {
            let (found, keys) = exported(&volume, dir.path(), batch_size);
            let names = |contents: &Contents| contents.keys().cloned().collect::<Vec<_>>();
            assert_eq!(names(&found), names(&expected), "seed {seed}, batches of {batch_size}");
            assert!(found == expected, "seed {seed}, batches of {batch_size}: other values");
            assert_eq!(keys, expected.len() as u64, "no key twice");
        }
    }
}

/// The file is created before the volume is read, and reading may take long. A key used after that
/// must not appear as used in the future.
#[test]
fn how_keys_were_used_is_as_of_when_the_volume_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    let server = start("plain", &volume, "maxmemory-policy allkeys-lru").unwrap();
    let mut client = server.connect();
    // More than one chunk, so that there is more than one batch.
    let huge = "z".repeat(900_000);
    for key in ["a", "b", "c"] {
        client.call(&["SET", key, &huge]);
    }
    rewrite(&mut client);
    client.call(&["SET", "behind", "v"]);
    server.stop();

    let now_s = || SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let rdb = dir.path().join("dump.rdb");
    let options = ExportOptions { version: RdbVersion::DEFAULT, compresses: true, batch_size: 1 };
    let mut exporter = Exporter::create(&rdb, options).unwrap();
    let made_at_s = now_s();
    until("time stands still", || now_s() != made_at_s);
    export_volume(&mut open(&volume), RootChoice::InForce, &mut exporter, &mut |_, _| {}).unwrap();
    let size = exporter.finish().unwrap();
    let file = std::fs::File::open(&rdb).unwrap();
    let keyspace = import_file(file, size, &Config::default(), &mut |_, _| {}).unwrap();
    assert_eq!(keyspace.dbsize(DbIndex(0)), 4);
    for entry in keyspace.entries(DbIndex(0)) {
        let usage = keyspace.usage(&entry, now_s() as i64 * 1000);
        assert!(matches!(usage, Some(Usage::IdleSeconds(0..60))), "{usage:?}");
    }
}
