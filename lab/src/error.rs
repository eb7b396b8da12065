//! Errors of a run, by what the caller can do about them.

use std::fmt;
use std::io;

use slimio_testing::error::ServerError;

/// Why a run has no result.
#[derive(Debug)]
pub enum BenchError {
    /// The machine refused something: a file, a socket, a process. `what` says which.
    Io {
        /// What was being done, as the start of a sentence.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server did not start, died, or did not stop; the text ends with the server's own last
    /// words.
    Server(String),
    /// The server sent a reply that the request cannot have, so all measurements are void.
    Reply(String),
    /// The command line cannot be followed.
    Usage(String),
    /// The ledger found that a promise was broken.
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

/// Result of this crate.
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

/// Adds to an I/O error what was being done.
pub trait Doing<T> {
    /// Turns an I/O error into one that says what was being done.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| BenchError::Io { what: what.into(), source: source.into() })
    }
}
