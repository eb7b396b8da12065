//! The server: the event loop, the connections, the group commit, and the commands that concern
//! connections or the server itself.
//!
//! ```text
//!          net (io_uring or epoll)                       storage
//!   bytes ────────► connections ► engine    ── effects ──► log ──► device
//!   bytes ◄──────── replies held until ◄─── durable LSN ───┘
//! ```
//!
//! The thread that calls [`Server::run`] runs all commands. The other threads of this crate are the
//! keeper (which looks after the log's segments and superblock), the snapshot threads, a thread for
//! clients' jobs that may wait for a disk, and a thread that frees large values. While the server
//! loads a snapshot, there are also the threads that decode the snapshot.

pub mod config;
pub mod exchange;
pub mod logging;
pub mod net;

mod background;
mod clients;
mod clock;
mod commands;
mod connections;
mod cpu;
mod engine;
mod explain;
mod freeing;
mod gate;
mod inbox;
mod info;
mod latency;
mod limits;
mod server;
mod slowlog;
mod snapshot;
mod stats;
mod transactions;
mod waiting;
mod wal;
mod worker;

pub use clock::WallClock;
pub use engine::{Listener, Told};
pub use explain::{explain, explain_system, open_remedy};
pub use limits::open_files_limit;
pub use server::{Server, make_volume};

use std::sync::OnceLock;

/// The version of Redis that this server is compatible with.
pub const REDIS_VERSION: &str = "7.0.15";

/// Describes the program's allocator, which this library cannot determine by itself.
#[derive(Clone, Copy, Debug)]
pub struct Allocator {
    /// The allocator's name, for INFO.
    pub name: &'static str,
    /// Returns the allocator's counters; `None` if it has no counters.
    pub bytes: fn() -> Option<AllocatorBytes>,
    /// Returns the statistics that the allocator prints itself, for `MEMORY MALLOC-STATS`.
    pub report: fn() -> String,
}

/// Bytes of memory, as an allocator counts them.
#[derive(Clone, Copy, Debug)]
pub struct AllocatorBytes {
    /// Memory that the program has allocated, rounded up to the allocator's size classes.
    pub allocated: u64,
    /// Pages that hold any allocated memory.
    pub active: u64,
    /// Resident part of the active pages and of the pages of the allocator's own tables.
    pub resident: u64,
}

static ALLOCATOR: OnceLock<Allocator> = OnceLock::new();

/// Tells the server about the program's allocator.
pub fn set_allocator(allocator: Allocator) {
    // A second call has no effect.
    let _ = ALLOCATOR.set(allocator);
}

pub(crate) fn allocator() -> Allocator {
    let report = || "Stats not supported for the current allocator".to_owned();
    let libc = Allocator { name: "libc", bytes: || None, report };
    ALLOCATOR.get().copied().unwrap_or(libc)
}
