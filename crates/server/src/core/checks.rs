//! Schedules the checks of the snapshots on the volume and reacts to damage; shortens the reserves,
//! and retries a snapshot that lacked room.
//!
//! A damaged root is replaced automatically, by a WAL-snapshot: the data in memory is whole, the
//! volume could not be opened at the next start, and the new snapshot goes to the reserve, so
//! nothing readable is overwritten before it is adopted. A damaged on-demand snapshot cannot be
//! taken again: it is left as it is, and reported.

use std::time::Instant;

use slimio_device::{DeviceError, LBA_SIZE};
use slimio_planted::is_planted;
use slimio_storage::{Error, SlotName, SlotSummary, SnapshotKind};

use super::Core;
use crate::snapshot::{Checked, SnapshotThread};

/// Factor on what a snapshot will likely take, by the last one.
const MARGIN: f64 = 1.25;
/// LBAs that it may take besides, whatever its size.
const LBAS_BESIDE: u64 = (1 << 20) / LBA_SIZE as u64;

/// Why no pass was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotChecked {
    NoVolume,
    NoSnapshot,
    /// `snapshot-check-rate` is 0.
    Off,
    Running,
}

impl Core {
    /// Begins a pass over what the slots hold.
    pub(crate) fn begin_check(&mut self) -> Result<(), NotChecked> {
        let Some(wal) = self.wal.as_ref().filter(|_| self.snapshots.thread.is_some()) else {
            return Err(NotChecked::NoVolume);
        };
        if self.settings.check_rate == 0 {
            return Err(NotChecked::Off);
        }
        if self.snapshots.checks.is_running() {
            return Err(NotChecked::Running);
        }
        self.snapshots.checks.begin(wal.log().snapshots(), self.now);
        if self.snapshots.checks.is_running() { Ok(()) } else { Err(NotChecked::NoSnapshot) }
    }

    /// Begins a pass if one is due. Called once per round of background work.
    pub(super) fn schedule_check(&mut self) {
        if self.next_check_at().is_some_and(|at| at <= self.now) {
            // If there is nothing to check yet, there may be the next time.
            let _ = self.begin_check();
        }
    }

    /// When the next pass begins by itself.
    pub(super) fn next_check_at(&self) -> Option<Instant> {
        let is_on = self.settings.check_rate > 0 && self.snapshots.thread.is_some();
        (is_on && !self.snapshots.checks.is_running()).then_some(self.snapshots.checks.next_pass)
    }

    /// Applies `snapshot-check-rate`, which may have changed.
    pub(crate) fn check_rate_changed(&mut self) {
        let rate = self.settings.check_rate;
        if let Some(thread) = &self.snapshots.thread {
            thread.set_check_rate(rate);
        }
        if rate == 0 {
            self.snapshots.checks.cut_short();
        }
    }

    /// Takes the results of the check, and hands over the next slots. Called once per turn.
    pub(super) fn drive_check(&mut self) {
        while let Some(outcome) = self.snapshots.thread.as_ref().and_then(SnapshotThread::checked) {
            if let Checked::Read(summary, Some(error)) = &outcome {
                self.found_damage(summary, error);
            }
            self.snapshots.checks.slot_ended(&outcome, self.now_ms / 1000);
        }
        let (Some(thread), Some(wal)) = (&self.snapshots.thread, &self.wal) else { return };
        while let Some(slot) = self.snapshots.checks.next_slot() {
            // It may have become the reserve since the pass was begun.
            if let Some(check) = wal.log().check(slot) {
                self.snapshots.checks.slot_begun(slot);
                thread.check(check);
            }
        }
    }

    /// LBAs that the data set fills in memory: no snapshot of it is longer.
    pub(super) fn memory_lbas(&self) -> u64 {
        self.keyspace.used_bytes() as u64 / LBA_SIZE as u64
    }

    /// LBAs that a snapshot of the data set will have at most, if its values can be compressed as well
    /// as those of the last one.
    pub(super) fn snapshot_lbas_max(&self) -> u64 {
        let memory_lbas = self.memory_lbas();
        let is_on_device = self.wal.as_ref().is_some_and(|wal| wal.log().pool().is_some());
        match self.snapshots.lbas_per_byte {
            Some(per_byte) if !is_on_device && self.settings.compresses => {
                let likely = (memory_lbas * LBA_SIZE as u64) as f64 * per_byte * MARGIN;
                memory_lbas.min(likely as u64 + LBAS_BESIDE)
            }
            _ => memory_lbas,
        }
    }

    /// Makes the log leave room for a snapshot of the present data set. Called before the log may ask
    /// for more.
    pub(crate) fn leave_room_for_snapshot(&mut self) {
        let lbas_max = self.snapshot_lbas_max();
        let (Some(wal), Some(thread)) = (&mut self.wal, &self.snapshots.thread) else { return };
        wal.log_mut().leave_room_for_snapshot(lbas_max, thread.slot_lbas());
    }

    /// The log may hold the room that a `BGSAVE` lacks, and releases it when it is rewritten: postpones
    /// the failed snapshot until then, once. Returns whether it did.
    pub(super) fn goes_behind_rewrite(&mut self, error: &Error) -> bool {
        let is_first =
            self.snapshots.runs(SnapshotKind::OnDemand) && !self.snapshots.is_behind_rewrite;
        if !(lacks_space(error) && is_first && self.is_log_on()) {
            return false;
        }
        self.give_up("the log has its room, and is rewritten first");
        self.snapshots.is_behind_rewrite = true;
        self.snapshots.rewrites.is_scheduled = true;
        true
    }

    /// The running snapshot found no space. The log keeps that of segments that it does not use, so
    /// that it need not be zeroed again; once that is given back, the snapshot is tried once more.
    /// Returns whether it will be.
    pub(super) fn goes_with_more_space(&mut self, error: &Error) -> bool {
        let Some(running) = &self.snapshots.running else { return false };
        let kind = running.kind;
        let is_short = lacks_space(error);
        let history = self.snapshots.of_mut(kind);
        let is_second = std::mem::take(&mut history.is_second_try);
        let Some(wal) = self.wal.as_mut().filter(|_| is_short && !is_second) else { return false };
        if !wal.log_mut().give_back_space() {
            return false;
        }
        self.give_up("it lacks space on the volume; the log gives back what it does not use");
        let history = self.snapshots.of_mut(kind);
        history.is_second_try = true;
        history.is_scheduled = true;
        true
    }

    /// Returns to the file system what the reserves have far beyond need. Called at the start, and
    /// whenever a slot has become a reserve.
    pub(crate) fn shorten_reserves(&self) {
        let (Some(thread), Some(wal)) = (&self.snapshots.thread, &self.wal) else { return };
        let held = wal.log().snapshots();
        let longest = held.all().map(|summary| summary.len_lbas).max().unwrap_or(0);
        // The next snapshot also holds what has been added to memory since.
        let memory_lbas = self.memory_lbas();
        for slot in SlotName::ALL {
            let is_held = held.get(slot).is_some() && !is_planted("shorten-held");
            let is_pinned = self.snapshots.pins.iter().any(|(_, pinned)| *pinned == slot);
            if !is_held && !is_pinned {
                thread.shorten_reserve(slot, longest.max(memory_lbas));
            }
        }
    }

    /// Logs what is wrong with a held snapshot, and the remedy.
    fn found_damage(&self, summary: &SlotSummary, error: &Error) {
        let Some(wal) = &self.wal else { return };
        let held = wal.log().snapshots();
        if held.get(summary.slot) != Some(summary) {
            // It was replaced while it was checked.
            return;
        }
        let remedy = if held.root() != Some(summary) {
            "the log and what it goes on from are not concerned; BGSAVE replaces it"
        } else if self.is_latched() {
            "the log has stopped, so that none can replace it: the volume can't be opened again as \
             it is. Copy the data to another server before this one ends"
        } else {
            "what is in memory is whole: a new WAL-snapshot replaces it. Check the device and the \
             kernel's messages"
        };
        log::warn!("the check of the snapshots has found: {error}; {remedy}");
    }

    /// Whether a WAL-snapshot is needed although nobody asked for one, and no snapshot is running.
    pub(super) fn needs_rewrite(&self) -> bool {
        let is_needed = self.is_root_damaged() || self.is_log_resuming();
        is_needed && self.snapshots.running.is_none() && !self.is_latched()
    }

    /// Whether the root is known to be damaged, so that the volume could not be opened again.
    pub(super) fn is_root_damaged(&self) -> bool {
        let root = self.wal.as_ref().and_then(|wal| wal.log().snapshots().root());
        root.is_some_and(|root| self.snapshots.checks.damage(root).is_some())
    }
}

/// Whether a snapshot has failed because there is no space for it on the volume.
pub(super) fn lacks_space(error: &Error) -> bool {
    matches!(error, Error::Device { error: DeviceError::NoSpace, .. })
}
