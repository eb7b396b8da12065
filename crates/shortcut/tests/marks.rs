//! Appends records. Each record is durable before the next record is written.
//! `tests/lab/power-cut-log` cuts the power of a machine that runs this test, to see which records
//! are durable.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use slimio_shortcut::{LogFile, Stage};
use slimio_testing::loops::Mounted;

/// The environment variable that names the file to append to. The file exists and is empty. Without
/// the variable, the test uses a file on a loop device.
const LOG: &str = "SLIMIO_MARKS_LOG";
const RECORDS: usize = 400;

fn record(number: usize) -> Vec<u8> {
    let mut record = format!("<mark:1:{number}>").into_bytes();
    record.resize(record.len() + number * 977 % 6000, b'.');
    record
}

fn append_records(path: &Path) {
    let file = OpenOptions::new().append(true).open(path).unwrap();
    let log = LogFile::new(file, Stage::private().unwrap());
    log.take().unwrap();
    for number in 1..=RECORDS {
        log.append(&record(number)).unwrap();
        log.sync().unwrap();
    }
    log.release().unwrap();
}

#[test]
fn marks_are_appended_one_after_the_other() {
    let mounted;
    let path = if let Some(path) = std::env::var_os(LOG) {
        PathBuf::from(path)
    } else {
        let Some(made) = Mounted::new(&["mkfs.ext4", "-q"], 64 << 20, "defaults") else { return };
        mounted = made;
        let path = mounted.path().join("log");
        fs::write(&path, b"").unwrap();
        path
    };
    append_records(&path);
    let all: Vec<u8> = (1..=RECORDS).flat_map(record).collect();
    assert!(fs::read(&path).unwrap() == all);
}
