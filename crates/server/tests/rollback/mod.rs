//! Rollback to the on-demand snapshot that `BGSAVE` took. Later starts must not roll back again.

use std::path::Path;

use slimio_device::{EngineChoice, PathOptions};
use slimio_server::exchange::roll_back;
use slimio_storage::Report;

use crate::checks::{Part, damage, take};
use crate::common::{BACK_ENDS, launch, start};

fn back(back_end: &str, volume: &Path) -> Result<Report, String> {
    let engine = if back_end == "plain" { EngineChoice::Plain } else { EngineChoice::Best };
    let options = PathOptions { engine, ..PathOptions::default() };
    let mut storage = slimio_volume::open(volume, options, false, u64::MAX).unwrap();
    roll_back(&mut storage, false, &mut |_, _| {})
}

/// Makes a volume: `k` is `old` in the on-demand snapshot, and `new` in a later WAL-snapshot, which
/// is the root (the snapshot that a start loads). The log after the root has a record. Returns the
/// slots of the on-demand snapshot and of the root.
fn written(back_end: &str, volume: &Path) -> Option<(usize, usize)> {
    let server = start(back_end, volume, "appendfsync always")?;
    let mut client = server.connect();
    assert_eq!(client.call(&["MSET", "k", "old", "kept", "1"]), "+OK\r\n");
    let on_demand = take(&mut client, "BGSAVE");
    assert_eq!(client.call(&["SET", "k", "new"]), "+OK\r\n");
    let root = take(&mut client, "BGREWRITEAOF");
    assert_eq!(client.call(&["SET", "later", "1"]), "+OK\r\n");
    server.stop();
    Some((on_demand, root))
}

#[test]
fn a_rollback_goes_back_once_and_what_is_written_then_stays() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some((on_demand, _)) = written(back_end, &volume) else { continue };
        let report = back(back_end, &volume).unwrap();
        assert!(report.is_on_demand);
        assert_eq!(report.root.map(|root| root.slot.index()), Some(on_demand));
        let mut expected = "old".to_owned();
        for life in 0..3 {
            let server = start(back_end, &volume, "appendfsync always").unwrap();
            let mut client = server.connect();
            let values = client.call(&["MGET", "k", "kept", "later"]);
            let size = expected.len();
            assert_eq!(values, format!("*3\r\n${size}\r\n{expected}\r\n$1\r\n1\r\n$-1\r\n"));
            expected = format!("written in life {life}");
            assert_eq!(client.call(&["SET", "k", &expected]), "+OK\r\n");
            if life == 1 {
                // The on-demand snapshot stays, but a WAL-snapshot becomes the root.
                take(&mut client, "BGREWRITEAOF");
            }
            server.stop();
        }
    }
}

#[test]
fn a_damaged_point_in_time_is_no_way_back_and_changes_nothing() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some((on_demand, _)) = written(back_end, &volume) else { continue };
        damage(&volume, on_demand, Part::Chunk);
        let why = back(back_end, &volume).unwrap_err();
        assert!(why.contains("is damaged: chunk 0 at block 1"), "{why}");
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        let values = server.connect().call(&["MGET", "k", "kept", "later"]);
        assert_eq!(values, "*3\r\n$3\r\nnew\r\n$1\r\n1\r\n$1\r\n1\r\n");
        server.stop();
    }
}

#[test]
fn a_rollback_is_a_way_out_when_the_root_is_damaged() {
    for back_end in BACK_ENDS {
        let dir = tempfile::tempdir().unwrap();
        let volume = dir.path().join("volume");
        let Some((_, root)) = written(back_end, &volume) else { continue };
        damage(&volume, root, Part::Index);
        let refused = launch(back_end, &volume, "appendfsync always", |storage| storage);
        let why = refused.unwrap().ended().unwrap_err();
        assert!(why.contains("slimio rollback"), "{why}");
        back(back_end, &volume).unwrap();
        let server = start(back_end, &volume, "appendfsync always").unwrap();
        let values = server.connect().call(&["MGET", "k", "later"]);
        assert_eq!(values, "*2\r\n$3\r\nold\r\n$-1\r\n");
        server.stop();
    }
}
