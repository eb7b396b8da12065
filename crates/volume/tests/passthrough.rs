//! Volumes on real NVMe namespaces. The machine that `cargo x lab` starts has such namespaces. The
//! tests destroy the data on the namespaces.
//!
//! Each test has a list of kinds of namespaces, such as `FDP`. It runs on a namespace of a kind if
//! an environment variable names that namespace: `SLIMIO_NVME_FDP` for the kind `FDP`. Otherwise,
//! the test prints that it is skipped for this kind.

mod common;
mod lifetimes;

use std::path::Path;
use std::sync::Mutex;

use slimio_device::{
    Buffer, FdpAccount, LBA_SIZE, Lba, NvmeDevice, Op, PathOptions, PlacementId, Token, WholeDevice,
};
use slimio_storage::{Lifetime, Storage};

use lifetimes::use_all_lifetimes;

/// Each test holds this lock while the test runs, because all tests use the same namespaces.
static ALONE: Mutex<()> = Mutex::new(());

fn with_each(kinds: &[&str], mut test: impl FnMut(&str, &Path)) {
    let _alone = ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    for kind in kinds {
        match std::env::var_os(format!("SLIMIO_NVME_{kind}")) {
            Some(path) => test(kind, Path::new(&path)),
            None => eprintln!("SKIPPED: SLIMIO_NVME_{kind} names no namespace"),
        }
    }
}

/// Writes zeros at both ends of the device, because partition tables, file systems and volumes have
/// their marks there. Returns the device's FDP account.
fn wipe(path: &Path) -> Option<Box<dyn FdpAccount>> {
    let mut device =
        NvmeDevice::open(path, PathOptions::default()).expect("the namespace can be opened");
    let mut io = device.open_path().expect("a path can be opened");
    let mut completions = Vec::new();
    for lba in [0, device.lba_count() - 64] {
        let (buffer, placement) = (Buffer::zeroed(64), PlacementId(0));
        let op = Op::Write { lba: Lba(lba), buffer, placement, durable: true };
        io.submit(Token(lba), op).expect("the path takes another operation");
    }
    while io.in_flight() > 0 {
        io.wait(None, &mut completions);
    }
    assert!(completions.iter().all(|completion| completion.result == Ok(())));
    device.fdp()
}

fn open(place: &Path) -> Storage {
    slimio_volume::open(place, PathOptions::default(), true, u64::MAX)
        .expect("the volume can be opened")
}

#[test]
fn a_volume_keeps_what_is_written_to_it() {
    with_each(&["PLAIN", "B512", "SMALL_MDTS", "ONE_HANDLE"], |kind, path| {
        wipe(path);
        let mut storage = open(path);
        assert!(storage.is_best, "{}", storage.why_not_better);
        assert!(storage.io_path.starts_with("NVMe passthrough"), "{}", storage.io_path);
        use_all_lifetimes(&mut storage);
        let why = &storage.why_not_better;
        let report = storage.placement.as_ref().map(|monitor| monitor.report());
        if kind == "ONE_HANDLE" {
            assert_eq!(report.expect("the namespace has FDP").placement_count, 1);
            assert!(why.contains("a single placement, which all lifetimes share"), "{why}");
        } else {
            assert_eq!(report, None);
            assert!(why.contains("no data placement: the device has no FDP"), "{why}");
        }
    });
}

#[test]
fn each_lifetime_goes_through_a_handle_of_its_own() {
    with_each(&["FDP"], |_, path| {
        let account = wipe(path).expect("the namespace has FDP");
        let unit = account.unit_blocks().expect("the device tells the size of a unit");
        let before = account.handles().expect("the device lists its handles");
        let mut storage = open(path);
        assert_eq!(storage.why_not_better, "");
        use_all_lifetimes(&mut storage);
        let report = storage.placement.as_ref().expect("the namespace has FDP").report();
        let after = account.handles().expect("the device lists its handles");
        for lifetime in [Lifetime::Wal, Lifetime::WalSnapshot, Lifetime::Snapshot] {
            let (id, sent) = report.lifetimes[lifetime.index()];
            let place = before.iter().position(|handle| handle.placement == id.0);
            let place = place.expect("the placement belongs to a handle of the device");
            let left = |handles: &[slimio_device::PlacementHandle]| handles[place].unit_blocks_left;
            let blocks = (left(&before) + unit - left(&after)) % unit;
            assert_eq!(blocks * LBA_SIZE as u64, sent, "{}", lifetime.name());
            assert!(sent > 0, "{}", lifetime.name());
        }
        let ids = report.lifetimes.map(|(id, _)| id.0);
        assert!((1..4).all(|index| !ids[..index].contains(&ids[index])), "{ids:?}");
    });
}

#[test]
fn passthrough_is_chosen_by_either_name_and_left_when_told_to() {
    with_each(&["PLAIN"], |_, path| {
        wipe(path);
        let block = slimio_device::block_device_of(path).expect("the namespace has a block device");
        let described = |path: &Path, passthrough| {
            let options = PathOptions { passthrough, ..PathOptions::default() };
            let storage = slimio_volume::open(path, options, true, u64::MAX);
            let storage = storage.expect("the volume can be opened");
            assert!(storage.is_best, "the chosen I/O path must count as the best");
            storage.io_path
        };
        assert_eq!(described(path, true), described(&block, true));
        assert!(described(path, true).starts_with("NVMe passthrough"));
        for path in [path, &block] {
            let io_path = described(path, false);
            assert!(io_path.starts_with("direct I/O on block device /dev/nvme"), "{io_path}");
        }
    });
}
