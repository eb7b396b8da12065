//! Logs on a device that fails to write. The device is a loop device over a file on a full tmpfs.

use std::fs::OpenOptions;
use std::io::Write as _;

use slimio_shortcut::{LogFile, NotTaken, Stage};
use slimio_testing::loops::FullDevice;

/// The kernel reports a failed write to one sync of an open file. If the keeper's sync gets this
/// report, the program's next sync must fail all the same.
#[test]
fn a_failed_write_that_the_keeper_hears_of_is_told_to_the_program() {
    let Some(device) = FullDevice::new() else { return };
    let path = device.path().join("log");
    let mut file = OpenOptions::new().append(true).create(true).open(path).unwrap();
    file.write_all(b"durable").unwrap();
    file.sync_all().unwrap();
    let log = LogFile::new(file.try_clone().unwrap(), Stage::private().unwrap());
    device.fill();
    // The device may have room for some bytes beside those that it has: tmpfs can use large pages.
    file.write_all(&vec![1; 8 << 20]).unwrap();
    let taken = log.take();
    assert!(matches!(taken, Err(NotTaken::Failed(_))), "{taken:?}");
    assert!(log.sync().is_err(), "the program must be told of the failed write");
    device.empty();
    assert!(matches!(log.take(), Err(NotTaken::Failed(_))));
    assert!(log.sync().is_err());
}
