//! Tests that the server can serve and change a volume that an earlier version has written.
//!
//! The fixture is a real volume in files. Its server was killed when the volume had strings, hashes
//! and sets of every encoding. These values are in two snapshots, and in records of the log after
//! these snapshots. One snapshot is an on-demand snapshot. The other one is the WAL-snapshot, from
//! which the log goes on. The WAL-snapshot is complete only together with some of this log.
//! Segments of the log that hold nothing were zeroed afterwards, so that the fixture is small.
//!
//! The fixture has the files in the order of `FILES`. Each file begins with its size and the number
//! of its pieces. Then, for each piece, come its offset, its compressed size and its bytes,
//! compressed by LZF. Numbers are little-endian and have four bytes. A piece has 64 KiB, unless it
//! is the last piece of its file. Pieces of zeros are left out.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use slimio_device::PathOptions;
use slimio_rdb::decompress;
use slimio_server::exchange::{key_count, load_volume};
use slimio_storage::{RootChoice, SlotSummary, Superblock, layout, superblock};

use crate::checks::take;
use crate::common::{Client, start};

const FIXTURE: &[u8] = include_bytes!("../fixtures/volume-v5.bin");
const FILES: [&str; 6] = ["super", "wal", "snapshot-a", "snapshot-b", "snapshot-c", "buffers"];
const PIECE_SIZE: usize = 64 << 10;

/// The reply to `DEBUG DIGEST` just before the fixture's server was killed.
const DIGEST: &str = "+9999d06c9b71b45e3478fad148fa06b3c406c192\r\n";
/// Number of keys that the fixture's server had.
const KEYS: usize = 17;

/// Takes a number from the front of `rest`.
fn number(rest: &mut &[u8]) -> usize {
    let (number, after) = rest.split_first_chunk().unwrap();
    *rest = after;
    u32::from_le_bytes(*number) as usize
}

fn unpack(folder: &Path) {
    std::fs::create_dir(folder).unwrap();
    let mut rest = FIXTURE;
    let rest = &mut rest;
    for name in FILES {
        let file = File::create(folder.join(name)).unwrap();
        let size = number(rest);
        file.set_len(size as u64).unwrap();
        for _ in 0..number(rest) {
            let (at, packed_size) = (number(rest), number(rest));
            let (packed, after) = rest.split_at(packed_size);
            *rest = after;
            let mut piece = Vec::new();
            decompress(packed, PIECE_SIZE.min(size - at), &mut piece).unwrap();
            file.write_all_at(&piece, at as u64).unwrap();
        }
    }
    assert!(rest.is_empty());
}

fn found(volume: &Path) -> Superblock {
    let mut storage = slimio_volume::open(volume, PathOptions::default(), false, u64::MAX).unwrap();
    superblock(&mut *storage.media).unwrap()
}

fn digest(client: &mut Client) -> String {
    client.call(&["DEBUG", "DIGEST"])
}

#[test]
fn a_volume_of_format_5_with_sets_is_served_and_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let volume = dir.path().join("volume");
    unpack(&volume);
    let before = found(&volume);
    assert_eq!(before.version(), layout::FORMAT_VERSION_FUZZY);
    assert!(before.snapshots.root().is_some_and(SlotSummary::is_fuzzy), "{before:?}");
    let mut storage =
        slimio_volume::open(&volume, PathOptions::default(), false, u64::MAX).unwrap();
    let loaded = load_volume(&mut storage, RootChoice::InForce, &mut |_, _| {}).unwrap();
    assert_eq!(key_count(&loaded), KEYS);
    drop(storage);
    assert_eq!(
        found(&volume).version(),
        layout::FORMAT_VERSION_FUZZY,
        "reading must not change the format"
    );

    let mut expected = DIGEST.to_owned();
    for life in ["1", "2", "3"] {
        let directives = "appendfsync always\nenable-debug-command yes";
        let server = start("plain", &volume, directives).unwrap();
        let mut client = server.connect();
        assert_eq!(digest(&mut client), expected, "life {life}");
        assert_eq!(client.call(&["SADD", "many", life, "of this life"]).as_bytes()[0], b':');
        assert_eq!(client.call(&["SADD", "set in parts", life]), ":1\r\n");
        assert_eq!(client.call(&["HSET", "hash in parts", life, "v"]), ":1\r\n");
        if life == "2" {
            take(&mut client, "BGREWRITEAOF");
        }
        expected = digest(&mut client);
        server.stop();
        assert_eq!(found(&volume).version(), layout::FORMAT_VERSION_TYPES, "life {life}");
    }
}
