//! Snapshots as the command thread sees them: which one runs and why, what became of the last ones.
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
//! The command thread gives a turn a bounded time to a snapshot, and none while enough is waiting
//! for the snapshot thread. Nothing here waits.

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
use slimio_storage::{SlotName, SnapshotKind};

pub(crate) use check::{Checked, Checks};
pub(crate) use decode::Decoders;
pub(crate) use growth::{Growth, RateInputs};
pub(crate) use pace::Traffic;
pub(crate) use schedule::{RewriteRule, SavePoint, save_points};
pub(crate) use thread::{Answer, DbSize, SnapshotThread};

use crate::net::ConnId;

/// How long after a failure a snapshot that nobody asked for waits before it is tried again.
pub(crate) const RETRY_AFTER: Duration = Duration::from_secs(5);

/// What the running snapshot is doing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stage {
    /// Entries are being taken.
    Taking,
    /// Everything was handed to the snapshot thread.
    Writing,
    /// It is on the volume, and waits for its place in the superblock.
    Adopting,
}

impl Stage {
    /// Its name in INFO.
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
    /// Changes of the data set that it holds and that the last one did not.
    pub(crate) changes: u64,
    /// Most bytes of memory that it has held.
    pub(crate) memory_max: u64,
    /// Nobody has asked for it: the log has grown.
    pub(crate) is_automatic: bool,
    /// Whether commands are being served.
    pub(crate) traffic: Traffic,
    /// How fast the log grows meanwhile.
    pub(crate) growth: Growth,
    /// Taken, and not yet handed to the snapshot thread.
    pub(crate) taken: Vec<Captured>,
}

/// What became of the snapshots of one kind.
#[derive(Clone, Debug, Default)]
pub(crate) struct History {
    /// How many were begun since the start.
    pub(crate) begun: u64,
    /// How many of them succeeded.
    pub(crate) count: u64,
    /// How many were begun since the start or `CONFIG RESETSTAT`, as Redis counts.
    pub(crate) tries: u64,
    /// How many have failed since one succeeded.
    pub(crate) failures: u64,
    /// When the last one began.
    pub(crate) tried_at: Option<Instant>,
    /// How long the last one took, if there was one.
    pub(crate) took: Option<Duration>,
    /// Most memory that the last one held, in bytes.
    pub(crate) memory_max: u64,
    /// Why the last one failed, if it did.
    pub(crate) failed: Option<String>,
    /// One is to begin as soon as that is possible.
    pub(crate) is_scheduled: bool,
    /// It found no space, and is tried again with what the log has given back.
    pub(crate) is_second_try: bool,
    /// Nobody has asked for that one.
    pub(crate) is_automatic: bool,
}

impl History {
    /// Whether one that nobody asked for may be tried.
    pub(crate) fn may_retry(&self, now: Instant) -> bool {
        self.failed.is_none()
            || self.tried_at.is_none_or(|at| now.saturating_duration_since(at) >= RETRY_AFTER)
    }
}

/// All about snapshots. There are none without a volume.
#[derive(Debug)]
pub(crate) struct Snapshots {
    /// `None` without a volume.
    pub(crate) thread: Option<SnapshotThread>,
    pub(crate) running: Option<Running>,
    /// `BGSAVE`.
    pub(crate) saves: History,
    /// `BGREWRITEAOF`.
    pub(crate) rewrites: History,
    /// Changes of the data set since the last `BGSAVE` that succeeded.
    pub(crate) changes: u64,
    /// When the last one succeeded, in seconds since 1970; the start counts as one.
    pub(crate) saved_at_s: i64,
    /// A `BGSAVE` that lacked room is taken again behind a rewrite of the log, which makes some.
    pub(crate) is_behind_rewrite: bool,
    /// LBAs of the last snapshot for each byte of its keys and values. `None` where none was long
    /// enough to tell, or where one lacked space since.
    pub(crate) lbas_per_byte: Option<f64>,
    /// The scheduled or running `BGSAVE` keeps what a flush did. No client has asked for it.
    pub(crate) is_of_flush: bool,
    /// Clients whose `SAVE` is under way.
    pub(crate) saving: Vec<ConnId>,
    /// Clients that wait for a snapshot to pin, each with the count of `BGSAVE`s begun by then.
    pub(crate) pinning: Vec<(ConnId, u64)>,
    /// Clients for whom a slot is kept as it is.
    pub(crate) pins: Vec<(ConnId, SlotName)>,
    /// Writes that had to wait for memory that a snapshot held.
    pub(crate) waits: u64,
    /// Longest stretch of the command thread's time that a snapshot took at once, ever.
    pub(crate) step_max: Duration,
    /// Checks of the snapshots on the volume.
    pub(crate) checks: Checks,
    /// `step_max` in CPU time: time that others took from the command thread is not in it.
    pub(crate) step_cpu_max: Duration,
    /// Keys in the snapshot that recovery read.
    pub(crate) loaded_keys: usize,
}

/// A snapshot of fewer bytes of keys and values does not tell what others will take.
const TELLING_SIZE: u64 = 1 << 20;

impl Snapshots {
    /// A snapshot of `payload` bytes of keys and values has `lbas` LBAs.
    pub(crate) fn was_written(&mut self, lbas: u64, payload: u64) {
        if payload >= TELLING_SIZE {
            self.lbas_per_byte = Some(lbas as f64 / payload as f64);
        }
    }

    pub(crate) fn new(now: Instant) -> Self {
        Self {
            thread: None,
            running: None,
            saves: History::default(),
            rewrites: History::default(),
            changes: 0,
            saved_at_s: 0,
            is_behind_rewrite: false,
            lbas_per_byte: None,
            is_of_flush: false,
            saving: Vec::new(),
            pinning: Vec::new(),
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

    /// `CONFIG RESETSTAT`: what Redis counts anew.
    pub(crate) fn reset_stats(&mut self) {
        (self.saves.tries, self.rewrites.tries) = (0, 0);
        self.rewrites.failures = 0;
    }

    /// Whether a `BGSAVE` is under way as far as its client can tell: also while it only waits for
    /// the last snapshot to be cleared away, or for the log to make room.
    pub(crate) fn is_saving(&self) -> bool {
        let is_put_off =
            self.saves.is_scheduled && (self.is_behind_rewrite || self.running.is_none());
        (is_put_off || self.runs(SnapshotKind::OnDemand)) && !self.is_of_flush
    }

    pub(crate) fn runs(&self, kind: SnapshotKind) -> bool {
        self.running.as_ref().is_some_and(|running| running.kind == kind)
    }
}
