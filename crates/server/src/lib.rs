//! The server: event loop, connections, connection and server commands, group commit.
//!
//! ```text
//!          net (io_uring or epoll)                       storage
//!   bytes ────────► core: parse, run, reply ── effects ──► log ──► device
//!   bytes ◄──────── replies held until ◄─── durable LSN ───┘
//! ```
//!
//! One thread runs commands; [`Server::run`] is that thread. Beside it run the keeper (segments and
//! superblock of the log), the snapshot thread, one for jobs of clients that take long, and one that frees large values.

pub mod config;
pub mod exchange;
pub mod logging;
pub mod net;

mod background;
mod clients;
mod clock;
mod commands;
mod core;
mod cpu;
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

/// The version of Redis whose behaviour this server has.
pub const REDIS_VERSION: &str = "7.0.15";

/// The program's allocator, which only the program knows.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    /// Its name, for INFO.
    pub name: &'static str,
    /// Its counts; `None` if it does not count.
    pub bytes: fn() -> Option<AllocatorBytes>,
    /// Its own statistics, for `MEMORY MALLOC-STATS`.
    pub report: fn() -> String,
}

/// Bytes of memory, as an allocator counts them.
#[derive(Clone, Copy, Debug)]
pub struct AllocatorBytes {
    /// What the program has asked for, rounded up to the allocator's classes.
    pub allocated: u64,
    /// Pages that hold any of it.
    pub active: u64,
    /// Those and the allocator's own, as far as they are in RAM.
    pub resident: u64,
}

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// Tells the server about the program's allocator.
pub fn set_allocator(allocator: Allocator) {
    // The first one stays.
    let _ = ALLOCATOR.set(allocator);
}

pub(crate) fn allocator() -> Allocator {
    let report = || "Stats not supported for the current allocator".to_owned();
    let libc = Allocator { name: "libc", bytes: || None, report };
    ALLOCATOR.get().copied().unwrap_or(libc)
}
