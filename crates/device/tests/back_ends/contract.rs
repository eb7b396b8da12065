//! Each back end must keep the contract of devices. A back end that does not work on this machine
//! is not tested.

use std::path::Path;

use slimio_device::{
    BlockDevice, Device, Directory, EngineChoice, OpenError, PathOptions, WholeDevice,
};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};
use slimio_sim::{Order, SimConfig, SimDisk};

use crate::common::{TestDevice, engines, polling};

/// A function that opens a path to a file.
type Open = fn(&mut Directory, &str) -> Result<Box<dyn Device + Send>, OpenError>;

/// Checks that files in a new directory below `place` keep the contract. Returns the description
/// and the notes of the directory.
fn check_files(place: &Path, options: PathOptions, open: Open) -> (String, String) {
    let directory = tempfile::tempdir_in(place).expect("a directory for the test");
    let mut directory = Directory::open(directory.path(), options).expect("the directory is free");
    let mut count = 0;
    check_all(|| {
        count += 1;
        let name = format!("file-{count}");
        directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
        open(&mut directory, &name).expect("the file was just made") as Box<dyn Device>
    });
    (directory.describe(), directory.notes().join("; "))
}

/// The build's directory. It is more likely to be on a disk than the temporary directory is.
fn on_disk() -> &'static Path {
    Path::new(env!("CARGO_TARGET_TMPDIR"))
}

#[test]
fn files_past_the_cache() {
    for options in engines() {
        check_files(on_disk(), options, Directory::open_path);
    }
}

#[test]
fn files_through_the_cache() {
    for options in engines() {
        let options = PathOptions { direct: false, ..options };
        for open in [Directory::open_path, Directory::open_bulk_path] {
            let (described, _) = check_files(on_disk(), options, open);
            assert!(described.starts_with("buffered I/O on files"), "{described}");
            assert!(!described.contains("registered"), "{described}");
        }
    }
}

#[test]
fn files_in_memory() {
    for options in engines() {
        check_files(Path::new("/dev/shm"), options, Directory::open_path);
    }
}

/// Checks that buffers are registered if `options` ask for it. Prints a message if the kernel
/// refuses.
fn assert_registered(described: &str, notes: &str, options: PathOptions) {
    eprintln!("{described}; {notes}");
    let is_registered = described.contains("has registered buffers");
    assert!(!described.contains("registered buffers on"), "some paths have no registered buffers");
    let is_wanted = options.registered && options.engine == EngineChoice::Best;
    if is_wanted && notes.contains("buffers are not registered") {
        eprintln!("SKIPPED registered buffers: {notes}");
        assert!(!is_registered);
    } else {
        assert_eq!(is_registered, is_wanted, "{described}");
    }
}

#[test]
fn files_by_bulk_paths() {
    for (options, registered) in engines().into_iter().flat_map(|one| [(one, true), (one, false)]) {
        let options = PathOptions { registered, ..options };
        let (described, notes) = check_files(on_disk(), options, Directory::open_bulk_path);
        if described.starts_with("direct") {
            assert_registered(&described, &notes, options);
        }
    }
}

#[test]
fn a_block_device() {
    let Some(device) = TestDevice::new(CONTRACT_LBAS) else { return };
    for options in engines() {
        let mut device = BlockDevice::open(&device.path, options).expect("the device is free");
        check_all(|| device.open_path().expect("a path can be opened") as Box<dyn Device>);
        assert!(device.describe().starts_with("direct I/O on block device"));
    }
}

/// If the driver has no queues for polling, a note must say that completions are not polled for.
#[test]
fn a_block_device_that_is_polled() {
    let Some(device) = TestDevice::new(CONTRACT_LBAS) else { return };
    for options in polling() {
        let mut device = BlockDevice::open(&device.path, options).expect("the device is free");
        let (described, notes) = (device.describe(), device.notes().join("; "));
        eprintln!("{described}; {notes}");
        let is_polled = described.contains("IOPOLL");
        assert_ne!(is_polled, !options.polling.completions || notes.contains("nvme.poll_queues"));
        assert_eq!(described.contains("SQPOLL, 2 ms"), options.polling.submissions_idle.is_some());
        check_all(|| device.open_bulk_path().expect("a path can be opened") as Box<dyn Device>);
    }
}

#[test]
fn a_block_device_by_bulk_paths() {
    let Some(device) = TestDevice::new(CONTRACT_LBAS) else { return };
    for options in engines() {
        let mut device = BlockDevice::open(&device.path, options).expect("the device is free");
        check_all(|| device.open_bulk_path().expect("a path can be opened") as Box<dyn Device>);
        assert_registered(&device.describe(), &device.notes().join("; "), options);
    }
}

#[test]
fn files_that_are_polled() {
    for options in polling().into_iter().skip(2) {
        let (described, notes) = check_files(on_disk(), options, Directory::open_bulk_path);
        assert!(described.ends_with("polls for submissions (SQPOLL, 2 ms)"), "{described}");
        let said = "completions are not polled for: the volume is a directory of files";
        assert!(notes.contains(said), "{notes}");
    }
}

#[test]
fn the_simulated_device() {
    for order in [Order::Fifo, Order::Lifo, Order::Random] {
        for seed in 0..3 {
            let config = SimConfig { seed, order, ..SimConfig::default() };
            check_all(|| {
                let disk = SimDisk::new(config);
                let space = disk.add_space(CONTRACT_LBAS);
                Box::new(disk.open_path(space))
            });
        }
    }
}
