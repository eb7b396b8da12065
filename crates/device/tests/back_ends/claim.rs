//! Opening a volume must wait for operations in flight whose process has ended, and for nothing
//! else.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread;

use slimio_device::{
    BlockDevice, Buffer, CLAIM_FILE_NAME, Directory, EngineChoice, LBA_SIZE, Lba, Op, OpenError,
    PathOptions, PlacementId, Token, WholeDevice as _, open_whole,
};
use slimio_ring::{Ring, Setup};

use crate::common::{TestDevice, alone, engines, run};
use crate::words;

/// Opens a volume on a thread of its own.
fn open_beside<T: Send + 'static>(
    path: &Path,
    open: impl FnOnce(&Path) -> Result<T, OpenError> + Send + 'static,
) -> thread::JoinHandle<Result<T, OpenError>> {
    words::listen();
    let path = path.to_path_buf();
    // Device names are reused, so there may be messages about an older device with the same name.
    words::forget(&path.display().to_string());
    thread::spawn(move || {
        let opened = open(&path);
        words::say(format!("{} was opened: {:?}", path.display(), opened.as_ref().err()));
        opened
    })
}

fn assert_waits(path: &Path) {
    let said = words::first_about(&path.display().to_string());
    assert!(said.starts_with("waiting for"), "{said}");
    assert!(said.contains("operations of a process that has ended are still in flight"), "{said}");
}

#[test]
fn a_directory_that_is_only_claimed_is_waited_for() {
    let _alone = alone();
    let Ok(mut ring) = Ring::<()>::new(Setup::default()) else {
        eprintln!("SKIPPED: this machine has no io_uring");
        return;
    };
    let place = tempfile::tempdir().expect("a directory for the test");
    let options = PathOptions::default();
    let claim = File::create(place.path().join(CLAIM_FILE_NAME)).expect("the file can be made");
    claim.lock().expect("the claim is free");
    // From here on, no process holds the claim. Only a ring in the kernel does.
    ring.hold(&claim).expect("the ring registers the file");
    drop(claim);
    let opening = open_beside(place.path(), move |path| Directory::open(path, options));
    assert_waits(place.path());

    // The waiting process has the directory's lock, so the error must name that process.
    let refused = Directory::open(place.path(), options)
        .err()
        .expect("another thread has the directory's lock");
    let own = Some(std::process::id());
    assert!(matches!(refused, OpenError::InUse { holder, .. } if holder == own), "{refused}");

    drop(ring);
    let directory = opening.join().expect("the thread ends").expect("the claim is free");
    assert_eq!(
        directory.names(),
        Ok(Vec::new()),
        "the files of the lock and the claim must not be listed"
    );
    let mode =
        place.path().join(CLAIM_FILE_NAME).metadata().expect("the claim's file exists").mode();
    assert_eq!(mode & 0o133, 0, "{mode:o}");
}

#[test]
fn who_lives_and_has_lost_its_lock_is_not_waited_for() {
    let _alone = alone();
    let place = tempfile::tempdir().expect("a directory for the test");
    let options = PathOptions::default();
    let directory = Directory::open(place.path(), options).expect("the volume is free");
    fs::remove_file(place.path().join("lock")).expect("the lock file exists");
    let refused =
        Directory::open(place.path(), options).err().expect("this process has the directory");
    let own = Some(std::process::id());
    assert!(matches!(refused, OpenError::InUse { holder, .. } if holder == own), "{refused}");
    drop(directory);
    Directory::open(place.path(), options).expect("the volume is free");
}

#[test]
fn a_path_keeps_the_claim_and_lets_go_of_it_at_once() {
    let _alone = alone();
    for options in engines() {
        let place = tempfile::tempdir().expect("a directory for the test");
        let mut directory = Directory::open(place.path(), options).expect("the volume is free");
        directory.create_file("wal", 8).expect("there is room");
        let mut paths = vec![
            directory.open_path("wal").expect("the file was just made"),
            directory.open_bulk_path("wal").expect("the file was just made"),
        ];
        drop(directory);
        let claim =
            File::open(place.path().join(CLAIM_FILE_NAME)).expect("the claim's file exists");
        while let Some(mut path) = paths.pop() {
            let op = Op::Write {
                lba: Lba(3),
                buffer: Buffer::zeroed(1),
                placement: PlacementId::default(),
                durable: true,
            };
            assert_eq!(run(&mut *path, op).result, Ok(()));
            assert!(matches!(claim.try_lock(), Err(TryLockError::WouldBlock)));
        }
        claim.try_lock().expect("the claim is free once no path is left");
    }
}

#[test]
fn a_device_that_nobody_has_who_lives_is_waited_for() {
    let Some(device) = TestDevice::new(4096) else { return };
    let Ok(mut ring) = Ring::<()>::new(Setup::default()) else {
        eprintln!("SKIPPED: this machine has no io_uring");
        return;
    };
    let mut options = OpenOptions::new();
    options.read(true).write(true).custom_flags(libc::O_EXCL);
    let held = options.open(&device.path).expect("the volume is free");

    // This process lives and holds the device, so the error must name this process.
    let refused = BlockDevice::open(&device.path, PathOptions::default()).err();
    let own = Some(std::process::id());
    assert!(
        matches!(refused, Some(OpenError::InUse { holder, .. }) if holder == own),
        "{refused:?}"
    );

    // From here on, no process holds the device. Only a ring in the kernel does. A process that
    // only reads the device is no holder.
    ring.hold(&held).expect("the ring registers the file");
    drop(held);
    let reader = File::open(&device.path).expect("the device can be read");
    let opening = open_beside(&device.path, |path| open_whole(path, PathOptions::default()));
    assert_waits(&device.path);
    drop((ring, reader));
    opening.join().expect("the thread ends").expect("the claim is free");
}

#[test]
fn a_mounted_device_is_refused_at_once() {
    let Some(device) = TestDevice::new(4096) else { return };
    let run = |program: &str, arguments: &[&Path]| {
        let output = std::process::Command::new(program).args(arguments).output();
        output.is_ok_and(|output| output.status.success())
    };
    let place = tempfile::tempdir().expect("a directory for the test");
    if !run("mkfs.ext4", &[Path::new("-qF"), &device.path])
        || !run("mount", &[&device.path, place.path()])
    {
        eprintln!("SKIPPED: no ext4 file system can be made and mounted");
        return;
    }
    let refused = BlockDevice::open(&device.path, PathOptions::default()).err();
    assert!(run("umount", &[place.path()]), "{} stays mounted", place.path().display());
    let Some(OpenError::Unsuitable { why, .. }) = &refused else { panic!("{refused:?}") };
    let expected =
        format!("it is in use: {} is mounted at {}", device.path.display(), place.path().display());
    assert_eq!(*why, expected);
}

/// A cgroup of this process. The kernel holds back the cgroup's writes to a device until
/// [`let_go`](Self::let_go) is called.
struct HeldWrites {
    hierarchy: PathBuf,
    group: PathBuf,
    number: String,
}

impl HeldWrites {
    /// `None`, with a message, if there is no such cgroup.
    fn new(device: &Path) -> Option<Self> {
        let mounts = fs::read_to_string("/proc/self/mounts").expect("Linux has /proc/self/mounts");
        let hierarchy = mounts.lines().find_map(|line| {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, place, "cgroup", options, ..] = words[..] else { return None };
            options.split(',').any(|option| option == "blkio").then(|| PathBuf::from(place))
        });
        let Some(hierarchy) = hierarchy else {
            eprintln!("SKIPPED: this machine has no mounted cgroups with blkio");
            return None;
        };
        let group = hierarchy.join(format!("slimio-test-{}", std::process::id()));
        let number = device.metadata().expect("the device exists").rdev();
        let number = format!("{}:{}", libc::major(number), libc::minor(number));
        let held = Self { hierarchy, group, number };
        let made = fs::create_dir(&held.group).and_then(|()| held.limit(1)).and_then(|()| {
            fs::write(held.group.join("cgroup.procs"), std::process::id().to_string())
        });
        match made {
            Ok(()) => Some(held),
            Err(error) => {
                eprintln!("SKIPPED: the cgroup that holds back writes can't be made: {error}");
                None
            }
        }
    }

    fn limit(&self, bytes_per_second: u64) -> io::Result<()> {
        let limits = self.group.join("blkio.throttle.write_bps_device");
        fs::write(limits, format!("{} {bytes_per_second}", self.number))
    }

    fn let_go(&self) {
        self.limit(0).expect("the limit can be changed");
    }
}

impl Drop for HeldWrites {
    fn drop(&mut self) {
        drop(self.limit(0));
        let own = std::process::id().to_string();
        drop(fs::write(self.hierarchy.join("cgroup.procs"), own));
        drop(fs::remove_dir(&self.group));
    }
}

/// A panic drops a path whose write the kernel holds back. The dropped ring waits for the write,
/// but no longer than five seconds. After that, the next owner must wait for the write.
#[test]
fn what_a_dropped_path_has_in_flight_is_waited_for() {
    let Some(device) = TestDevice::new(4096) else { return };
    let options = PathOptions::default();
    if !engines().iter().any(|options| options.engine == EngineChoice::Best) {
        return;
    }
    let first = BlockDevice::open(&device.path, options).expect("the volume is free");
    let Some(held) = HeldWrites::new(&device.path) else { return };
    let panicking = thread::spawn(move || {
        let mut first = first;
        let mut path = first.open_path().expect("a path can be opened");
        let mut buffer = Buffer::zeroed(1);
        buffer.fill(7);
        let op =
            Op::Write { lba: Lba(9), buffer, placement: PlacementId::default(), durable: false };
        path.submit(Token(1), op).expect("the queue is not full");
        path.kick();
        panic!("the thread panics on purpose");
    });
    assert!(panicking.join().is_err());
    let opening = open_beside(&device.path, move |path| BlockDevice::open(path, options));
    assert_waits(&device.path);
    assert!(!opening.is_finished());
    held.let_go();
    let mut device = opening.join().expect("the thread ends").expect("the claim is free");
    let mut path = device.open_path().expect("a path can be opened");
    let read = run(&mut *path, Op::Read { lba: Lba(9), buffer: Buffer::zeroed(1) });
    assert_eq!(
        read.buffer.expect("a read returns its buffer")[..],
        [7; LBA_SIZE],
        "the write must end before the next owner reads"
    );
}
