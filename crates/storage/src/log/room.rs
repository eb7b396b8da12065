//! Room in the log: which commands may append, and which jobs the log gives to the keeper. The
//! keeper owns the superblock, and prepares and releases segments on a thread of its own.
//!
//! The invariant: everything appended has a place in the segments. So room is counted for the worst
//! case, in which as many bytes as possible stay unused at the end of each segment. Parts of the
//! room are set aside for commands that give room back:
//!
//! ```text
//! | all writes (Free) | those that free memory (Scarce) | those that empty the data set (Last) |
//! ```
//!
//! Only commands that empty the data set may use the last share. So the data set can be emptied
//! however full the log is. The log can then start anew, without a snapshot.

use std::time::{Duration, Instant};

use slimio_device::{DeviceError, LBA_SIZE};
use slimio_planted::is_planted;

use super::space::UnusedSpace;
use super::{Log, LogState, OpenBatch};
use crate::layout::{batch, record};
use crate::{Job, LatchCause, Lsn, Outcome, Pool, Room};

/// The largest number of bytes that a fragment of a record takes beside its payload: the fragment's
/// header and, if the fragment begins a batch, the header of the batch.
const OVERHEAD: u64 = (batch::SIZE + record::SIZE) as u64;

/// Bytes set aside for commands that empty the data set. This share is enough for a few records of
/// less than a block each.
const LAST_SHARE: u64 = 4 * LBA_SIZE as u64;

/// The largest payload, in bytes, of a deletion that no client asked for. This limit applies even
/// if the log has room for more.
const UNASKED_SIZE_MAX: u64 = 1 << 30;

/// A size in bytes that is larger than any log, but small enough that adding overhead can't
/// overflow.
const PAYLOAD_SIZE_MAX: u64 = 1 << 62;

/// After the keeper fails to prepare a segment, the log waits this long before it asks again.
const PREPARE_AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Log {
    /// Whether a record with `payload_size` bytes of payload may be appended now.
    pub fn room(&mut self, payload_size: u64) -> Room {
        if self.latch.is_some() {
            return Room::Full;
        }
        let payload_size = payload_size.min(PAYLOAD_SIZE_MAX);
        let need = self.space_for(payload_size);
        let usable = self.usable();
        let is_more_coming =
            self.prepare_failed.is_none() || self.is_release_due() || self.is_room_coming();
        let fits = |open: &OpenBatch| {
            (open.buffer.len() - open.used) as u64 >= payload_size + record::SIZE as u64
        };
        let has_buffer =
            self.buffer_count == 0 || !self.free.is_empty() || self.open.as_ref().is_some_and(fits);
        // The batches that fill the buffers have a place in the segments, so a buffer will become
        // free.
        if !has_buffer {
            return Room::Wait;
        }
        if usable >= need + self.reserve() {
            return Room::Free;
        }
        // A record can be too large even for a log that has all the segments that it may have.
        let is_possible = need + self.reserve() <= self.segments.usable_max();
        if is_possible {
            self.wanted = self.wanted.max(need);
        }
        if is_more_coming && is_possible {
            Room::Wait
        } else if usable >= need + self.last_share() {
            Room::Scarce
        } else if usable >= need {
            Room::Last
        } else {
            Room::Full
        }
    }

    /// The largest payload, in bytes, of a record that no client waits for, such as a deletion of
    /// expired or evicted keys. 0 if no such record may be appended now. Such a record does not use
    /// the last share. If no buffer is free, the record must fit into the buffer of the open batch.
    pub fn room_to_free(&self) -> u64 {
        if self.latch.is_some() {
            return 0;
        }
        let kept = if is_planted("unasked-takes-last-share") { 0 } else { self.last_share() };
        let space = self.usable().saturating_sub(kept).min(UNASKED_SIZE_MAX);
        // Reads call this function, so it must be fast. An exact result would need a division by
        // the batch size, as in `space_for`. So the result is less than the exact one. A record
        // with a payload of `placed` bytes has room: it takes less space than twice the payload
        // plus the bytes that are subtracted here. After such a record, the next call returns about
        // half as much.
        let placed = space.saturating_sub(2 * LBA_SIZE as u64 + 4 * OVERHEAD) / 2;
        let has_buffer = self.buffer_count == 0 || !self.free.is_empty();
        if has_buffer || is_planted("unasked-takes-memory") {
            return placed;
        }
        let open = self.open.as_ref().map_or(0, |open| open.buffer.len() - open.used);
        placed.min(open.saturating_sub(record::SIZE) as u64)
    }

    /// Whether everything that was appended has a place in the segments that the log has.
    pub fn has_place(&self) -> bool {
        self.pending() <= self.segments.usable()
    }

    /// The largest number of bytes that the log can have room for. It is limited by the number of
    /// segments that the volume's format allows and, on a device, by the space that the held
    /// snapshots and the next one leave free.
    pub fn size_max(&self) -> u64 {
        let extents = self.pool.as_ref().map(|pool| pool.wal_lbas_max() * LBA_SIZE as u64);
        self.segments.usable_max().min(extents.unwrap_or(u64::MAX))
    }

    /// The extent pool, if the volume is on a device; `None` if each area is a file.
    pub fn pool(&self) -> Option<&Pool> {
        self.pool.as_ref()
    }

    /// The largest number of bytes of the log's area that a record with `payload_size` bytes of
    /// payload may take.
    fn space_for(&self, payload_size: u64) -> u64 {
        // This counts the fragments that begin a batch, and one fragment in the open batch. Each
        // fragment that begins a batch fills the batch, except the last fragment.
        let fragments = payload_size / (self.geometry.batch_size() as u64 - OVERHEAD) + 2;
        let overhead = if is_planted("room-without-headers") { 0 } else { fragments * OVERHEAD };
        (payload_size + overhead).next_multiple_of(LBA_SIZE as u64)
    }

    /// Bytes set aside for deletes, and for commands that empty the data set.
    pub(super) fn reserve(&self) -> u64 {
        (self.geometry.segment_size() / 4).max(self.geometry.batch_size() as u64)
    }

    /// The part of `reserve` that deletes must not use. It is 0 if a segment has only a few blocks,
    /// as in tests.
    fn last_share(&self) -> u64 {
        if is_planted("deletes-take-all") {
            return 0;
        }
        let part_max = self.reserve() / 4;
        LAST_SHARE.min(part_max - part_max % LBA_SIZE as u64)
    }

    /// Usable bytes of the log's area that are left after all appended records have their place.
    pub(super) fn usable(&self) -> u64 {
        self.segments.usable().saturating_sub(self.pending())
    }

    /// Bytes of the log's area that the batches not yet submitted will take.
    fn pending(&self) -> u64 {
        let lbas: usize = self.closed.iter().chain(&self.open).map(OpenBatch::lbas).sum();
        (lbas * LBA_SIZE) as u64
    }

    /// Tells the log that the data set was empty at `lsn`. So recovery no longer needs the snapshot
    /// that it would start from, nor the records up to `lsn`. As soon as `lsn` is durable, the log
    /// may start after `lsn`, without a snapshot. If the state is not [`LogState::On`], this does
    /// nothing.
    pub fn release_before(&mut self, lsn: Lsn) {
        assert!(lsn <= self.appended, "the LSN to release is after the last appended record");
        if self.log_state() == LogState::On {
            self.release_to = self.release_to.max(lsn);
            // A segment may not take the space that the next snapshot needs. A snapshot of an empty
            // data set needs almost none. So preparing a segment may succeed now, even if it has
            // failed before.
            if !is_planted("release-waits") {
                self.prepare_failed = None;
            }
        }
    }

    pub(super) fn is_release_due(&self) -> bool {
        self.log_state() == LogState::On && self.segments.start_behind(self.release_to).is_some()
    }

    /// Returns the keeper's next job, if there is one. No other job is returned until
    /// [`job_done`](Self::job_done) is called.
    pub fn next_job(&mut self, now: Instant) -> Option<Job> {
        if self.is_job_running || self.latch.is_some() {
            return None;
        }
        let is_release_safe = self.release_to <= self.durable || is_planted("release-undurable");
        let job = if let Some(lsn) = self.end_due() {
            Some(Job::EndLog(lsn))
        } else if let Some(adoption) = self.adoption_due() {
            Some(Job::Adopt(adoption))
        } else if is_release_safe && self.is_release_due() {
            self.segments.start_behind(self.release_to).map(Job::Release)
        } else if self.unused_space == UnusedSpace::Wanted {
            Some(Job::GiveBack)
        } else {
            self.prepare_due(now).then(|| Job::Prepare { leave: self.snapshot_space() })
        };
        self.is_job_running = job.is_some();
        job
    }

    fn prepare_due(&self, now: Instant) -> bool {
        let ahead = self.geometry.segment_size().max(self.wanted) + self.reserve();
        let may_try = self.prepare_failed.as_ref().is_none_or(|&(_, failed_at)| {
            now.saturating_duration_since(failed_at) >= PREPARE_AGAIN_AFTER
        });
        may_try && self.usable() < ahead
    }

    /// Handles the outcome of the keeper's job.
    pub fn job_done(&mut self, outcome: Outcome, now: Instant) {
        assert!(self.is_job_running, "there is an outcome, but no job was running");
        self.is_job_running = false;
        match outcome {
            Outcome::Prepared { segment, wal_slot, superblock_sequence } => {
                self.segments.add(segment, wal_slot);
                self.is_in_force(superblock_sequence);
                self.prepare_failed = None;
                if self.usable() >= self.wanted + self.reserve() {
                    self.wanted = 0;
                }
            }
            Outcome::PrepareFailed(error) => {
                self.prepare_failed = Some((error, now));
                self.wanted = 0;
            }
            Outcome::Released { start, snapshots, superblock_sequence } => {
                self.segments.released(start);
                self.snapshots_changed(&snapshots);
                self.is_in_force(superblock_sequence);
                self.prepare_failed = None;
            }
            Outcome::Adopted { adoption, snapshots, superblock_sequence } => {
                self.adopted(&adoption);
                self.snapshots_changed(&snapshots);
                self.is_in_force(superblock_sequence);
                self.prepare_failed = None;
            }
            Outcome::LogEnded { snapshots, superblock_sequence } => {
                self.ended();
                self.snapshots_changed(&snapshots);
                // If the log had ended already, the superblock was not written again, so the
                // sequence may be the same.
                assert!(
                    superblock_sequence >= self.superblock_sequence,
                    "the superblock's sequence went back"
                );
                self.superblock_sequence = superblock_sequence;
            }
            Outcome::GivenBack => {
                self.unused_space = UnusedSpace::Kept;
                self.prepare_failed = None;
            }
            Outcome::SuperblockFailed(error) => self.latch(LatchCause::Superblock, error),
        }
    }

    /// Notes that the superblock with this sequence is now in force.
    fn is_in_force(&mut self, superblock_sequence: u64) {
        assert!(
            superblock_sequence > self.superblock_sequence,
            "the new superblock's sequence is not higher"
        );
        self.superblock_sequence = superblock_sequence;
    }

    /// Why the keeper's last attempt to prepare a segment failed. `None` if it succeeded, if there
    /// may be space for a segment again, or if there was no attempt yet.
    pub fn prepare_failed(&self) -> Option<&DeviceError> {
        self.prepare_failed.as_ref().map(|(error, _)| error)
    }
}
