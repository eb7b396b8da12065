//! Bytes that a program has appended outlive the program: they are in the stage, which is a file
//! that is mapped into memory. Another process mends the log, that is, writes the bytes to it.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Resource, Rlimit, setrlimit};
use slimio_shortcut::{LogFile, Mended, NotTaken, Stage};
use slimio_testing::loops::Mounted;

/// This environment variable is set only for the process that the test kills. It holds the path of
/// the folder with the log and the stage.
const FOLDER: &str = "SLIMIO_SHORTCUT_KILLED";
const STAGE: &str = "stage";
const KILLS: usize = 12;

/// The record with this number. Its bytes are not zero, and show the number.
fn record(number: u64) -> Vec<u8> {
    let size = 1 + (number * 7919 % 9000) as usize;
    vec![1 + (number % 255) as u8; size]
}

fn stage(folder: &Path) -> Stage {
    let open = |create: bool| {
        OpenOptions::new().read(true).write(true).create_new(create).open(folder.join(STAGE))
    };
    match open(true) {
        Ok(file) => Stage::create(&file).unwrap(),
        Err(_) => Stage::open(&open(false).unwrap()).unwrap(),
    }
}

fn taken(file: File, stage: Stage) -> LogFile {
    let log = LogFile::new(file, stage);
    log.take().unwrap();
    log
}

/// Appends records until the process is killed, and prints a message after each append. Every third
/// record is made durable.
fn append_until_killed(folder: &Path) {
    let file = OpenOptions::new().append(true).open(folder.join("log")).unwrap();
    let log = taken(file, stage(folder));
    let mut out = std::io::stderr();
    for number in 0.. {
        log.append(&record(number)).unwrap();
        out.write_all(b".").unwrap();
        if number % 3 == 0 {
            log.sync().unwrap();
        }
    }
}

#[test]
fn what_was_appended_outlives_a_killed_process() {
    if let Some(folder) = std::env::var_os(FOLDER) {
        return append_until_killed(Path::new(&folder));
    }
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let path = folder.path().join("log");
    let mut written = 0;
    for kill in 0..KILLS {
        fs::write(&path, b"").unwrap();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "what_was_appended_outlives_a_killed_process", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut said = child.stderr.take().unwrap();
        said.read_exact(&mut [0; 20]).unwrap();
        std::thread::sleep(Duration::from_millis(3 * kill as u64));
        child.kill().unwrap();
        child.wait().unwrap();
        let mut rest = Vec::new();
        said.read_to_end(&mut rest).unwrap();
        let appended = 20 + rest.len() as u64;

        let stage = stage(folder.path());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let Mended::Log { written: missing, length } = stage.mend(&file).unwrap() else {
            panic!("the stage had no log to mend");
        };
        written += missing;
        let log = fs::read(&path).unwrap();
        assert_eq!(log.len() as u64, length);
        // The process may have appended one more record, whole or in part, before it could print
        // the message.
        let all: Vec<u8> = (0..=appended).flat_map(record).collect();
        let least: usize = (0..appended).map(|number| record(number).len()).sum();
        assert!(all.starts_with(&log), "kill {kill}: the log has other bytes than were appended");
        assert!(
            log.len() >= least,
            "kill {kill}: the log has {} bytes, but at least {least} were appended",
            log.len()
        );
        assert_eq!(stage.mend(&file).unwrap(), Mended::Nothing, "a log must be mended only once");
    }
    assert!(written > 0, "no kill came between an append and the next sync");
}

#[test]
fn another_file_is_not_mended() {
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let paths = ["log", "other"].map(|name| folder.path().join(name));
    for path in &paths {
        fs::write(path, b"bytes").unwrap();
    }
    let file = OpenOptions::new().append(true).open(&paths[0]).unwrap();
    let log = taken(file, stage(folder.path()));
    log.append(b" and more").unwrap();
    drop(log);
    let stage = stage(folder.path());
    let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(stage.mend(&open(&paths[1])).is_err());
    assert_eq!(fs::read(&paths[1]).unwrap(), b"bytes");
    assert_eq!(stage.mend(&open(&paths[0])).unwrap(), Mended::Log { written: 9, length: 14 });
    assert_eq!(fs::read(&paths[0]).unwrap(), b"bytes and more");
}

/// The log is removed, and a file that is made later gets its inode number.
#[test]
fn a_later_file_with_the_same_inode_is_not_mended() {
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let path = folder.path().join("log");
    let open = || OpenOptions::new().append(true).create(true).open(&path).unwrap();
    let log = taken(open(), stage(folder.path()));
    log.append(b"secret").unwrap();
    let inode = std::os::unix::fs::MetadataExt::ino(&log.file().metadata().unwrap());
    drop(log);
    fs::remove_file(&path).unwrap();
    // One of the next files gets the inode number. This may take several tries, because another
    // test may start a process. From its fork to its exec, that process has the removed file open.
    let begin = Instant::now();
    let paths: Vec<_> =
        (0..200).map(|number| folder.path().join(format!("later-{number}"))).collect();
    let later = loop {
        let found = paths.iter().find_map(|path| {
            let file =
                OpenOptions::new().read(true).write(true).create_new(true).open(path).unwrap();
            let is_same = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap()) == inode;
            is_same.then_some(file)
        });
        if let Some(found) = found {
            break found;
        }
        assert!(
            begin.elapsed() < Duration::from_secs(20),
            "no later file got the inode of the removed file"
        );
        for path in &paths {
            fs::remove_file(path).unwrap();
        }
    };
    assert!(stage(folder.path()).mend(&later).is_err());
    assert_eq!(later.metadata().unwrap().len(), 0);
}

/// A process ends without releasing its log. Then somebody changes the log's file.
#[test]
fn a_file_that_was_changed_since_is_not_mended() {
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let path = folder.path().join("log");
    // Each change: an offset, the bytes that are written there, and whether the file is still
    // mended.
    let changes: [(u64, &[u8], bool); 5] = [
        (0, b"", true),
        // Bytes before the last block are not checked.
        (0, b"other", true),
        (5000, b"other", false),
        (5010, b"staged, but other", false),
        (60_000, b"behind", false),
    ];
    for (number, (at, bytes, is_mended)) in changes.into_iter().enumerate() {
        let _ = fs::remove_file(folder.path().join(STAGE));
        fs::write(&path, vec![b'x'; 5000]).unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let log = taken(file, stage(folder.path()));
        log.append(b"durable, ").unwrap();
        log.sync().unwrap();
        log.append(b"staged").unwrap();
        drop(log);
        let stage = stage(folder.path());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        file.write_all_at(bytes, at).unwrap();
        let before = fs::read(&path).unwrap();
        let mended = stage.mend(&file);
        assert_eq!(mended.is_ok(), is_mended, "change {number} leads to {mended:?}");
        if is_mended {
            assert_eq!(mended.unwrap(), Mended::Log { written: 6, length: 5015 });
            assert!(fs::read(&path).unwrap().ends_with(b"xdurable, staged"));
        } else {
            assert!(
                fs::read(&path).unwrap() == before,
                "change {number}: mending changed the file"
            );
            assert!(
                stage.file().unwrap().is_some(),
                "a stage that could not be mended must keep its log"
            );
        }
    }
}

/// A process is killed while it moves staged bytes to the beginning of the stage. The header then
/// still describes the bytes that were at the beginning before.
#[test]
fn a_stage_that_was_being_moved_is_mended() {
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let path = folder.path().join("log");
    fs::write(&path, b"").unwrap();
    let file = OpenOptions::new().append(true).open(&path).unwrap();
    let log = taken(file, stage(folder.path()));
    log.append(&vec![b'x'; 500_000]).unwrap();
    log.sync().unwrap();
    log.append(b"staged").unwrap();
    drop(log);
    // Moved bytes are at the stage's beginning, but the header still describes the old bytes.
    let staged = OpenOptions::new().write(true).open(folder.path().join(STAGE)).unwrap();
    staged.write_all_at(&[b'y'; 4096], 2 * 4096).unwrap();
    let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
    let mended = stage(folder.path()).mend(&file).unwrap();
    assert_eq!(mended, Mended::Log { written: 6, length: 500_006 });
    assert!(fs::read(&path).unwrap().ends_with(b"xxstaged"));
}

/// A stage whose log was released needs no mending. The old log's bytes must not follow the next
/// log that uses the stage.
#[test]
fn a_stage_can_be_used_again() {
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let path = folder.path().join("log");
    for bytes in [&vec![7; 20_000][..], b"few"] {
        fs::write(&path, b"bytes").unwrap();
        let file = OpenOptions::new().append(true).open(&path).unwrap();
        let log = taken(file, stage(folder.path()));
        log.append(bytes).unwrap();
        log.sync().unwrap();
        let seen = fs::read(&path).unwrap();
        let end = 5 + bytes.len();
        assert_eq!(seen[5..end], *bytes);
        assert!(seen[end..].iter().all(|byte| *byte == 0), "old bytes follow the log");
        log.release().unwrap();
        assert_eq!(stage(folder.path()).file().unwrap(), None);
    }
}

/// A write that writes only a part of its bytes counts as failed, and all later writes and syncs
/// fail too.
#[test]
fn a_short_write_is_a_failure_that_stays() {
    const NAME: &str = "a_short_write_is_a_failure_that_stays";
    if let Some(folder) = std::env::var_os(LIMITED) {
        return fail_at_a_limit(Path::new(&folder));
    }
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", NAME, "--nocapture"])
        .env(LIMITED, folder.path())
        .output()
        .unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(fs::read(folder.path().join("log")).unwrap(), b"durable");
}

/// This environment variable is set only for the process whose files are limited in size. It holds
/// the path of the folder with the log.
const LIMITED: &str = "SLIMIO_SHORTCUT_LIMITED";

fn fail_at_a_limit(folder: &Path) {
    slimio_device::ignore_file_size_signal();
    let file = OpenOptions::new().append(true).create(true).open(folder.join("log")).unwrap();
    let log = taken(file, Stage::private().unwrap());
    log.append(b"durable").unwrap();
    log.sync().unwrap();
    let limit = |current| Rlimit { current, maximum: None };
    setrlimit(Resource::Fsize, limit(Some(8192))).unwrap();
    log.append(&vec![1; 20_000]).unwrap();
    assert!(log.sync().is_err());
    setrlimit(Resource::Fsize, limit(None)).unwrap();
    assert!(
        log.sync().is_err() && log.append(b"more").is_err(),
        "all calls must fail after a failed write"
    );
    assert!(log.release().is_err(), "the failure must be reported until the file is opened again");
    assert!(!log.is_taken().unwrap(), "after a failed write, the file is given back all the same");
    assert!(matches!(log.take(), Err(NotTaken::Failed(_))));
    assert!(log.sync().is_err(), "an attempt to take the file again has cleared the failure");
}
