//! Logs that are written the short way, on real file systems.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;

use slimio_shortcut::{LogFile, NotTaken, Probe, Refusal, Stage};
use slimio_testing::loops::Mounted;

const MIB: u64 = 1 << 20;
const EXT4: &[&str] = &["mkfs.ext4", "-q"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];
const SIZE: u64 = 320 * MIB;

fn appending(path: &Path) -> File {
    OpenOptions::new().append(true).create(true).open(path).unwrap()
}

fn taken(file: File) -> LogFile {
    LogFile::take(file, Stage::private()).map_err(|(_, why)| why).unwrap()
}

/// Checks what another program sees: the log, and zeros behind it.
fn check_seen(path: &Path, log: &[u8], end: usize) {
    let seen = fs::read(path).unwrap();
    assert!(seen.len() >= end, "{} of {end} bytes", seen.len());
    assert!(seen[..end] == log[..end], "the log is not what was appended");
    assert!(seen[end..].iter().all(|byte| *byte == 0), "there is something behind the log");
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
            // Each life goes on where the one before has ended; some logs end with a whole block.
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
            let mut taken = taken(file);
            assert_eq!(taken.len(), log.len() as u64);
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
            let (file, released) = taken.release();
            released.unwrap();
            assert!(fs::read(&path).unwrap() == log, "life {life}");
            drop(file);
        }
    }
}

/// A write of a record neither makes the file longer nor needs a new block.
#[test]
fn a_durable_write_changes_no_metadata() {
    for mkfs in [EXT4, XFS] {
        let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") else { continue };
        let path = mounted.path().join("log");
        let mut taken = taken(appending(&path));
        taken.append(b"first").unwrap();
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
    let Some(mounted) = Mounted::new(EXT4, 16 * MIB, "defaults") else { return };
    let path = mounted.path().join("log");
    let filler = mounted.path().join("filler");
    fs::write(&filler, vec![1; 6 * MIB as usize]).unwrap();
    let mut taken = taken(appending(&path));
    let mut log = Vec::new();
    let error = loop {
        let bytes = vec![1 + (log.len() % 251) as u8; 100_000];
        match taken.append(&bytes) {
            Ok(()) => log.extend(bytes),
            Err(error) => break error,
        }
        taken.sync().unwrap();
    };
    assert_eq!(error.kind(), ErrorKind::StorageFull);
    assert_eq!(taken.len(), log.len() as u64);
    assert!(log.len() > 2_000_000, "{} bytes", log.len());
    check_seen(&path, &log, log.len());
    fs::remove_file(&filler).unwrap();
    taken.append(b"and on").unwrap();
    log.extend(b"and on");
    taken.release().1.unwrap();
    assert!(fs::read(&path).unwrap() == log);
}

#[test]
fn a_file_that_is_not_taken_stays_as_it_was() {
    let memory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = memory.path().join("log");
    fs::write(&path, "some bytes").unwrap();
    let (mut file, why) = LogFile::take(appending(&path), Stage::private()).unwrap_err();
    let NotTaken::Refused(refusals) = why else { panic!("{why:?}") };
    assert!(refusals.contains(&Refusal::Memory("tmpfs".into())), "{refusals:?}");
    file.write_all(b" more").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"some bytes more");
}

/// Each sync has the device flush its cache, or write with the FUA bit, which a loop device carries out
/// by a flush.
#[test]
fn a_sync_reaches_the_disk() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let name = mounted.device().file_name().unwrap().to_str().unwrap();
    let statistics = Path::new("/sys/block").join(name).join("stat");
    // The sixteenth number: flushes (Documentation/block/stat.rst of the kernel).
    let flushes = || -> usize {
        let text = fs::read_to_string(&statistics).unwrap();
        text.split_whitespace().nth(15).unwrap().parse().unwrap()
    };
    let mut taken = taken(appending(&mounted.path().join("log")));
    taken.append(b"first").unwrap();
    taken.sync().unwrap();
    let before = flushes();
    for _ in 0..20 {
        taken.append(b"more").unwrap();
        taken.sync().unwrap();
    }
    assert!(flushes() >= before + 20, "{before} and {} flushes", flushes());
}
