//! Opens copies of volumes. The copies have a hole instead of each block of zeros, as if
//! `cp --sparse=always` had made them.

mod common;

use std::fs;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::Path;

use rustix::fs::{SeekFrom, seek};
use slimio_device::{LBA_SIZE, PathOptions};
use slimio_storage::{FormatOptions, Storage, VolumeId, format, verify};

use common::{reopen, settle};

const SEGMENT_LBAS: u64 = 64;

/// Copies every file of a directory into a new directory, with a hole for each block of zeros.
fn copy_sparse(from: &Path, to: &Path) {
    fs::create_dir(to).expect("the directory can be made");
    for entry in fs::read_dir(from).expect("the directory can be read") {
        let entry = entry.expect("the directory can be read");
        let bytes = fs::read(entry.path()).expect("the file can be read");
        let copy = fs::File::create(to.join(entry.file_name())).expect("the copy can be made");
        copy.set_len(bytes.len() as u64).expect("the copy's length can be set");
        for (index, block) in bytes.chunks(LBA_SIZE).enumerate() {
            if block.iter().any(|&byte| byte != 0) {
                copy.write_all_at(block, (index * LBA_SIZE) as u64)
                    .expect("the block can be written");
            }
        }
        copy.sync_all().expect("the copy can be flushed");
    }
}

/// Number of blocks that the file system has allocated for a file.
fn blocks(path: &Path) -> u64 {
    fs::metadata(path).expect("the file exists").blocks() * 512 / LBA_SIZE as u64
}

/// The first block from `lba` on that is a hole of the file. If the file has no such hole, returns
/// the file's length in blocks.
fn first_hole(path: &Path, lba: u64) -> u64 {
    let file = fs::File::open(path).expect("the file exists");
    let offset = seek(&file, SeekFrom::Hole(lba * LBA_SIZE as u64))
        .expect("the file system can look for holes");
    offset / LBA_SIZE as u64
}

fn open(place: &Path) -> Storage {
    slimio_volume::open(place, PathOptions::default(), true, u64::MAX)
        .expect("the volume can be opened")
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
    format(&mut *storage.media, &layout).expect("the volume can be made");
    storage
}

#[test]
fn what_the_log_may_use_has_its_space() {
    let above = tempfile::tempdir().expect("a temporary directory can be made");
    let (place, copy) = (above.path().join("volume"), above.path().join("copy"));
    let mut storage = formatted(&place);
    let (mut volume, _) = reopen(&mut storage).expect("the volume can be recovered");
    volume.log.append(0, &[b"before"]);
    settle(&mut volume);
    let slots = volume.keeper.superblock().wal_slots.iter().flatten().count() as u64;
    drop((volume, storage));

    copy_sparse(&place, &copy);
    let (wal, superblock) = (copy.join("wal"), copy.join("super"));
    assert!(blocks(&wal) < SEGMENT_LBAS, "the copied log must have holes");
    assert!(blocks(&superblock) < 16);

    // Verifying must not change the copy.
    let before = (blocks(&wal), blocks(&superblock));
    let mut storage = open(&copy);
    verify(&mut *storage.media, &mut |_| {}).expect("the volume is whole");
    assert_eq!((blocks(&wal), blocks(&superblock)), before);

    let (mut volume, recovered) = reopen(&mut storage).expect("the volume can be recovered");
    assert_eq!(recovered, [b"before"]);
    // The blocks before the log's next record are only read, so they may still be holes. All later
    // blocks must be allocated.
    let hole = first_hole(&wal, 2);
    assert!(
        hole >= slots * SEGMENT_LBAS,
        "block {hole} is not allocated, but all blocks of the {slots} segments must be"
    );
    assert!(blocks(&superblock) >= 16, "all blocks of the superblock's copies must be allocated");
    let buffers = copy.join("buffers");
    assert!(
        blocks(&buffers) * LBA_SIZE as u64
            >= buffers.metadata().expect("the buffers' file exists").len()
    );
    assert!(volume.log.are_buffers_kept(), "the log's buffers must be mapped from the volume");
    volume.log.append(0, &[b"behind"]);
    settle(&mut volume);
    drop((volume, storage));
    let (_, recovered) = reopen(&mut open(&copy)).expect("the volume can be recovered");
    assert_eq!(recovered, [b"before", b"behind"]);
}

#[test]
fn a_segment_that_a_former_process_gave_back_has_its_space_before_it_is_used() {
    let above = tempfile::tempdir().expect("a temporary directory can be made");
    let (place, copy) = (above.path().join("volume"), above.path().join("copy"));
    let mut storage = formatted(&place);
    let (mut volume, _) = reopen(&mut storage).expect("the volume can be recovered");
    let record = vec![5; 30 << 10];
    let append = |volume: &mut slimio_storage::Volume, count: usize| {
        for _ in 0..count {
            volume.log.append(0, &[&record]);
            settle(volume);
        }
    };
    append(&mut volume, 40);
    // Releasing records makes their segments free. The log's file keeps the free segments for
    // reuse.
    let lsn = volume.log.durable();
    volume.log.release_before(lsn);
    settle(&mut volume);
    let free = |volume: &slimio_storage::Volume| {
        let superblock = volume.keeper.superblock();
        (superblock.wal_slots.len() - superblock.wal_slots.iter().flatten().count()) as u64
    };
    assert!(free(&volume) >= 2, "only {} segments are free", free(&volume));
    drop((volume, storage));
    // A free segment may have any contents. This test fills free segments with zeros, so that they
    // become holes of the copy.
    let superblock = {
        let mut storage = open(&place);
        let (volume, _) = reopen(&mut storage).expect("the volume can be recovered");
        volume.keeper.superblock().clone()
    };
    let wal =
        fs::OpenOptions::new().write(true).open(place.join("wal")).expect("the log's file exists");
    let zeros = vec![0; SEGMENT_LBAS as usize * LBA_SIZE];
    for (slot, segment) in superblock.wal_slots.iter().enumerate() {
        if segment.is_none() {
            wal.write_all_at(&zeros, slot as u64 * zeros.len() as u64)
                .expect("the zeros can be written");
        }
    }
    drop(wal);
    copy_sparse(&place, &copy);
    let mut storage = open(&copy);
    let (mut volume, _) = reopen(&mut storage).expect("the volume can be recovered");
    let before = blocks(&copy.join("wal"));
    let free_before = free(&volume);
    append(&mut volume, 9);
    let taken = free_before - free(&volume);
    assert!(taken > 0, "the log has not continued in a free segment");
    assert_eq!(blocks(&copy.join("wal")), before + taken * SEGMENT_LBAS);
}
