//! A file system on the recorded device, made and mounted in one way that the trace's header states.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::mount::{UnmountFlags, unmount};

use super::disk::run;
use crate::error::{BenchError, Doing, Result};

/// Which file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FileSystemKind {
    /// ext4.
    Ext4,
    /// XFS.
    Xfs,
}

impl FileSystemKind {
    /// Reads its name.
    pub fn named(name: &str) -> Result<Self> {
        match name {
            "ext4" => Ok(Self::Ext4),
            "xfs" => Ok(Self::Xfs),
            _ => Err(BenchError::Usage(format!(
                "unknown file system {name}; there are ext4 and xfs"
            ))),
        }
    }

    /// The command that makes one on a device of so many bytes. A journal of ext4 has the share of the
    /// device that it has of a drive of 180 GB, as far as it can be so small; that of XFS can't.
    fn maker(self, device_bytes: u64) -> (&'static str, Vec<String>) {
        let (program, words) = match self {
            Self::Ext4 => {
                let journal_mib = ((device_bytes / 180) >> 20).clamp(4, 1024);
                let words = "-q -F -b 4096 -E lazy_itable_init=0,lazy_journal_init=0 -J size=";
                ("mkfs.ext4", format!("{words}{journal_mib}"))
            }
            Self::Xfs => ("mkfs.xfs", "-q -f".to_owned()),
        };
        (program, words.split(' ').map(str::to_owned).collect())
    }
}

impl fmt::Display for FileSystemKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
        })
    }
}

/// A mounted file system; unmounted with this.
#[derive(Debug)]
pub struct Mounted {
    point: PathBuf,
    is_mounted: bool,
}

impl Mounted {
    /// How one is made on a device of so many bytes, as a command without the device.
    pub fn made_with(kind: FileSystemKind, device_bytes: u64) -> String {
        let (program, words) = kind.maker(device_bytes);
        format!("{program} {}", words.join(" "))
    }

    /// The options it is mounted with.
    pub fn options(discard: bool) -> &'static str {
        if discard { "noatime,discard" } else { "noatime" }
    }

    /// Makes it on `device`, and mounts it at `point`, a directory that is made.
    pub fn new(
        kind: FileSystemKind,
        device: &Path,
        device_bytes: u64,
        discard: bool,
        point: &Path,
    ) -> Result<Self> {
        let (program, words) = kind.maker(device_bytes);
        run(Command::new(program).args(words).arg(device))?;
        fs::create_dir_all(point).doing(format!("making {}", point.display()))?;
        let mut mount = Command::new("mount");
        mount.args(["-t", &kind.to_string(), "-o", Self::options(discard)]).arg(device).arg(point);
        run(&mut mount)?;
        Ok(Self { point: point.to_owned(), is_mounted: true })
    }

    /// Unmounts it, which writes what it still keeps back.
    pub fn finish(mut self) -> Result<()> {
        self.is_mounted = false;
        unmount(&self.point, UnmountFlags::empty())
            .doing(format!("unmounting {}", self.point.display()))
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if self.is_mounted
            && let Err(error) = unmount(&self.point, UnmountFlags::DETACH)
        {
            eprintln!("{} stays mounted: {error}", self.point.display());
        }
    }
}
