//! The server: event loop, connections, connection and server commands, group commit.

pub mod config;
pub mod logging;
pub mod net;
