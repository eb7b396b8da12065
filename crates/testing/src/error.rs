//! The errors of starting, querying and stopping a server under test.

use std::fmt;
use std::io;

/// Why there is no server, or no reply.
#[derive(Debug)]
pub enum ServerError {
    /// The system refused an action with a file, a socket or a process.
    Io {
        /// The action that failed, as the start of a message.
        what: String,
        /// The system's error.
        source: io::Error,
    },
    /// A server did not start, died, or did not stop; the text ends with the server's last output.
    Server(String),
    /// The server sent an error, or a reply of a kind that never answers the request.
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

/// Adds the failed action to an I/O error.
pub(crate) trait Doing<T> {
    /// Turns an I/O error into an error that names the failed action, `what`.
    fn doing(self, what: impl Into<String>) -> Result<T>;
}

impl<T, E: Into<io::Error>> Doing<T> for std::result::Result<T, E> {
    fn doing(self, what: impl Into<String>) -> Result<T> {
        self.map_err(|source| ServerError::Io { what: what.into(), source: source.into() })
    }
}
