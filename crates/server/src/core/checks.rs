//! When the snapshots on the volume are checked, and what follows when one is damaged; what becomes
//! of the reserves, and of a snapshot without room.
//!
//! A damaged root is replaced unasked, by a WAL-snapshot: what is in memory is whole, the volume
//! could not be opened after the next restart, and a new snapshot is written to the reserve, so
//! nothing that could still be read is overwritten before it is in its place. A damaged point in
//! time cannot be made again: it is left as it is, and said.

use std::time::Instant;

use slimio_device::{DeviceError, LBA_SIZE};
use slimio_planted::is_planted;
use slimio_storage::{Error, SlotName, SlotSummary, SnapshotKind};

use super::Core;
use crate::snapshot::{Checked, SnapshotThread};

/// Why no pass was begun.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NotChecked {
    /// There is no volume.
    NoVolume,
    /// The volume holds no snapshot.
    NoSnapshot,
    /// `snapshot-check-rate` is 0.
    Off,
    /// A pass is under way.
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

    /// Begins the pass that is due. Once per round of background work.
    pub(super) fn schedule_check(&mut self) {
        if self.next_check_at().is_some_and(|at| at <= self.now) {
            // When there is nothing to check yet, there may be at the next time.
            let _ = self.begin_check();
        }
    }

    /// When the next pass begins unasked.
    pub(super) fn next_check_at(&self) -> Option<Instant> {
        let is_on = self.settings.check_rate > 0 && self.snapshots.thread.is_some();
        (is_on && !self.snapshots.checks.is_running()).then_some(self.snapshots.checks.next_pass)
    }

    /// `snapshot-check-rate` may have changed.
    pub(crate) fn check_rate_changed(&mut self) {
        let rate = self.settings.check_rate;
        if let Some(thread) = &self.snapshots.thread {
            thread.set_check_rate(rate);
        }
        if rate == 0 {
            self.snapshots.checks.cut_short();
        }
    }

    /// Takes in what was found, and hands over the next slot. Once per turn.
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

    /// Blocks that the data set takes in memory: no snapshot of it is longer.
    fn memory_lbas(&self) -> u64 {
        self.keyspace.used_bytes() as u64 / LBA_SIZE as u64
    }

    /// Lets the log on a device leave room for a snapshot of the present data set. Before the log
    /// may ask for more.
    pub(crate) fn leave_room_for_snapshot(&self) {
        if let Some(wal) = &self.wal {
            wal.log().leave_room_for_snapshot(self.memory_lbas());
        }
    }

    /// On a device, the log may have the room that a `BGSAVE` lacks, and gives it back when it is
    /// rewritten: puts the snapshot that failed behind that, once. True when it did.
    pub(super) fn goes_behind_rewrite(&mut self, error: &Error) -> bool {
        let lacks_room = matches!(error, Error::Device { error: DeviceError::NoSpace, .. });
        let is_on_device = self.wal.as_ref().is_some_and(|wal| wal.log().pool().is_some());
        let is_first =
            self.snapshots.runs(SnapshotKind::OnDemand) && !self.snapshots.is_behind_rewrite;
        if !(lacks_room && is_on_device && is_first && self.is_log_on()) {
            return false;
        }
        self.give_up("the log has its room, and is rewritten first");
        self.snapshots.is_behind_rewrite = true;
        self.snapshots.rewrites.is_scheduled = true;
        true
    }

    /// Lets what the reserves have far beyond need go back to the file system. Whenever one has become
    /// a reserve, and at the start.
    pub(crate) fn shorten_reserves(&self) {
        let (Some(thread), Some(wal)) = (&self.snapshots.thread, &self.wal) else { return };
        let held = wal.log().snapshots();
        let longest = held.all().map(|summary| summary.len_lbas).max().unwrap_or(0);
        // What has come to memory since will be in the next one.
        let memory_lbas = self.memory_lbas();
        for slot in SlotName::ALL {
            let is_held = held.get(slot).is_some() && !is_planted("shorten-held");
            let is_pinned = self.snapshots.pins.iter().any(|(_, pinned)| *pinned == slot);
            if !is_held && !is_pinned {
                thread.shorten_reserve(slot, longest.max(memory_lbas));
            }
        }
    }

    /// Says what is wrong with a snapshot that is held, and what comes of it.
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

    /// Whether a WAL-snapshot is needed that nobody has to ask for, and is not yet being taken.
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
