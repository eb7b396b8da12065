//! Attributes of one file, from `statx` and from the file system's own flags.

#![expect(unsafe_code, reason = "system calls are foreign functions")]

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;

use crate::sys::check;

/// `FS_IOC_GETFLAGS`: the flags of `chattr`.
const FS_IOC_GETFLAGS: libc::Ioctl = 0x8008_6601_u32 as libc::Ioctl;
/// `FS_IOC_FSGETXATTR`: further flags, which XFS and a few other file systems have.
const FS_IOC_FSGETXATTR: libc::Ioctl = 0x801c_581f_u32 as libc::Ioctl;
/// `FS_JOURNAL_DATA_FL`: the attribute `j` of `chattr`.
const FLAG_JOURNAL_DATA: libc::c_long = 0x4000;
/// `FS_XFLAG_REALTIME`
const XFLAG_REALTIME: u32 = 0x1;

/// The alignment that direct I/O needs, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Alignment {
    /// Offsets in the file, and lengths, must be multiples of this number.
    pub offset: u32,
    /// Addresses in memory must be multiples of this number.
    pub memory: u32,
}

/// Attributes of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(
    clippy::struct_excessive_bools,
    reason = "in the kernel, the attributes are independent bits"
)]
pub struct Attributes {
    /// The alignment that direct I/O needs. `None` if the kernel does not report it (before 6.1);
    /// `Some(None)` if the file does not support direct I/O.
    pub direct: Option<Option<Alignment>>,
    /// Whether the file system encrypts the content.
    pub is_encrypted: bool,
    /// Whether the file system compresses the content.
    pub is_compressed: bool,
    /// Whether the content is protected by checksums, so that it can't be changed (fs-verity).
    pub is_sealed: bool,
    /// Whether every change of the file is forbidden (`chattr +i`).
    pub is_immutable: bool,
    /// Whether bytes can only be appended to the file, and never overwritten (`chattr +a`).
    pub is_append_only: bool,
    /// Whether the file's bytes are accessed directly in memory (DAX), without writes to a device.
    pub is_memory: bool,
    /// Whether ext4 writes the file's data to its journal first.
    pub is_journaled: bool,
    /// Whether the file's data is on the realtime device of XFS.
    pub is_realtime: bool,
}

impl Attributes {
    /// The attributes of a file. An attribute that the file system does not know is `false`.
    ///
    /// # Errors
    /// If `statx` fails, as on a kernel before 4.11.
    pub fn of(file: &File) -> io::Result<Self> {
        let found = statx(file, libc::STATX_DIOALIGN)?;
        let has = |bit: libc::c_int| found.stx_attributes & bit as u64 != 0;
        let (offset, memory) = (found.stx_dio_offset_align, found.stx_dio_mem_align);
        let is_told = found.stx_mask & libc::STATX_DIOALIGN != 0;
        Ok(Self {
            direct: is_told.then_some((offset > 0).then_some(Alignment { offset, memory })),
            is_encrypted: has(libc::STATX_ATTR_ENCRYPTED),
            is_compressed: has(libc::STATX_ATTR_COMPRESSED),
            is_sealed: has(libc::STATX_ATTR_VERITY),
            is_immutable: has(libc::STATX_ATTR_IMMUTABLE),
            is_append_only: has(libc::STATX_ATTR_APPEND),
            is_memory: has(libc::STATX_ATTR_DAX),
            is_journaled: flags(file).unwrap_or(0) & FLAG_JOURNAL_DATA != 0,
            is_realtime: further_flags(file) & XFLAG_REALTIME != 0,
        })
    }
}

/// `statx` of an open file.
pub(crate) fn statx(file: &File, mask: u32) -> io::Result<libc::statx> {
    // SAFETY: a `statx` consists of integers, for which zero is a valid value.
    let mut found: libc::statx = unsafe { std::mem::zeroed() };
    let (fd, path, flags) = (file.as_raw_fd(), c"".as_ptr(), libc::AT_EMPTY_PATH);
    // SAFETY: the path is an empty C string, and `found` is a `statx` to write to.
    check(unsafe { libc::statx(fd, path, flags, mask, &raw mut found) })?;
    Ok(found)
}

/// The flags of `chattr`. An error means that the file system has no such flags.
pub(crate) fn flags(file: &File) -> io::Result<libc::c_long> {
    let mut flags: libc::c_long = 0;
    // SAFETY: the call stores at most one `long`, and the pointer points to a `long`.
    check(unsafe { libc::ioctl(file.as_raw_fd(), FS_IOC_GETFLAGS, &raw mut flags) })?;
    Ok(flags)
}

fn further_flags(file: &File) -> u32 {
    // The kernel's `struct fsxattr` has 28 bytes and begins with the flags.
    let mut attributes = [0_u32; 7];
    let (fd, memory) = (file.as_raw_fd(), attributes.as_mut_ptr());
    // SAFETY: the call stores 28 bytes at the pointer, which points to 28 bytes.
    let result = check(unsafe { libc::ioctl(fd, FS_IOC_FSGETXATTR, memory) });
    if result.is_ok() { attributes[0] } else { 0 }
}
