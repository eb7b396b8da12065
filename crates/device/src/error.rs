//! What can go wrong on a device.

use std::fmt;

/// Why an operation failed, by what the caller can do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DeviceError {
    /// There is no room: free some and try again.
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
    /// The device or the kernel failed the operation; `errno` as the kernel gave it.
    Io {
        /// Positive error number.
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
            Self::Io { errno } => {
                write!(f, "{}", std::io::Error::from_raw_os_error(*errno))
            }
        }
    }
}

impl std::error::Error for DeviceError {}
