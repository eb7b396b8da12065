//! What a program has appended outlives the program.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs::{self, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use slimio_device::{Directory, PathOptions};
use slimio_shortcut::{LogFile, Mended, Stage};
use slimio_testing::loops::Mounted;

/// Set for the process that is to be killed: the folder of its files.
const FOLDER: &str = "SLIMIO_SHORTCUT_KILLED";
const STAGE: &str = "stage";
const KILLS: usize = 12;

/// The record of this number. Its bytes are not zero, and say which record it is.
fn record(number: u64) -> Vec<u8> {
    let size = 1 + (number * 7919 % 9000) as usize;
    vec![1 + (number % 255) as u8; size]
}

fn stage(folder: &Path) -> (Directory, Stage) {
    let mut directory = Directory::open(folder, PathOptions::default()).unwrap();
    let mapped =
        directory.open_mapped(STAGE).or_else(|_| directory.create_mapped(STAGE, Stage::MEMORY));
    (directory, Stage::of(&mut mapped.unwrap()))
}

/// Appends records until it is killed, and says after each that it was appended. Every third is made
/// durable.
fn append_until_killed(folder: &Path) {
    let file = OpenOptions::new().append(true).open(folder.join("log")).unwrap();
    let (_directory, stage) = stage(folder);
    let mut log = LogFile::take(file, stage).map_err(|(_, why)| why).unwrap();
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

        let (_directory, mut stage) = stage(folder.path());
        let file = OpenOptions::new().read(true).write(true).open(&path).unwrap();
        let Mended::Log { written: missing, length } = stage.mend(&file).unwrap() else {
            panic!("there was a log");
        };
        written += missing;
        let log = fs::read(&path).unwrap();
        assert_eq!(log.len() as u64, length);
        // The last record may have been appended without having been said, whole or in part.
        let all: Vec<u8> = (0..=appended).flat_map(record).collect();
        let least: usize = (0..appended).map(|number| record(number).len()).sum();
        assert!(all.starts_with(&log), "kill {kill}: it is not what was appended");
        assert!(log.len() >= least, "kill {kill}: {} of {least} bytes", log.len());
        assert_eq!(stage.mend(&file).unwrap(), Mended::Nothing, "once");
    }
    assert!(written > 0, "no kill came between an append and a sync");
}

#[test]
fn another_file_is_not_mended() {
    let Some(folder) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
    let paths = ["log", "other"].map(|name| folder.path().join(name));
    for path in &paths {
        fs::write(path, b"bytes").unwrap();
    }
    let (directory, first) = stage(folder.path());
    let file = OpenOptions::new().append(true).open(&paths[0]).unwrap();
    let mut log = LogFile::take(file, first).map_err(|(_, why)| why).unwrap();
    log.append(b" and more").unwrap();
    drop((log, directory));
    let (_directory, mut stage) = stage(folder.path());
    let open = |path| OpenOptions::new().read(true).write(true).open(path).unwrap();
    assert!(stage.mend(&open(&paths[1])).is_err());
    assert_eq!(fs::read(&paths[1]).unwrap(), b"bytes");
    assert_eq!(stage.mend(&open(&paths[0])).unwrap(), Mended::Log { written: 9, length: 14 });
    assert_eq!(fs::read(&paths[0]).unwrap(), b"bytes and more");
}
