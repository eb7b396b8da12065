//! Records that only the mapped buffers hold.
//!
//! If a process dies, its buffers may hold batches that never reached the log. A batch's header has
//! two halves. The first, the *open half*, is written when the batch is begun, and says where the
//! batch belongs. A record in a batch that never reached the log is used only if the record's own
//! checksum is right.

use slimio_device::{Buffer, DeviceError};
use slimio_planted::is_planted;

use super::chain::{Chain, Claims};
use crate::batch::{Records, is_whole, read_header, read_open_half, read_witness};
use crate::checksum::Salt;
use crate::layout::record;
use crate::superblock::Superblock;
use crate::{EIO, Error, Lsn, RecoverSink};

/// A record, or a fragment of one, that must be appended to the log.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Rescued {
    /// Index of the buffer that holds the record.
    pub(crate) buffer: usize,
    at: usize,
    payload_size: usize,
    pub(crate) db: u16,
    pub(crate) flags: u32,
    pub(crate) start: Lsn,
}

impl Rescued {
    pub(crate) fn payload<'a>(&self, buffers: &'a [Buffer]) -> &'a [u8] {
        &buffers[self.buffer][self.at..self.at + self.payload_size]
    }
}

/// Checks that the buffers have lost no page so far. A lost page reads as zeros, and recovery would
/// mistake the zeros for the end of a buffer's records.
pub(crate) fn check_read(buffers: &[Buffer]) -> Result<(), Error> {
    let is_there = buffers.iter().all(|buffer| buffer.faults().lost == 0);
    if is_there || is_planted("lost-buffers-believed") {
        return Ok(());
    }
    Err(Error::Device { doing: "reading the log's buffers", error: DeviceError::Io { errno: EIO } })
}

/// What the headers of the complete batches in the buffers say about the log.
pub(crate) fn claims(buffers: &[Buffer], superblock: &Superblock) -> Claims {
    let mut claims = Claims::default();
    for bytes in buffers {
        let batch_size = superblock.geometry.batch_size().min(bytes.len());
        let header = read_header(bytes, superblock.volume_id, batch_size);
        let whole = header.filter(|header| {
            let size = header.lbas() as usize * slimio_device::LBA_SIZE;
            is_whole(&bytes[..size], superblock.volume_id, header)
        });
        if let Some(header) = whole {
            claims.note(&header, superblock.epoch);
        }
    }
    claims
}

/// Each buffer may say up to which LSN the whole log was durable. Returns the highest such LSN.
pub(crate) fn told_durable(buffers: &[Buffer], superblock: &Superblock) -> Lsn {
    let witnesses = buffers.iter().filter_map(|bytes| read_witness(bytes, superblock.volume_id));
    let durable = witnesses
        .filter(|witness| witness.epoch == superblock.epoch || is_planted("told-in-any-epoch"))
        .map(|witness| witness.durable)
        .max()
        .unwrap_or_default();
    // If the log has ended, recovery ignores the records after its end. So what a buffer says
    // counts only up to this end.
    let log_end = superblock.snapshots.log_end().filter(|_| !is_planted("told-behind-the-end"));
    log_end.map_or(durable, |end| durable.min(end))
}

/// Follows the log further, in the buffers, up to the last complete record. Returns the fragments
/// that were taken from the buffers.
pub(crate) fn follow(
    chain: &mut Chain,
    buffers: &[Buffer],
    superblock: &Superblock,
    sink: &mut dyn RecoverSink,
) -> Result<Vec<Rescued>, Error> {
    // A log that has ended was durable up to its end, so the buffers hold no further records of it.
    if superblock.snapshots.log_end().is_some() || is_planted("no-rescue") {
        return Ok(Vec::new());
    }
    let salt = Salt::new(superblock.volume_id, superblock.buffers_epoch);
    let mut order: Vec<(Lsn, usize)> = buffers
        .iter()
        .enumerate()
        .filter_map(|(index, buffer)| {
            let (epoch, first_lsn) = read_open_half(buffer, superblock.volume_id)?;
            (epoch == superblock.buffers_epoch).then_some((first_lsn, index))
        })
        .collect();
    order.sort_unstable();

    let mut rescued = Vec::new();
    let mut complete_len = 0;
    for (first_lsn, index) in order {
        let base = buffers[index].as_ptr() as usize;
        for view in Records::new(&buffers[index], salt, first_lsn) {
            if view.end <= chain.next {
                continue;
            }
            if view.start != chain.next {
                break;
            }
            let first = if view.is_first { record::FIRST } else { 0 };
            let last = if view.is_last { record::LAST } else { 0 };
            rescued.push(Rescued {
                buffer: index,
                at: view.payload.as_ptr() as usize - base,
                payload_size: view.payload.len(),
                db: view.db,
                flags: first | last,
                start: view.start,
            });
            chain.take_record(&view, sink)?;
            if view.is_last {
                complete_len = rescued.len();
            }
        }
    }
    rescued.truncate(complete_len);
    Ok(rescued)
}
