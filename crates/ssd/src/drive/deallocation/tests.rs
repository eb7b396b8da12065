//! Tests deallocations together with kills, and with writes whose bytes arrive late.
//!
//! A deallocation first takes effect in the mapping. Later, the space of its blocks is given back
//! to the file system. The drive's state file holds checkpoints and a journal. A checkpoint has the
//! drive's whole state. The journal has the requests since the last checkpoint. A path is a way to
//! the drive, with a queue of its own.

use std::path::Path;

use slimio_device::{Buffer, Op, PlacementId, WholeDevice};
use slimio_testing::refused::{on_a_thread, refuse};

use super::super::core::{Opened, Scratch};
use super::super::data::Data;
use super::*;
use crate::{Clock, Clocked, Config, DataPlace, DriveOptions, EmulatedDrive};

fn range(start: u64, end: u64) -> LbaRange {
    LbaRange { start: Lba(start), end: Lba(end) }
}

/// One path writes blocks, and another path deallocates some of them. The bytes of the write arrive
/// last.
#[test]
fn bytes_that_arrive_after_a_deallocation_do_not_stay() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let data = DataPlace::File(folder.path().join("drive"));
    let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
    let drive =
        EmulatedDrive::open(DriveOptions { data, ..options }).expect("the drive can be made");
    let (shared, mut scratch) = (drive.core.clone(), Scratch::default());
    let mut buffer = Buffer::zeroed(4);
    buffer.fill(7);
    let placement = PlacementId(0);
    let write = Op::Write { lba: Lba(1), buffer, placement, durable: false };
    let now = Duration::from_secs(1);
    let mut begun = shared.lock().begin(write, now, &Opened::default(), &mut scratch);
    let free = Op::Deallocate { range: range(2, 4) };
    shared.lock().begin(free, now, &Opened::default(), &mut scratch);
    let mut core = shared.lock();
    core.deallocate_until(now);
    assert_eq!(shared.give_back(core, 2..4), Ok(()));
    begun.transfer(&drive.data, &scratch, 0);
    shared.settle(&mut begun, 0);
    assert_eq!(begun.result, Ok(()));
    let mut found = vec![0; 5 * LBA_SIZE];
    drive.data.read(1, &mut found).expect("the data file can be read");
    let bytes: Vec<u8> = found.chunks(LBA_SIZE).map(|block| block[0]).collect();
    assert_eq!(bytes, [7, 0, 0, 7, 0]);
}

/// A block is deallocated. Before its space is given back, a write of the block begins. The write
/// then fails, or its process is killed.
#[test]
fn a_block_that_is_written_anew_never_has_the_bytes_of_before() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let data = DataPlace::File(folder.path().join("drive"));
    let options = DriveOptions::new(Config::scaled(12 << 20), Clock::Virtual);
    let drive =
        EmulatedDrive::open(DriveOptions { data, ..options }).expect("the drive can be made");
    let (shared, mut scratch) = (drive.core.clone(), Scratch::default());
    drive.data.write(1, &[7; 2 * LBA_SIZE]).expect("there is room");
    let mut core = shared.lock();
    core.forget(range(0, 3));
    let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
    let write = Op::Write { lba: Lba(2), buffer, placement, durable: false };
    core.begin(write, Duration::from_secs(1), &Opened::default(), &mut scratch);
    assert_eq!(shared.give_back(core, 0..3), Ok(()));
    let mut found = [1; 2 * LBA_SIZE];
    drive.data.read(1, &mut found).expect("the data file can be read");
    assert_eq!(found, [0; 2 * LBA_SIZE]);
}

/// Copies the drive whose data is in `file`, and opens the copy. The copy is the drive that the
/// next process finds if this process is killed now.
fn killed(file: &Path, name: &str) -> EmulatedDrive {
    let copy = file.with_file_name(name);
    for extension in ["", "mapping"] {
        std::fs::copy(file.with_extension(extension), copy.with_extension(extension))
            .expect("the file can be copied");
    }
    open(&copy)
}

fn open(file: &Path) -> EmulatedDrive {
    let options = DriveOptions::new(Config::scaled(64 << 20), Clock::Virtual);
    let data = DataPlace::File(file.to_path_buf());
    EmulatedDrive::open(DriveOptions { data, ..options }).expect("the drive can be made")
}

/// Begins a write of zeros to a block. The bytes never arrive.
fn begin_write(core: &mut Core, lba: u64) {
    let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
    let write = Op::Write { lba: Lba(lba), buffer, placement, durable: false };
    let begun =
        core.begin(write, Duration::from_secs(1), &Opened::default(), &mut Scratch::default());
    assert_eq!(begun.result, Ok(()));
}

fn byte_at(drive: &EmulatedDrive, lba: u64) -> u8 {
    let mut found = [0; LBA_SIZE];
    drive.data.read(lba, &mut found).expect("the data file can be read");
    found[0]
}

/// After a checkpoint, the next process does not find the deallocation in the journal any more. So
/// before it maps a block, it looks for old bytes of the block in the file, and removes them.
#[test]
fn what_a_checkpoint_has_as_deallocated_has_no_bytes_in_the_next_process() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let drive = open(&file);
    let mut core = drive.core.lock();
    let lbas = core.drive.ftl().config().lba_count;
    for lba in [0, 1, 700, lbas - 1] {
        drive.data.write(lba, &[7; LBA_SIZE]).expect("there is room");
    }
    core.forget(range(0, lbas));
    core.set_mapped(0..1).expect("the change makes a checkpoint");
    let again = killed(&file, "killed");
    let mut core = again.core.lock();
    for lba in [1, 700, lbas - 1] {
        begin_write(&mut core, lba);
    }
    assert_eq!([0, 1, 700, lbas - 1].map(|lba| byte_at(&again, lba)), [7, 0, 0, 0]);
}

/// One path begins to write a block. Another path deallocates the block and makes a checkpoint.
/// Then the bytes of the write arrive, and the process is killed. The next process is killed in a
/// write to the same block.
#[test]
fn bytes_that_arrive_after_a_checkpoint_do_not_come_back_after_two_kills() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let drive = open(&file);
    let (shared, mut core) = (drive.core.clone(), drive.core.lock());
    begin_write(&mut core, 9);
    core.forget(range(9, 10));
    drop(core);
    assert_eq!(shared.give_back(shared.lock(), 9..10), Ok(()));
    shared.lock().set_mapped(0..1).expect("the change makes a checkpoint");
    drive.data.write(9, &[7; LBA_SIZE]).expect("there is room");
    let second = killed(&file, "second");
    begin_write(&mut second.core.lock(), 9);
    let third = killed(&folder.path().join("second"), "third");
    assert_eq!(byte_at(&third, 9), 0);
}

#[test]
fn a_late_write_gives_back_its_own_blocks_and_no_others() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let drive = open(&folder.path().join("drive"));
    for lba in [1, 20] {
        drive.data.write(lba, &[7; LBA_SIZE]).expect("there is room");
    }
    let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
    let write = Op::Write { lba: Lba(1), buffer, placement, durable: false };
    let now = Duration::from_secs(1);
    let mut begun =
        drive.core.lock().begin(write, now, &Opened::default(), &mut Scratch::default());
    for range in [range(1, 2), range(20, 21)] {
        drive.core.lock().forget(range);
    }
    drive.core.settle(&mut begun, 0);
    assert_eq!(begun.result, Ok(()));
    assert_eq!([1, 20].map(|lba| byte_at(&drive, lba)), [0, 7]);
}

#[test]
fn what_is_mapped_into_memory_has_no_bytes_of_what_was_deallocated() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let mut drive = open(&folder.path().join("drive"));
    drive.data.write(3, &[7; LBA_SIZE]).expect("there is room");
    drive.core.lock().forget(range(2, 5));
    let mut mapped = drive.map(2 * LBA_SIZE as u64, 2 * LBA_SIZE).expect("the range can be mapped");
    let bytes = mapped.buffers(2 * LBA_SIZE);
    assert!(bytes[0].iter().all(|byte| *byte == 0));
}

/// A program maps blocks into memory, stores bytes in them and ends. Another program writes to one
/// of these blocks, so all of them belong to the drive again. That program is killed in a write to
/// another of these blocks.
#[test]
fn what_was_stored_in_memory_is_no_block_of_the_drives() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let mut drive = open(&folder.path().join("drive"));
    let mut mapped = drive.map(0, 4 * LBA_SIZE).expect("the range can be mapped");
    mapped.buffers(4 * LBA_SIZE)[0].fill(7);
    drop(mapped);
    let mut core = drive.core.lock();
    begin_write(&mut core, 0);
    begin_write(&mut core, 2);
    assert_eq!([0, 1, 2].map(|lba| byte_at(&drive, lba)), [0, 7, 0]);
    assert_eq!(core.give_back_all(), Ok(()));
    assert_eq!([1, 3].map(|lba| byte_at(&drive, lba)), [0, 0]);
}

/// Paths read the clock before they lock the drive, so a request that begins later may have an
/// earlier time. The test begins two deallocations like that. The second one must take effect at
/// its own time, and must not wait for the first one.
#[test]
fn a_late_deallocation_has_its_effect_when_it_is_acknowledged_whoever_else_waits() {
    let millis = Duration::from_millis;
    let mut options = DriveOptions::new(Config::scaled(64 << 20), Clock::Virtual);
    options.deallocate_latency = millis(20);
    let drive = Clocked::new(options.config.clone()).expect("the drive can work");
    let mut scratch = Scratch::default();
    let mut core = Core::new(drive, Arc::new(Data::Dropped), None, &options);
    for lba in [Lba(1), Lba(2)] {
        let buffer = Buffer::zeroed(1);
        let write = Op::Write { lba, buffer, placement: PlacementId(0), durable: true };
        core.begin(write, millis(1), &Opened::default(), &mut scratch);
    }
    let free = |lba| Op::Deallocate { range: LbaRange { start: Lba(lba), end: Lba(lba + 1) } };
    core.begin(free(1), millis(10), &Opened::default(), &mut scratch);
    let earlier = core.begin(free(2), millis(9), &Opened::default(), &mut scratch);
    assert_eq!(earlier.due, millis(29));
    core.deallocate_until(earlier.due);
    let is_mapped = |core: &Core, lba| core.drive.ftl().page_of(lba).is_some();
    assert!(is_mapped(&core, 1) && !is_mapped(&core, 2));
    core.deallocate_until(millis(30));
    assert!(!is_mapped(&core, 1));
}

/// For the thread that calls this, the disk neither makes a hole in the block nor takes a write to
/// it.
fn refuse_block(lba: u64) {
    let offset = lba * LBA_SIZE as u64;
    let calls = [(libc::SYS_fallocate, Some((2, offset))), (libc::SYS_pwrite64, Some((3, offset)))];
    refuse(&calls, libc::EIO);
}

/// A late write fails if its bytes can't be removed. The bytes are removed later, as soon as the
/// disk allows it.
#[test]
fn bytes_that_can_not_be_removed_are_removed_later_and_others_are_removed_at_once() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let drive = open(&folder.path().join("drive"));
    for lba in [1, 3, 5] {
        drive.data.write(lba, &[7; LBA_SIZE]).expect("there is room");
    }
    let (buffer, placement) = (Buffer::zeroed(1), PlacementId(0));
    let write = Op::Write { lba: Lba(1), buffer, placement, durable: false };
    let (now, opened) = (Duration::from_secs(1), Opened::default());
    let mut begun = drive.core.lock().begin(write, now, &opened, &mut Scratch::default());
    drive.core.lock().forget(range(1, 2));
    assert_eq!(drive.core.lock().give_back_within(&(1..2)), Ok(()));
    drive.data.write(1, &[7; LBA_SIZE]).expect("there is room");
    let failed = Err(DeviceError::Io { errno: libc::EIO });
    let given = on_a_thread(|| {
        refuse_block(1);
        drive.core.settle(&mut begun, 0);
        for range in [range(3, 4), range(5, 6)] {
            drive.core.lock().forget(range);
        }
        drive.core.lock().give_back_within(&(0..5))
    });
    assert_eq!((given, &begun.result), (failed.clone(), &failed));
    assert_eq!([1, 3, 5].map(|lba| byte_at(&drive, lba)), [7, 0, 7]);
    begin_write(&mut drive.core.lock(), 1);
    assert_eq!(byte_at(&drive, 1), 0);
}
