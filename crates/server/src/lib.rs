//! The server: event loop, connections, connection and server commands, group commit.

pub mod config;
