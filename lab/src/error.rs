//! The errors that leave a run of the lab without a result. Each kind of cause has its own variant.

use std::fmt;
use std::io;

use slimio_testing::error::ServerError;

/// Why a run has no result.
#[derive(Debug)]
pub enum BenchError {
    /// An operation on a file, a socket or a process failed.
    Io {
        /// The action that failed, as the start of a message: for example "opening FILE".
        what: String,
        /// The error of the system.
        source: io::Error,
    },
    /// A server or another program failed: for example, it did not start, died, or did not stop.
    /// The text may end with the program's last output.
    Server(String),
    /// The server sent a reply that the request cannot have, so all measurements are void.
    Reply(String),
    /// The command line is wrong, or asks for something that this machine does not have.
    Usage(String),
    /// A check found that a server or a drive broke a promise.
    Broken(String),
}

impl From<ServerError> for BenchError {
    fn from(error: ServerError) -> Self {
        match error {
            ServerError::Io { what, source } => Self::Io { what, source },
            ServerError::Server(text) => Self::Server(text),
            ServerError::Reply(text) => Self::Reply(text),
        }
    }
}

/// The result type of this crate's functions.
pub type Result<T> = std::result::Result<T, BenchError>;

impl fmt::Display for BenchError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Server(text) | Self::Reply(text) | Self::Usage(text) | Self::Broken(text) => {
                f.write_str(text)
            }
        }
    }
}

impl std::error::Error for BenchError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Says in an I/O error which action failed.
pub trait Doing<T> {
    /// Turns an I/O error into a [`BenchError::Io`] that names the action `what`.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| BenchError::Io { what: what.into(), source: source.into() })
    }
}
