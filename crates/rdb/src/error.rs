//! What can be wrong with RDB bytes.

use std::{fmt, io};

/// Why RDB bytes can't be read or written. Most variants say what a user can do about the error.
///
/// An offset counts bytes from the beginning of the file or slice that is read.
#[derive(Debug)]
pub enum Error {
    /// The source or the sink failed.
    Io(io::Error),
    /// The bytes are not an RDB file: check whether the file is the right one.
    NotRdb,
    /// The version is not supported: convert the file with the server that wrote it.
    UnknownVersion {
        /// The name and the version, as they are written in the file: `REDIS0042`.
        found: String,
    },
    /// The bytes end too early, because the file was cut off: fetch the file again.
    Truncated {
        /// Where the bytes end.
        offset: u64,
    },
    /// The bytes contradict the format: restore the file from elsewhere.
    Corrupt {
        /// Where the fault begins, or where the value with the fault begins.
        offset: u64,
        /// What is wrong, as a sentence without a full stop.
        what: &'static str,
    },
    /// The bytes have changed since they were written: restore the file from elsewhere.
    Checksum {
        /// The checksum in the file.
        stored: u64,
        /// The checksum of the file's bytes.
        computed: u64,
    },
    /// The bytes are intact, but this crate can't read a part of them: load the file with the
    /// server that wrote it.
    Unsupported {
        /// Where the unreadable part begins.
        offset: u64,
        /// What the unreadable part is. The text names the key and the module if they are known.
        what: String,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => error.fmt(f),
            Self::NotRdb => write!(f, "this is not an RDB file"),
            Self::UnknownVersion { found } => {
                write!(f, "{found} is a version of RDB that this program does not read")
            }
            Self::Truncated { offset } => write!(f, "the data is cut off at byte {offset}"),
            Self::Corrupt { offset, what } => write!(f, "corrupt data at byte {offset}: {what}"),
            Self::Checksum { stored, computed } => {
                write!(
                    f,
                    "the stated checksum is {stored:016x}, but the bytes give {computed:016x}"
                )
            }
            Self::Unsupported { offset, what } => {
                write!(f, "this program cannot read {what}, at byte {offset}")
            }
        }
    }
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

impl From<io::Error> for Error {
    fn from(error: io::Error) -> Self {
        Self::Io(error)
    }
}

/// What is wrong inside one packed value, as a sentence without a full stop. [`at`](Self::at) adds
/// the value's offset and makes an [`Error::Corrupt`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

impl Malformed {
    /// The error of a value that begins at `offset`.
    pub fn at(self, offset: u64) -> Error {
        Error::Corrupt { offset, what: self.0 }
    }
}

impl fmt::Display for Malformed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0)
    }
}

impl std::error::Error for Malformed {}
