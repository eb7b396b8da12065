//! A stock `redis-server` that an example starts for comparison.

use slimio_testing::raw::RawConnection;
use slimio_testing::server::Server;
use slimio_testing::stock;
use tempfile::TempDir;

/// A running server with one connection.
pub(crate) struct Stock {
    connection: RawConnection,
    _server: Server,
    _folder: TempDir,
}

impl Stock {
    /// Starts a stock server. Returns `None` if no stock server is installed.
    pub(crate) fn start() -> Option<Self> {
        let (folder, config) = stock(&[])?;
        let server = Server::start(&config).expect("the server starts");
        let connection = RawConnection::connect(server.address()).expect("the server listens");
        Some(Self { connection, _server: server, _folder: folder })
    }

    /// Sends requests in one go, and returns their replies.
    pub(crate) fn run<T: AsRef<[u8]>>(&mut self, requests: &[Vec<T>]) -> Vec<Vec<u8>> {
        self.connection.run_all(requests)
    }

    /// A numeric field of `INFO`.
    pub(crate) fn info(&mut self, field: &str) -> usize {
        let reply = self.connection.run(&["INFO"]);
        let text = String::from_utf8_lossy(&reply).into_owned();
        let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        line.and_then(|value| value.parse().ok()).expect("INFO has this numeric field")
    }
}
