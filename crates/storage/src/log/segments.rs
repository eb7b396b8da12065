//! Where in the log's area the next batch (the records of one write) goes.
//!
//! The log is written segment by segment. The log's area is divided into slots, each of which has
//! room for one segment.

use std::collections::VecDeque;

use slimio_device::{LBA_SIZE, Lba};

use crate::superblock::VolumeGeometry;
use crate::{LogStart, Lsn};

/// A segment that the log has written to, or is about to write to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsedSegment {
    pub(crate) segment: u64,
    pub(crate) wal_slot: u32,
    /// First LSN of the segment's first batch.
    pub(crate) first_lsn: Lsn,
    /// Checksum of the batch before the segment's first batch.
    pub(crate) parent: u64,
}

/// The segments of the log, from the segment where the log starts to the segments that were
/// prepared ahead.
#[derive(Clone, Debug)]
pub(crate) struct Segments {
    geometry: VolumeGeometry,
    start: LogStart,
    /// The segments from the log's start to the segment that is written now.
    used: VecDeque<UsedSegment>,
    /// Next free block of the segment that is written now, counted from the segment's start.
    next_lba: u64,
    /// The segments that were prepared ahead, each with its slot.
    prepared: VecDeque<(u64, u32)>,
}

impl Segments {
    /// `used` must have at least the segment that is written now.
    pub(crate) fn new(
        geometry: VolumeGeometry,
        start: LogStart,
        used: VecDeque<UsedSegment>,
        next_lba: u64,
        prepared: VecDeque<(u64, u32)>,
    ) -> Self {
        assert!(!used.is_empty(), "the log must have a segment");
        Self { geometry, start, used, next_lba, prepared }
    }

    /// Allocates `lbas` blocks for a batch that starts at `first_lsn`; `None` if the batch needs a
    /// new segment and none is prepared.
    pub(crate) fn take(&mut self, lbas: u64, first_lsn: Lsn, parent: u64) -> Option<Lba> {
        let segment_lbas = self.geometry.segment_lbas;
        assert!(lbas <= segment_lbas, "a batch must fit into a segment");
        if self.next_lba + lbas > segment_lbas {
            let (segment, wal_slot) = self.prepared.pop_front()?;
            self.used.push_back(UsedSegment { segment, wal_slot, first_lsn, parent });
            self.next_lba = 0;
        }
        let wal_slot = self.used.back().map_or(0, |current| current.wal_slot);
        let lba = u64::from(wal_slot) * segment_lbas + self.next_lba;
        self.next_lba += lbas;
        Some(Lba(lba))
    }

    /// Adds a segment that was prepared by the keeper, which makes room for the log.
    pub(crate) fn add(&mut self, segment: u64, wal_slot: u32) {
        let last = self.prepared.back().map(|(last, _)| *last);
        let last = last.or_else(|| self.used.back().map(|used| used.segment));
        assert!(last.is_none_or(|last| last < segment), "segments must be prepared in order");
        self.prepared.push_back((segment, wal_slot));
    }

    /// Bytes that are certain to be usable, whatever the sizes of the batches.
    pub(crate) fn usable(&self) -> u64 {
        let lost = u64::from(self.geometry.batch_lbas_max - 1);
        let current = (self.geometry.segment_lbas - self.next_lba).saturating_sub(lost);
        let prepared = self.prepared.len() as u64 * (self.geometry.segment_lbas - lost);
        (current + prepared) * LBA_SIZE as u64
    }

    /// Bytes that would be usable if the log had all the segments that it may have, and were empty.
    pub(crate) fn usable_max(&self) -> u64 {
        let lost = u64::from(self.geometry.batch_lbas_max - 1);
        let segments = u64::from(self.geometry.wal_slots_max);
        segments * (self.geometry.segment_lbas - lost) * LBA_SIZE as u64
    }

    /// Recovery does not need the records up to this LSN.
    pub(crate) fn start_lsn(&self) -> Lsn {
        self.start.lsn
    }

    /// Bytes of the segments that the log has, and how many of these bytes are free.
    pub(crate) fn capacity_and_free(&self) -> (u64, u64) {
        let prepared = self.prepared.len() as u64 * self.geometry.segment_size();
        let used = self.used.len() as u64 * self.geometry.segment_size();
        let current = (self.geometry.segment_lbas - self.next_lba) * LBA_SIZE as u64;
        (used + prepared, prepared + current)
    }

    /// Bytes of the segments before the segment that is written now.
    pub(crate) fn behind(&self) -> u64 {
        (self.used.len() as u64 - 1) * self.geometry.segment_size()
    }

    /// The place where the log would start if records up to `lsn` were not needed; `None` if such a
    /// start would free no segment.
    pub(crate) fn start_behind(&self, lsn: Lsn) -> Option<LogStart> {
        let first = self.used.iter().rev().find(|used| used.first_lsn <= lsn)?;
        if first.segment <= self.start.segment || lsn < self.start.lsn {
            return None;
        }
        let (segment, parent) = (first.segment, first.parent);
        Some(LogStart { segment, lba: 0, batch_lsn: first.first_lsn, lsn, parent })
    }

    /// Where the log starts if it goes on from a snapshot whose LSN is `lsn`; `None` if the log
    /// already starts after `lsn`.
    pub(crate) fn start_at(&self, lsn: Lsn) -> Option<LogStart> {
        if lsn < self.start.lsn {
            return None;
        }
        Some(self.start_behind(lsn).unwrap_or(LogStart { lsn, ..self.start }))
    }

    /// Takes over the log's start from the superblock that is now in force, and drops the segments
    /// before this start.
    pub(crate) fn released(&mut self, start: LogStart) {
        assert!(start.lsn >= self.start.lsn, "the start of the log must never go back");
        self.start = start;
        self.used.retain(|used| used.segment >= start.segment);
        assert!(!self.used.is_empty(), "the log must have a segment");
    }

    /// Walks over all segments. Panics with a message if an invariant is broken.
    pub(super) fn check(&self) {
        let used = || self.used.iter().map(|used| (used.segment, used.wal_slot));
        let all: Vec<(u64, u32)> = used().chain(self.prepared.iter().copied()).collect();
        assert_eq!(all[0].0, self.start.segment, "the log must start in its first segment");
        assert!(
            all.is_sorted_by(|(a, _), (b, _)| a + 1 == *b),
            "each segment must follow the segment before it: {all:?}"
        );
        for (index, (_, slot)) in all.iter().enumerate() {
            assert!(*slot < self.geometry.wal_slots_max, "the slot of a segment must exist");
            let is_alone = !all[..index].iter().any(|(_, other)| other == slot);
            assert!(is_alone, "two segments are in one slot: {all:?}");
        }
        assert!(
            self.used.iter().is_sorted_by_key(|used| used.first_lsn),
            "a later segment must have later records"
        );
        assert!(self.next_lba <= self.geometry.segment_lbas, "a batch must end within its segment");
    }
}
