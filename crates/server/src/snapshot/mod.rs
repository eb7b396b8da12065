//! Snapshots as the command thread sees them: which snapshot runs and why, and how the last
//! snapshots ended.
//!
//! ```text
//!  command thread                    snapshot thread              log, keeper
//!  begin: the point in time ───────► begin
//!  step, step, step ... ──captured─► encode, write
//!  all taken ──────────────────────► finish: index, flush
//!  adopt ◄───────────────────────── summary
//!    └────────────────────────────────────────────────────────► durable up to its LSN, superblock
//!  adopted ◄────────────────────────────────────────────────────┘
//! ```
//!
//! In each turn, the command thread spends a bounded time on a snapshot, and no time while enough
//! entries are queued for the snapshot thread. None of these steps blocks the command thread. The
//! keeper is the thread that writes the superblock.

mod check;
mod decode;
mod growth;
mod pace;
mod schedule;
mod surplus;
mod thread;
mod turns;
mod worker;

use std::time::{Duration, Instant};

use slimio_keyspace::Captured;
use slimio_storage::{SlotName, SlotSummary, SnapshotKind};

pub(crate) use check::{Checked, Checks};
pub(crate) use decode::Decoders;
pub(crate) use growth::{Growth, RateInputs};
pub(crate) use pace::Traffic;
pub(crate) use schedule::{RewriteRule, SavePoint, save_points};
pub(crate) use thread::{Answer, DbSize, SnapshotThread};

use crate::net::ConnId;

/// Time from the beginning of a failed snapshot to the next try, if nobody asks for a snapshot.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// The stages of a running snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Entries are being taken.
    Taking,
    /// Everything was handed to the snapshot thread.
    Writing,
    /// The snapshot is complete on the volume, and waits to be recorded in the superblock.
    Adopting,
}

impl Stage {
    /// The stage's name in INFO.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Taking => "taking",
            Self::Writing => "writing",
            Self::Adopting => "adopting",
        }
    }
}

/// The running snapshot.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) kind: SnapshotKind,
    pub(crate) stage: Stage,
    pub(crate) began: Instant,
    /// How many changes of the data set are in this snapshot, but were not in the last one.
    pub(crate) changes: u64,
    /// Largest memory held for this snapshot so far, in bytes.
    pub(crate) memory_max: u64,
    /// Whether the snapshot runs only because the log has grown, not because somebody asked for it.
    pub(crate) is_automatic: bool,
    /// Whether commands are being served.
    pub(crate) traffic: Traffic,
    /// How fast the log grows during the snapshot.
    pub(crate) growth: Growth,
    /// Entries that were taken but not handed to the snapshot thread yet.
    pub(crate) taken: Vec<Captured>,
}

/// Results of the snapshots of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// How many snapshots were begun since the server's start.
    pub(crate) begun: u64,
    /// How many of these snapshots succeeded.
    pub(crate) count: u64,
    /// How many snapshots were begun since the server's start or the last `CONFIG RESETSTAT`. Redis
    /// counts them this way.
    pub(crate) tries: u64,
    /// How many snapshots have failed since the last successful one. For rewrites, `CONFIG
    /// RESETSTAT` also sets this count to 0.
    pub(crate) failures: u64,
    /// When the last snapshot began.
    pub(crate) tried_at: Option<Instant>,
    /// How long the last snapshot took. `None` if no snapshot has ended yet.
    pub(crate) took: Option<Duration>,
    /// Largest memory held for the last snapshot, in bytes.
    pub(crate) memory_max: u64,
    /// Why the last snapshot failed, if it failed.
    pub(crate) failed: Option<String>,
    /// Whether a snapshot is to begin as soon as possible.
    pub(crate) is_scheduled: bool,
    /// Whether the scheduled snapshot is a second try. The first try found no space, and the log
    /// has given space back since.
    pub(crate) is_second_try: bool,
    /// Whether nobody has asked for the scheduled snapshot.
    pub(crate) is_automatic: bool,
}

impl History {
    /// Whether a snapshot that nobody asked for may be tried.
    pub(crate) fn may_retry(&self, now: Instant) -> bool {
        self.failed.is_none()
            || self.tried_at.is_none_or(|at| now.saturating_duration_since(at) >= RETRY_AFTER)
    }
}

/// An outcome to report to the clients that wait for snapshots.
#[derive(Debug)]
pub(crate) enum SnapshotEnd {
    /// The on-demand snapshot of the `BGSAVE` with this number was adopted.
    Saved(u64, SlotSummary),
    /// The `BGSAVE` with this number has failed for this reason. All earlier `BGSAVE`s that clients
    /// still wait for have failed, too.
    Failed(u64, String),
    /// Clients must give up the snapshots that they have pinned, for this reason.
    Unpinned(&'static str),
}

/// The state of snapshots. Without a volume, there are no snapshots.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// `None` if there is no volume.
    pub(crate) thread: Option<SnapshotThread>,
    pub(crate) running: Option<Running>,
    /// Whether the running snapshot's rate (how fast it goes through the data set) must be set
    /// before the command thread sleeps.
    pub(crate) is_rate_due: bool,
    /// Outcomes that have not been reported to the waiting clients yet.
    pub(crate) ends: Vec<SnapshotEnd>,
    /// The on-demand snapshots (`BGSAVE`).
    pub(crate) saves: History,
    /// The WAL-snapshots (`BGREWRITEAOF`).
    pub(crate) rewrites: History,
    /// Changes of the data set since the last `BGSAVE` that succeeded.
    pub(crate) changes: u64,
    /// When the last `BGSAVE` succeeded, in seconds since 1970. Before the first success, this is
    /// the start of the server.
    pub(crate) saved_at_s: i64,
    /// Whether a `BGSAVE` that lacked room is tried again after a rewrite of the log, because a
    /// rewrite may make room.
    pub(crate) is_behind_rewrite: bool,
    /// How many LBAs the last snapshot took for each byte of its keys and values. `None` until a
    /// snapshot was large enough to measure this, and again after a snapshot has lacked space.
    pub(crate) lbas_per_byte: Option<f64>,
    /// Whether the `BGSAVE` that is scheduled or running is due to a `FLUSHALL` or `FLUSHDB`. Such
    /// a `BGSAVE` keeps a restart from bringing the old data back. No client has asked for it.
    pub(crate) is_of_flush: bool,
    /// Clients that have pinned a slot, each with its slot. A pinned slot is not overwritten.
    pub(crate) pins: Vec<(ConnId, SlotName)>,
    /// Number of writes that had to wait because a snapshot held too much memory.
    pub(crate) waits: u64,
    /// Longest step that the command thread has ever taken for a snapshot.
    pub(crate) step_max: Duration,
    /// Checks of the snapshots on the volume.
    pub(crate) checks: Checks,
    /// Like `step_max`, but in CPU time, which passes only while the thread runs.
    pub(crate) step_cpu_max: Duration,
    /// Number of keys in the snapshot that was loaded by recovery.
    pub(crate) loaded_keys: usize,
}

/// If a snapshot has fewer bytes of keys and values than this, it does not predict the size of
/// other snapshots.
const TELLING_SIZE: u64 = 1 << 20;

impl Snapshots {
    /// Notes that a snapshot has taken `lbas` LBAs. Its keys and values have `payload` bytes.
    pub(crate) fn was_written(&mut self, lbas: u64, payload: u64) {
        if payload >= TELLING_SIZE {
            self.lbas_per_byte = Some(lbas as f64 / payload as f64);
        }
    }

    /// `started_at_s` is the time of day at the start, in seconds since 1970.
    pub(crate) fn new(now: Instant, started_at_s: i64) -> Self {
        Self {
            thread: None,
            running: None,
            is_rate_due: false,
            ends: Vec::new(),
            saves: History::default(),
            rewrites: History::default(),
            changes: 0,
            saved_at_s: started_at_s,
            is_behind_rewrite: false,
            lbas_per_byte: None,
            is_of_flush: false,
            pins: Vec::new(),
            waits: 0,
            step_max: Duration::ZERO,
            checks: Checks::new(now),
            step_cpu_max: Duration::ZERO,
            loaded_keys: 0,
        }
    }

    pub(crate) fn of(&self, kind: SnapshotKind) -> &History {
        match kind {
            SnapshotKind::Wal => &self.rewrites,
            SnapshotKind::OnDemand => &self.saves,
        }
    }

    pub(crate) fn of_mut(&mut self, kind: SnapshotKind) -> &mut History {
        match kind {
            SnapshotKind::Wal => &mut self.rewrites,
            SnapshotKind::OnDemand => &mut self.saves,
        }
    }

    /// `CONFIG RESETSTAT`: resets the counters that Redis resets.
    pub(crate) fn reset_stats(&mut self) {
        (self.saves.tries, self.rewrites.tries) = (0, 0);
        self.rewrites.failures = 0;
    }

    /// Whether a `BGSAVE` is under way from the point of view of the client that asked for it. A
    /// `BGSAVE` is also under way while it waits until the last snapshot is cleared away, or until
    /// the log has made room.
    pub(crate) fn is_saving(&self) -> bool {
        let is_put_off =
            self.saves.is_scheduled && (self.is_behind_rewrite || self.running.is_none());
        (is_put_off || self.runs(SnapshotKind::OnDemand)) && !self.is_of_flush
    }

    pub(crate) fn runs(&self, kind: SnapshotKind) -> bool {
        self.running.as_ref().is_some_and(|running| running.kind == kind)
    }
}
