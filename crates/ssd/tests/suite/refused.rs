//! Tests drives whose file system refuses to free space, or to change the id that ties a data file
//! to its state file.
//!
//! A seccomp filter makes the system calls fail. Each filter is for one thread, and can't be
//! removed again.

use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use slimio_device::{DeviceError, LBA_SIZE, Op, WholeDevice};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive, Ftl};
use slimio_testing::refused::{Call, on_a_thread};

use crate::drive::{byte_at, do_all, drive, range, run, write};
use crate::drive_file::{as_killed, in_file};
use crate::remember::{ENTRY_SIZE, journal, small, state_of};

const ID: &str = "user.slimio.drive";

/// Makes these calls of this thread fail with an input/output error.
fn refuse(calls: &[Call]) {
    slimio_testing::refused::refuse(calls, libc::EIO);
}

/// Opens a drive on a thread where `call` is refused. Returns the text of the error.
fn open_refusing(options: &DriveOptions, call: i64) -> Result<(), String> {
    on_a_thread(|| {
        refuse(&[(call, None)]);
        EmulatedDrive::open(options.clone()).map(drop).map_err(|error| error.to_string())
    })
}

fn id_of(file: &Path) -> Option<u64> {
    let mut id = [0; 8];
    rustix::fs::getxattr(file, ID, &mut id).ok().map(|_| u64::from_le_bytes(id))
}

/// Whether files can't have attributes here. If so, prints that the test is skipped.
fn lacks_attributes(file: &Path) -> bool {
    let is_lacking = id_of(file).is_none();
    if is_lacking {
        eprintln!(
            "SKIPPED: files can't have attributes at {}, so no id was checked",
            file.display()
        );
    }
    is_lacking
}

/// The file system refuses to punch holes, so blocks are cleared with zeros. At the block `BAD`, it
/// refuses the zeros, too.
#[test]
fn what_can_not_be_given_back_is_nobody_elses_error() {
    const BAD: u64 = 5;
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&small(file.clone()));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 20, 1, true)]);
    let failed = Err(DeviceError::Io { errno: libc::EIO });
    on_a_thread(|| {
        let hole = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
        refuse(&[
            (libc::SYS_fallocate, Some((1, hole as u64))),
            (libc::SYS_pwrite64, Some((3, BAD * LBA_SIZE as u64))),
        ]);
        let mut free = |start, end| run(&mut *path, Op::Deallocate { range: range(start, end) }).1;
        assert_eq!(free(BAD, 9), failed);
        assert_eq!(
            (free(10, 12), free(4, 5), free(BAD, BAD + 1)),
            (Ok(()), Ok(()), failed.clone())
        );
        // These writes fill the journal more than once, so the drive makes checkpoints.
        do_all(&mut *path, (0..20_000).map(|stamp| write(30, 1, stamp as u8, false)));
        assert_eq!(
            run(&mut *path, write(BAD - 1, 3, 2, false)).1,
            failed,
            "a block must lose its old bytes before it is written"
        );
        drop((path, first));
    });
    // The main thread has no filter, so writes no longer fail.
    let mut again = drive(&small(file));
    assert_eq!((again.notes().len(), again.with_ftl(Ftl::mapped_count)), (1, 20 - 5 - 2 + 1));
    let mut path = again.open_path().expect("a path opens");
    do_all(&mut *path, [write(BAD, 1, 3, false)]);
    assert_eq!([4, BAD, 9, 10, 30].map(|lba| byte_at(&mut *path, lba)), [0xDD, 3, 1, 0xDD, 31]);
}

/// If the end of the journal is lost, every block with data in the data file counts as written. A
/// block whose deallocation is unfinished still has its old data in this file, so it would wrongly
/// count as written. So the drive must finish all deallocations before it opens.
#[test]
fn a_damaged_drive_does_not_open_before_its_deallocations_are_finished() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let mut first = drive(&small(file.clone()));
    let mut path = first.open_path().expect("a path opens");
    do_all(&mut *path, [write(0, 20, 1, true), Op::Deallocate { range: range(5, 6) }]);
    do_all(&mut *path, [write(30, 1, 2, true)]);
    let killed = as_killed(&file);
    let mut state = std::fs::read(state_of(&killed)).expect("the state file exists");
    let last = journal(&state) + 2 * ENTRY_SIZE;
    state[last + 25] ^= 4;
    std::fs::write(state_of(&killed), state).expect("the file can be written");
    let data = std::fs::File::options().write(true).open(&killed).expect("the data file exists");
    data.write_all_at(&[1; LBA_SIZE], 5 * LBA_SIZE as u64).expect("the file can be written");
    drop(data);
    let refused = on_a_thread(|| {
        refuse(&[
            (libc::SYS_fallocate, Some((2, 5 * LBA_SIZE as u64))),
            (libc::SYS_pwrite64, Some((3, 5 * LBA_SIZE as u64))),
        ]);
        EmulatedDrive::open(small(killed.clone())).map(drop)
    });
    let refused = refused.expect_err("block 5 would have its data again").to_string();
    assert!(refused.contains("deallocating in"), "{refused}");
    let mut again = drive(&small(killed));
    assert_eq!(again.notes().len(), 2, "the drive must report that the journal's end is lost");
    let mut path = again.open_path().expect("a path opens");
    assert_eq!([4, 5, 30].map(|lba| byte_at(&mut *path, lba)), [1, 0xDD, 2]);
}

/// Makes a drive, and overwrites its state file with a text. Returns the data file.
fn damaged(folder: &Path) -> PathBuf {
    let file = folder.join("drive");
    drop(drive(&in_file(file.clone())));
    std::fs::write(state_of(&file), b"what is this?").expect("the file can be written");
    file
}

/// A state file is made anew in three steps: the data file loses the id of the old state file, the
/// new state file takes the old one's place, and the data file gets the new id. A failure after any
/// step leaves a drive that opens.
#[test]
fn a_state_file_that_is_made_anew_is_the_drives_at_each_moment() {
    for is_sync in [false, true] {
        let folder = tempfile::tempdir().expect("a directory for the test");
        let file = damaged(folder.path());
        let options = DriveOptions { is_sync, ..in_file(file.clone()) };
        let old = id_of(&file);
        if lacks_attributes(&file) {
            return;
        }
        let refused =
            open_refusing(&options, libc::SYS_fremovexattr).expect_err("the id can't be removed");
        assert!(refused.contains("marking"), "{refused}");
        assert_eq!(id_of(&file), old);
        assert_eq!(
            std::fs::read(state_of(&file)).expect("the state file exists"),
            b"what is this?"
        );
        if is_sync {
            // Until the removal of the old id is durable, the old state file stays.
            open_refusing(&options, libc::SYS_fsync).expect_err("the removal can't be flushed");
            assert_eq!(id_of(&file), None);
            assert_eq!(
                std::fs::read(state_of(&file)).expect("the state file exists"),
                b"what is this?"
            );
        }
        assert_eq!(open_refusing(&options, libc::SYS_fsetxattr), Ok(()));
        assert_eq!(id_of(&file), None);
        assert_eq!(drive(&options).notes().len(), 1, "only the earlier start may report the loss");
        assert!(id_of(&file).is_some_and(|id| Some(id) != old));
        assert_eq!(drive(&options).notes().len(), 1);
    }
}

/// The data file gets its id last. Here, the new state file can't be put in place, because a folder
/// is there.
#[test]
fn a_drive_has_no_id_before_it_has_a_state_file() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    drop(drive(&in_file(file.clone())));
    if lacks_attributes(&file) {
        return;
    }
    // An empty data file has no drive yet.
    std::fs::write(&file, b"").expect("the file can be written");
    std::fs::remove_file(state_of(&file)).expect("the state file exists");
    std::fs::create_dir(state_of(&file)).expect("the folder can be made");
    EmulatedDrive::open(in_file(file.clone())).map(drop).expect_err("a folder is in the way");
    assert_eq!(id_of(&file), None);
}

#[test]
fn a_state_file_of_the_older_format_is_refused_beside_a_drive_that_has_another() {
    let folder = tempfile::tempdir().expect("a directory for the test");
    let file = folder.path().join("drive");
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/state-2");
    for name in ["closed", "killed"] {
        let options = || {
            std::fs::copy(fixture.join(name), state_of(&file)).expect("the file can be copied");
            let spec = format!("{},timing=none", file.display());
            DriveOptions::parse(&spec, Clock::Virtual).expect("the text names a drive")
        };
        drop(std::fs::remove_file(&file));
        let made = std::fs::File::create(&file).expect("the file can be made");
        made.set_len(1 << 20).expect("the file can be 1 MiB long");
        drop(drive(&options()));
        if lacks_attributes(&file) {
            return;
        }
        let own = std::fs::read(state_of(&file)).expect("the state file exists");
        let refused = EmulatedDrive::open(options()).map(drop);
        let refused =
            refused.expect_err("the data file has the id of another state file").to_string();
        assert!(refused.contains("belongs to another drive"), "{refused}");
        std::fs::write(state_of(&file), own).expect("the file can be written");
        assert_eq!(drive(&in_place(&file)).notes().len(), 1);
        rustix::fs::removexattr(&file, ID).expect("the attribute exists");
        drop(drive(&options()));
    }
}

/// Options that name only the drive's file, so that the drive keeps its saved configuration.
fn in_place(file: &Path) -> DriveOptions {
    DriveOptions::parse(&file.display().to_string(), Clock::Virtual)
        .expect("the text names a drive")
}
