//! The write-ahead log: append, group commit, durable LSN.
//!
//! Records are appended to the open batch. The diagram shows the states of a batch. Below them are
//! the log's four positions, in their order:
//!
//! ```text
//!   open ──full or due──► closed ──submitted──► in flight ──prefix complete──► free buffer
//!   (one)                 (queue)               (in order)
//!
//!        durable ≤ written ≤ kept ≤ appended
//! ```
//!
//! If possible, the buffers are in memory that is mapped from the volume. Records in such a buffer
//! are *kept*: they outlive the process, even before they are written to the log.
//!
//! A device does not order its writes. So a completed batch counts as written only when all batches
//! before it are complete, too. A buffer is reused only once its batch counts as written. If the
//! process dies before that, the log may have a hole that only the mapped buffers can fill.

mod check;
mod drive;
mod kept;
mod room;
mod segments;
mod snapshots;
mod space;
mod staged;
mod tail;

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use slimio_device::{Buffer, Completion, DeviceError, Faults, LBA_SIZE, WriteCache};
use slimio_planted::is_planted;

use crate::batch::{write_open_half, write_record};
use crate::checksum::{Salt, chain};
use crate::layout::{batch, record};
use crate::superblock::{Superblock, VolumeGeometry};
use crate::{
    ACKNOWLEDGE_WITHIN, FLUSH_AFTER, Latch, LatchCause, Lsn, Policy, Pool, Snapshots, VolumeId,
    WRITE_AFTER,
};
pub(crate) use segments::{Segments, UsedSegment};
use snapshots::SnapshotStage;
pub use snapshots::{LogState, SnapshotEvent};
use space::{SnapshotNeed, UnusedSpace};
pub use staged::StagedRecord;
use tail::Tail;

/// Each fragment of a record has at least this much payload, in bytes. Only the record's last
/// fragment may have less.
const FRAGMENT_SIZE_MIN: usize = 256;

/// The log, open for appending. It is plain state: callers pass the device and the time to it.
///
/// In each turn of its loop, the caller first calls [`reap`](Self::reap). Then it checks
/// [`room`](Self::room) and calls [`append`](Self::append), as often as it wants. Last, it calls
/// [`drive`](Self::drive), and may send the replies that depend on records up to
/// [`releasable`](Self::releasable). If [`next_job`](Self::next_job) returns a job, the caller
/// hands it to the keeper, which owns the superblock and makes room for the log. The caller hands
/// the job's outcome to [`job_done`](Self::job_done).
#[derive(Debug)]
pub struct Log {
    volume_id: VolumeId,
    geometry: VolumeGeometry,
    epoch: u64,
    salt: Salt,
    policy: Policy,
    commits_in_flight: usize,
    /// Whether mapped buffers outlive the process.
    are_buffers_kept: bool,
    /// Faults of the mapped buffers that were noticed so far.
    faults: Faults,
    /// Whether every completed write is stable.
    are_writes_stable: bool,
    superblock_sequence: u64,

    appended: Lsn,
    written: Lsn,
    durable: Lsn,
    /// The durable LSN that was last noted in a mapped buffer, at a time when everything appended
    /// was durable.
    told_durable: Lsn,
    /// End of the last written batch that needs a flush to be durable.
    soft_end: Lsn,
    /// Spans of the log that are not yet durable. Each span has its end, and the time when `drive`
    /// first saw its oldest record.
    marks: VecDeque<(Lsn, Instant)>,

    free: Vec<Buffer>,
    buffer_count: usize,
    /// Number of buffers that were ever used.
    buffers_used: usize,
    open: Option<OpenBatch>,
    closed: VecDeque<OpenBatch>,
    flight: VecDeque<Flight>,
    /// Token of the first batch in `flight`.
    first_token: u64,
    /// Number of unwritten batches with records that die with the process.
    private_count: usize,
    completions: Vec<Completion>,
    /// Checksum of the last batch that was submitted.
    parent: u64,
    segments: Segments,
    /// The extent pool, if the volume is on a device.
    pool: Option<Pool>,

    /// The pair of blocks that small commits write alternately, if there is one.
    tail: Option<Tail>,
    /// Number of commits in a row that were small and were submitted while nothing else was in
    /// flight.
    lone_commits: u32,

    flush: Option<Flush>,
    flush_target: Option<Lsn>,
    latch: Option<Latch>,

    is_job_running: bool,
    release_to: Lsn,
    snapshots: SnapshotStage,
    prepare_failed: Option<(DeviceError, Instant)>,
    unused_space: UnusedSpace,
    /// The space that snapshots need, which the log leaves free.
    snapshot_need: SnapshotNeed,
    /// Bytes of room that a record waits for.
    wanted: u64,
    stats: LogStats,
}

/// A batch that is not yet submitted.
#[derive(Debug)]
struct OpenBatch {
    buffer: Buffer,
    first_lsn: Lsn,
    /// Bytes used, header included.
    used: usize,
    records_chain: u64,
    opened_at: Option<Instant>,
    /// The batch's records from this LSN on die with the process; `None` if all of them outlive the
    /// process.
    private_from: Option<Lsn>,
    /// The batch's buffer was allocated instead of taken from `Log::free`. The buffer is freed once
    /// the batch is written.
    is_extra: bool,
}

impl OpenBatch {
    fn lbas(&self) -> usize {
        self.used.div_ceil(LBA_SIZE)
    }

    fn end(&self) -> Lsn {
        Lsn(self.first_lsn.0 + (self.used - batch::SIZE) as u64)
    }
}

/// A batch that was submitted to the device.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags do not depend on each other")]
struct Flight {
    end: Lsn,
    /// The batch's records from this LSN on die with the process; `None` if all of them outlive the
    /// process.
    private_from: Option<Lsn>,
    is_extra: bool,
    is_durable: bool,
    is_done: bool,
    submitted_at: Instant,
    /// The batch's buffer. `None` while the device has the buffer, until the write completes. If
    /// the device writes a copy of the batch, the buffer stays here.
    buffer: Option<Buffer>,
    /// Whether the device writes the tail's block, which contains a copy of the batch.
    is_tail: bool,
}

/// A flush in flight.
#[derive(Clone, Copy, Debug)]
struct Flush {
    covers: Lsn,
    submitted_at: Instant,
}

/// Counters for INFO, since the volume was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogStats {
    /// Records appended.
    pub records: u64,
    /// Bytes of records appended, their headers included.
    pub record_bytes: u64,
    /// Batches submitted.
    pub batches: u64,
    /// Bytes sent to the device.
    pub device_bytes: u64,
    /// Bytes of the log's area that were used up.
    pub log_bytes: u64,
    /// Flushes completed.
    pub flushes: u64,
    /// Batches and flushes in flight now.
    pub in_flight: u32,
    /// Bytes appended and not yet written.
    pub backlog_bytes: u64,
    /// Bytes of the segments that the log has now, prepared ones included.
    pub capacity_bytes: u64,
    /// Bytes of the log's segments that are free.
    pub free_bytes: u64,
    /// Bytes of the log's segments that a WAL-snapshot would release if it began now.
    pub released_by_snapshot: u64,
    /// Bytes of the batch buffers that were ever used. The other buffers take no memory.
    pub buffer_bytes: u64,
    /// Longest time from the submission of a batch or flush until its completion was reaped.
    pub latency_max: Duration,
}

impl LogStats {
    /// Bytes of the log's segments that are taken.
    pub fn used_bytes(&self) -> u64 {
        self.capacity_bytes.saturating_sub(self.free_bytes)
    }
}

/// The state that a log starts from.
#[derive(Debug)]
pub(crate) struct LogSeed {
    pub(crate) volume_id: VolumeId,
    pub(crate) geometry: VolumeGeometry,
    pub(crate) epoch: u64,
    pub(crate) superblock_sequence: u64,
    pub(crate) commits_in_flight: usize,
    pub(crate) write_cache: WriteCache,
    /// End of the log. Everything before it is durable.
    pub(crate) lsn: Lsn,
    pub(crate) parent: u64,
    pub(crate) segments: Segments,
    pub(crate) snapshots: Snapshots,
    pub(crate) pool: Option<Pool>,
}

impl Log {
    /// A log that uses private memory until [`start`](Self::start).
    pub(crate) fn new(seed: LogSeed) -> Self {
        Self {
            volume_id: seed.volume_id,
            geometry: seed.geometry,
            epoch: seed.epoch,
            salt: Salt::new(seed.volume_id, seed.epoch),
            policy: Policy::No,
            commits_in_flight: seed.commits_in_flight.max(1),
            are_buffers_kept: false,
            faults: Faults::default(),
            are_writes_stable: seed.write_cache == WriteCache::Stable,
            superblock_sequence: seed.superblock_sequence,
            appended: seed.lsn,
            written: seed.lsn,
            durable: seed.lsn,
            told_durable: seed.lsn,
            soft_end: seed.lsn,
            marks: VecDeque::new(),
            buffer_count: 0,
            buffers_used: 0,
            free: Vec::new(),
            open: None,
            closed: VecDeque::new(),
            flight: VecDeque::new(),
            first_token: 0,
            private_count: 0,
            completions: Vec::new(),
            parent: seed.parent,
            segments: seed.segments,
            pool: seed.pool,
            tail: None,
            lone_commits: 0,
            flush: None,
            flush_target: None,
            latch: None,
            is_job_running: false,
            release_to: Lsn(0),
            snapshots: SnapshotStage::new(&seed.snapshots),
            prepare_failed: None,
            unused_space: UnusedSpace::Kept,
            snapshot_need: SnapshotNeed::default(),
            wanted: 0,
            stats: LogStats::default(),
        }
    }

    /// Puts the log into service, with these buffers and under this policy.
    pub(crate) fn start(
        &mut self,
        policy: Policy,
        mut buffers: Vec<Buffer>,
        are_kept: bool,
        superblock: &Superblock,
    ) {
        assert_eq!(self.durable, self.appended, "everything appended must be durable");
        for buffer in &buffers {
            assert_eq!(buffer.capacity_lbas(), self.geometry.batch_lbas_max as usize);
        }
        // Buffers are taken from the end, so after the reversal the first buffers are taken first.
        // While the load is low, the same few buffers are reused.
        buffers.reverse();
        self.buffer_count = buffers.len();
        self.free = buffers;
        self.are_buffers_kept = are_kept;
        self.faults = Faults::default();
        self.policy = policy;
        self.superblock_sequence = superblock.sequence;
        self.snapshots = SnapshotStage::new(&superblock.snapshots);
        self.stats = LogStats::default();
        self.buffers_used = 0;
    }

    /// Appends a fragment that a recovery has read. Does not cut the fragment again, so the records
    /// after it keep their LSNs.
    pub(crate) fn append_fragment(&mut self, db: u16, flags: u32, payload: &[u8]) {
        let size = record::SIZE + payload.len();
        if self.open.as_ref().is_some_and(|open| open.buffer.len() - open.used < size) {
            self.close_batch();
        }
        self.put(db, flags, payload.len(), |target| target.copy_from_slice(payload));
    }

    /// Appends a record, the concatenation of `parts`, and returns its LSN. Never fails and never
    /// blocks, because the caller has called [`room`](Self::room) first.
    pub fn append(&mut self, db: u16, parts: &[&[u8]]) -> Lsn {
        let mut left: usize = parts.iter().map(|part| part.len()).sum();
        let mut rest = Parts { parts, at: 0 };
        let mut flags = record::FIRST;
        self.stats.records += 1;
        loop {
            let open = match &mut self.open {
                Some(open) => open,
                None => self.open_batch(),
            };
            let room = open.buffer.len() - open.used;
            let payload_size = if record::SIZE + left <= room {
                flags |= record::LAST;
                left
            } else if room >= record::SIZE + FRAGMENT_SIZE_MIN {
                room - record::SIZE
            } else {
                self.close_batch();
                continue;
            };
            self.put(db, flags, payload_size, |payload| rest.copy_to(payload));
            left -= payload_size;
            if flags & record::LAST != 0 {
                debug_assert!(self.has_place(), "the caller has not asked for room");
                return self.appended;
            }
            flags = 0;
        }
    }

    /// Puts a fragment into the open batch, which has room for it.
    fn put(&mut self, db: u16, flags: u32, payload_size: usize, fill: impl FnOnce(&mut [u8])) {
        let salt = self.salt;
        let open = match &mut self.open {
            Some(open) => open,
            None => self.open_batch(),
        };
        let (start, target) = (open.end(), &mut open.buffer[open.used..]);
        let checksum = write_record(target, salt, start, db, flags, payload_size, fill);
        open.records_chain = chain(open.records_chain, checksum);
        open.used += record::SIZE + payload_size;
        let replaced = open.buffer.faults().replaced;
        self.appended = open.end();
        self.stats.record_bytes += (record::SIZE + payload_size) as u64;
        if replaced > self.faults.replaced {
            self.note_open_faults(start);
        }
    }

    /// Opens a batch in a free buffer. If no buffer is free, opens it in new private memory. No
    /// buffer is free before [`start`](Self::start), or after a large record has used up all
    /// buffers.
    fn open_batch(&mut self) -> &mut OpenBatch {
        let free = self.free.pop();
        let is_extra = free.is_none();
        // `free` is a stack, so a buffer is used only after all buffers above it are taken.
        self.buffers_used =
            self.buffers_used.max(self.buffer_count.saturating_sub(self.free.len()));
        let lbas = self.geometry.batch_lbas_max as usize;
        let mut buffer = self.without_faults(free).unwrap_or_else(|| Buffer::zeroed(lbas));
        buffer.set_len_lbas(buffer.capacity_lbas());
        let first_lsn = self.appended;
        write_open_half(&mut buffer, self.volume_id, self.epoch, first_lsn);
        // A fault before this point has lost no record of this batch, because the batch has no
        // record yet. `put` notices the fault after it has stored the first record.
        let is_private = self.is_private(&buffer);
        if is_private {
            self.private_count += 1;
        }
        self.open.insert(OpenBatch {
            buffer,
            first_lsn,
            used: batch::SIZE,
            records_chain: 0,
            opened_at: None,
            private_from: is_private.then_some(first_lsn),
            is_extra,
        })
    }

    /// Puts the open batch, if it holds anything, into the queue for the device.
    pub(crate) fn close_batch(&mut self) {
        if let Some(open) = self.open.take_if(|open| open.used > batch::SIZE) {
            self.close(open);
        }
    }

    fn close(&mut self, mut batch: OpenBatch) {
        batch.buffer.set_len_lbas(batch.lbas());
        batch.buffer[batch.used..].fill(0);
        self.closed.push_back(batch);
    }

    /// End of the last record appended.
    pub fn appended(&self) -> Lsn {
        self.appended
    }

    /// Recovery does not need the records up to this LSN: the root holds their effects or, if there
    /// is no root, the data set was empty at this LSN.
    pub fn start_lsn(&self) -> Lsn {
        self.segments.start_lsn()
    }

    /// End of the records that survive a power loss.
    pub fn durable(&self) -> Lsn {
        self.durable
    }

    /// Under the policy in force, replies that depend only on records up to this LSN may be sent.
    pub fn releasable(&self, now: Instant) -> Lsn {
        let is_late = || {
            self.oldest_undurable()
                .is_some_and(|oldest| now.saturating_duration_since(oldest) >= ACKNOWLEDGE_WITHIN)
        };
        match self.policy {
            _ if self.latch.is_some() => self.durable,
            Policy::Always => self.durable,
            Policy::EverySec if is_late() && is_planted("late-as-written") => self.written,
            Policy::EverySec if is_late() => self.durable,
            Policy::EverySec | Policy::No => self.kept(),
        }
    }

    /// The time at which [`drive`](Self::drive) must be called again, if nothing is appended or
    /// reaped earlier.
    pub fn next_deadline(&self) -> Option<Instant> {
        if self.latch.is_some() {
            return None;
        }
        match self.policy {
            Policy::Always => None,
            Policy::EverySec if self.flush_target.is_some() => None,
            Policy::EverySec => self.oldest_undurable().map(|oldest| oldest + FLUSH_AFTER),
            Policy::No => {
                let opened_at = self.open.as_ref().and_then(|open| open.opened_at);
                opened_at.map(|opened_at| opened_at + WRITE_AFTER)
            }
        }
    }

    /// The policy in force.
    pub fn policy(&self) -> Policy {
        self.policy
    }

    /// Changes the policy. The new policy also decides when records that were appended before the
    /// change are acknowledged.
    pub fn set_policy(&mut self, policy: Policy) {
        self.policy = policy;
    }

    /// Asks that everything appended so far becomes durable as soon as possible, whatever the
    /// policy is. SHUTDOWN and WAITAOF need this.
    pub fn request_durable(&mut self) {
        if self.appended > self.durable {
            self.flush_target = Some(self.appended);
        }
    }

    /// The time when [`drive`](Self::drive) first saw the oldest record that is not durable.
    pub fn oldest_undurable(&self) -> Option<Instant> {
        self.marks.front().map(|&(_, seen)| seen)
    }

    /// Why the log is latched, if it is.
    pub fn latched(&self) -> Option<&Latch> {
        self.latch.as_ref()
    }

    fn latch(&mut self, cause: LatchCause, error: DeviceError) {
        self.latch.get_or_insert(Latch { cause, error });
    }

    /// Counters for INFO.
    pub fn stats(&self) -> LogStats {
        let (capacity_bytes, free_bytes) = self.segments.capacity_and_free();
        let released_by_snapshot = self.segments.behind();
        let flying = self.flight.iter().filter(|flight| !flight.is_done).count();
        LogStats {
            in_flight: (flying + usize::from(self.flush.is_some())) as u32,
            backlog_bytes: self.appended.bytes_since(self.written),
            capacity_bytes,
            free_bytes,
            released_by_snapshot,
            buffer_bytes: (self.buffers_used * self.geometry.batch_size()) as u64,
            ..self.stats
        }
    }
}

/// The part of a record's payload that is still to be copied.
struct Parts<'a> {
    parts: &'a [&'a [u8]],
    /// Number of bytes of the first part that are already copied.
    at: usize,
}

impl Parts<'_> {
    /// Fills `target` with the next bytes.
    fn copy_to(&mut self, mut target: &mut [u8]) {
        while !target.is_empty() {
            let left = &self.parts[0][self.at..];
            let step = left.len().min(target.len());
            let (now, later) = target.split_at_mut(step);
            now.copy_from_slice(&left[..step]);
            target = later;
            self.at += step;
            if self.at == self.parts[0].len() {
                self.parts = &self.parts[1..];
                self.at = 0;
            }
        }
    }
}
