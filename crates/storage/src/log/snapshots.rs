//! Snapshots as the log sees them: when one may be begun, when it may be adopted, and whether there
//! is a log behind it.
//!
//! The invariant: a snapshot is adopted only when every record that it needs is durable: up to its
//! LSN, or for a fuzzy one up to the last record appended when it was finished. So no power cut can
//! undo anything that it holds.

use slimio_planted::is_planted;

use super::Log;
use super::space::UnusedSpace;
use crate::keeper::Adoption;
use crate::snapshot::SnapshotPlan;
use crate::{Lsn, SlotCheck, SlotName, SlotSummary, SnapshotKind, Snapshots};

/// Whether records count.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogState {
    /// Every record counts: `appendonly yes`.
    On,
    /// The log is about to end: nothing is appended, and no write is acknowledged before it is
    /// [`Off`](Self::Off).
    Ending,
    /// Nothing is appended: `appendonly no`. Recovery reads the root, and the log up to its end.
    Off,
    /// Records are appended, but count only when a WAL-snapshot that was begun since has been
    /// adopted. Nothing is promised until then.
    Resuming,
}

/// The outcome of a finished snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotEvent {
    /// It was adopted into its role.
    Adopted(SlotSummary),
    /// It is useless: the log already starts behind it, or it is fuzzy and the log ended meanwhile.
    Obsolete(SlotSummary),
}

/// What the log knows of snapshots.
#[derive(Debug)]
pub(super) struct SnapshotStage {
    /// The snapshots in the superblock in force.
    known: Snapshots,
    /// Number of the last snapshot begun.
    number: u64,
    running: Option<SnapshotPlan>,
    finished: Option<SlotSummary>,
    /// Whether the snapshot that is running or finished turns the log on: it was begun with every
    /// record behind it appended.
    does_resume: bool,
    event: Option<SnapshotEvent>,
    /// Readers of each slot; a slot that is being read must not be written.
    pins: [u32; crate::layout::SLOT_COUNT],
    is_log_wanted: bool,
    /// Where the log is to end.
    ending: Option<Lsn>,
}

impl SnapshotStage {
    pub(super) fn new(known: &Snapshots) -> Self {
        Self {
            known: *known,
            number: known.newest_number(),
            running: None,
            finished: None,
            does_resume: false,
            event: None,
            pins: [0; crate::layout::SLOT_COUNT],
            is_log_wanted: known.log_end().is_none(),
            ending: None,
        }
    }

    /// The log must be durable up to here before it can end, or the finished snapshot be adopted.
    pub(super) fn needs_durable(&self) -> Lsn {
        let finished = self.finished.map_or(Lsn(0), |finished| {
            if is_planted("needed-unasked") { finished.lsn } else { finished.consistent_lsn }
        });
        self.ending.unwrap_or_default().max(finished)
    }
}

impl Log {
    /// Plans a snapshot of the data set as it is now: it holds the effects of everything appended
    /// so far. A WAL-snapshot of a log that goes on may be [fuzzy](SnapshotPlan::is_fuzzy). The
    /// plan goes to a [`SlotWriter`](crate::SlotWriter), whose result comes back through
    /// [`adopt`](Self::adopt) or [`snapshot_failed`](Self::snapshot_failed); there is one snapshot
    /// at a time. `created_ms` is the time now, in milliseconds since 1970.
    ///
    /// `None` when a snapshot is under way already, when all reserves are [pinned](Self::pin), or
    /// when the log has latched or [gives back space](Self::give_back_space); also for a WAL-snapshot
    /// while a log that is to be resumed is still ending: it would not turn the log on.
    pub fn begin_snapshot(&mut self, kind: SnapshotKind, created_ms: u64) -> Option<SnapshotPlan> {
        let stage = &self.snapshots;
        if stage.running.is_some() || stage.finished.is_some() || self.latch.is_some() {
            return None;
        }
        if self.unused_space == UnusedSpace::Wanted {
            return None;
        }
        let is_too_early = self.log_state() == LogState::Ending && stage.is_log_wanted;
        if kind == SnapshotKind::Wal && is_too_early && !is_planted("resume-too-early") {
            return None;
        }
        let slot = self.next_slot()?;
        let does_resume = kind == SnapshotKind::Wal && self.log_state() == LogState::Resuming;
        let plan = SnapshotPlan {
            slot,
            kind,
            lsn: self.appended,
            is_fuzzy: kind == SnapshotKind::Wal
                && (self.log_state() == LogState::On || is_planted("fuzzy-without-log")),
            created_ms,
            volume_id: self.volume_id,
            epoch: self.epoch,
            number: stage.number + 1,
            superblock_sequence: self.superblock_sequence,
        };
        let stage = &mut self.snapshots;
        stage.number += 1;
        stage.does_resume = does_resume;
        stage.running = Some(plan);
        if let Some(pool) = &self.pool {
            pool.set_running(Some((slot, kind)));
        }
        Some(plan)
    }

    /// The slot of the next snapshot: the reserve that already has the most blocks, for there may be
    /// no more.
    pub(super) fn next_slot(&self) -> Option<SlotName> {
        self.longest_reserve(|_, held| match held {
            Some(held) if is_planted("overwrite-root") => held.kind == SnapshotKind::Wal,
            held => held.is_none(),
        })
    }

    /// The slot of the snapshot that is under way, and the one that will be written behind that.
    pub(super) fn writing_slot(&self) -> Option<(SlotName, Option<SlotName>)> {
        let stage = &self.snapshots;
        let running = stage.running.as_ref().map(|plan| (plan.slot, plan.kind));
        let finished = stage.finished.map(|summary| (summary.slot, summary.kind));
        let (slot, kind) = running.or(finished)?;
        let next = self.longest_reserve(|other, held| {
            other != slot && held.is_none_or(|held| held.kind == kind)
        });
        Some((slot, next))
    }

    /// The longest slot that nobody reads and that holds what `may_overwrite` allows.
    fn longest_reserve(
        &self,
        may_overwrite: impl Fn(SlotName, Option<&SlotSummary>) -> bool,
    ) -> Option<SlotName> {
        let stage = &self.snapshots;
        let is_free = |slot: &SlotName| {
            may_overwrite(*slot, stage.known.get(*slot)) && stage.pins[slot.index()] == 0
        };
        let reserves = SlotName::ALL.into_iter().filter(is_free);
        reserves.rev().max_by_key(|slot| self.slot_lbas(*slot))
    }

    /// The snapshot that is being written.
    pub fn running_snapshot(&self) -> Option<&SnapshotPlan> {
        self.snapshots.running.as_ref()
    }

    /// The snapshot under way is written and stable: adopts it as soon as possible.
    /// [`take_snapshot_event`](Self::take_snapshot_event) returns the outcome.
    ///
    /// For a fuzzy one, everything done until the end of its capture must have been appended.
    ///
    /// # Panics
    /// When another one, or none, is under way.
    pub fn adopt(&mut self, mut summary: SlotSummary) {
        let running = self.snapshots.running.take().expect("a snapshot is under way");
        assert_eq!(
            (running.number, running.slot),
            (summary.number, summary.slot),
            "it is this one"
        );
        if running.is_fuzzy {
            summary.consistent_lsn = self.appended;
            if self.log_state() != LogState::On && !is_planted("fuzzy-behind-the-end") {
                // Values that it lacks may have been overwritten behind the end, and not been
                // logged.
                self.snapshots.event = Some(SnapshotEvent::Obsolete(summary));
                return;
            }
        }
        self.snapshots.finished = Some(summary);
    }

    /// The snapshot that is being written has failed or was cancelled. Nothing has changed on the
    /// volume. One that is finished can't fail any more.
    pub fn snapshot_failed(&mut self) {
        if self.snapshots.running.take().is_some() {
            self.snapshots.does_resume = false;
        }
    }

    /// The outcome of the snapshot that was finished last; returned once.
    pub fn take_snapshot_event(&mut self) -> Option<SnapshotEvent> {
        self.snapshots.event.take()
    }

    /// Which snapshots there are, as the superblock in force says.
    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots.known
    }

    /// Keeps a slot from being written while it is read. Each call needs an [`unpin`](Self::unpin).
    pub fn pin(&mut self, slot: SlotName) {
        self.snapshots.pins[slot.index()] += 1;
    }

    /// Whether only pins keep a snapshot from being begun.
    pub fn lacks_pinned(&self) -> bool {
        let stage = &self.snapshots;
        let is_idle = stage.running.is_none()
            && stage.finished.is_none()
            && self.latch.is_none()
            && self.unused_space == UnusedSpace::Kept;
        let mut reserves =
            SlotName::ALL.into_iter().filter(|&slot| stage.known.get(slot).is_none());
        is_idle && reserves.all(|slot| stage.pins[slot.index()] > 0)
    }

    /// Takes back one [`pin`](Self::pin).
    ///
    /// # Panics
    /// When it is not pinned.
    pub fn unpin(&mut self, slot: SlotName) {
        let pins = &mut self.snapshots.pins[slot.index()];
        *pins = pins.checked_sub(1).expect("it is pinned");
    }

    /// Begins to check the snapshot in a slot, a small piece at a time; `None` when there is none.
    /// When damage is found, [`snapshots`](Self::snapshots) says whether the slot still holds that
    /// snapshot.
    pub fn check(&self, slot: SlotName) -> Option<SlotCheck> {
        let held = self.snapshots.known.get(slot)?;
        Some(SlotCheck::new(self.volume_id, *held, 1))
    }

    /// Whether records count.
    pub fn log_state(&self) -> LogState {
        let stage = &self.snapshots;
        match stage.known.log_end() {
            _ if stage.ending.is_some() => LogState::Ending,
            None => LogState::On,
            Some(_) if stage.is_log_wanted => LogState::Resuming,
            Some(_) => LogState::Off,
        }
    }

    /// Whether the log goes on, or will: which of [`end`](Self::end) and [`resume`](Self::resume)
    /// was called last. Both may take their time.
    pub fn is_wanted(&self) -> bool {
        self.snapshots.is_log_wanted
    }

    /// `appendonly no`: ends the log behind the last record appended. From here on nothing may be
    /// appended; commands that run meanwhile are acknowledged when the state is [`LogState::Off`].
    pub fn end(&mut self) {
        if !std::mem::take(&mut self.snapshots.is_log_wanted) {
            return;
        }
        // Commands that are not in the log may run from here on.
        if !is_planted("resume-gap") {
            self.snapshots.does_resume = false;
        }
        self.snapshots.ending = Some(self.appended);
    }

    /// `appendonly yes`: as soon as the state is [`LogState::Resuming`], everything is appended
    /// again. It counts once a WAL-snapshot that was begun in that state is adopted: the state is
    /// then [`LogState::On`]. Should it fail, another one may be begun.
    pub fn resume(&mut self) {
        self.snapshots.is_log_wanted = true;
    }

    /// Where the log ends, when the job that ends it is due.
    pub(super) fn end_due(&self) -> Option<Lsn> {
        self.snapshots.ending.filter(|&lsn| lsn <= self.durable || is_planted("end-log-undurable"))
    }

    /// The adoption of the finished snapshot, when it is due. A useless snapshot is dropped.
    pub(super) fn adoption_due(&mut self) -> Option<Adoption> {
        let summary = self.snapshots.finished?;
        let needed =
            if is_planted("needed-undurable") { summary.lsn } else { summary.consistent_lsn };
        if needed > self.durable && !is_planted("adopt-undurable") {
            return None;
        }
        if summary.kind == SnapshotKind::OnDemand && self.snapshots.known.log_end().is_none() {
            return Some(Adoption { summary, start: None, continues_log: false });
        }
        let Some(start) = self.segments.start_at(summary.lsn) else {
            self.snapshots.finished = None;
            self.snapshots.event = Some(SnapshotEvent::Obsolete(summary));
            return None;
        };
        let continues_log = self.snapshots.does_resume;
        Some(Adoption { summary, start: Some(start), continues_log })
    }

    /// Whether a snapshot is under way whose adoption lets the log start behind it.
    pub(super) fn is_room_coming(&self) -> bool {
        let stage = &self.snapshots;
        let running = stage.running.as_ref().map(|plan| (plan.kind, plan.lsn));
        let finished = stage.finished.map(|summary| (summary.kind, summary.lsn));
        running.or(finished).is_some_and(|(kind, lsn)| {
            kind == SnapshotKind::Wal && self.segments.start_behind(lsn).is_some()
        })
    }

    /// Takes over the snapshots of the superblock that is now in force.
    pub(super) fn snapshots_changed(&mut self, known: &Snapshots) {
        self.snapshots.known = *known;
        if let Some(pool) = &self.pool {
            pool.set_snapshots(known);
        }
    }

    pub(super) fn adopted(&mut self, adoption: &Adoption) {
        if let Some(start) = adoption.start {
            self.segments.released(start);
            // The data set was empty at `release_to`, but this snapshot may hold data at the same
            // LSN, written while the log was off.
            if self.release_to <= start.lsn && !is_planted("release-drops-new-root") {
                self.release_to = Lsn(0);
            }
        }
        self.snapshots.finished = None;
        self.snapshots.does_resume = false;
        self.snapshots.event = Some(SnapshotEvent::Adopted(adoption.summary));
    }

    pub(super) fn ended(&mut self) {
        self.snapshots.ending = None;
        // Everything before the end is written. Records appended after a resume must not share a
        // batch with it, so the tail stops growing.
        if !is_planted("tail-behind-the-end") {
            self.tail = None;
        }
    }
}
