//! The claim of a recording on its folder: only one recording at a time may use a folder. A killed
//! recording may have left mounts and attached loop devices in its folder. The next recording in
//! the folder takes these mounts and devices down before it begins.

use std::ffi::OsString;
use std::fs::{self, File};
use std::os::unix::ffi::OsStringExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::fs::{FlockOperation, flock};
use rustix::mount::{UnmountFlags, unmount};

use super::disk::{MOUNT_POINT, run};
use crate::error::{BenchError, Doing, Result};

/// As long as this value lives, the folder belongs to this recording.
#[derive(Debug)]
pub(super) struct Claim {
    lock: PathBuf,
    _file: File,
}

impl Claim {
    /// Claims the folder, which need not exist. When this function returns, nothing below the
    /// folder is mounted or attached.
    ///
    /// # Errors
    /// When another recording has claimed the folder, or a mount or loop device can't be taken
    /// down.
    pub(super) fn new(folder: &Path) -> Result<Self> {
        let mut lock = folder.as_os_str().to_owned();
        lock.push(".lock");
        let lock = PathBuf::from(lock);
        if let Some(parent) = lock.parent() {
            fs::create_dir_all(parent).doing(format!("making {}", parent.display()))?;
        }
        let file = File::create(&lock).doing(format!("making {}", lock.display()))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|_| {
            BenchError::Usage(format!(
                "another recording runs in {}: wait for it, or name another folder",
                folder.display()
            ))
        })?;
        let claim = Self { lock, _file: file };
        take_down(folder)?;
        Ok(claim)
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        drop(fs::remove_file(&self.lock));
    }
}

/// Unmounts and detaches what is below `folder`: the file system, the loop device under it, and the
/// mount that the loop device lies on.
fn take_down(folder: &Path) -> Result<()> {
    let disk = folder.join(MOUNT_POINT);
    let mounted = mounts_below(folder)?;
    for point in mounted.iter().filter(|point| **point != disk) {
        unmount_lazily(point)?;
    }
    for device in loops_over(&disk)? {
        run(Command::new("losetup").arg("--detach").arg(device))?;
    }
    for point in mounted.iter().filter(|point| **point == disk) {
        unmount_lazily(point)?;
    }
    Ok(())
}

/// Unmounts lazily, because the process that serves the mount may be dead. Processes that still use
/// the mount keep it until they end.
fn unmount_lazily(point: &Path) -> Result<()> {
    unmount(point, UnmountFlags::DETACH).doing(format!("unmounting {}", point.display()))
}

/// Mount points in a folder, the last mounted first.
fn mounts_below(folder: &Path) -> Result<Vec<PathBuf>> {
    let table = fs::read("/proc/self/mountinfo").doing("reading the table of mounts")?;
    let points = table.split(|byte| *byte == b'\n').filter_map(|line| {
        let point = line.split(|byte| *byte == b' ').nth(4)?;
        Some(PathBuf::from(OsString::from_vec(unescaped(point))))
    });
    let mut points: Vec<PathBuf> = points.filter(|point| point.starts_with(folder)).collect();
    points.reverse();
    Ok(points)
}

/// Decodes a path in the table of mounts. The kernel writes each white space or backslash as a
/// backslash and three octal digits, such as `\040`.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let [first, behind @ ..] = rest {
        let digits = behind.get(..3).filter(|_| *first == b'\\');
        let code = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        if let Some(byte) = code.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            bytes.push(byte);
            rest = &behind[3..];
        } else {
            bytes.push(*first);
            rest = behind;
        }
    }
    bytes
}

fn loops_over(file: &Path) -> Result<Vec<PathBuf>> {
    let mut devices = Vec::new();
    for entry in fs::read_dir("/sys/block").doing("reading /sys/block")? {
        let entry = entry.doing("reading /sys/block")?;
        let backing = fs::read_to_string(entry.path().join("loop/backing_file"));
        // Only a loop device that is attached to a file has `loop/backing_file`.
        if backing.is_ok_and(|backing| Path::new(backing.trim_end()) == file) {
            devices.push(Path::new("/dev").join(entry.file_name()));
        }
    }
    Ok(devices)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mount_point_is_read_as_the_kernel_writes_it() {
        assert_eq!(unescaped(br"/a\040b\134c\0"), br"/a b\c\0");
    }

    #[test]
    fn a_folder_is_for_one_recording_at_a_time() {
        let folder = std::env::temp_dir().join(format!("slimio-claim-{}", std::process::id()));
        let claim = Claim::new(&folder).expect("a free folder can be claimed");
        let second = Claim::new(&folder).expect_err("a claimed folder is refused").to_string();
        assert!(second.starts_with("another recording runs in "), "{second}");
        drop(claim);
        drop(
            Claim::new(&folder).expect("a folder can be claimed again after the claim was dropped"),
        );
    }
}
