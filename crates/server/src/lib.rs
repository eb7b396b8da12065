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
pub mod exchange;
pub mod logging;
pub mod net;

mod clients;
mod clock;
mod commands;
mod core;
mod cpu;
mod errand;
mod explain;
mod freeing;
mod gate;
mod info;
mod latency;
mod limits;
mod server;
mod slowlog;
mod snapshot;
mod stats;
mod transactions;
mod wal;

pub use clock::WallClock;
pub use explain::{explain, explain_system, open_remedy};
pub use limits::open_files_limit;
pub use server::{Server, make_volume};

use std::sync::OnceLock;

/// The version of Redis whose behaviour this is.
pub const REDIS_VERSION: &str = "7.0.15";

/// The program's allocator, which only the program knows.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    /// What it is called, for INFO.
    pub name: &'static str,
    /// What it counts; `None` if it does not.
    pub bytes: fn() -> Option<AllocatorBytes>,
    /// What it has to say of itself, for `MEMORY MALLOC-STATS`.
    pub report: fn() -> String,
}

/// Bytes of memory, as an allocator counts them.
#[derive(Clone, Copy, Debug)]
pub struct AllocatorBytes {
    /// What the program has asked for, rounded up to the allocator's classes.
    pub allocated: u64,
    /// Pages with any of that.
    pub active: u64,
    /// Those and the allocator's own, as far as they are in RAM.
    pub resident: u64,
}

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// Tells the server of the program's allocator.
pub fn set_allocator(allocator: Allocator) {
    // The first one stays.
    let _ = ALLOCATOR.set(allocator);
}

pub(crate) fn allocator() -> Allocator {
    let report = || "Stats not supported for the current allocator".to_owned();
    let libc = Allocator { name: "libc", bytes: || None, report };
    ALLOCATOR.get().copied().unwrap_or(libc)
}
