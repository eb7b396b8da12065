//! Logs that a program overwrites and reads, as SQLite does, while the logs take the short path:
//! the program's bytes are staged in shared memory (the *stage*), and then written by direct I/O.
//! If the program is killed, the stage *mends* the file: the staged bytes are written to it.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, File, OpenOptions};
use std::io::{IoSlice, Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use slimio_shortcut::{LogFile, Mended, Stage, Written};
use slimio_testing::loops::Mounted;

const EXT4: &[&str] = &["mkfs.ext4", "-q"];
const XFS: &[&str] = &["mkfs.xfs", "-q"];
const SIZE: u64 = 320 << 20;
/// The environment variable that names the folder of the files, for the process that the test
/// kills.
const FOLDER: &str = "SLIMIO_SHORTCUT_OVERWRITTEN";
const SEED: &str = "SLIMIO_SHORTCUT_SEED";
const KILLS: u64 = 12;
/// Offset of the header in the stage's file. The locks come before the header.
const HEADER: u64 = 4096;

fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).unwrap()
}

/// A model of the log: the bytes that it must have.
#[derive(Clone, Default)]
struct Model {
    bytes: Vec<u8>,
    random: fastrand::Rng,
    /// The offset at which most writes put the next bytes.
    next: usize,
}

impl Model {
    fn new(seed: u64) -> Self {
        Self { random: fastrand::Rng::with_seed(seed), ..Self::default() }
    }

    /// The next write: its offset and its bytes. The bytes are also put into the model.
    fn write(&mut self) -> (usize, Vec<u8>) {
        let random = &mut self.random;
        let length = self.bytes.len();
        let at = match random.u8(0..20) {
            0 => 0,
            1 => length,
            2 => random.usize(0..=length),
            3 => self.next - self.next % 4096,
            _ => self.next,
        };
        let size = match random.u8(0..20) {
            0 => random.usize(1..1_500_000),
            1..4 => random.usize(1..50_000),
            4..12 => 4120,
            _ => random.usize(1..200),
        };
        let bytes: Vec<u8> = std::iter::repeat_with(|| random.u8(1..)).take(size).collect();
        let end = at + size;
        self.bytes.resize(length.max(end), 0);
        self.bytes[at..end].copy_from_slice(&bytes);
        self.next = end;
        (at, bytes)
    }
}

fn write(log: &LogFile, (at, bytes): &(usize, Vec<u8>)) {
    let written = log.write_at(&[IoSlice::new(bytes)], *at as u64).unwrap();
    assert!(matches!(written, Written::Whole | Written::TellKeeper), "{written:?}");
}

#[test]
fn what_is_written_over_is_there_for_everybody() {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut random = fastrand::Rng::with_seed(seed);
    for mkfs in [EXT4, XFS] {
        let Some(mounted) = Mounted::new(mkfs, SIZE, "defaults") else { continue };
        let path = mounted.path().join("log");
        let mut model = Model::new(seed);
        for life in 0..6 {
            let log = LogFile::new(open(&path), Stage::private().unwrap());
            log.take().unwrap();
            for _ in 0..random.usize(0..150) {
                write(&log, &model.write());
                let all = &model.bytes;
                assert_eq!(log.length().unwrap(), Some(all.len() as u64));
                match random.u8(0..10) {
                    0..3 => {
                        let near = model.next.saturating_sub(random.usize(0..20_000));
                        let at = if random.bool() { near } else { random.usize(0..=all.len()) };
                        let mut bytes = vec![0; random.usize(1..20_000)];
                        let count = log.read_at(&mut bytes, at as u64).unwrap().unwrap();
                        assert_eq!(count, bytes.len().min(all.len() - at));
                        assert!(
                            bytes[..count] == all[at..at + count],
                            "a read at {at} returned wrong bytes"
                        );
                    }
                    3..6 => assert!(log.sync().unwrap()),
                    6 => {
                        log.keep_up(false).unwrap();
                    }
                    _ => {}
                }
                if random.u8(0..20) == 0 {
                    log.sync().unwrap();
                    let seen = fs::read(&path).unwrap();
                    assert!(seen[..all.len()] == *all, "life {life}: wrong bytes were written");
                    assert!(seen[all.len()..].iter().all(|byte| *byte == 0));
                }
            }
            log.release().unwrap();
            assert!(
                fs::read(&path).unwrap() == model.bytes,
                "life {life}: the file is not the log"
            );
        }
    }
}

/// Reading moves the position as read(2) does, and the next write goes to the new position.
#[test]
fn reading_and_writing_share_the_position() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, b"0123456789").unwrap();
    let log = LogFile::new(open(&path), Stage::private().unwrap());
    log.take().unwrap();
    let mut bytes = [0; 4];
    assert_eq!(log.read(&mut bytes).unwrap(), Some(4));
    assert_eq!(&bytes, b"0123");
    log.append(b"xy").unwrap();
    assert_eq!(log.position().unwrap(), Some(6));
    assert_eq!(log.read(&mut bytes).unwrap(), Some(4));
    assert_eq!(&bytes, b"6789");
    assert_eq!(log.read(&mut bytes).unwrap(), Some(0), "the log ends here");
    log.append(b"!").unwrap();
    log.release().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"0123xy6789!");
}

/// The file is open for writing only. So the bytes around a write, in the same blocks, can't be
/// read, and only the kernel can do the write.
#[test]
fn over_a_file_that_cannot_be_read_the_kernel_writes() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, b"").unwrap();
    let only_written = OpenOptions::new().write(true).open(&path).unwrap();
    let log = LogFile::new(only_written, Stage::private().unwrap());
    log.take().unwrap();
    let write = |bytes, at| log.write_at(&[IoSlice::new(bytes)], at).unwrap();
    assert_eq!(write(b"abc", 0), Written::TellKeeper);
    assert_eq!(write(b"x", 1), Written::ByKernel);
    assert_eq!(write(b"x", 4), Written::ByKernel, "the write would leave a gap");
    for read in [log.read_at(&mut [0; 3], 0), log.read(&mut [0; 3])] {
        assert_eq!(read.unwrap_err().raw_os_error(), Some(9), "the error is EBADF");
    }
    log.release().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"abc");
}

/// A write that would leave a gap goes to the kernel too, even if the file can be read.
#[test]
fn a_gap_is_left_by_the_kernel() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    let log = LogFile::new(open(&path), Stage::private().unwrap());
    log.take().unwrap();
    assert_eq!(log.write_at(&[IoSlice::new(b"x")], 1).unwrap(), Written::ByKernel);
    log.release().unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"");
}

/// Writes until the process is killed. Prints a dot after each write. Makes the bytes durable after
/// every third write.
fn write_until_killed(folder: &Path) {
    let mut model = Model::new(std::env::var(SEED).unwrap().parse().unwrap());
    let stage = Stage::create(&open(&folder.join("stage"))).unwrap();
    let log = LogFile::new(open(&folder.join("log")), stage);
    log.take().unwrap();
    let mut out = std::io::stderr();
    for number in 0.. {
        write(&log, &model.write());
        out.write_all(b".").unwrap();
        if number % 3 == 0 {
            log.sync().unwrap();
        }
    }
}

#[test]
fn what_was_written_over_outlives_a_killed_process() {
    const NAME: &str = "what_was_written_over_outlives_a_killed_process";
    if let Some(folder) = std::env::var_os(FOLDER) {
        return write_until_killed(Path::new(&folder));
    }
    let Some(folder) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let (path, stage) = (folder.path().join("log"), folder.path().join("stage"));
    for kill in 0..KILLS {
        let _ = (fs::remove_file(&path), fs::remove_file(&stage));
        let seed = fastrand::u64(..);
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", NAME, "--nocapture"])
            .env(FOLDER, folder.path())
            .env(SEED, seed.to_string())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = child.stderr.take().unwrap();
        said.read_exact(&mut [0; 20]).unwrap();
        std::thread::sleep(Duration::from_millis(5 * kill));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = Vec::new();
        said.read_to_end(&mut rest).unwrap();
        let written = 20 + rest.len();

        let file = open(&path);
        let mended = Stage::open(&open(&stage)).unwrap().mend(&file).unwrap();
        assert!(matches!(mended, Mended::Log { .. }), "{mended:?}");
        let mut model = Model::new(seed);
        for _ in 0..written {
            model.write();
        }
        // The process may have made one more write, whole or in part, without printing its dot.
        let before = model.bytes.clone();
        let (at, bytes) = model.write();
        let log = fs::read(&path).unwrap();
        assert!(
            log.len() >= before.len() && log.len() <= model.bytes.len(),
            "seed {seed}: wrong size"
        );
        for (offset, found) in log.iter().enumerate() {
            let may_be_new = (at..at + bytes.len()).contains(&offset);
            let is_old = before.get(offset) == Some(found);
            let is_new = may_be_new && model.bytes[offset] == *found;
            assert!(
                is_old || is_new,
                "seed {seed}, kill {kill}, write {written}: wrong byte at {offset}"
            );
        }
    }
}

/// A process is killed while it begins to stage bytes for another place in the file. Everything
/// that was staged before is in the file.
#[test]
fn a_stage_that_goes_to_another_place_misses_nothing() {
    let Some(folder) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let (path, stage) = (folder.path().join("log"), folder.path().join("stage"));
    let log = LogFile::new(open(&path), Stage::create(&open(&stage)).unwrap());
    log.take().unwrap();
    log.append(&vec![b'x'; 20_000]).unwrap();
    log.sync().unwrap();
    drop(log);
    // The header is changed only in part: some of its fields are for the old place, and others are
    // for the new place.
    let (start, staged_to, is_moving) = (HEADER + 24, HEADER + 32, HEADER + 144);
    let header = open(&stage);
    for (field, value) in [(is_moving, 1_u64), (start, 4096), (staged_to, 5000)] {
        header.write_all_at(&value.to_le_bytes(), field).unwrap();
    }
    let mended = Stage::open(&open(&stage)).unwrap().mend(&open(&path)).unwrap();
    assert_eq!(mended, Mended::Log { written: 0, length: 20_000 });
    assert!(fs::read(&path).unwrap() == vec![b'x'; 20_000]);
}

/// A process is killed in the middle of a write. The process has overwritten a part of the bytes
/// that the stage has loaded from the file. Mending must not take this for a change of the file by
/// another process.
#[test]
fn a_write_that_has_not_ended_is_no_change_by_others() {
    let Some(folder) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let (path, stage) = (folder.path().join("log"), folder.path().join("stage"));
    fs::write(&path, vec![b'x'; 20_000]).unwrap();
    let log = LogFile::new(open(&path), Stage::create(&open(&stage)).unwrap());
    log.take().unwrap();
    log.write_at(&[IoSlice::new(&[b'y'; 100])], 4096).unwrap();
    drop(log);
    // A write of the next 3000 bytes is under way: 2000 of them are in the stage, but the header
    // does not count these yet.
    let put_to = HEADER + 176;
    let header = open(&stage);
    header.write_all_at(&(4196 + 3000_u64).to_le_bytes(), put_to).unwrap();
    header.write_all_at(&[b'z'; 2000], HEADER + 4096 + 100).unwrap();
    let mended = Stage::open(&open(&stage)).unwrap().mend(&open(&path)).unwrap();
    assert_eq!(mended, Mended::Log { written: 100, length: 20_000 });
    let mut wanted = vec![b'x'; 20_000];
    wanted[4096..4196].fill(b'y');
    assert!(fs::read(&path).unwrap() == wanted);
}

/// If the program writes at another place in the file, the staged bytes are written to the file
/// without being made durable. The next sync flushes them. Mended bytes are flushed too.
#[test]
fn what_was_written_on_the_way_is_flushed() {
    let Some(folder) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let flushes = || folder.flushes();
    let (path, stage) = (folder.path().join("log"), folder.path().join("stage"));
    fs::write(&path, vec![b'x'; 200_000]).unwrap();
    let log = LogFile::new(open(&path), Stage::create(&open(&stage)).unwrap());
    log.take().unwrap();
    log.write_at(&[IoSlice::new(&[b'y'; 100])], 0).unwrap();
    log.write_at(&[IoSlice::new(&[])], 150_000).unwrap();
    let before = flushes();
    log.sync().unwrap();
    assert!(flushes() > before, "the sync flushes the bytes written at 0");
    log.write_at(&[IoSlice::new(&[b'z'; 100])], 150_000).unwrap();
    drop(log);
    let before = flushes();
    Stage::open(&open(&stage)).unwrap().mend(&open(&path)).unwrap();
    assert!(flushes() > before, "mended bytes are flushed");
}

/// With `O_APPEND`, pwrite(2) writes at the end, whatever its offset. So the kernel must do the
/// write.
#[test]
fn an_offset_does_not_count_for_a_file_that_is_appended_to() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, b"0123456789").unwrap();
    let appending = OpenOptions::new().read(true).append(true).open(&path).unwrap();
    let log = LogFile::new(appending, Stage::private().unwrap());
    log.take().unwrap();
    for offset in [0, 5] {
        let written = log.write_at(&[IoSlice::new(b"x")], offset).unwrap();
        assert_eq!(written, Written::ByKernel);
    }
    log.release().unwrap();
}

/// A read turns direct I/O off. Before zeros are added after the log's end, direct I/O must be on
/// again. If the zeros went into the page cache, the kernel could write them to the file later,
/// over bytes that were written directly meanwhile.
#[test]
fn zeros_are_direct_after_somebody_has_read() {
    let Some(mounted) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let path = mounted.path().join("log");
    fs::write(&path, vec![b'x'; 20_000]).unwrap();
    let log = LogFile::new(open(&path), Stage::private().unwrap());
    log.take().unwrap();
    let is_direct =
        || rustix::fs::fcntl_getfl(log.file()).unwrap().contains(rustix::fs::OFlags::DIRECT);
    assert_eq!(log.read_at(&mut [0; 10], 0).unwrap(), Some(10));
    assert!(!is_direct());
    log.keep_up(false).unwrap();
    assert!(is_direct());
    log.release().unwrap();
}

/// Somebody changes the file after the process was killed. Mending compares the file with the bytes
/// that the stage has loaded from it, and fails if they differ. It does not notice a change before
/// these bytes, or a change in the place of the staged bytes.
#[test]
fn a_file_that_was_changed_since_is_not_mended() {
    let Some(folder) = Mounted::new(EXT4, SIZE, "defaults") else { return };
    let (path, stage) = (folder.path().join("log"), folder.path().join("stage"));
    for (at, is_mended) in [(0, true), (8192 + 50, true), (8192 + 150, false), (13_000, false)] {
        let _ = fs::remove_file(&stage);
        fs::write(&path, vec![b'x'; 20_000]).unwrap();
        let log = LogFile::new(open(&path), Stage::create(&open(&stage)).unwrap());
        log.take().unwrap();
        log.write_at(&[IoSlice::new(&[b'y'; 100])], 8192).unwrap();
        drop(log);
        let file = open(&path);
        file.write_all_at(b"other", at).unwrap();
        let mended = Stage::open(&open(&stage)).unwrap().mend(&file);
        assert_eq!(mended.is_ok(), is_mended, "a change at {at} leads to {mended:?}");
        let found = fs::read(&path).unwrap();
        assert_eq!(
            found[8192..8192 + 100] == [b'y'; 100],
            is_mended,
            "a change at {at} leads to wrong bytes"
        );
    }
    // A file that was cut is not mended either.
    let _ = fs::remove_file(&stage);
    fs::write(&path, vec![b'x'; 20_000]).unwrap();
    let log = LogFile::new(open(&path), Stage::create(&open(&stage)).unwrap());
    log.take().unwrap();
    log.write_at(&[IoSlice::new(&[b'y'; 100])], 0).unwrap();
    drop(log);
    open(&path).set_len(16_000).unwrap();
    assert!(Stage::open(&open(&stage)).unwrap().mend(&open(&path)).is_err());
    assert_eq!(fs::metadata(&path).unwrap().len(), 16_000);
}
