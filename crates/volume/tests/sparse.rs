//! Volumes that were copied without their zeros, as `cp --sparse=always` does.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use slimio_device::{LBA_SIZE, PathOptions};
use slimio_storage::{FormatOptions, Storage, VolumeId, format, verify};

use common::{reopen, settle};

const SEGMENT_LBAS: u64 = 64;

/// Copies every file of a directory into a new one, with a hole for each block of zeros.
fn copy_sparse(from: &Path, to: &Path) {
    fs::create_dir(to).expect("there is room");
    for entry in fs::read_dir(from).expect("it can be read") {
        let entry = entry.expect("it can be read");
        let bytes = fs::read(entry.path()).expect("it can be read");
        let copy = fs::File::create(to.join(entry.file_name())).expect("there is room");
        copy.set_len(bytes.len() as u64).expect("it can be set");
        for (index, block) in bytes.chunks(LBA_SIZE).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                copy.write_all_at(block, (index * LBA_SIZE) as u64).expect("there is room");
            }
        }
        copy.sync_all().expect("it can be flushed");
    }
}

/// Blocks that a file takes.
fn blocks(path: &Path) -> u64 {
    fs::metadata(path).expect("it is there").blocks() * 512 / LBA_SIZE as u64
}

/// The first block from `lba` on that is a hole of the file. If there is no hole, the end of the
/// file.
fn first_hole(path: &Path, lba: u64) -> u64 {
    let file = fs::File::open(path).expect("it is there");
    let offset = seek(&file, SeekFrom::Hole(lba * LBA_SIZE as u64)).expect("it says where");
    offset / LBA_SIZE as u64
}

fn open(place: &Path) -> Storage {
    slimio_volume::open(place, PathOptions::default(), true, u64::MAX).expect("it can be used")
}

fn formatted(place: &Path) -> Storage {
    let mut storage = open(place);
    let layout = FormatOptions {
        volume_id: VolumeId(77),
        segment_lbas: SEGMENT_LBAS,
        batch_lbas_max: 16,
        wal_slots_max: 8,
        replace: false,
    };
    format(&mut *storage.media, &layout).expect("there is room");
    storage
}

#[test]
fn what_the_log_may_use_has_its_space() {
    let above = tempfile::tempdir().expect("there is room");
    let (place, copy) = (above.path().join("volume"), above.path().join("copy"));
    let mut storage = formatted(&place);
    let (mut volume, _) = reopen(&mut storage).expect("it opens");
    volume.log.append(0, &[b"before"]);
    settle(&mut volume);
    let slots = volume.keeper.superblock().wal_slots.iter().flatten().count() as u64;
    drop((volume, storage));

    copy_sparse(&place, &copy);
    let (wal, superblock) = (copy.join("wal"), copy.join("super"));
    assert!(blocks(&wal) < SEGMENT_LBAS, "most of it is a hole");
    assert!(blocks(&superblock) < 16);

    // Verifying changes nothing.
    let before = (blocks(&wal), blocks(&superblock));
    let mut storage = open(&copy);
    verify(&mut *storage.media, &mut |_| {}).expect("it is whole");
    assert_eq!((blocks(&wal), blocks(&superblock)), before);

    let (mut volume, recovered) = reopen(&mut storage).expect("it opens");
    assert_eq!(recovered, [b"before"]);
    // The first blocks, before the log's next record, are only read, so they may still be holes.
    // All later blocks must have space.
    let hole = first_hole(&wal, 2);
    assert!(hole >= slots * SEGMENT_LBAS, "block {hole} of {slots} segments has no space");
    assert!(blocks(&superblock) >= 16, "each of its copies has all its blocks");
    let buffers = copy.join("buffers");
    assert!(blocks(&buffers) * LBA_SIZE as u64 >= buffers.metadata().expect("it is there").len());
    assert!(volume.log.are_buffers_kept(), "they are mapped");
    volume.log.append(0, &[b"behind"]);
    settle(&mut volume);
    drop((volume, storage));
    let (_, recovered) = reopen(&mut open(&copy)).expect("it opens");
    assert_eq!(recovered, [b"before", b"behind"]);
}

#[test]
fn a_segment_that_a_former_process_gave_back_has_its_space_before_it_is_used() {
    let above = tempfile::tempdir().expect("there is room");
    let (place, copy) = (above.path().join("volume"), above.path().join("copy"));
    let mut storage = formatted(&place);
    let (mut volume, _) = reopen(&mut storage).expect("it opens");
    let record = vec![5; 30 << 10];
    let append = |volume: &mut slimio_storage::Volume, count: usize| {
        for _ in 0..count {
            volume.log.append(0, &[&record]);
            settle(volume);
        }
    };
    append(&mut volume, 40);
    // The log keeps the segments, which are now free for reuse.
    let lsn = volume.log.durable();
    volume.log.release_before(lsn);
    settle(&mut volume);
    let free = |volume: &slimio_storage::Volume| {
        let superblock = volume.keeper.superblock();
        (superblock.wal_slots.len() - superblock.wal_slots.iter().flatten().count()) as u64
    };
    assert!(free(&volume) >= 2, "{} are free", free(&volume));
    drop((volume, storage));
    // Free segments may read as anything; in this test they read as zeros.
    let superblock = {
        let mut storage = open(&place);
        let (volume, _) = reopen(&mut storage).expect("it opens");
        volume.keeper.superblock().clone()
    };
    let wal = fs::OpenOptions::new().write(true).open(place.join("wal")).expect("it is there");
    let zeros = vec![0; SEGMENT_LBAS as usize * LBA_SIZE];
    for (slot, segment) in superblock.wal_slots.iter().enumerate() {
        if segment.is_none() {
            wal.write_all_at(&zeros, slot as u64 * zeros.len() as u64).expect("there is room");
        }
    }
    drop(wal);
    copy_sparse(&place, &copy);
    let mut storage = open(&copy);
    let (mut volume, _) = reopen(&mut storage).expect("it opens");
    let before = blocks(&copy.join("wal"));
    let free_before = free(&volume);
    append(&mut volume, 9);
    let taken = free_before - free(&volume);
    assert!(taken > 0, "it has gone on in one of them");
    assert_eq!(blocks(&copy.join("wal")), before + taken * SEGMENT_LBAS);
}
