//! Schedules the checks of the snapshots on the volume, and reacts to damage. Also shortens the
//! reserves (the slots for the next snapshots), and retries a snapshot that lacked space on the
//! volume.
//!
//! If the root (the snapshot that the next start loads) is damaged, the volume cannot be opened at
//! the next start. So a WAL-snapshot replaces the root automatically. This works because the data
//! in memory is intact. The new snapshot is written to the reserve, so no readable snapshot is
//! overwritten before the new one is adopted. A damaged on-demand snapshot is only reported,
//! because its point in time is past and cannot be taken again.

use std::time::Instant;

use slimio_device::{DeviceError, LBA_SIZE};
use slimio_planted::is_planted;
use slimio_storage::{Error, SlotName, SlotSummary, SnapshotKind};

use super::Engine;
use crate::snapshot::{Checked, SnapshotThread};

/// The size of the next snapshot is estimated from the last snapshot. The estimate is multiplied by
/// this safety factor.
const MARGIN: f64 = 1.25;
/// Number of LBAs that are added to the estimate after the multiplication.
const LBAS_BESIDE: u64 = (1 << 20) / LBA_SIZE as u64;

/// Why no pass of the check was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotChecked {
    NoVolume,
    NoSnapshot,
    /// `snapshot-check-rate` is 0.
    Off,
    Running,
}

impl Engine {
    /// Begins a pass of the check over the snapshots in the slots.
    pub(crate) fn begin_check(&mut self) -> Result<(), NotChecked> {
        let Some(wal) = self.gate.wal.as_ref().filter(|_| self.snapshots.thread.is_some()) else {
            return Err(NotChecked::NoVolume);
        };
        if self.settings.check_rate == 0 {
            return Err(NotChecked::Off);
        }
        if self.snapshots.checks.is_running() {
            return Err(NotChecked::Running);
        }
        self.snapshots.checks.begin(wal.log().snapshots(), self.clock.now);
        if self.snapshots.checks.is_running() { Ok(()) } else { Err(NotChecked::NoSnapshot) }
    }

    /// Begins a pass if one is due. Called once per round of background work.
    pub(crate) fn schedule_check(&mut self) {
        if self.next_check_at().is_some_and(|at| at <= self.clock.now) {
            // An error is ignored: if there is nothing to check yet, the next round tries again.
            let _ = self.begin_check();
        }
    }

    /// When the next pass begins by itself.
    pub(crate) fn next_check_at(&self) -> Option<Instant> {
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

    /// Takes the results of the check, and hands the next slots to the snapshot thread. Called once
    /// per turn.
    pub(crate) fn drive_check(&mut self) {
        while let Some(outcome) = self.snapshots.thread.as_ref().and_then(SnapshotThread::checked) {
            if let Checked::Read(summary, Some(error)) = &outcome {
                self.found_damage(summary, error);
            }
            self.snapshots.checks.slot_ended(&outcome, self.clock.now_ms / 1000);
        }
        let (Some(thread), Some(wal)) = (&self.snapshots.thread, &self.gate.wal) else { return };
        while let Some(slot) = self.snapshots.checks.next_slot() {
            // If the slot has become the reserve since the pass was begun, the slot is skipped.
            if let Some(check) = wal.log().check(slot) {
                self.snapshots.checks.slot_begun(slot);
                thread.check(check);
            }
        }
    }

    /// The size of the data set in memory, in LBAs. No snapshot of the data set is longer.
    pub(super) fn memory_lbas(&self) -> u64 {
        self.data.keyspace.used_bytes() as u64 / LBA_SIZE as u64
    }

    /// Upper bound of the LBAs of a snapshot of the data set. If the slots are files, the bound
    /// assumes that the values compress as well as the values of the last snapshot did.
    pub(super) fn snapshot_lbas_max(&self) -> u64 {
        let memory_lbas = self.memory_lbas();
        let is_on_device = self.gate.wal.as_ref().is_some_and(|wal| wal.log().pool().is_some());
        match self.snapshots.lbas_per_byte {
            Some(per_byte) if !is_on_device && self.settings.compresses => {
                let likely = (memory_lbas * LBA_SIZE as u64) as f64 * per_byte * MARGIN;
                memory_lbas.min(likely as u64 + LBAS_BESIDE)
            }
            _ => memory_lbas,
        }
    }

    /// Makes the log leave room for a snapshot of the present data set. Called before the log may
    /// take more room.
    pub(crate) fn leave_room_for_snapshot(&mut self) {
        let lbas_max = self.snapshot_lbas_max();
        let (Some(wal), Some(thread)) = (&mut self.gate.wal, &self.snapshots.thread) else {
            return;
        };
        wal.log_mut().leave_room_for_snapshot(lbas_max, thread.slot_lbas());
    }

    /// If a `BGSAVE` found no space, postpones it until the log has been rewritten, because a
    /// rewrite may release space. Postpones each `BGSAVE` only once. Returns whether the `BGSAVE`
    /// was postponed.
    pub(super) fn goes_behind_rewrite(&mut self, error: &Error) -> bool {
        let is_first =
            self.snapshots.runs(SnapshotKind::OnDemand) && !self.snapshots.is_behind_rewrite;
        if !(lacks_space(error) && is_first && self.gate.is_log_on()) {
            return false;
        }
        self.give_up("the volume lacks space for it; the log is rewritten first");
        self.snapshots.is_behind_rewrite = true;
        self.snapshots.rewrites.is_scheduled = true;
        true
    }

    /// If the running snapshot found no space, makes the log give back its unused segments, and
    /// schedules a second try. (The log normally keeps these segments, so that they need not be
    /// zeroed again.) Returns whether there will be a second try.
    pub(super) fn goes_with_more_space(&mut self, error: &Error) -> bool {
        let Some(running) = &self.snapshots.running else { return false };
        let kind = running.kind;
        let is_short = lacks_space(error);
        let history = self.snapshots.of_mut(kind);
        let is_second = std::mem::take(&mut history.is_second_try);
        let Some(wal) = self.gate.wal.as_mut().filter(|_| is_short && !is_second) else {
            return false;
        };
        if !wal.log_mut().give_back_space() {
            return false;
        }
        self.give_up("the volume lacks space for it; the log first gives back unused space");
        let history = self.snapshots.of_mut(kind);
        history.is_second_try = true;
        history.is_scheduled = true;
        true
    }

    /// If the reserves have far more space than they need, returns the surplus to the file system.
    /// Called at the start, and whenever a slot has become a reserve.
    pub(crate) fn shorten_reserves(&self) {
        let (Some(thread), Some(wal)) = (&self.snapshots.thread, &self.gate.wal) else { return };
        let held = wal.log().snapshots();
        let longest = held.all().map(|summary| summary.len_lbas).max().unwrap_or(0);
        // The next snapshot also holds the data that has been added to memory since the last one.
        let memory_lbas = self.memory_lbas();
        for slot in SlotName::ALL {
            let is_held = held.get(slot).is_some() && !is_planted("shorten-held");
            let is_pinned = self.snapshots.pins.iter().any(|(_, pinned)| *pinned == slot);
            if !is_held && !is_pinned {
                thread.shorten_reserve(slot, longest.max(memory_lbas));
            }
        }
    }

    /// Logs what is wrong with a snapshot on the volume, and the remedy.
    fn found_damage(&self, summary: &SlotSummary, error: &Error) {
        let Some(wal) = &self.gate.wal else { return };
        let held = wal.log().snapshots();
        if held.get(summary.slot) != Some(summary) {
            // The snapshot was replaced while it was checked.
            return;
        }
        let remedy = if held.root() != Some(summary) {
            "the next start does not need this snapshot; BGSAVE replaces it"
        } else if self.gate.is_latched() {
            "the log has stopped, so no new snapshot can replace this one, and the volume can't \
             be opened again as it is. Copy the data to another server before this server ends"
        } else {
            "the data in memory is intact, and a new WAL-snapshot replaces this snapshot. Check \
             the device and the kernel's messages"
        };
        log::warn!("the check of the snapshots has found: {error}; {remedy}");
    }

    /// Whether a WAL-snapshot must be begun although nobody asked for one. False if a snapshot is
    /// running, or if the log has stopped.
    pub(crate) fn needs_rewrite(&self) -> bool {
        let is_needed = self.is_root_damaged() || self.gate.is_log_resuming();
        is_needed && self.snapshots.running.is_none() && !self.gate.is_latched()
    }

    /// Whether the root is known to be damaged, so that the volume could not be opened again.
    pub(super) fn is_root_damaged(&self) -> bool {
        let root = self.gate.wal.as_ref().and_then(|wal| wal.log().snapshots().root());
        root.is_some_and(|root| self.snapshots.checks.damage(root).is_some())
    }
}

/// Whether a snapshot has failed because there is no space for it on the volume.
pub(super) fn lacks_space(error: &Error) -> bool {
    matches!(error, Error::Device { error: DeviceError::NoSpace, .. })
}
