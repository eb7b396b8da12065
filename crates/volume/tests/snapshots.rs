//! Snapshots in the files of a directory.

mod common;

use std::path::Path;

use slimio_device::{EngineChoice, PathOptions};
use slimio_storage::{
    FormatOptions, SlotName, SlotSummary, SlotWriter, SnapshotKind, Storage, Volume, VolumeId,
    WriterOptions, format, inspect, verify,
};

use common::{reopen, settle};

fn open(place: &Path, engine: EngineChoice) -> Storage {
    let options = PathOptions { engine, ..PathOptions::default() };
    slimio_volume::open(place, options, true, u64::MAX).expect("the volume can be opened")
}

fn snapshot(volume: &mut Volume, kind: SnapshotKind, chunks: &[&[u8]]) -> SlotSummary {
    let plan = volume.log.begin_snapshot(kind, 1).expect("no other snapshot is under way");
    let device = volume.slot_paths.get(plan.slot);
    let mut writer = SlotWriter::begin(device, plan, WriterOptions::default())
        .expect("the snapshot can be begun");
    for chunk in chunks {
        writer.chunk(device, chunk, 1).expect("the chunk can be written");
    }
    let summary = writer.finish(device).expect("the snapshot can be finished");
    volume.log.adopt(summary);
    settle(volume);
    assert_eq!(volume.log.snapshots().of_kind(kind), Some(&summary));
    summary
}

fn formatted(place: &Path, engine: EngineChoice) -> Storage {
    let mut storage = open(place, engine);
    let layout = FormatOptions {
        volume_id: VolumeId(77),
        segment_lbas: 64,
        batch_lbas_max: 16,
        wal_slots_max: 8,
        replace: false,
    };
    format(&mut *storage.media, &layout).expect("the volume can be made");
    storage
}

#[test]
fn a_snapshot_and_the_log_behind_it_come_back() {
    for engine in [EngineChoice::Best, EngineChoice::Plain] {
        let place = tempfile::tempdir().expect("a temporary directory can be made");
        let place = place.path().join("volume");
        let mut storage = formatted(&place, engine);
        let large = vec![9; 700_000];
        let mut expected: Vec<Vec<u8>> = Vec::new();
        for round in 0..4_u8 {
            let (mut volume, recovered) =
                reopen(&mut storage).expect("the volume can be recovered");
            assert_eq!(recovered, expected);
            volume.log.append(0, &[b"before"]);
            settle(&mut volume);
            let first = [round; 1000];
            snapshot(&mut volume, SnapshotKind::OnDemand, &[b"another"]);
            snapshot(&mut volume, SnapshotKind::Wal, &[&first, &large, b""]);
            volume.log.append(0, &[b"behind"]);
            settle(&mut volume);
            expected = vec![first.to_vec(), large.clone(), Vec::new(), b"behind".to_vec()];
        }
        verify(&mut *storage.media, &mut |_| {}).expect("the volume is whole");
    }
}

#[test]
fn a_slot_keeps_its_space_and_gives_back_what_is_far_too_much() {
    let place = tempfile::tempdir().expect("a temporary directory can be made");
    let place = place.path().join("volume");
    let mut storage = formatted(&place, EngineChoice::Best);
    let (mut volume, _) = reopen(&mut storage).expect("the volume can be recovered");
    let summary = snapshot(&mut volume, SnapshotKind::Wal, &[b"small"]);
    let size = || place.join("snapshot-a").metadata().expect("the slot's file exists").len();
    let first_size = size();
    assert!(
        first_size >= 64 << 20,
        "the slot's file must grow in large steps, but has only {first_size} bytes"
    );
    snapshot(&mut volume, SnapshotKind::Wal, &[b"in the next"]);
    snapshot(&mut volume, SnapshotKind::Wal, &[b"in the first again"]);
    assert_eq!(size(), first_size);

    let device = volume.slot_paths.get(SlotName::A);
    device.grow(100 << 8).expect("the slot can grow");
    while volume
        .slot_paths
        .give_back(SlotName::A, summary.len_lbas)
        .expect("the slot's file can be shortened")
    {}
    assert!(size() < 66 << 20, "{}", size());
    // After the slot's file was shortened, a new path to the slot must still find the snapshot.
    drop(volume);
    let (volume, recovered) = reopen(&mut storage).expect("the volume can be recovered");
    assert_eq!(recovered, [b"in the first again"]);
    drop(volume);
}

#[test]
fn a_missing_slot_is_missed_only_when_it_holds_something() {
    let place = tempfile::tempdir().expect("a temporary directory can be made");
    let place = place.path().join("volume");
    let mut storage = formatted(&place, EngineChoice::Best);
    let (mut volume, _) = reopen(&mut storage).expect("the volume can be recovered");
    snapshot(&mut volume, SnapshotKind::Wal, &[b"root"]);
    drop((volume, storage));
    for name in ["snapshot-b", "snapshot-c"] {
        std::fs::remove_file(place.join(name)).expect("the slot's file exists");
    }
    let mut storage = open(&place, EngineChoice::Best);
    assert_eq!(reopen(&mut storage).expect("the volume can be recovered").1, [b"root"]);
    drop(storage);
    std::fs::remove_file(place.join("snapshot-a")).expect("the slot's file exists");
    let mut storage = open(&place, EngineChoice::Best);
    let what = "the snapshot in snapshot-a is damaged: its file is missing";
    let checked =
        verify(&mut *storage.media, &mut |_| {}).expect_err("the file with the root is missing");
    assert_eq!(checked.to_string(), what);
    assert_eq!(
        inspect(&mut *storage.media)
            .expect("a volume with a missing slot can be inspected")
            .missing_slots,
        [SlotName::A]
    );
    let refused = reopen(&mut storage).expect_err("the file with the root is missing");
    assert_eq!(refused.to_string(), what);
    assert!(
        !place.join("snapshot-a").exists(),
        "verifying, inspecting or refusing the volume made the missing file"
    );
}

#[test]
fn a_directory_with_a_snapshot_and_no_superblock_is_no_place_for_a_new_volume() {
    let place = tempfile::tempdir().expect("a temporary directory can be made");
    std::fs::write(place.path().join("snapshot-b"), b"something").expect("the file can be written");
    let refused = slimio_volume::open(place.path(), PathOptions::default(), true, u64::MAX);
    let why = refused.err().expect("the directory is refused").to_string();
    assert!(why.contains("super is missing"), "{why}");
}
