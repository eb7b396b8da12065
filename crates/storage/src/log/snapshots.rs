//! The log's part in snapshots: when a snapshot may begin, when it may be adopted, and whether the
//! log goes on from it.
//!
//! The invariant: a snapshot is adopted only when every record that it needs is durable. A snapshot
//! needs the records up to its LSN. A fuzzy snapshot lacks some changes that were made while it was
//! taken. For these it also needs all records that were appended before it was finished. So no
//! power loss can undo anything that an adopted snapshot holds.

use slimio_planted::is_planted;

use super::Log;
use super::space::UnusedSpace;
use crate::keeper::Adoption;
use crate::snapshot::SnapshotPlan;
use crate::{Lsn, SlotCheck, SlotName, SlotSummary, SnapshotKind, Snapshots};

/// Whether the log is on: whether records are appended, and whether recovery will apply them.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogState {
    /// The state of `appendonly yes`: records are appended, and recovery applies them.
    On,
    /// The log is about to end. Nothing is appended, and no write is acknowledged before the log is
    /// [`Off`](Self::Off).
    Ending,
    /// The state of `appendonly no`: nothing is appended. Recovery reads the root (the snapshot
    /// that recovery starts from), and the log up to its end.
    Off,
    /// Records are appended, but recovery ignores them until a WAL-snapshot that was begun in this
    /// state is adopted. Until the adoption, a restart may lose these records.
    Resuming,
}

/// The outcome of a finished snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SnapshotEvent {
    /// The snapshot was adopted into its role.
    Adopted(SlotSummary),
    /// The snapshot was dropped as useless. Either the log already starts after the snapshot, or
    /// the snapshot is fuzzy and the log ended before the snapshot was finished.
    Obsolete(SlotSummary),
}

/// The log's knowledge of the snapshots.
#[derive(Debug)]
pub(super) struct SnapshotStage {
    /// The snapshots in the superblock in force.
    known: Snapshots,
    /// The number of the snapshot that was begun last.
    number: u64,
    running: Option<SnapshotPlan>,
    finished: Option<SlotSummary>,
    /// Whether the adoption of the running or finished snapshot turns the log on. The log must have
    /// been resuming when the snapshot was begun, and must not have been ended since. Then every
    /// command since the snapshot's beginning was logged.
    does_resume: bool,
    event: Option<SnapshotEvent>,
    /// Number of readers of each slot. A slot that is being read must not be written.
    pins: [u32; crate::layout::SLOT_COUNT],
    is_log_wanted: bool,
    /// The LSN at which the log is to end, if it is ending.
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

    /// The log must be durable up to this LSN before it can end, and before the finished snapshot
    /// can be adopted.
    pub(super) fn needs_durable(&self) -> Lsn {
        let finished = self.finished.map_or(Lsn(0), |finished| {
            if is_planted("needed-unasked") { finished.lsn } else { finished.consistent_lsn }
        });
        self.ending.unwrap_or_default().max(finished)
    }
}

impl Log {
    /// Plans a snapshot of the data set as it is now, with the effects of everything appended so
    /// far. If the state is [`LogState::On`], a WAL-snapshot is [fuzzy](SnapshotPlan::is_fuzzy).
    /// The caller hands the plan to a [`SlotWriter`](crate::SlotWriter), and the writer's result to
    /// [`adopt`](Self::adopt) or [`snapshot_failed`](Self::snapshot_failed). Only one snapshot is
    /// under way at a time. `created_ms` is the present time, in milliseconds since 1970.
    ///
    /// `None` if a snapshot is under way already, if all reserves (slots without a snapshot) are
    /// [pinned](Self::pin), if the log has latched, or if the log
    /// [gives back space](Self::give_back_space). Also `None` for a WAL-snapshot that would begin
    /// too early to turn the log on: the log is to be resumed, but is still ending.
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

    /// The slot of the next snapshot. It is the reserve that already has the most blocks, because
    /// the volume may have no free blocks to make a shorter slot longer.
    pub(super) fn next_slot(&self) -> Option<SlotName> {
        self.longest_reserve(|_, held| match held {
            Some(held) if is_planted("overwrite-root") => held.kind == SnapshotKind::Wal,
            held => held.is_none(),
        })
    }

    /// The slot of the snapshot that is under way, and the slot of the snapshot after it.
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

    /// The longest slot that nobody reads and that may be overwritten. `may_overwrite` is called
    /// with a slot and the snapshot in it.
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

    /// Adopts the snapshot under way as soon as possible. The snapshot must be written and stable
    /// by now. [`take_snapshot_event`](Self::take_snapshot_event) returns the outcome.
    ///
    /// If the snapshot is fuzzy, the records of all commands that ran before the end of its capture
    /// must have been appended.
    ///
    /// # Panics
    /// If another snapshot, or none, is under way.
    pub fn adopt(&mut self, mut summary: SlotSummary) {
        let running = self.snapshots.running.take().expect("a snapshot is under way");
        assert_eq!(
            (running.number, running.slot),
            (summary.number, summary.slot),
            "the summary is of the snapshot under way"
        );
        if running.is_fuzzy {
            summary.consistent_lsn = self.appended;
            if self.log_state() != LogState::On && !is_planted("fuzzy-behind-the-end") {
                // After the log ended, values that the snapshot lacks may have been overwritten by
                // commands that were not logged.
                self.snapshots.event = Some(SnapshotEvent::Obsolete(summary));
                return;
            }
        }
        self.snapshots.finished = Some(summary);
    }

    /// Notes that the snapshot that is being written has failed or was cancelled. The volume still
    /// holds what it held before. A finished snapshot can't fail any more.
    pub fn snapshot_failed(&mut self) {
        if self.snapshots.running.take().is_some() {
            self.snapshots.does_resume = false;
        }
    }

    /// Returns the outcome of the snapshot that was finished last. Each outcome is returned once.
    pub fn take_snapshot_event(&mut self) -> Option<SnapshotEvent> {
        self.snapshots.event.take()
    }

    /// The snapshots that the superblock in force lists.
    pub fn snapshots(&self) -> &Snapshots {
        &self.snapshots.known
    }

    /// Protects a slot from being written while it is read. Each call needs an
    /// [`unpin`](Self::unpin).
    pub fn pin(&mut self, slot: SlotName) {
        self.snapshots.pins[slot.index()] += 1;
    }

    /// Whether all reserves are pinned, and nothing else keeps a snapshot from being begun.
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

    /// Undoes one [`pin`](Self::pin).
    ///
    /// # Panics
    /// If the slot is not pinned.
    pub fn unpin(&mut self, slot: SlotName) {
        let pins = &mut self.snapshots.pins[slot.index()];
        *pins = pins.checked_sub(1).expect("the slot is pinned");
    }

    /// Begins to check the snapshot in a slot, a small piece at a time; `None` if the slot holds no
    /// snapshot. If the check finds damage, compare with [`snapshots`](Self::snapshots), which says
    /// whether the slot still holds the snapshot that was checked.
    pub fn check(&self, slot: SlotName) -> Option<SlotCheck> {
        let held = self.snapshots.known.get(slot)?;
        Some(SlotCheck::new(self.volume_id, *held, 1))
    }

    /// Whether the log is on: whether records are appended, and whether recovery will apply them.
    pub fn log_state(&self) -> LogState {
        let stage = &self.snapshots;
        match stage.known.log_end() {
            _ if stage.ending.is_some() => LogState::Ending,
            None => LogState::On,
            Some(_) if stage.is_log_wanted => LogState::Resuming,
            Some(_) => LogState::Off,
        }
    }

    /// Whether the log is on or is to be on. The last call of [`end`](Self::end) or
    /// [`resume`](Self::resume) decides. [`log_state`](Self::log_state) may follow only later.
    pub fn is_wanted(&self) -> bool {
        self.snapshots.is_log_wanted
    }

    /// Ends the log after the last record that was appended, for `appendonly no`. From this call on
    /// nothing may be appended. Commands that run while the log is ending are acknowledged when the
    /// state is [`LogState::Off`].
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

    /// Resumes the log, for `appendonly yes`. As soon as the state is [`LogState::Resuming`],
    /// records may be appended again. Once a WAL-snapshot that was begun in this state is adopted,
    /// the state is [`LogState::On`], and recovery will apply these records. If the snapshot fails,
    /// another one may be begun.
    pub fn resume(&mut self) {
        self.snapshots.is_log_wanted = true;
    }

    /// The LSN at which the log is to end, if the log is durable up to there. Then the keeper can
    /// end the log.
    pub(super) fn end_due(&self) -> Option<Lsn> {
        self.snapshots.ending.filter(|&lsn| lsn <= self.durable || is_planted("end-log-undurable"))
    }

    /// The adoption of the finished snapshot, if it is due. A useless snapshot is dropped.
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

    /// Whether the snapshot under way will make room: its adoption lets the log start after the
    /// snapshot.
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
            // The log may have been asked to start at `release_to`, where the data set was empty.
            // But the adopted snapshot may have the same LSN, and may hold data that was written
            // while the log was off. So the log must no longer start there without a snapshot.
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
        // Everything before the log's end is written. Records that are appended after a resume must
        // not share a batch with records before this end. So the tail, which is the last batch,
        // stops growing.
        if !is_planted("tail-behind-the-end") {
            self.tail = None;
        }
    }
}
