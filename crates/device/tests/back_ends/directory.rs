//! Tests of directories: names, locks, growth, mapped files, descriptions and notes.

use std::fs;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::Command;

use slimio_device::{
    Buffer, Device, DeviceError, Directory, EngineChoice, LBA_SIZE, Lba, LbaRange, Op, OpenError,
    PathOptions, PlacementId, WriteCache,
};
use slimio_sim::contract::{CONTRACT_LBAS, check_all};

use crate::common::{TestDevice, alone, engines, run};

fn write(device: &mut dyn Device, lba: u64, byte: u8) -> Result<(), DeviceError> {
    let mut buffer = Buffer::zeroed(1);
    buffer.fill(byte);
    let placement = PlacementId::default();
    run(device, Op::Write { lba: Lba(lba), buffer, placement, durable: true }).result
}

fn read(device: &mut dyn Device, lba: u64) -> Result<u8, DeviceError> {
    let completion = run(device, Op::Read { lba: Lba(lba), buffer: Buffer::zeroed(1) });
    completion.result.map(|()| completion.buffer.expect("the buffer is returned")[0])
}

#[test]
fn paths_to_one_file_see_each_other() {
    for options in engines() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut directory = Directory::open(place.path(), options).expect("the directory is free");
        directory.create_file("wal", 10).expect("there is room");
        let mut first = directory.open_path("wal").expect("the file was just made");
        let mut second = directory.open_path("wal").expect("a second path can be opened");
        assert_eq!(write(&mut *first, 3, 7), Ok(()));
        assert_eq!(read(&mut *second, 3), Ok(7));

        assert_eq!(second.grow(20), Ok(()));
        assert_eq!(first.geometry().lba_count, 20, "all paths must have the new blocks");
        assert_eq!(write(&mut *first, 19, 8), Ok(()));
        assert_eq!(read(&mut *second, 19), Ok(8));
        assert_eq!(write(&mut *first, 20, 9), Err(DeviceError::OutOfRange));
        let length = fs::metadata(directory.file_path("wal")).expect("the file exists").len();
        assert_eq!(length, 20 * LBA_SIZE as u64);
        // A path keeps its file open when the directory is dropped, and the path can move to
        // another thread.
        drop(directory);
        let thread = std::thread::spawn(move || (write(&mut *first, 0, 1), first));
        let (written, mut first) = thread.join().expect("the thread ends");
        assert_eq!(written, Ok(()));
        assert_eq!(read(&mut *first, 0), Ok(1));
    }
}

#[test]
fn a_file_cut_off_from_outside_is_a_short_transfer() {
    for options in engines() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut directory = Directory::open(place.path(), options).expect("the directory is free");
        directory.create_file("wal", 10).expect("there is room");
        let mut path = directory.open_path("wal").expect("the file was just made");
        let file = fs::OpenOptions::new().write(true).open(directory.file_path("wal"));
        file.expect("the file exists")
            .set_len(2 * LBA_SIZE as u64)
            .expect("the file can be truncated");
        let completion = run(&mut *path, Op::Read { lba: Lba(0), buffer: Buffer::zeroed(4) });
        let short = DeviceError::Short { moved: 2 * LBA_SIZE, asked: 4 * LBA_SIZE };
        assert_eq!(completion.result, Err(short));
        assert_eq!(completion.buffer.expect("the buffer is returned").len_lbas(), 4);
    }
}

#[test]
fn names_are_made_once_and_removed() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let below = place.path().join("a/b/volume");
    let options = PathOptions::default();
    assert!(matches!(Directory::open(&below, options), Err(OpenError::Missing { .. })));
    let mut directory =
        Directory::open_or_create(&below, options).expect("the directory can be written to");
    assert_eq!(directory.path(), below.canonicalize().expect("the directory exists"));
    assert_eq!(directory.names().expect("reading works"), Vec::<String>::new());
    assert!(matches!(directory.open_path("wal"), Err(OpenError::Missing { .. })));
    directory.create_file("wal", 1).expect("there is room");
    directory.create_file("super", 0).expect("a file may be empty");
    assert!(directory.create_file("wal", 1).is_err(), "a file was made twice");
    assert!(directory.has_file("wal"));
    assert_eq!(directory.names().expect("reading works"), ["super", "wal"]);
    directory.remove_file("wal").expect("no path is open to the file");
    assert_eq!(directory.names().expect("reading works"), ["super"]);

    fs::write(place.path().join("file"), "").expect("the directory can be written to");
    let refused = Directory::open_or_create(&place.path().join("file"), options).err();
    assert!(matches!(refused, Some(OpenError::Io { .. } | OpenError::Unsuitable { .. })));
    fs::create_dir(directory.file_path("folder")).expect("the directory can be written to");
    assert!(directory.open_path("folder").is_err());
}

#[test]
fn mapped_files_are_found_again() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut directory =
        Directory::open(place.path(), PathOptions::default()).expect("the directory is free");
    let mut mapped = directory.create_mapped("buffers", 4 * LBA_SIZE).expect("there is room");
    let mut buffers = mapped.buffers(LBA_SIZE);
    buffers[2].fill(3);
    // A mapped buffer can be written to a file without a copy.
    directory.create_file("wal", 4).expect("there is room");
    let mut path = directory.open_path("wal").expect("the file was just made");
    let placement = PlacementId::default();
    let buffer = buffers.remove(2);
    let completion = run(&mut *path, Op::Write { lba: Lba(1), buffer, placement, durable: true });
    assert_eq!(completion.result, Ok(()));
    assert_eq!(completion.buffer.expect("the buffer is returned").index(), Some(2));
    assert_eq!(read(&mut *path, 1), Ok(3));
    drop((mapped, buffers));
    let mut again = directory.open_mapped("buffers").expect("the file exists");
    assert_eq!(again.buffers(LBA_SIZE)[2][..], [3; LBA_SIZE]);
}

/// Turns blocks into a hole. A sparse copy of the file would have such holes.
fn make_hole(device: &mut dyn Device, lba: u64, lbas: u64) {
    let range = LbaRange { start: Lba(lba), end: Lba(lba + lbas) };
    assert_eq!(run(device, Op::Deallocate { range }).result, Ok(()));
}

fn blocks(path: &Path) -> u64 {
    fs::metadata(path).expect("the file exists").blocks() * 512 / LBA_SIZE as u64
}

/// Whether a file has `count` blocks, or one more. The file system may need one block of its own to
/// store where the other blocks are.
fn has_blocks(path: &Path, count: u64) -> bool {
    (count..=count + 1).contains(&blocks(path))
}

#[test]
fn holes_get_their_space_and_nothing_else_changes() {
    for options in engines() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut directory = Directory::open(place.path(), options).expect("the directory is free");
        directory.create_file("wal", 600).expect("there is room");
        let mut path = directory.open_path("wal").expect("the file was just made");
        for lba in 0..600 {
            assert_eq!(write(&mut *path, lba, lba as u8 | 1), Ok(()));
        }
        let file = directory.file_path("wal");
        for (lba, lbas) in [(0, 3), (10, 300), (500, 1), (590, 10)] {
            make_hole(&mut *path, lba, lbas);
        }
        let before = fs::read(&file).expect("reading works");
        assert!(has_blocks(&file, 600 - 314));
        let range = |start, end| LbaRange { start: Lba(start), end: Lba(end) };
        let mut fill = |start, end| path.fill_holes(range(start, end)).map(drop);
        assert_eq!(fill(2, 310), Ok(()));
        assert!(has_blocks(&file, 600 - 13), "only the range's holes must be filled");
        assert_eq!(fill(0, 500), Ok(()));
        assert!(has_blocks(&file, 600 - 11));
        assert_eq!(fill(0, u64::MAX >> 12), Ok(()), "a range was refused because of its end");
        assert!(has_blocks(&file, 600));
        assert!(fs::read(&file).expect("reading works") == before, "the contents have changed");
        for (lba, lbas) in [(3, 1), (40, 20)] {
            make_hole(&mut *path, lba, lbas);
        }
        let before = fs::read(&file).expect("reading works");
        let filled = path.fill_holes(range(0, 50)).expect("there is room");
        assert!(has_blocks(&file, 600 - 10));
        path.empty_holes(&filled);
        assert!(has_blocks(&file, 600 - 21), "the filled ranges must be holes again");
        assert!(fs::read(&file).expect("reading works") == before, "the contents have changed");
    }
}

#[test]
fn blocks_of_which_only_the_space_was_reserved_are_written() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut directory =
        Directory::open(place.path(), PathOptions::default()).expect("the directory is free");
    directory.create_file("wal", 64).expect("there is room");
    let mut path = directory.open_path("wal").expect("the file was just made");
    // Space that is only reserved counts as a hole.
    assert!(directory.why_not_mapped("wal").is_some(), "reserved space must count as a hole");
    let all = LbaRange { start: Lba(0), end: Lba(64) };
    assert!(path.fill_holes(all).is_ok());
    assert_eq!(directory.why_not_mapped("wal"), None);
}

#[test]
fn a_mapped_file_with_holes_is_not_stored_to() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let mut directory =
        Directory::open(place.path(), PathOptions::default()).expect("the directory is free");
    let whole = |directory: &Directory| directory.why_not_mapped("buffers");
    drop(directory.create_mapped("buffers", 64 * LBA_SIZE).expect("there is room"));
    assert_eq!(whole(&directory), None);
    // The check must notice even a single hole, although the file system may count a block of its
    // own among the file's blocks.
    for (lba, lbas) in [(63, 1), (0, 1), (7, 50)] {
        drop(directory.create_mapped("buffers", 64 * LBA_SIZE).expect("there is room"));
        make_hole(&mut *directory.open_path("buffers").expect("the file exists"), lba, lbas);
        let why = whole(&directory).expect("the file has a hole");
        assert!(why.contains("no space"), "{why}");
        assert!(
            directory.open_mapped("buffers").is_ok(),
            "a file with holes can't be mapped for reading"
        );
    }
}

#[test]
fn what_is_in_force_is_said() {
    let place = tempfile::tempdir().expect("a directory for the test");
    let plain = PathOptions { engine: EngineChoice::Plain, ..PathOptions::default() };
    let mut directory = Directory::open(place.path(), plain).expect("the directory is free");
    directory.create_file("wal", 1).expect("there is room");
    directory.open_path("wal").expect("the file was just made");
    let described = directory.describe();
    assert!(described.contains("I/O on files through plain system calls; "), "{described}");
    let kind = &directory.file_system().kind;
    assert!(described.contains(&format!("; {kind} on ")), "{described}");
    let notes = directory.notes();
    assert!(notes.iter().any(|note| note.starts_with("no NVMe passthrough")), "{notes:?}");
    assert!(notes.iter().any(|note| note.starts_with("no io_uring: plain")), "{notes:?}");
    assert_ne!(
        directory.write_cache(),
        WriteCache::Stable,
        "a file must not count as stable, because the file system may hold back metadata"
    );
    drop(directory);

    let buffered = PathOptions { direct: false, ..PathOptions::default() };
    let directory = Directory::open(place.path(), buffered).expect("the directory is free");
    assert!(directory.describe().starts_with("buffered I/O on files"));
    assert_eq!(directory.write_cache(), WriteCache::Volatile);
    let notes = directory.notes();
    assert!(notes.iter().any(|note| note.starts_with("no direct I/O: ")), "{notes:?}");
    drop(directory);

    let memory = tempfile::tempdir_in("/dev/shm").expect("Linux has shared memory");
    let directory =
        Directory::open(memory.path(), PathOptions::default()).expect("the directory is free");
    let notes = directory.notes();
    assert!(notes.iter().any(|note| note.contains("tmpfs is memory")), "{notes:?}");
}

/// A file system for one test, which is mounted as long as this value lives.
struct Mounted {
    directory: tempfile::TempDir,
    _device: Option<TestDevice>,
}

impl Mounted {
    /// Makes a file system on a test device with the command `mkfs`, and mounts it. Returns `None`
    /// and prints a message if this is impossible.
    fn made_by(mkfs: &[&str], size_mib: u64) -> Option<Self> {
        let device = TestDevice::new(size_mib << 8)?;
        let made = Command::new(mkfs[0]).args(&mkfs[1..]).arg(&device.path).output();
        if !made.is_ok_and(|made| made.status.success()) {
            eprintln!("SKIPPED: {} is missing or fails", mkfs[0]);
            return None;
        }
        let source = device.path.clone();
        Self::mount("auto", &source, Some(device))
    }

    fn mount(kind: &str, source: &Path, device: Option<TestDevice>) -> Option<Self> {
        let directory = tempfile::tempdir().expect("a directory for the test");
        let mount =
            Command::new("mount").args(["-t", kind]).arg(source).arg(directory.path()).output();
        if !mount.is_ok_and(|mount| mount.status.success()) {
            eprintln!("SKIPPED: {} can't be mounted", source.display());
            return None;
        }
        Some(Self { directory, _device: device })
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let unmounted = Command::new("umount").arg(self.directory.path()).status();
        assert!(unmounted.is_ok_and(|status| status.success()), "the file system stays mounted");
    }
}

#[test]
fn a_full_file_system_takes_nothing_and_loses_nothing() {
    let Some(mounted) = Mounted::made_by(&["mkfs.ext4", "-q", "-O", "^has_journal"], 16) else {
        return;
    };
    for options in engines() {
        let volume = mounted.directory.path().join("volume");
        let mut directory =
            Directory::open_or_create(&volume, options).expect("the directory can be written to");
        assert_eq!(directory.file_system().kind, "ext4");
        assert_eq!(directory.file_system().has_journal, Some(false));
        directory.create_file("wal", 1000).expect("there is room");
        let mut path = directory.open_path("wal").expect("the file was just made");
        assert_eq!(write(&mut *path, 999, 5), Ok(()));
        assert_eq!(path.grow(10_000), Err(DeviceError::NoSpace));
        assert_eq!(path.geometry().lba_count, 1000);
        let length = fs::metadata(directory.file_path("wal")).expect("the file exists").len();
        assert_eq!(length, 1000 * LBA_SIZE as u64);
        assert_eq!(read(&mut *path, 999), Ok(5));
        // This call succeeds only if the failed `grow` has given back its space.
        assert_eq!(path.grow(2000), Ok(()));

        let refused = directory.create_file("more", 10_000);
        assert!(matches!(refused, Err(OpenError::NoSpace { .. })), "{refused:?}");
        assert!(!directory.has_file("more"));
        let refused = directory.create_mapped("buffers", 10_000 * LBA_SIZE).err();
        assert!(matches!(refused, Some(OpenError::NoSpace { .. })), "{refused:?}");
        assert!(!directory.has_file("buffers"));

        // Even with no byte left, the directory can be opened and its files can be overwritten.
        for step in [200, 20, 1] {
            while path.grow(path.geometry().lba_count + step).is_ok() {}
        }
        let filler = vec![1; 1 << 16];
        let mut number = 0;
        while fs::write(volume.join(format!("filler-{number}")), &filler).is_ok() {
            number += 1;
        }
        drop((path, directory));
        let mut directory = Directory::open(&volume, options).expect("a lock needs no room");
        let mut path = directory.open_path("wal").expect("the file exists");
        assert_eq!(write(&mut *path, 0, 6), Ok(()));
        assert_eq!(read(&mut *path, 0), Ok(6));
        drop((path, directory));
        fs::remove_dir_all(&volume).expect("the directory can be removed");
    }
}

#[test]
fn a_journal_is_seen() {
    let Some(mounted) = Mounted::made_by(&["mkfs.ext4", "-q", "-O", "has_journal"], 16) else {
        return;
    };
    let directory = Directory::open(mounted.directory.path(), PathOptions::default())
        .expect("the directory is free");
    assert_eq!(directory.file_system().has_journal, Some(true));
    assert!(directory.describe().contains("(journal"), "{}", directory.describe());
}

#[test]
fn btrfs_is_used_and_said_to_be_slow() {
    let Some(mounted) = Mounted::made_by(&["mkfs.btrfs", "-q"], 128) else { return };
    for options in engines() {
        let volume = mounted.directory.path().join("volume");
        let mut directory =
            Directory::open_or_create(&volume, options).expect("the directory can be written to");
        directory.create_file("wal", 100).expect("there is room");
        let mut path = directory.open_path("wal").expect("the file was just made");
        assert_eq!(write(&mut *path, 1, 6), Ok(()));
        assert_eq!(read(&mut *path, 1), Ok(6));
        let notes = directory.notes();
        assert!(notes.iter().any(|note| note.starts_with("btrfs writes metadata")), "{notes:?}");
        drop((path, directory));
        fs::remove_dir_all(&volume).expect("the directory can be removed");
    }
}

#[test]
fn a_reflinked_file_is_told_of() {
    let Some(mounted) = Mounted::made_by(&["mkfs.xfs", "-q"], 400) else { return };
    let volume = mounted.directory.path();
    let mut directory =
        Directory::open(volume, PathOptions::default()).expect("the directory is free");
    directory.create_file("wal", 100).expect("there is room");
    let mut path = directory.open_path("wal").expect("the file was just made");
    assert_eq!(write(&mut *path, 50, 1), Ok(()));
    let sharing = |directory: &Directory| {
        directory.notes().iter().any(|note| note.starts_with("wal shares blocks"))
    };
    assert!(!sharing(&directory), "{:?}", directory.notes());
    let copied = Command::new("cp")
        .arg("--reflink=always")
        .args([volume.join("wal"), volume.join("copy")])
        .status();
    assert!(copied.is_ok_and(|status| status.success()), "XFS can copy with --reflink");
    directory.open_path("wal").expect("the file exists");
    assert!(sharing(&directory), "{:?}", directory.notes());
}

/// ramfs has neither direct I/O nor a way to reserve space. A directory on ramfs must still work.
#[test]
fn a_file_system_without_anything_will_do() {
    let _alone = alone();
    let Some(mounted) = Mounted::mount("ramfs", Path::new("ramfs"), None) else { return };
    for options in engines() {
        let volume = mounted.directory.path().join("volume");
        let mut directory =
            Directory::open_or_create(&volume, options).expect("the directory can be written to");
        let mut count = 0;
        check_all(|| {
            count += 1;
            let name = format!("file-{count}");
            directory.create_file(&name, CONTRACT_LBAS).expect("there is room");
            directory.open_path(&name).expect("the file was just made") as Box<dyn Device>
        });
        assert!(directory.describe().starts_with("buffered I/O on files"));
        assert_eq!(directory.write_cache(), WriteCache::Volatile);
        let notes = directory.notes();
        let wanted = "no direct I/O: ramfs has no direct I/O here";
        assert!(notes.iter().any(|note| note.starts_with(wanted)), "{notes:?}");
        drop(directory);
        fs::remove_dir_all(&volume).expect("the directory can be removed");
    }
}
