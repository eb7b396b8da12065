//! Checks of the log's invariants, batch by batch.

use super::{Log, OpenBatch};
use crate::Lsn;
use crate::layout::batch;

impl Log {
    /// Walks over all batches, marks (the times of records that are not durable yet) and segments,
    /// and over the extents of a device. Panics with a message if an invariant is broken.
    ///
    /// Tests call this function between their other calls of the log. In a build without debug
    /// assertions, the function does nothing.
    pub fn check_all(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        self.check_lsns();
        // A latched log has stopped after a failure. It may have dropped a batch that could not be
        // written.
        if self.latch.is_none() {
            self.check_batches();
            self.check_buffers();
        }
        self.check_marks();
        self.segments.check();
        self.snapshots().check();
        if let Some(pool) = &self.pool {
            pool.check();
        }
    }

    fn check_lsns(&self) {
        let order = [
            ("start", self.segments.start_lsn()),
            ("durable", self.durable),
            ("written", self.written),
            ("kept", self.kept()),
            ("appended", self.appended),
        ];
        assert!(order.is_sorted_by_key(|(_, lsn)| *lsn), "the LSNs are not in order: {order:?}");
        assert!(self.told_durable <= self.durable, "a record is noted as durable, but is not");
        assert!(self.soft_end <= self.written, "a record waits for a flush, but is not written");
        assert!(self.release_to <= self.appended, "a record to be released is not appended");
        assert!(self.flush_target <= Some(self.appended), "a record to flush is not appended");
        let covers = self.flush.map_or(Lsn(0), |flush| flush.covers);
        assert!(covers <= self.written, "a flush covers a record that is not written");
    }

    /// Checks the part of the log from the written LSN to the log's end. It must consist of the
    /// batches in flight, then the closed batches, then the open batch, without a gap.
    fn check_batches(&self) {
        let ends: Vec<Lsn> = self.flight.iter().map(|flight| flight.end).collect();
        assert!(ends.is_sorted_by(|a, b| a < b), "batches in flight are not in order: {ends:?}");
        assert!(
            ends.first().is_none_or(|end| *end > self.written),
            "a batch in flight counts as written"
        );
        let is_tail = |index: usize| self.flight[index].is_tail;
        assert!(
            !(1..ends.len()).any(is_tail),
            "a write of the growing last batch was submitted while another batch was in flight"
        );
        let mut end = self.submitted();
        for waiting in self.closed.iter().chain(&self.open) {
            assert_eq!(waiting.first_lsn, end, "two batches have a gap or overlap");
            assert!(waiting.used > batch::SIZE, "a batch was opened, but has no record");
            let is_within = waiting.used <= self.geometry.batch_size();
            assert!(is_within && waiting.used <= waiting.buffer.len(), "a batch is too long");
            end = waiting.end();
        }
        assert_eq!(end, self.appended, "the last batch does not end where the log ends");
    }

    fn check_buffers(&self) {
        let waiting = || self.closed.iter().chain(&self.open);
        let is_private = |open: &&OpenBatch| open.private_from.is_some();
        let private = self.flight.iter().filter(|flight| flight.private_from.is_some()).count();
        assert_eq!(
            private + waiting().filter(is_private).count(),
            self.private_count,
            "the count of batches that die with the process is wrong"
        );
        let flying = self.flight.iter().filter(|flight| !flight.is_extra).count();
        let used = flying + waiting().filter(|open| !open.is_extra).count();
        assert_eq!(
            used + self.free.len(),
            self.buffer_count,
            "the free buffers and the buffers in use do not add up to the buffer count"
        );
    }

    fn check_marks(&self) {
        let marks: Vec<_> = self.marks.iter().collect();
        assert!(
            marks.is_sorted_by(|(a, seen), (b, later)| a < b && seen <= later),
            "the mark of later records has an earlier time"
        );
        let ends = || marks.iter().map(|(end, _)| *end);
        assert!(
            ends().all(|end| self.durable < end && end <= self.appended),
            "a mark is for records that are durable or not appended"
        );
    }
}
