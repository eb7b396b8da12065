//! A file system on the recorded device. The trace's header states how the file system was made and
//! mounted.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use super::disk::run;
use crate::error::{BenchError, Doing, Result};
use crate::server::find_program;

/// A kind of file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
    /// F2FS. The baseline of the SlimIO paper is Redis on F2FS.
    F2fs,
}

impl FileSystemKind {
    /// The kind of file system with this name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            "f2fs" => Ok(Self::F2fs),
            _ => Err(BenchError::Usage(format!(
                "unknown file system {name}; there are ext4, xfs and f2fs"
            ))),
        }
    }

    /// Checks whether this kind can be made and mounted on this machine; if not, says why.
    ///
    /// # Errors
    /// When the kernel lacks the kind, or its `mkfs` program is not installed. The error is a
    /// sentence without a full stop.
    pub fn is_supported(self) -> std::result::Result<(), String> {
        let is_known = || {
            let known = fs::read_to_string("/proc/filesystems").unwrap_or_default();
            known.split_whitespace().any(|word| word == self.to_string())
        };
        // Loads the module, as a mount would.
        let load = || Command::new("modprobe").args(["--quiet", &self.to_string()]).output();
        if !is_known() && load().is_err() | !is_known() {
            return Err(format!("this kernel has no {self}"));
        }
        let (maker, _) = self.maker(0);
        find_program(maker).map(drop).ok_or_else(|| format!("{maker} is not installed"))
    }

    /// The command that makes such a file system on a device of this size. The journal of ext4
    /// takes a 180th of the device, which is its share of a drive of 180 GB. But it takes at least
    /// 4 MiB, which is the smallest possible size, and at most 1 GiB. XFS keeps its default log,
    /// because it allows no log that small.
    fn maker(self, device_bytes: u64) -> (&'static str, Vec<String>) {
        let (program, words) = match self {
            Self::Ext4 => {
                let journal_mib = ((device_bytes / 180) >> 20).clamp(4, 1024);
                let words = "-q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 -J size=";
                ("mkfs.ext4", format!("{words}{journal_mib}"))
            }
            Self::Xfs => ("mkfs.xfs", "-q -f".to_owned()),
            Self::F2fs => ("mkfs.f2fs", "-q -f".to_owned()),
        };
        (program, words.split(' ').map(str::to_owned).collect())
    }
}

impl fmt::Display for FileSystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::F2fs => "f2fs",
        })
    }
}

/// A mounted file system, unmounted on drop.
#[derive(Debug)]
pub struct Mounted {
    point: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// The command that makes a file system on a device of this size, without the device's name.
    pub fn made_with(kind: FileSystemKind, device_bytes: u64) -> String {
        let (program, words) = kind.maker(device_bytes);
        format!("{program} {}", words.join(" "))
    }

    /// The options that the file system is mounted with. F2FS discards unless it is told not to.
    pub fn options(kind: FileSystemKind, discard: bool) -> &'static str {
        match (kind, discard) {
            (_, true) => "noatime,discard",
            (FileSystemKind::F2fs, false) => "noatime,nodiscard",
            (_, false) => "noatime",
        }
    }

    /// Makes a file system on `device`, creates the directory `point`, and mounts the file system
    /// there.
    pub fn new(
        kind: FileSystemKind,
        device: &Path,
        device_bytes: u64,
        discard: bool,
        point: &Path,
    ) -> Result<Self> {
        let (program, words) = kind.maker(device_bytes);
        kind.is_supported().map_err(BenchError::Usage)?;
        run(Command::new(program).args(words).arg(device))?;
        fs::create_dir_all(point).doing(format!("making {}", point.display()))?;
        let mut mount = Command::new("mount");
        mount
            .args(["-t", &kind.to_string(), "-o", Self::options(kind, discard)])
            .arg(device)
            .arg(point);
        run(&mut mount)?;
        Ok(Self { point: point.to_owned(), is_mounted: true })
    }

    /// Unmounts the file system. This writes the data that is still cached.
    pub fn finish(mut self) -> Result<()> {
        self.is_mounted = false;
        unmount(&self.point, UnmountFlags::empty())
            .doing(format!("unmounting {}", self.point.display()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        // If something still uses the file system, it is unmounted lazily.
        let gone = || {
            unmount(&self.point, UnmountFlags::empty())
                .or_else(|_| unmount(&self.point, UnmountFlags::DETACH))
        };
        if self.is_mounted
            && let Err(error) = gone()
        {
            eprintln!("{} stays mounted: {error}", self.point.display());
        }
    }
}
