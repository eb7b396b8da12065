//! A volume whose server has stopped can be loaded into memory as a whole, or exported in parts.
//! Both ways must give the same data.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{SystemTime, UNIX_EPOCH};

use fastrand::Rng;
use slimio_device::PathOptions;
use slimio_keyspace::{
    CollectionRef, DbIndex, Element, Keyspace, StringRef, Usage, ValueRef, command_table, flag,
};
use slimio_server::config::Config;
use slimio_server::exchange::{
    ExportOptions, Exporter, RdbVersion, export_volume, import_file, load_volume,
};
use slimio_storage::{RootChoice, Storage};
use slimio_testing::random::Generator;
use slimio_testing::refused::{on_a_thread, refuse};

use crate::common::{Client, encode, start, until};
use crate::info;

/// Number of databases that the random commands use.
const DBS: u64 = 3;
const SEEDS: u64 = 8;
/// Commands that change another database or an expiry. The test draws them more often than
/// other commands.
const OFTEN: &str = "copy copy copy flushdb move move move pexpireat pexpireat swapdb swapdb";
/// Largest time to live, in milliseconds. A random time to live up to this limit is practically
/// never so short that the key expires within the test.
const TTL_MS_MAX: usize = 1 << 50;

/// The names of all data commands that write, and then the names in [`OFTEN`].
fn writes(generator: &Generator) -> Vec<&'static str> {
    let is_write = |name: &&str| {
        let command = command_table()
            .lookup(name.as_bytes())
            .expect("the generator must draw only data commands");
        command.flags.has(flag::WRITE)
    };
    generator.names.iter().copied().filter(is_write).chain(OFTEN.split(' ')).collect()
}

/// A client that sends random commands.
struct Random {
    client: Client,
    generator: Generator,
}

impl Random {
    fn command(&mut self) {
        let command = match self.generator.rng.u64(..10) {
            0 => vec!["SELECT".into(), self.generator.rng.u64(..DBS).to_string().into()],
            _ => self.generator.command(),
        };
        let words: Vec<&[u8]> = command.iter().map(Vec::as_slice).collect();
        self.client.send_bytes(&encode(&words));
        // Some commands fail, because the key does not exist or has another type.
        self.client.read();
    }

    fn run(&mut self, count: u64) {
        for _ in 0..count {
            let is_transaction = self.generator.rng.u64(..10) == 0;
            if is_transaction {
                self.client.call(&["MULTI"]);
            }
            for _ in 0..=self.generator.rng.u64(..4) {
                self.command();
            }
            if is_transaction {
                self.client.call(&["EXEC"]);
            }
        }
    }
}

/// Sets keys that take several chunks of a snapshot. Later commands use only one of these keys, the
/// huge `k0`. A snapshot stores huge values in parts.
fn fill(client: &mut Client, random: &mut Rng) {
    let (value, huge) = ("x".repeat(3000), "z".repeat(900_000));
    for db in 0..DBS {
        client.call(&["SELECT", &db.to_string()]);
        for number in 0..100 + random.u64(..100) {
            client.call(&["SET", &format!("u:{db}:{number}"), &value]);
        }
        client.call(&["SET", &format!("huge:{db}"), &huge]);
        client.call(&["SET", "k0", &huge]);
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
        ValueRef::Collection(collection) => elements_of(collection),
    };
    let dbs = (0..keyspace.config().db_count).map(|db| DbIndex(db as u16));
    let entries = dbs.flat_map(|db| keyspace.entries(db).map(move |entry| (db, entry)));
    let of = |(db, entry): (DbIndex, slimio_keyspace::EntryView<'_>)| {
        ((db.0, entry.key.to_vec()), (elements(entry.value), entry.expires_at_ms))
    };
    entries.map(of).collect()
}

fn elements_of(collection: CollectionRef<'_>) -> Vec<Vec<u8>> {
    let strings: Vec<_> = collection.strings().map(Element::to_bytes).collect();
    let elements = strings.chunks(collection.value_type().strings());
    let mut elements: Vec<_> = elements.map(|element| element.join(&b" = "[..])).collect();
    elements.sort();
    elements.insert(0, collection.value_type().name().into());
    elements
}

/// The contents of an export of the volume, and the number of keys that the exporter reports.
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

/// The exported file is at its path before its folder is synced. If this sync fails, the error must
/// not say that the previous file is still there.
#[test]
fn an_export_whose_folder_can_not_be_synced_says_that_it_is_complete() {
    let folder = tempfile::tempdir().unwrap();
    let rdb = folder.path().join("dump.rdb");
    let options =
        ExportOptions { version: RdbVersion::DEFAULT, compresses: true, batch_size: 1000 };
    let exporter = Exporter::create(&rdb, options).unwrap();
    let complaint = on_a_thread(|| {
        // With these flags, a file or folder is opened for reading.
        let flags = Some((2, libc::O_CLOEXEC as u64));
        refuse(&[(libc::SYS_openat, flags)], libc::EACCES);
        exporter.finish().unwrap_err()
    });
    assert!(complaint.contains("dump.rdb is complete, but its folder"), "{complaint}");
    assert!(rdb.exists(), "the export must be at its path");
}

fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}

#[test]
fn an_export_in_parts_is_what_a_replay_in_memory_is() {
    for seed in 0..SEEDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let directives = "appendfsync no\nauto-aof-rewrite-percentage 0";
        let server = start("plain", &volume, directives).unwrap();
        let all = Generator::new(seed, TTL_MS_MAX);
        let generator = Generator { now_ms: now_s() as i64 * 1000, names: writes(&all), ..all };
        let mut random = Random { client: server.connect(), generator };
        if seed % 4 > 0 {
            fill(&mut random.client, &mut random.generator.rng);
            random.run(100);
            rewrite(&mut random.client);
        }
        let count = random.generator.rng.u64(..150);
        random.run(count);
        drop(random);
        server.stop();

        let loaded = load_volume(&mut open(&volume), RootChoice::InForce, &mut |_, _| {}).unwrap();
        let expected = contents(&loaded);
        for batch_size in [0, 500_000, ExportOptions::BATCH_SIZE] {
            let (found, keys) = exported(&volume, dir.path(), batch_size);
            let names = |contents: &Contents| contents.keys().cloned().collect::<Vec<_>>();
            assert_eq!(
                names(&found),
                names(&expected),
                "seed {seed}, batches of {batch_size} bytes"
            );
            assert!(
                found == expected,
                "seed {seed}, batches of {batch_size} bytes: the values differ"
            );
            assert_eq!(keys, expected.len() as u64, "the exporter must count each key once");
        }
    }
}

/// An export creates its file, and then reads the volume, which may take long. The replay of the
/// log counts as a use of its keys, at the time when the reading began. So each key's idle time
/// must be counted up to that time. If it were counted up to the creation of the file, a key could
/// appear as used in the future.
#[test]
fn how_keys_were_used_is_as_of_when_the_volume_was_read() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    let server = start("plain", &volume, "maxmemory-policy allkeys-lru").unwrap();
    let mut client = server.connect();
    // The values take more than one chunk, so that there is more than one batch.
    let huge = "z".repeat(900_000);
    for key in ["a", "b", "c"] {
        client.call(&["SET", key, &huge]);
    }
    rewrite(&mut client);
    client.call(&["SET", "behind", "v"]);
    server.stop();

    let rdb = dir.path().join("dump.rdb");
    let options = ExportOptions { version: RdbVersion::DEFAULT, compresses: true, batch_size: 1 };
    let mut exporter = Exporter::create(&rdb, options).unwrap();
    let made_at_s = now_s();
    until("the clock does not advance", || now_s() != made_at_s);
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
