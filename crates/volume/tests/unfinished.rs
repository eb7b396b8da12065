//! Directories in which a first start was interrupted, and directories that only look as if that
//! had happened.

#![expect(clippy::unwrap_used, reason = "a test fails if a step fails")]

mod common;

use std::fs::{self, File, OpenOptions};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use slimio_device::{LBA_SIZE, OpenError, PathOptions};
use slimio_storage::{
    Area, FormatOptions, SlotWriter, SnapshotKind, Storage, Volume, VolumeId, WriterOptions, format,
};

use common::{reopen, settle};

const LAYOUT: FormatOptions = FormatOptions {
    volume_id: VolumeId(77),
    segment_lbas: 64,
    batch_lbas_max: 16,
    wal_slots_max: 8,
    replace: false,
};

const SUPER_SIZE: u64 = 16 * LBA_SIZE as u64;
const WAL_SIZE: u64 = LAYOUT.segment_lbas * LBA_SIZE as u64;

fn open(place: &Path) -> Result<Storage, OpenError> {
    slimio_volume::open(place, PathOptions::default(), true, u64::MAX)
}

fn make(place: &Path, name: &str, size: u64) {
    File::create(place.join(name)).unwrap().set_len(size).unwrap();
}

/// Checks that the directory does not count as a volume, that a volume can be made in it, and that
/// this volume keeps a record.
fn check_made(place: &Path, context: &str) {
    let mut storage = open(place).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(!storage.exists, "{context}");
    format(&mut *storage.media, &LAYOUT).unwrap_or_else(|error| panic!("{context}: {error}"));
    let (mut volume, found) = reopen(&mut storage).unwrap_or_else(|e| panic!("{context}: {e}"));
    assert!(found.is_empty(), "{context}");
    volume.log.append(0, &[b"first"]);
    settle(&mut volume);
    drop((volume, storage));
    let mut storage = open(place).unwrap_or_else(|error| panic!("{context}: {error}"));
    assert!(storage.exists, "{context}");
    assert_eq!(
        reopen(&mut storage).expect("the volume can be recovered").1,
        [b"first"],
        "{context}"
    );
}

/// A power cut may lose the names, the lengths or the contents of files. The next start must be
/// able to make the volume, whichever files are left.
#[test]
fn whatever_a_first_start_left_half_made_is_gone_on_with() {
    let lba = LBA_SIZE as u64;
    let wals = [None, Some(0), Some(100), Some(lba), Some(WAL_SIZE / 2), Some(WAL_SIZE)];
    let others = [
        ("snapshot-b", 0),
        ("buffers.new", 0),
        ("buffers.new", lba),
        ("buffers", 0),
        ("buffers", lba),
        ("lock", 0),
        ("claim", 0),
    ];
    let mut cases = Vec::new();
    for super_size in [0, 100, SUPER_SIZE - 1, SUPER_SIZE] {
        cases.extend(wals.map(|wal_size| (super_size, wal_size, None)));
    }
    for other in others {
        cases.extend([(0, None, Some(other)), (SUPER_SIZE, Some(WAL_SIZE), Some(other))]);
    }
    for case in cases {
        let (super_size, wal_size, other) = case;
        let place = tempfile::tempdir().unwrap();
        make(place.path(), "super", super_size);
        if let Some(size) = wal_size {
            make(place.path(), "wal", size);
        }
        if let Some((name, size)) = other {
            make(place.path(), name, size);
        }
        check_made(place.path(), &format!("{case:?}"));
    }
}

/// Here, the files of an unfinished first start are cleared away, but this fails halfway. The
/// superblock's file must still exist: without it, the other files would count as a damaged volume,
/// and the next start could not make the volume.
#[test]
fn what_can_not_be_cleared_away_is_still_known_for_what_it_is() {
    let place = tempfile::tempdir().unwrap();
    for (name, size) in [("super", SUPER_SIZE), ("wal", WAL_SIZE), ("snapshot-b", 0)] {
        make(place.path(), name, size);
    }
    // Clearing away fails, because `buffers` is a directory, and a directory can't be removed like
    // a file.
    fs::create_dir(place.path().join("buffers")).unwrap();
    let mut storage = open(place.path()).unwrap();
    format(&mut *storage.media, &LAYOUT).unwrap_err();
    drop(storage);
    fs::remove_dir(place.path().join("buffers")).unwrap();
    check_made(place.path(), "a start after a failed clearing");
}

#[test]
fn a_directory_with_only_its_locks_is_new() {
    for names in [&["lock"][..], &["claim"], &["claim", "lock"]] {
        let place = tempfile::tempdir().unwrap();
        for name in names {
            make(place.path(), name, 0);
        }
        check_made(place.path(), &format!("{names:?}"));
    }
}

/// Names and contents of all files except the lock files.
fn contents(place: &Path) -> Vec<(String, Vec<u8>)> {
    let names = fs::read_dir(place).unwrap().map(|entry| entry.unwrap().file_name());
    let mut names: Vec<_> = names.map(|name| name.into_string().unwrap()).collect();
    names.retain(|name| name != "lock" && name != "claim");
    names.sort();
    names.into_iter().map(|name| (name.clone(), fs::read(place.join(&name)).unwrap())).collect()
}

/// Checks that the directory is either refused, or opened as a volume that recovery then refuses.
/// In both cases, the files must not change.
fn check_left_alone(place: &Path, context: &str) {
    let before = contents(place);
    match open(place) {
        Err(error) => assert!(matches!(error, OpenError::Unsuitable { .. }), "{context}: {error}"),
        Ok(mut storage) => {
            assert!(storage.exists, "{context}: the directory must count as a volume");
            assert!(reopen(&mut storage).is_err(), "{context}: recovery must refuse the volume");
        }
    }
    assert!(contents(place) == before, "{context}: the files were changed");
}

/// Makes a volume that has a record in its log, and a snapshot.
fn volume(place: &Path) {
    let mut storage = open(place).unwrap();
    format(&mut *storage.media, &LAYOUT).unwrap();
    let (mut volume, _) = reopen(&mut storage).unwrap();
    volume.log.append(0, &[&[7; 9000]]);
    settle(&mut volume);
    let Volume { log, slot_paths, .. } = &mut volume;
    let plan = log.begin_snapshot(SnapshotKind::OnDemand, 1).unwrap();
    let device = slot_paths.get(plan.slot);
    let mut writer = SlotWriter::begin(device, plan, WriterOptions::default()).unwrap();
    writer.chunk(device, b"kept", 1).unwrap();
    let summary = writer.finish(device).unwrap();
    log.adopt(summary);
    settle(&mut volume);
}

fn zero(place: &Path, name: &str) {
    let file = OpenOptions::new().write(true).open(place.join(name)).unwrap();
    let size = file.metadata().unwrap().len();
    file.write_all_at(&vec![0; size as usize], 0).unwrap();
}

#[test]
fn a_volume_that_lost_its_superblock_is_not_taken_for_an_unfinished_one() {
    type Spoil<'a> = (&'a str, &'a dyn Fn(&Path));
    let spoil: &[Spoil<'_>] = &[
        ("the superblock is zero", &|_| {}),
        ("the superblock and the log are zero", &|place| zero(place, "wal")),
        // Segments are zeroed before they are used again. So the log's file may begin with zeros
        // that are followed by records.
        ("only a later part of the log is left", &|place| {
            zero(place, "wal");
            let file = OpenOptions::new().write(true).open(place.join("wal")).unwrap();
            file.write_all_at(b"SlWB", 200 << 10).unwrap();
            for name in ["buffers", "snapshot-a", "snapshot-b", "snapshot-c"] {
                fs::remove_file(place.join(name)).unwrap();
            }
        }),
        ("the log's file is missing", &|place| fs::remove_file(place.join("wal")).unwrap()),
        ("only a snapshot is left", &|place| {
            for name in ["wal", "buffers"] {
                fs::remove_file(place.join(name)).unwrap();
            }
        }),
        ("only buffers are left", &|place| {
            for name in ["wal", "snapshot-a", "snapshot-b", "snapshot-c"] {
                fs::remove_file(place.join(name)).unwrap();
            }
            zero(place, "buffers");
        }),
    ];
    for (context, spoil) in spoil {
        let place = tempfile::tempdir().unwrap();
        volume(place.path());
        zero(place.path(), Area::Superblock.name());
        spoil(place.path());
        check_left_alone(place.path(), context);
        fs::remove_file(place.path().join("super")).unwrap();
        check_left_alone(
            place.path(),
            &format!("{context}; then the superblock's file was removed"),
        );
    }
}

#[test]
fn what_is_somebody_elses_is_left_alone() {
    type Files<'a> = &'a [(&'a str, &'a [u8])];
    let too_long = vec![0; SUPER_SIZE as usize + 1];
    let cases: [Files<'_>; 7] = [
        &[("notes.txt", b"mine")],
        &[("super", b""), ("notes.txt", b"")],
        &[("super", b"mine")],
        &[("super", b"\0\0\0\x01")],
        &[("super", b""), ("wal", b"mine")],
        &[("super", b""), ("snapshot-b", b"\0")],
        &[("super", &too_long)],
    ];
    for files in cases {
        let place = tempfile::tempdir().unwrap();
        for (name, bytes) in files {
            fs::write(place.path().join(name), bytes).unwrap();
        }
        let names: Vec<_> = files.iter().map(|(name, bytes)| (name, bytes.len())).collect();
        check_left_alone(place.path(), &format!("{names:?}"));
    }
}
