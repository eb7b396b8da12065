//! The contract of devices, over every back end that this machine can have.

use std::path::Path;

use slimio_device::{BlockDevice, Device, Directory, PathOptions, WholeDevice};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};
use slimio_sim::{Order, SimConfig, SimDisk};

use crate::common::{TestDevice, engines, polling};

/// Checks files in a directory below `place`.
fn check_files(place: &Path, options: PathOptions, described: &str) {
    let directory = tempfile::tempdir_in(place).expect("a directory for the test");
    let mut directory = Directory::open(directory.path(), options).expect("it is ours");
    let mut count = 0;
    check_all(|| {
        count += 1;
        let name = format!("file-{count}");
        directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
        directory.open_path(&name).expect("it was just made") as Box<dyn Device>
    });
    let found = directory.describe();
    assert!(found.starts_with(described), "{found}");
}

#[test]
fn files_past_the_cache() {
    for options in engines() {
        // Where the build is, is a disk, as far as anything here is.
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        check_files(place, options, "");
    }
}

#[test]
fn files_through_the_cache() {
    for options in engines() {
        let options = PathOptions { direct: false, ..options };
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        check_files(place, options, "buffered I/O on files");
    }
}

#[test]
fn files_in_memory() {
    for options in engines() {
        check_files(Path::new("/dev/shm"), options, "");
    }
}

#[test]
fn a_block_device() {
    let Some(device) = TestDevice::new(CONTRACT_LBAS) else { return };
    for options in engines() {
        let mut device = BlockDevice::open(&device.path, options).expect("nobody has it");
        check_all(|| device.open_path().expect("it can be opened") as Box<dyn Device>);
        assert!(device.describe().starts_with("direct I/O on block device"));
    }
}

/// Where the driver has no queues for completions that are polled for, they are not, and that is said.
#[test]
fn a_block_device_that_is_polled() {
    let Some(device) = TestDevice::new(CONTRACT_LBAS) else { return };
    for options in polling() {
        let mut device = BlockDevice::open(&device.path, options).expect("nobody has it");
        let (described, notes) = (device.describe(), device.notes().join("; "));
        eprintln!("{described}; {notes}");
        let is_polled = described.contains("IOPOLL");
        assert_ne!(is_polled, !options.polling.completions || notes.contains("nvme.poll_queues"));
        assert_eq!(described.contains("SQPOLL, 2 ms"), options.polling.submissions_idle.is_some());
        check_all(|| device.open_polled_path().expect("it can be opened") as Box<dyn Device>);
    }
}

#[test]
fn files_that_are_polled() {
    for options in polling().into_iter().skip(2) {
        let place = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let directory = tempfile::tempdir_in(place).expect("a directory for the test");
        let mut directory = Directory::open(directory.path(), options).expect("it is ours");
        let mut count = 0;
        check_all(|| {
            count += 1;
            let name = format!("file-{count}");
            directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
            directory.open_polled_path(&name).expect("it was just made") as Box<dyn Device>
        });
        let (described, notes) = (directory.describe(), directory.notes().join("; "));
        assert!(described.ends_with("it polls for submissions (SQPOLL, 2 ms)"), "{described}");
        assert!(notes.contains("completions are not polled for: the volume is files"), "{notes}");
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
