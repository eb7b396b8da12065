//! Logs that are written by the short path, on real file systems. Zeros are written after the log's
//! end in advance. A record then overwrites zeros, so one direct write makes it durable.
//!
//! A file is *taken* while it is written by the short path. Once it is *released*, it is written
//! through the kernel again. The *stage* is memory that has the bytes which were appended but are
//! not in the file yet. The *keeper* is the process that fills taken files with zeros ahead.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _, Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use slimio_shortcut::{LogFile, NotTaken, Probe, Refusal, Stage, Written};
use slimio_testing::loops::Mounted;

const MIB: u64 = 1 << 20;
const EXT4: &[&str] = &["mkfs.ext4", "-q"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];
const SIZE: u64 = 320 * MIB;

fn appending(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).unwrap()
}

fn taken(file: File) -> LogFile {
    let log = LogFile::new(file, Stage::private().unwrap());
    log.take().unwrap();
    log
}

/// Checks what another program sees: the log, and zeros after it.
fn check_seen(path: &Path, log: &[u8], end: usize) {
    let seen = fs::read(path).unwrap();
    assert!(seen.len() >= end, "the file has {} of at least {end} bytes", seen.len());
    assert!(seen[..end] == log[..end], "the log has other bytes than were appended");
    assert!(seen[end..].iter().all(|byte| *byte == 0), "bytes that are not zero follow the log");
}

#[test]
fn what_was_appended_is_there_for_everybody() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for mkfs in [EXT4, XFS] {
        let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") else { continue };
        let path = mounted.path().join("log");
        let mut log = Vec::new();
        for life in 0..12 {
            // Each life takes the file over, appends to it and releases it. In some lives, the file
            // ends with a whole block when it is taken over.
            let mut file = if life % 2 == 0 {
                appending(&path)
            } else {
                OpenOptions::new().write(true).open(&path).unwrap()
            };
            if life % 3 == 1 {
                let more = vec![7; 4096 - log.len() % 4096];
                file.write_all_at(&more, log.len() as u64).unwrap();
                log.extend(more);
            } else if life == 2 {
                file.write_all(b"by the kernel").unwrap();
                log.extend(b"by the kernel");
            }
            file.seek(SeekFrom::End(0)).unwrap();
            let taken = taken(file);
            assert_eq!(taken.length().unwrap(), Some(log.len() as u64));
            for _ in 0..random.usize(0..200) {
                let size = match random.u8(0..10) {
                    0 => random.usize(0..600_000),
                    1..4 => random.usize(0..20_000),
                    _ => random.usize(0..200),
                };
                let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(1..)).take(size).collect();
                taken.append(&bytes).unwrap();
                log.extend(&bytes);
                if random.bool() {
                    taken.sync().unwrap();
                    if random.u8(0..10) == 0 {
                        check_seen(&path, &log, log.len());
                    }
                }
            }
            taken.release().unwrap();
            assert!(fs::read(&path).unwrap() == log, "life {life}: the file is not the log");
        }
    }
}

/// After one of its calls has timed out, a keeper may try to take a file that it has taken already.
/// The appended bytes must stay.
#[test]
fn what_is_taken_is_not_taken_again() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let taken = taken(appending(&path));
    taken.append(b"one,").unwrap();
    assert!(matches!(taken.take(), Err(NotTaken::Busy)));
    taken.append(b"two").unwrap();
    taken.release().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one,two");
}

/// Appends of sizes around one byte, a block, half the stage, the stage, and four times the stage.
#[test]
fn no_size_is_special() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    for around in [1, 4096, 1 << 19, 1 << 20, 4 << 20] {
        for size in [around - 1, around, around + 1] {
            fs::write(&path, b"").unwrap();
            let taken = taken(appending(&path));
            let mut log = Vec::new();
            for (number, size) in [size, 1, size, 3].into_iter().enumerate() {
                let bytes = vec![1 + number as u8; size];
                taken.append(&bytes).unwrap();
                taken.sync().unwrap();
                log.extend(bytes);
                check_seen(&path, &log, log.len());
            }
            taken.release().unwrap();
            assert!(fs::read(&path).unwrap() == log, "size {size}: the file is not the log");
        }
    }
}

/// A program that goes on using the descriptor finds the descriptor's flags as they were.
#[test]
fn a_descriptor_is_given_back_as_it_was() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    drop(appending(&path));
    for file in [appending(&path), OpenOptions::new().write(true).open(&path).unwrap()] {
        let before = rustix::fs::fcntl_getfl(&file).unwrap();
        let taken = taken(file);
        taken.release().unwrap();
        assert_eq!(rustix::fs::fcntl_getfl(taken.file()).unwrap(), before);
    }
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let file = appending(&memory.path().join("log"));
    let before = rustix::fs::fcntl_getfl(&file).unwrap();
    let log = LogFile::new(file, Stage::private().unwrap());
    assert!(log.take().is_err());
    assert_eq!(rustix::fs::fcntl_getfl(log.file()).unwrap(), before);
}

/// With `O_APPEND`, the position stays where it was until something is appended.
#[test]
fn the_position_is_that_of_the_kernel() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, vec![1; 5000]).unwrap();
    let position = |taken: &LogFile| rustix::fs::tell(taken.file()).unwrap();
    let untouched = taken(appending(&path));
    assert_eq!(untouched.position().unwrap(), Some(0));
    untouched.release().unwrap();
    assert_eq!(position(&untouched), 0);
    untouched.take().unwrap();
    untouched.append(b"more").unwrap();
    assert_eq!(untouched.position().unwrap(), Some(5004));
    untouched.release().unwrap();
    assert_eq!(position(&untouched), 5004);
    let sought = taken(appending(&path));
    assert_eq!(sought.seek_end().unwrap(), Some(5004));
    sought.release().unwrap();
    assert_eq!(position(&sought), 5004);
}

/// A keeper has added zeros ahead, and has written bytes before they had to be durable. The log is
/// the same as without a keeper.
#[test]
fn a_keeper_keeps_up() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let taken = taken(appending(&path));
    let (mut log, mut told) = (Vec::new(), 0);
    for number in 0..300_u32 {
        let bytes = vec![1 + (number % 255) as u8; 30_000];
        if taken.append(&bytes).unwrap() == Written::TellKeeper {
            told += 1;
            while taken.keep_up(true).unwrap() {}
            let length = taken.length().unwrap().unwrap();
            let ahead = fs::metadata(&path).unwrap().len() - length;
            let least = length.clamp(64 << 10, 8 * MIB);
            assert!((least..least + 8192).contains(&ahead), "{ahead} zeros follow {length} bytes");
        }
        log.extend(bytes);
    }
    assert!((10..150).contains(&told), "the keeper was told {told} times");
    assert!(
        !taken.rest(0).unwrap(),
        "the log does not rest, because bytes were appended after position 0"
    );
    assert!(taken.rest(log.len() as u64).unwrap());
    check_seen(&path, &log, log.len());
    assert_eq!(
        taken.append(b"x").unwrap(),
        Written::TellKeeper,
        "an append to a resting log tells the keeper"
    );
    assert_ne!(taken.append(b"y").unwrap(), Written::TellKeeper, "the keeper is told only once");
    taken.release().unwrap();
    log.extend(b"xy");
    assert!(fs::read(&path).unwrap() == log);
}

/// Two processes append to one log, like a program and its forked child.
#[test]
fn whoever_has_the_stage_appends_to_the_same_log() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let first = taken(appending(&path));
    let second = LogFile::new(first.file().try_clone().unwrap(), first.stage().clone());
    first.append(b"one,").unwrap();
    second.append(b"two,").unwrap();
    second.sync().unwrap();
    first.append(b"three").unwrap();
    second.release().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"one,two,three");
    assert_eq!(first.append(b"!").unwrap(), Written::NotTaken);
    assert!(!first.sync().unwrap());
}

/// The kernel takes a lease away from a process that does not answer. Bytes that somebody else then
/// appends after the zeros are not cut off.
#[test]
fn what_others_have_appended_is_not_cut_off() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let taken = taken(appending(&path));
    taken.append(b"ours").unwrap();
    while taken.keep_up(true).unwrap() {}
    taken.sync().unwrap();
    appending(&path).write_all(b"foreign").unwrap();
    taken.append(b", too").unwrap();
    taken.release().unwrap();
    let log = fs::read(&path).unwrap();
    assert!(log.starts_with(b"ours, too\0") && log.ends_with(b"\0foreign"), "{} bytes", log.len());
}

/// A file that is written elsewhere than at its end is no log.
#[test]
fn a_program_that_does_not_write_at_the_end_keeps_its_file() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, b"some bytes").unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    let log = LogFile::new(file, Stage::private().unwrap());
    let why = log.take().unwrap_err();
    assert!(matches!(why, NotTaken::Busy), "{why:?}");
    assert_eq!(fs::metadata(&path).unwrap().len(), 10);
}

/// A write of a record neither makes the file longer nor needs a new block.
#[test]
fn a_durable_write_changes_no_metadata() {
    for mkfs in [EXT4, XFS] {
        let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") else { continue };
        let path = mounted.path().join("log");
        fs::write(&path, vec![1; MIB as usize + 10]).unwrap();
        let taken = taken(appending(&path));
        let length = fs::metadata(&path).unwrap().len();
        assert_eq!(length, MIB + 4096, "the last block is filled up");
        // The append needs a block that the file does not have yet, so the file is filled with
        // zeros ahead.
        taken.append(&[1; 5000]).unwrap();
        taken.sync().unwrap();
        let before = (fs::metadata(&path).unwrap().len(), Probe::of(&path).unwrap().space.unwrap());
        assert_eq!((before.1.unwritten, before.1.holes), (0, 0));
        for _ in 0..100 {
            taken.append(&[1; 5000]).unwrap();
            taken.sync().unwrap();
        }
        let after = (fs::metadata(&path).unwrap().len(), Probe::of(&path).unwrap().space.unwrap());
        assert_eq!(before, after);
    }
}

#[test]
fn a_full_disk_takes_nothing_and_the_log_goes_on() {
    // The fillers differ in size. So when the disk is too full for more zeros ahead, the space that
    // is left differs, too.
    for filler in [60, 63, 66] {
        fill_up(filler * MIB as usize / 10);
    }
}

fn fill_up(size: usize) {
    let Some(mounted) = Mounted::new(EXT4, 16 * MIB, "defaults") else { return };
    let path = mounted.path().join("log");
    let filler = mounted.path().join("filler");
    fs::write(&filler, vec![1; size]).unwrap();
    let taken = taken(appending(&path));
    let mut log = Vec::new();
    let error = loop {
        let bytes = vec![1 + (log.len() % 251) as u8; 100_000];
        match taken.append(&bytes) {
            Ok(_) => log.extend(bytes),
            Err(error) => break error,
        }
        taken.sync().unwrap();
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(taken.length().unwrap(), Some(log.len() as u64));
    assert!(log.len() > 2_000_000, "only {} bytes were appended", log.len());
    // The last bytes of the disk are used, although there is no room for zeros ahead.
    let disk = rustix::fs::statvfs(&path).unwrap();
    // Root may use the free space, except a fiftieth that ext4 keeps for itself.
    let free = disk.f_bfree * disk.f_frsize;
    let unused = free + fs::metadata(&path).unwrap().len() - log.len() as u64;
    assert!(unused < 500_000, "{unused} bytes of the disk are not used");
    check_seen(&path, &log, log.len());
    fs::remove_file(&filler).unwrap();
    taken.append(b"and on").unwrap();
    log.extend(b"and on");
    taken.release().unwrap();
    assert!(fs::read(&path).unwrap() == log);
}

#[test]
fn a_file_that_is_not_taken_stays_as_it_was() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("log");
    fs::write(&path, "some bytes").unwrap();
    let unchanged = LogFile::new(appending(&path), Stage::private().unwrap());
    let why = unchanged.take().unwrap_err();
    let NotTaken::Refused(refusals) = why else { panic!("{why:?}") };
    assert!(refusals.contains(&Refusal::Memory("tmpfs".into())), "{refusals:?}");
    assert_eq!(unchanged.append(b" more").unwrap(), Written::NotTaken);
    assert!(!unchanged.sync().unwrap());
    unchanged.file().write_all(b" more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"some bytes more");
}

/// A later file may have the same inode number. Only the time at which a file was made tells such
/// files apart. Without that time, staged bytes could get into the wrong file.
#[test]
fn a_file_without_a_birthday_is_not_taken() {
    let mkfs: &[&str] = &["mkfs.ext4", "-q", "-I", "128"];
    let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") else { return };
    let log = LogFile::new(appending(&mounted.path().join("log")), Stage::private().unwrap());
    let NotTaken::Refused(refusals) = log.take().unwrap_err() else { panic!("the file was taken") };
    assert_eq!(refusals, [Refusal::Ageless]);
}

/// Each sync makes the device flush its cache, or write with the FUA bit. A loop device carries out
/// such a write by a flush.
#[test]
fn a_sync_reaches_the_disk() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let flushes = || mounted.flushes();
    let path = mounted.path().join("log");
    // The file is only in the page cache, and ends at a block's end.
    fs::write(&path, vec![1; 8192]).unwrap();
    let before = flushes();
    let taken = taken(appending(&path));
    assert!(flushes() > before, "taking a file makes its bytes durable");
    taken.append(b"first").unwrap();
    taken.sync().unwrap();
    let before = flushes();
    for _ in 0..20 {
        taken.append(b"more").unwrap();
        taken.sync().unwrap();
    }
    assert!(flushes() >= before + 20, "{before} flushes before 20 syncs, {} after", flushes());
    // Bytes that do not fit into the stage are written at once, and flushed by the next sync.
    taken.append(&vec![1; 5_000_000]).unwrap();
    let before = flushes();
    taken.sync().unwrap();
    assert!(flushes() > before);
}

/// A program may have mapped a file into its memory. If the file were taken, this program would see
/// old bytes, or could store bytes unnoticed.
#[test]
fn a_file_that_is_mapped_is_not_taken() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, vec![1; 8192]).unwrap();
    if slimio_device::cached_pages(File::open(&path).unwrap()).is_none() {
        return eprintln!("SKIPPED: this kernel does not say what it caches");
    }
    let program = "import mmap, sys; f = open(sys.argv[1], 'r+b'); m = mmap.mmap(f.fileno(), 0); \
                   m[0]; print(flush=True); sys.stdin.read()";
    let mut child = Command::new("python3")
        .args(["-c", program])
        .arg(&path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
    let why = LogFile::new(appending(&path), Stage::private().unwrap()).take().unwrap_err();
    let NotTaken::Refused(refusals) = why else { panic!("{why:?}") };
    assert_eq!(refusals, [Refusal::Cached]);
    drop(child.stdin.take());
    assert!(child.wait().unwrap().success());
    taken(appending(&path)).release().unwrap();
}
