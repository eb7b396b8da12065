//! The errors of a server under test. They differ in what the caller can do about them.

use std::fmt;
use std::io;

/// Why there is no server, or no reply.
#[derive(Debug)]
pub enum ServerError {
    /// The machine refused something: a file, a socket, a process. `what` says which.
    Io {
        /// What was being done, as the start of a sentence.
        what: String,
        /// What the system said.
        source: io::Error,
    },
    /// A server did not start, died, or did not stop; the text ends with the server's last output.
    Server(String),
    /// An error reply, or a reply that the request cannot have.
    Reply(String),
}

/// Result of this crate.
pub type Result<T> = std::result::Result<T, ServerError>;

impl fmt::Display for ServerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io { what, source } => write!(f, "{what}: {source}"),
            Self::Server(text) | Self::Reply(text) => f.write_str(text),
        }
    }
}

impl std::error::Error for ServerError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io { source, .. } => Some(source),
            _ => None,
        }
    }
}

/// Adds to an I/O error the operation that failed.
pub(crate) trait Doing<T> {
    /// Turns an I/O error into an error that says what was being done.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| ServerError::Io { what: what.into(), source: source.into() })
    }
}
