//! Logs that a power cut has left with zeros at their end.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use slimio_shortcut::{Repaired, repair};

const REQUEST: &[u8] = b"*1\r\n$4\r\nPING\r\n";

/// A file with these bytes, and zeros up to `size`.
fn left(folder: &Path, bytes: &[u8], size: usize) -> PathBuf {
    let path = folder.join("appendonly.aof.1.incr.aof");
    let mut all = bytes.to_vec();
    all.resize(size, 0);
    fs::write(&path, all).unwrap();
    path
}

#[test]
fn zeros_behind_a_log_are_cut() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, size) in [(REQUEST, 4096), (REQUEST, 3 << 20), (b"#TS:1\r\n", 8192), (b"", 4096)] {
        let path = left(folder.path(), bytes, size);
        let now = bytes.len() as u64;
        assert_eq!(repair(&path).unwrap(), Repaired::Cut { before: size as u64, now });
        assert_eq!(fs::read(&path).unwrap(), bytes);
        assert_eq!(repair(&path).unwrap(), Repaired::Whole);
    }
    // The log's last byte is far from both ends of the file.
    let long = [REQUEST, &vec![b'x'; 5 << 19]].concat();
    let path = left(folder.path(), &long, 4 << 20);
    let now = long.len() as u64;
    assert_eq!(repair(&path).unwrap(), Repaired::Cut { before: 4 << 20, now });
    assert!(fs::read(&path).unwrap() == long);
    let preamble = [b"REDIS0011\xff\0\0\0\0\0\0\0\0", REQUEST].concat();
    let path = left(folder.path(), &preamble, 4096);
    assert!(matches!(repair(&path).unwrap(), Repaired::Cut { .. }));
    assert_eq!(fs::read(&path).unwrap(), preamble);
}

#[test]
fn what_is_whole_stays() {
    let folder = tempfile::tempdir().unwrap();
    for (bytes, size) in [(REQUEST, REQUEST.len()), (REQUEST, 5000), (&[b'*'; 4096], 4096)] {
        let path = left(folder.path(), bytes, size);
        assert_eq!(repair(&path).unwrap(), Repaired::Whole);
        assert_eq!(fs::metadata(&path).unwrap().len(), size as u64);
    }
}

#[test]
fn other_files_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let rdb = b"REDIS0011\xff\0\0\0\0\0\0\0\0";
    for bytes in [&rdb[..], b"SQLite format 3\0"] {
        let path = left(folder.path(), bytes, 4096);
        assert_eq!(repair(&path).unwrap_err().kind(), ErrorKind::InvalidData);
        assert_eq!(fs::metadata(&path).unwrap().len(), 4096);
    }
    let path = left(folder.path(), REQUEST, 4096);
    let open = File::open(&path).unwrap();
    assert_eq!(repair(&path).unwrap_err().kind(), ErrorKind::ResourceBusy);
    drop(open);
    assert!(repair(&path).is_ok());
}
