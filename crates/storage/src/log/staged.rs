//! A large record that is built beside the log and joins it in one step.
//!
//! ```text
//!  write, write, ... ──► | batch | batch | batch ──append_staged──► closed batches of the log
//! ```
//!
//! Copying the payload and computing its hashes takes time, and other records are appended
//! meanwhile. The record gets its LSN only when it is complete. Until then, its batches (each will
//! be one write of the log) lack the fields that depend on the LSN. Until the batches are written,
//! they are in private memory, which dies with the process.

use slimio_device::Buffer;
use slimio_planted::is_planted;

use super::{Log, OpenBatch};
use crate::Lsn;
use crate::batch::{seal_record, write_open_half, write_record_head};
use crate::checksum::chain;
use crate::layout::{batch, record};

/// Where the payload starts in a batch with one record.
const PAYLOAD: usize = batch::SIZE + record::SIZE;

/// A record that is being built. Dropping it leaves the log unchanged.
#[derive(Debug)]
pub struct StagedRecord {
    db: u16,
    batch_lbas: usize,
    /// Batches that are full, each with the hash of its fragment.
    full: Vec<(Buffer, u64)>,
    filling: Option<Buffer>,
    /// Where in `filling` the next byte goes.
    used: usize,
}

impl StagedRecord {
    /// Adds bytes to the payload. When a batch is full and more bytes follow, the full batch is
    /// hashed.
    pub fn write(&mut self, mut bytes: &[u8]) {
        while !bytes.is_empty() {
            if self.filling.as_ref().is_some_and(|buffer| self.used == buffer.len()) {
                self.finish_batch(0);
            }
            let buffer = self.filling.get_or_insert_with(|| {
                self.used = PAYLOAD;
                Buffer::zeroed(self.batch_lbas)
            });
            let step = bytes.len().min(buffer.len() - self.used);
            let (now, later) = bytes.split_at(step);
            buffer[self.used..self.used + step].copy_from_slice(now);
            self.used += step;
            bytes = later;
        }
    }

    fn finish_batch(&mut self, mut flags: u32) {
        let Some(mut buffer) = self.filling.take() else { return };
        if self.full.is_empty() {
            flags |= record::FIRST;
        }
        let size = self.used - PAYLOAD;
        let hash = write_record_head(&mut buffer[batch::SIZE..], self.db, flags, size);
        self.full.push((buffer, hash));
    }
}

impl Log {
    /// Begins a record, with no payload yet, for [`append_staged`](Self::append_staged).
    pub fn stage(&self, db: u16) -> StagedRecord {
        let batch_lbas = self.geometry.batch_lbas_max as usize;
        StagedRecord { db, batch_lbas, full: Vec::new(), filling: None, used: 0 }
    }

    /// Appends a staged record, which must have a payload, and returns its LSN. The caller must
    /// have called [`room`](Self::room) first, as for [`append`](Self::append). This call is fast,
    /// because the payload is copied and hashed already.
    pub fn append_staged(&mut self, mut record: StagedRecord) -> Lsn {
        let last_used = record.used;
        record.finish_batch(if is_planted("staged-unended") { 0 } else { record::LAST });
        self.close_batch();
        assert!(
            self.open.is_none(),
            "`close_batch` leaves no batch open, because every open batch holds a record"
        );
        self.stats.records += 1;
        assert!(!record.full.is_empty(), "a staged record must have a payload");
        let last = record.full.len() - 1;
        for (index, (mut buffer, hash)) in record.full.into_iter().enumerate() {
            let used = if index == last { last_used } else { buffer.len() };
            let first_lsn = self.appended;
            write_open_half(&mut buffer, self.volume_id, self.epoch, first_lsn);
            let checksum = seal_record(&mut buffer[batch::SIZE..], self.salt, first_lsn, hash);
            let batch = OpenBatch {
                buffer,
                first_lsn,
                used,
                records_chain: chain(0, checksum),
                opened_at: None,
                private_from: (!is_planted("staged-kept")).then_some(first_lsn),
                is_extra: !is_planted("staged-not-extra"),
            };
            self.private_count += usize::from(batch.private_from.is_some());
            self.appended = batch.end();
            self.stats.record_bytes += (used - batch::SIZE) as u64;
            self.close(batch);
        }
        debug_assert!(
            self.has_place(),
            "the caller must have checked that the log has room for the record"
        );
        self.appended
    }
}
