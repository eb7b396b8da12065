//! The identity of a file, which does not depend on the file's name.

use std::io;
use std::os::fd::AsFd;
use std::path::Path;

use rustix::fs::{AtFlags, CWD, Statx, StatxFlags, statx};

/// The identity of a file. An inode number alone does not suffice, because a file that is made
/// later may get the same number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Major and minor number of the device.
    pub(crate) device: u64,
    /// Number of the inode.
    pub(crate) inode: u64,
    /// Time at which the file was made, in nanoseconds since 1970; zero if the file system does not
    /// know the time.
    pub(crate) born: u64,
}

impl Identity {
    /// The identity of an open file.
    ///
    /// # Errors
    /// If the kernel can't examine the file.
    pub fn of(file: impl AsFd) -> io::Result<Self> {
        Ok(Self::found(&statx(file, c"", AtFlags::EMPTY_PATH, WANTED)?))
    }

    /// The identity of the file at this path. For a symbolic link, it is the identity of the link.
    ///
    /// # Errors
    /// If there is no such file.
    pub fn at(path: &Path) -> io::Result<Self> {
        Ok(Self::found(&statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, WANTED)?))
    }

    fn found(found: &Statx) -> Self {
        let has_birth = StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME);
        let born = i128::from(found.stx_btime.tv_sec) * 1_000_000_000
            + i128::from(found.stx_btime.tv_nsec);
        Self {
            device: u64::from(found.stx_dev_major) << 32 | u64::from(found.stx_dev_minor),
            inode: found.stx_ino,
            born: if has_birth { born as u64 } else { 0 },
        }
    }
}

const WANTED: StatxFlags = StatxFlags::INO.union(StatxFlags::BTIME);
