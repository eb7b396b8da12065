//! Slow background check of the snapshots on the volume.
//!
//! A volume has three slots, each of which can hold a snapshot. A pass checks one slot after the
//! other. It runs on the snapshot thread, because this thread has the slots open. The pass reads a
//! chunk at a time, with pauses that keep its rate below `snapshot-check-rate`. It reads nothing
//! while a snapshot is written. A result is valid as long as the slot holds the snapshot that was
//! checked.

use std::time::{Duration, Instant};

use slimio_device::Device;
use slimio_planted::is_planted;
use slimio_storage::{Error, SlotCheck, SlotName, SlotSummary, Snapshots};

/// Time from the server's start to the first pass. This time is long, because recovery has just
/// checked the snapshot that it loaded.
const FIRST_AFTER: Duration = Duration::from_secs(60 * 60);
/// Time from the beginning of one pass to the beginning of the next pass.
const EVERY: Duration = Duration::from_secs(24 * 60 * 60);

/// The outcome of checking a slot.
#[derive(Debug)]
pub(crate) enum Checked {
    /// The snapshot was read to its end. The error describes the damage, if there is any.
    Read(SlotSummary, Option<Error>),
    /// The check was given up before its end.
    GivenUp,
}

/// State of the check that the snapshot thread is running.
pub(super) struct Checking {
    check: SlotCheck,
    /// When the next piece of the slot may be read.
    next_at: Instant,
}

impl Checking {
    pub(super) fn new(check: SlotCheck) -> Self {
        Self { check, next_at: Instant::now() }
    }

    pub(super) fn slot(&self) -> SlotName {
        self.check.summary().slot
    }

    /// How long to wait before the next [`step`](Self::step).
    pub(super) fn pause(&self) -> Duration {
        self.next_at.saturating_duration_since(Instant::now())
    }

    /// Reads the next piece, and sets the pause after this piece so that the check stays below
    /// `rate` bytes per second. Returns the size of the piece. If no piece was left, or if there
    /// was an error, returns 0 and the outcome for the slot.
    pub(super) fn step(&mut self, path: &mut dyn Device, rate: u64) -> (u64, Option<Checked>) {
        let began = Instant::now();
        match self.check.step(path) {
            Ok(Some(size)) => {
                // The pause is in microseconds. The product cannot overflow, because a piece is far
                // too small for that.
                let pause = size.saturating_mul(1_000_000) / rate.max(1);
                self.next_at = began + Duration::from_micros(pause);
                (size, None)
            }
            Ok(None) => (0, Some(Checked::Read(*self.check.summary(), None))),
            Err(error) => (0, Some(Checked::Read(*self.check.summary(), Some(error)))),
        }
    }
}

/// The result of a slot's last check.
#[derive(Clone, Debug)]
pub(crate) struct Finding {
    summary: SlotSummary,
    /// When the slot was checked, in seconds since 1970.
    pub(crate) at_s: i64,
    /// Description of the damage; `None` if the snapshot is intact.
    pub(crate) damage: Option<String>,
}

/// State of the checks in the command thread.
#[derive(Debug)]
pub(crate) struct Checks {
    /// Slots that are still to be checked in the current pass.
    waiting: Vec<SlotName>,
    /// The slot that the snapshot thread is checking.
    current: Option<SlotName>,
    /// When the next pass begins, unless a client asks for one before.
    pub(crate) next_pass: Instant,
    /// When a slot was last checked to its end, in seconds since 1970; 0 if no slot was checked
    /// yet.
    pub(crate) ended_at_s: i64,
    findings: Vec<Finding>,
}

impl Checks {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            waiting: Vec::new(),
            current: None,
            next_pass: now + FIRST_AFTER,
            ended_at_s: 0,
            findings: Vec::new(),
        }
    }

    /// Whether a pass is under way.
    pub(crate) fn is_running(&self) -> bool {
        self.current.is_some() || !self.waiting.is_empty()
    }

    /// Begins a pass over the snapshots in `held`. The root (the snapshot that the next start
    /// loads) is checked first.
    pub(crate) fn begin(&mut self, held: &Snapshots, now: Instant) {
        self.next_pass = now + EVERY;
        let others = held.all().filter(|summary| held.root() != Some(summary));
        self.waiting = others.chain(held.root()).map(|summary| summary.slot).collect();
    }

    /// The slot to check next, if none is being checked.
    pub(crate) fn next_slot(&mut self) -> Option<SlotName> {
        if self.current.is_some() { None } else { self.waiting.pop() }
    }

    /// Notes that the snapshot thread now checks the slot. That thread will answer exactly once.
    pub(crate) fn slot_begun(&mut self, slot: SlotName) {
        self.current = Some(slot);
    }

    /// Notes the outcome for the slot, at `now_s` seconds since 1970.
    pub(crate) fn slot_ended(&mut self, outcome: &Checked, now_s: i64) {
        self.current = None;
        let Checked::Read(summary, error) = outcome else { return };
        self.ended_at_s = now_s;
        self.findings.retain(|known| known.summary.slot != summary.slot);
        let damage = error.as_ref().map(Error::to_string);
        self.findings.push(Finding { summary: *summary, at_s: now_s, damage });
    }

    /// Lets the pass end after the slot that is being checked. The results so far remain.
    pub(crate) fn cut_short(&mut self) {
        self.waiting.clear();
    }

    /// The finding of the last check of this snapshot; `None` if this snapshot was not checked yet.
    pub(crate) fn finding(&self, summary: &SlotSummary) -> Option<&Finding> {
        let is_of = |known: &&Finding| {
            known.summary == *summary
                || (is_planted("stale-finding") && known.summary.slot == summary.slot)
        };
        self.findings.iter().find(is_of)
    }

    /// The damage that the last check of this snapshot has found; `None` if it has found none, or
    /// if this snapshot was not checked yet.
    pub(crate) fn damage(&self, summary: &SlotSummary) -> Option<&str> {
        self.finding(summary)?.damage.as_deref()
    }
}
