//! Which records outlive the process, even after a fault of the mapped buffers.
//!
//! Mapped buffers are pieces of a file that is mapped into memory. A record outlives the process as
//! soon as it is stored in a mapped buffer. If the kernel can't provide a page of the mapping,
//! private memory takes the place of the page. The record that is stored at that moment, and the
//! records after it, outlive the process only once they are written to the log. All earlier records
//! are in the mapped file, and still outlive the process. Buffers that are taken after the fault
//! are private.

use slimio_device::{Buffer, DeviceError, Faults};
use slimio_planted::is_planted;

use super::{Log, OpenBatch};
use crate::batch::{Kind, Records, is_whole, read_header, write_closing_half, write_open_half};
use crate::checksum::chain;
use crate::{EIO, LatchCause, Lsn};

impl Log {
    /// End of the records that outlive the process.
    pub fn kept(&self) -> Lsn {
        if self.private_count == 0 {
            return self.appended;
        }
        let flying = self.flight.iter().filter_map(|flight| flight.private_from);
        let waiting = self.closed.iter().chain(&self.open).filter_map(|open| open.private_from);
        let first = flying.chain(waiting).next();
        first.unwrap_or(self.appended).max(self.written)
    }

    /// Once the whole log is durable, notes the log's end in a mapped buffer. No batch in the log
    /// says yet that this end is durable. So if a recovery finds a shorter log, only the note tells
    /// the recovery that the log is damaged. The note needs no write to the device. It goes into
    /// the free buffer that would be used last.
    pub(super) fn tell_durable(&mut self) {
        if self.durable != self.appended || self.told_durable == self.durable {
            return;
        }
        let header = self.header(Kind::Plain, self.appended, 0, self.parent);
        if self.free.first().is_none_or(|buffer| self.is_private(buffer)) {
            return;
        }
        let Some(buffer) = self.free.first_mut() else { return };
        if !is_planted("durable-untold") {
            write_open_half(buffer, self.volume_id, self.epoch, header.first_lsn);
            write_closing_half(buffer, self.salt, &header, 0);
        }
        self.told_durable = self.durable;
    }

    /// Whether records outlive the process before they are written.
    pub fn are_buffers_kept(&self) -> bool {
        self.are_buffers_kept
    }

    pub(super) fn is_private(&self, buffer: &Buffer) -> bool {
        !self.are_buffers_kept || buffer.index().is_none()
    }

    /// Returns `free`, unless it belongs to a mapping that had a fault. Such a buffer is dropped.
    pub(super) fn without_faults(&mut self, free: Option<Buffer>) -> Option<Buffer> {
        free.filter(|free| is_planted("faulty-buffer-reused") || !self.note_faults(free))
    }

    /// Notes the faults of the mapping that a buffer belongs to. Returns whether there are any.
    pub(super) fn note_faults(&mut self, buffer: &Buffer) -> bool {
        let faults = buffer.faults();
        if faults == Faults::default() {
            return false;
        }
        self.faults = faults;
        self.are_buffers_kept = false;
        true
    }

    /// Notes that the mapping of the open batch's buffer had a fault, before or while the record
    /// that starts at `from` was stored.
    #[cold]
    pub(super) fn note_open_faults(&mut self, from: Lsn) {
        let Some(mut open) = self.open.take() else { return };
        self.note_faults(&open.buffer);
        if open.private_from.is_none() {
            open.private_from = Some(from);
            self.private_count += 1;
        }
        if self.faults.lost > 0 && !self.is_there(&open) {
            self.latch_lost();
        }
        self.open = Some(open);
    }

    /// Whether a batch still holds all records that were put into it.
    fn is_there(&self, open: &OpenBatch) -> bool {
        let mut walk = Records::new(&open.buffer[..open.used], self.salt, open.first_lsn);
        let found = walk.by_ref().fold(0, |found, view| chain(found, view.checksum));
        walk.at == open.used && found == open.records_chain
    }

    /// Whether it is safe to write a batch, although the mapping may have had faults. If it is not
    /// safe, latches the log: from then on, nothing is written. `bytes` are the bytes that would be
    /// written, and `source` is the buffer that the batch was built in.
    pub(super) fn may_be_written(&mut self, bytes: &[u8], source: &Buffer) -> bool {
        if source.faults().lost == 0 || is_planted("lost-batch-written") {
            return true;
        }
        let header = read_header(bytes, self.volume_id, self.geometry.batch_size());
        let is_right = header.is_some_and(|header| {
            is_planted("lost-records-written") || is_whole(bytes, self.volume_id, &header)
        });
        if !is_right {
            self.latch_lost();
        }
        is_right
    }

    fn latch_lost(&mut self) {
        self.latch(LatchCause::LogBuffers, DeviceError::Io { errno: EIO });
    }
}
