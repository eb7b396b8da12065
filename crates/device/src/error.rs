//! Errors of devices.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};

use slimio_ring::NvmeStatus;

use crate::nvme;

/// Why an operation failed, grouped by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no room: free some space and try again.
    NoSpace,
    /// The operation moved fewer bytes than asked for.
    Short {
        /// Bytes that were moved.
        moved: usize,
        /// Bytes that were asked for.
        asked: usize,
    },
    /// The range lies outside the device.
    OutOfRange,
    /// An NVMe device failed a command, and reported a status.
    Nvme {
        /// The command's opcode.
        opcode: u8,
        /// The device's status.
        status: NvmeStatus,
    },
    /// The NVMe driver aborted a command. The device may have executed the command fully, in part
    /// or not at all.
    Aborted {
        /// The command's opcode.
        opcode: u8,
    },
    /// The device no longer exists.
    Gone,
    /// The kernel no longer accepts operations, for example because a filter (seccomp) was put on
    /// the running process. This operation was not executed at all.
    Untaken {
        /// The kernel's error number, positive.
        errno: i32,
    },
    /// The device or the kernel failed the operation.
    Io {
        /// The kernel's error number, positive.
        errno: i32,
    },
}

impl fmt::Display for DeviceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoSpace => write!(f, "no space left"),
            Self::Short { moved, asked } => {
                write!(f, "short transfer: {moved} of {asked} bytes")
            }
            Self::OutOfRange => write!(f, "address outside the device"),
            Self::Nvme { opcode, status } => write!(
                f,
                "the device failed {}: {} ({}:{:02x}h)",
                nvme::command_name(*opcode),
                nvme::status_name(*status),
                status.kind(),
                status.code()
            ),
            Self::Aborted { opcode } => write!(
                f,
                "the driver aborted {}: the device was reset, did not answer, or is gone",
                nvme::command_name(*opcode)
            ),
            Self::Gone => f.write_str("the device is gone"),
            Self::Untaken { errno } => write!(
                f,
                "the kernel takes no more operations through io_uring: {}; allow io_uring_enter to \
                 this process, or start the server with io-backend plain",
                io::Error::from_raw_os_error(*errno)
            ),
            Self::Io { errno } => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for DeviceError {}

/// Why a device or file could not be opened, grouped by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OpenError {
    /// Another process has the device or file open: stop that process, or take another volume.
    InUse {
        /// Path of the device or file.
        path: PathBuf,
        /// Process id of the holder, if it is known.
        holder: Option<u32>,
    },
    /// No process that can be seen from here has the device or file open. But operations of a
    /// process that has ended are still in flight, or a process in another container has the device
    /// or file open. Nothing was read. Try again when the device has finished these operations.
    StillInFlight {
        /// Path of the file or device that those operations keep locked.
        path: PathBuf,
        /// How long this process waited for those operations, in seconds.
        waited_seconds: u64,
    },
    /// The device or file does not exist.
    Missing {
        /// Path of the device or file.
        path: PathBuf,
    },
    /// There is no room for the file.
    NoSpace {
        /// Path of the file that was to be made or grown.
        path: PathBuf,
    },
    /// The device or file exists, but can't be used for this purpose.
    Unsuitable {
        /// Path of the device or file.
        path: PathBuf,
        /// Why the device or file can't be used, as the end of a sentence.
        why: String,
    },
    /// A part of the device or file is gone, and so is the data that only this part held.
    Incomplete {
        /// Path of the device or file.
        path: PathBuf,
        /// What is gone, as the end of a sentence.
        why: String,
    },
    /// This process lacks the permission to open the device or file.
    Forbidden {
        /// Path of the device or file.
        path: PathBuf,
        /// How the user can give the permission, as a sentence without a full stop.
        remedy: String,
    },
    /// The device refused a command.
    Device {
        /// What was tried, as one word: "identifying".
        doing: &'static str,
        /// Path of the device or file.
        path: PathBuf,
        /// The device's error.
        error: DeviceError,
    },
    /// The kernel refused a system call.
    Io {
        /// What was tried, in a few words: "opening".
        doing: &'static str,
        /// Path of the device or file.
        path: PathBuf,
        /// The kernel's error number, positive.
        errno: i32,
    },
}

impl OpenError {
    /// The [`OpenError`] for an error that the kernel returned. `doing` says what was tried on
    /// `path`.
    pub(crate) fn io(doing: &'static str, path: &Path, error: &io::Error) -> Self {
        let path = path.to_path_buf();
        match error.raw_os_error() {
            Some(libc::ENOENT) => Self::Missing { path },
            Some(libc::ENOSPC | libc::EDQUOT) => Self::NoSpace { path },
            errno => Self::Io { doing, path, errno: errno.unwrap_or(libc::EIO) },
        }
    }

    pub(crate) fn unsuitable(path: &Path, why: String) -> Self {
        Self::Unsuitable { path: path.to_path_buf(), why }
    }
}

impl fmt::Display for OpenError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse { path, holder: Some(pid) } => {
                write!(f, "{} is in use by process {pid}", path.display())
            }
            Self::InUse { path, holder: None } => {
                write!(f, "{} is in use by another process", path.display())
            }
            Self::StillInFlight { path, waited_seconds } => write!(
                f,
                "{} is not free after {waited_seconds} s: operations of a process that has ended \
                 are still in flight on the device, or a process that can't be seen from here (in \
                 another container) has the volume open",
                path.display()
            ),
            Self::Missing { path } => write!(f, "{} does not exist", path.display()),
            Self::NoSpace { path } => write!(f, "no space left for {}", path.display()),
            Self::Unsuitable { path, why } => {
                write!(f, "{} can't be used: {why}", path.display())
            }
            Self::Incomplete { path, why } => write!(f, "{} is not whole: {why}", path.display()),
            Self::Forbidden { path, remedy } => {
                write!(f, "{} may not be opened by this process: {remedy}", path.display())
            }
            Self::Device { doing, path, error } => {
                write!(f, "{doing} {}: {error}", path.display())
            }
            Self::Io { doing, path, errno } => {
                let reason = io::Error::from_raw_os_error(*errno);
                write!(f, "{doing} {}: {reason}", path.display())
            }
        }
    }
}

impl std::error::Error for OpenError {}
