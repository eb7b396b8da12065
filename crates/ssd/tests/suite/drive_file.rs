//! Tests which parts of an emulated drive in a file survive until the next start.
//!
//! The drive's blocks are in a data file. A state file beside it has two checkpoints and a journal.
//! A checkpoint has a head with the drive's configuration, and a body with the drive's whole state.
//! The journal has the requests since the latest checkpoint.

use std::path::{Path, PathBuf};

use slimio_device::{DeviceError, LBA_SIZE, Op, OpenError, Token, WholeDevice};
use slimio_ssd::{Clock, DataPlace, DriveOptions, EmulatedDrive, Timing};

use crate::drive::{byte_at, do_all, drive, options, range, write};
use crate::remember::{BODIES, journal, small};

pub(crate) fn in_file(path: PathBuf) -> DriveOptions {
    DriveOptions { data: DataPlace::File(path), ..options(Clock::Virtual) }
}

#[test]
fn a_drive_in_a_file_is_there_again() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(10, 4, 1, true), write(100, 1, 2, true)]);
    do_all(&mut *path, [Op::Deallocate { range: range(11, 13) }]);
    let refused = EmulatedDrive::open(in_file(file.clone())).map(drop);
    assert!(matches!(refused, Err(OpenError::InUse { .. })), "{refused:?}");
    drop((first, path));
    let mut second = drive(&in_file(file.clone()));
    let mut path = second.open_path().expect("a path opens");
    let found = [10, 13, 100].map(|lba| byte_at(&mut *path, lba));
    assert_eq!(found, [1, 1, 2]);
    assert_eq!(
        second.counters().host_bytes(),
        5 * LBA_SIZE as u64,
        "the counters must go on after a start"
    );
    assert_eq!(second.with_ftl(slimio_ssd::Ftl::mapped_count), 3);
    drop(path);
    let counters = second.counters();
    let killed = as_killed(&file);
    let mut third = drive(&in_file(killed));
    assert_eq!(third.notes().len(), 1, "the notes report a loss, but a kill loses nothing");
    let mut path = third.open_path().expect("a path opens");
    assert_eq!([10, 11, 12, 13, 100].map(|lba| byte_at(&mut *path, lba)), [1, 0xDD, 0xDD, 1, 2]);
    assert_eq!(third.counters(), counters, "the counters must go on after a kill");
    assert_eq!(third.with_ftl(slimio_ssd::Ftl::mapped_count), 3);
    drop((second, third, path));
    assert_eq!(drive(&in_file(file.clone())).notes().len(), 1, "the closed drive lost something");
    std::fs::OpenOptions::new()
        .write(true)
        .open(&file)
        .expect("the data file exists")
        .set_len(8)
        .expect("the file can be cut");
    let Err(refused) = EmulatedDrive::open(in_file(file)).map(drop) else {
        panic!("a file of the wrong size is not refused")
    };
    assert!(refused.to_string().contains("it has 8 bytes, but the drive has"), "{refused}");
}

/// Copies the files of an open drive as a kill of its process would leave them now. Returns the
/// path of the copied data file.
pub(crate) fn as_killed(file: &Path) -> PathBuf {
    let copy = file.with_file_name("killed");
    // Remove an earlier copy. Otherwise, the new copy would keep the attributes of the earlier one.
    drop(std::fs::remove_file(&copy));
    std::fs::copy(file, &copy).expect("the data file can be copied");
    std::fs::copy(file.with_extension("mapping"), copy.with_extension("mapping"))
        .expect("the state file can be copied");
    copy
}

#[test]
fn a_drive_in_a_file_is_made_once() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let name = file.display();
    let parse = |options: &str| {
        DriveOptions::parse(&format!("{name}{options}"), Clock::Virtual)
            .expect("the text names a drive")
    };
    let all = ",size=64M,ru=1M,spare=30%,handles=4,isolation=initial,cache=1M,timing=none";
    let made = parse(all);
    drop(drive(&made));
    // An option that is left out keeps its earlier value. An option may also be given again with
    // its earlier value.
    for options in ["", all, ",size=64M", ",ru=1M", ",spare=30%", ",handles=4,fdp=on"] {
        let again = parse(options);
        assert_eq!((&again.config, again.cache_lbas), (&made.config, made.cache_lbas), "{options}");
        drop(drive(&again));
    }
    let other = parse(",timing=paper,cache=0,deallocate=5,victims=fifo");
    assert_eq!(other.config.timing, Timing::PAPER);
    drop(drive(&other));
    assert_eq!(parse("").config, other.config, "options that are left out must keep their values");
    for (options, why) in [
        (",ru=2M", "made with reclaim units of ru=1 MiB, not 2 MiB"),
        (",spare=40%", "made with a count of reclaim units (spare=) of 92, not 107"),
        (",fdp=off", "made with fdp=on, not off"),
        (",handles=5", "made with handles=4, not 5"),
        (",isolation=persistent", "made with isolation=initial, not persistent"),
    ] {
        let refused = EmulatedDrive::open(parse(options)).map(drop);
        let refused = refused.expect_err("the drive was made with another value").to_string();
        assert!(refused.contains(why), "{refused}");
    }
    drop(drive(&parse("")));
    // If `size=` is given without `ru=`, the size is rounded when the drive is made. The next start
    // must still accept the same `size=`.
    let file = folder.path().join("rounded");
    let rounded = format!("{},size=64M", file.display());
    let rounded = || DriveOptions::parse(&rounded, Clock::Virtual).expect("the text names a drive");
    drop(drive(&rounded()));
    drop(drive(&rounded()));
}

#[test]
fn a_drive_is_the_same_by_whatever_links_it_is_reached() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let (file, link) = (folder.path().join("drive"), folder.path().join("link"));
    std::os::unix::fs::symlink(&file, &link).expect("the link can be made");
    let mapped = |drive: &EmulatedDrive| drive.with_ftl(slimio_ssd::Ftl::mapped_count);
    for (lba, name) in [(0, &file), (1, &link), (2, &file), (3, &link)] {
        let mut drive = drive(&in_file(name.clone()));
        assert_eq!((mapped(&drive), drive.notes().len()), (lba, 1));
        let mut path = drive.open_path().expect("a path opens");
        do_all(&mut *path, [write(lba, 1, 1, true)]);
    }
    assert_eq!(std::fs::read_dir(folder.path()).expect("the folder exists").count(), 3);
}

#[test]
fn what_was_mapped_did_not_pass_through_the_drive() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 1, 1, true)]);
    let mut mapped = first.map(64 << 10, 128 << 10).expect("the range can be mapped");
    for buffer in &mut mapped.buffers(64 << 10) {
        buffer.fill(7);
    }
    let killed = as_killed(&file);
    let mapped_lbas = |drive: &EmulatedDrive| {
        let is_mapped = |ftl: &slimio_ssd::Ftl, lba| ftl.page_of(lba).is_some();
        drive.with_ftl(|ftl| (0..200).filter(|lba| is_mapped(ftl, *lba)).collect::<Vec<u64>>())
    };
    drop((mapped, path, first));
    assert_eq!(mapped_lbas(&drive(&in_file(killed.clone()))), [0]);
    // Destroy the bodies of both checkpoints. The journal is of no use without a body, so the drive
    // has only the data and the checkpoints' heads. The drive still knows which blocks were written
    // through the drive.
    let state = killed.with_extension("mapping");
    let mut bytes = std::fs::read(&state).expect("the state file exists");
    let journal_size = 8192 * 32;
    let bodies = 8192..bytes.len() - journal_size;
    bytes[bodies].fill(0xFF);
    std::fs::write(&state, bytes).expect("the state file can be written");
    let last = drive(&in_file(killed));
    assert!(last.notes()[1].contains("missing or damaged"));
    let lbas = mapped_lbas(&last);
    assert_eq!(lbas.first(), Some(&0));
    assert!(!lbas.iter().any(|lba| (16..48).contains(lba)), "{lbas:?}");
}

/// Destroys the bodies of both checkpoints, and opens the drive. Of the drive's state, only the
/// checkpoints' heads and the journal are left. The journal is of no use without a body.
fn with_both_bodies_damaged(killed: PathBuf) -> EmulatedDrive {
    let state = killed.with_extension("mapping");
    let mut bytes = std::fs::read(&state).expect("the state file exists");
    let bodies = BODIES..journal(&bytes);
    bytes[bodies].fill(0xFF);
    std::fs::write(&state, bytes).expect("the state file can be written");
    let drive = drive(&in_file(killed));
    assert!(drive.notes()[1].contains("missing or damaged"));
    drive
}

#[test]
fn what_is_written_where_memory_was_mapped_is_the_drives_again() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    // Two ranges are mapped, one after the other. The blocks between the two ranges are never
    // mapped.
    for offset in [0, 4 << 20] {
        drop(first.map(offset, 64 << 10).expect("the range can be mapped"));
    }
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(500, 1, 5, true)]);
    let mut last = with_both_bodies_damaged(as_killed(&file));
    let mut path = last.open_path().expect("a path opens");
    assert_eq!(byte_at(&mut *path, 500), 5);
    drop((last, path));
    // A host now writes to blocks that were mapped before and are not mapped any more.
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(1030, 1, 6, true)]);
    let mut last = with_both_bodies_damaged(as_killed(&file));
    let mut path = last.open_path().expect("a path opens");
    assert_eq!([500, 1030].map(|lba| byte_at(&mut *path, lba)), [5, 6]);
}

#[test]
fn a_write_to_what_is_mapped_is_refused_and_changes_nothing() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let mut drive = drive(&in_file(folder.path().join("drive")));
    let mapped = drive.map(64 << 10, 64 << 10).expect("the range can be mapped");
    let mut path = drive.open_path().expect("a path opens");
    path.submit(Token(1), write(15, 2, 1, true)).expect("nothing is in flight");
    let mut completions = Vec::new();
    path.wait(None, &mut completions);
    assert_eq!(completions[0].result, Err(DeviceError::OutOfRange));
    assert_eq!(drive.with_ftl(slimio_ssd::Ftl::mapped_count), 0);
    drop(mapped);
    do_all(&mut *path, [write(15, 2, 1, true)]);
}

/// Deallocations fill the journal even if there are no writes.
#[test]
fn a_drive_that_is_only_deallocated_makes_checkpoints() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&small(file.clone()));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 3, 1, true)]);
    let free = |number: u64| Op::Deallocate { range: range(number % 99, number % 99 + 1) };
    do_all(&mut *path, (2..20_000).map(free));
    let mut again = drive(&small(as_killed(&file)));
    assert_eq!((again.notes().len(), again.with_ftl(slimio_ssd::Ftl::mapped_count)), (1, 0));
    assert_eq!(byte_at(&mut *again.open_path().expect("a path opens"), 0), 0xDD);
}

/// Blocks that were used as mapped memory count as empty, but have bytes in the file. The drive
/// must keep these bytes for the next mapping of the blocks.
#[test]
fn what_was_stored_in_memory_stays_when_blocks_beside_it_are_written() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&in_file(file.clone()));
    let (offset, size) = (16 * LBA_SIZE as u64, 4 * LBA_SIZE);
    let mut mapped = first.map(offset, size).expect("the range can be mapped");
    mapped.buffers(size)[0].fill(7);
    drop((mapped, first));
    let mut second = drive(&in_file(file.clone()));
    let mut path = second.open_path().expect("a path opens");
    do_all(&mut *path, [write(15, 1, 1, true), Op::Deallocate { range: range(15, 16) }]);
    drop((path, second));
    let mut third = drive(&in_file(file));
    let mut mapped = third.map(offset, size).expect("the range can be mapped");
    assert!(mapped.buffers(size)[0].iter().all(|byte| *byte == 7));
}
