//! What can be wrong with RDB bytes.

use std::{fmt, io};

/// Why RDB bytes can't be read or written. The variants differ in what a user can do about it.
///
/// An offset counts bytes from the beginning of the file or slice that is read.
#[derive(Debug)]
pub enum Error {
    /// The source or the sink failed.
    Io(io::Error),
    /// The bytes are not an RDB file: check whether this is the right file.
    NotRdb,
    /// The version is not supported: convert the file with the server that wrote it.
    UnknownVersion {
        /// The version as the file has it, with the name in front: `REDIS0042`.
        found: String,
    },
    /// The bytes end too early, because the file was cut off: fetch it again.
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
    /// The bytes are not those that were written: restore the file from elsewhere.
    Checksum {
        /// The checksum in the file.
        stored: u64,
        /// The checksum of the file's bytes.
        computed: u64,
    },
    /// The bytes are intact, but only the module or the program that wrote them can read them.
    Unsupported {
        /// Where the unreadable part begins.
        offset: u64,
        /// What the unreadable part is, with the name of its key if it has one.
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
            Self::Truncated { offset } => write!(f, "cut off at byte {offset}"),
            Self::Corrupt { offset, what } => write!(f, "corrupt at byte {offset}: {what}"),
            Self::Checksum { stored, computed } => {
                write!(f, "the checksum is {stored:016x}, but the bytes give {computed:016x}")
            }
            Self::Unsupported { offset, what } => {
                write!(f, "cannot be read here: {what}, at byte {offset}")
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

/// What is wrong inside one packed value, as a sentence without a full stop. Together with the
/// offset of the value, this becomes an [`Error::Corrupt`].
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
