//! Loop devices, and file systems on them. Each is made for one test. Making them needs root.

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// A loop device over a file of zeros. Dropping this value detaches the device.
#[derive(Debug)]
pub struct LoopDevice {
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl LoopDevice {
    /// A device of `size` bytes. Prints a message and returns `None` if loop devices can't be made,
    /// for example without root or in most containers.
    pub fn new(size: u64) -> Option<Self> {
        Self::within(tempfile::tempdir().expect("a temporary directory can be made"), size)
    }

    fn within(directory: tempfile::TempDir, size: u64) -> Option<Self> {
        let backing = directory.path().join("backing");
        File::create(&backing).and_then(|file| file.set_len(size)).expect("the file can be made");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).expect("the device's path is UTF-8");
                Some(Self { path: path.trim().into(), _directory: directory })
            }
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("SKIPPED: no loop device can be made: {}", why.trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: losetup can't be run: {error}");
                None
            }
        }
    }

    /// The block device.
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        assert!(
            detached.is_ok_and(|status| status.success()),
            "{} can't be detached",
            self.path.display()
        );
    }
}

/// A mounted file system. Dropping this value unmounts the file system.
#[derive(Debug)]
pub struct Mounted {
    directory: tempfile::TempDir,
    device: LoopDevice,
}

impl Mounted {
    /// Makes a file system on a loop device of `size` bytes with the command `mkfs`, and mounts the
    /// file system with `options`. If a step fails, prints a message and returns `None`.
    pub fn new(mkfs: &[&str], size: u64, options: &str) -> Option<Self> {
        Self::on(LoopDevice::new(size)?, mkfs, options)
    }

    fn on(device: LoopDevice, mkfs: &[&str], options: &str) -> Option<Self> {
        let mut make = Command::new(mkfs[0]);
        let made = make.args(&mkfs[1..]).arg(device.path()).output();
        if !made.is_ok_and(|made| made.status.success()) {
            eprintln!("SKIPPED: {} is missing or failed", mkfs[0]);
            return None;
        }
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let mut mount = Command::new("mount");
        mount.args(["-o", options]).arg(device.path()).arg(directory.path());
        if !mount.output().is_ok_and(|mount| mount.status.success()) {
            eprintln!("SKIPPED: the file system of {} can't be mounted with {options}", mkfs[0]);
            return None;
        }
        Some(Self { directory, device })
    }

    /// The block device that holds the file system.
    pub fn device(&self) -> &Path {
        self.device.path()
    }

    /// How often the device was told to flush its cache. Because it is a loop device, a write with
    /// the FUA bit also counts as a flush.
    pub fn flushes(&self) -> u64 {
        let name = self.device().file_name().expect("the device's path ends with a name");
        let statistics = Path::new("/sys/block").join(name).join("stat");
        let text =
            std::fs::read_to_string(statistics).expect("the device's statistics can be read");
        // The sixteenth number counts flushes (Documentation/block/stat.rst of the kernel).
        let flushes = text.split_whitespace().nth(15).and_then(|count| count.parse().ok());
        flushes.expect("the statistics count flushes")
    }

    /// Where the file system is mounted.
    pub fn path(&self) -> &Path {
        self.directory.path()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // Unmounting may fail for a moment, for two reasons. If another thread has just started a
        // program, that program has copies of all descriptors until its exec. And the kernel closes
        // a killed program's files a little after the program's end.
        for _ in 0..1000 {
            let unmounted = Command::new("umount").arg(self.path()).output();
            if unmounted.is_ok_and(|unmounted| unmounted.status.success()) {
                return;
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        if std::thread::panicking() {
            // The failed test has left a process that still uses the file system.
            let _ = Command::new("umount").arg("--lazy").arg(self.path()).status();
            return;
        }
        panic!("{} stays mounted", self.path().display());
    }
}

/// An ext4 file system on a device that can be made to fail writes: the device's blocks are in a
/// tmpfs that can be filled up. Writes of blocks that were never written before fail then. The file
/// system has no journal, so it goes on after such a failure.
#[derive(Debug)]
pub struct FullDevice {
    // Dropped in this order.
    mounted: Mounted,
    memory: Memory,
}

/// A small tmpfs. Dropping this value unmounts it.
#[derive(Debug)]
struct Memory {
    directory: tempfile::TempDir,
}

impl FullDevice {
    const MEMORY_SIZE: u64 = 16 << 20;
    const SIZE: u64 = 64 << 20;

    /// Makes the device and its file system. If a step fails, prints a message and returns `None`.
    pub fn new() -> Option<Self> {
        let directory = tempfile::tempdir().expect("a temporary directory can be made");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={}", Self::MEMORY_SIZE), "tmpfs"]);
        if !mount.arg(directory.path()).output().is_ok_and(|mount| mount.status.success()) {
            eprintln!("SKIPPED: no tmpfs can be mounted");
            return None;
        }
        let memory = Memory { directory };
        let folder = tempfile::tempdir_in(memory.directory.path());
        let device = LoopDevice::within(folder.expect("a directory can be made"), Self::SIZE)?;
        let mkfs = ["mkfs.ext4", "-q", "-O", "^has_journal", "-E", "lazy_itable_init=0"];
        Some(Self { mounted: Mounted::on(device, &mkfs, "defaults")?, memory })
    }

    /// Where the file system is mounted.
    pub fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// From now on, new blocks can't be written.
    ///
    /// # Panics
    /// If the tmpfs can't be filled up.
    pub fn fill(&self) {
        let mut filler = File::create(self.filler()).expect("a file can be made");
        let zeros = [0; 4096];
        while filler.write_all(&zeros).is_ok() {}
    }

    /// From now on, new blocks can be written again.
    ///
    /// # Panics
    /// If the file that fills the tmpfs can't be removed.
    pub fn empty(&self) {
        std::fs::remove_file(self.filler()).expect("the filler can be removed");
    }

    fn filler(&self) -> PathBuf {
        self.memory.directory.path().join("filler")
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        // The kernel may detach the loop device a little later than it was told to.
        let _ = Command::new("umount").arg("--lazy").arg(self.directory.path()).status();
    }
}
