//! The server: event loop, connections, connection and server commands, group commit.
//!
//! ```text
//!          net (io_uring or epoll)                       storage
//!   bytes ────────► core: parse, run, reply ── effects ──► log ──► device
//!   bytes ◄──────── replies held until ◄─── durable LSN ───┘
//! ```
//!
//! One thread runs commands; [`Server::run`] is that thread. Beside it are the keeper (segments and
//! superblock of the log) and one that frees large values.

pub mod config;
pub mod logging;
pub mod net;

mod clients;
mod commands;
mod core;
mod gate;
mod info;
mod server;
mod stats;
mod transactions;
mod wal;

pub use server::{Server, Storage, explain, make_volume};

use std::sync::OnceLock;

/// The version of Redis whose behaviour this is.
pub const REDIS_VERSION: &str = "7.0.15";

static ALLOCATOR: OnceLock<&'static str> = OnceLock::new();

/// Tells the server what the program's allocator is called, for INFO.
pub fn set_allocator_name(name: &'static str) {
    // The first one stays.
    let _ = ALLOCATOR.set(name);
}

pub(crate) fn allocator_name() -> &'static str {
    ALLOCATOR.get().copied().unwrap_or("libc")
}
