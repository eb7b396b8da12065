//! Loads the snapshot that recovery starts from.

use slimio_device::{Buffer, Device, Lba, Op};

use crate::snapshot::header_sequence;
use crate::superblock::Superblock;
use crate::{
    Chunk, Error, Phase, Progress, READ_AHEAD_CHUNKS, Record, RecoverSink, Report, SlotName,
    SlotPaths, SlotReader, SlotSummary, io,
};

/// Passes everything on to `sink`, but drops the records if the log is not used.
pub(super) struct LogSink<'a> {
    pub(super) sink: &'a mut dyn RecoverSink,
    pub(super) is_log_used: bool,
}

impl RecoverSink for LogSink<'_> {
    fn chunk(&mut self, chunk: Chunk) -> Result<(), Error> {
        self.sink.chunk(chunk)
    }

    fn record(&mut self, record: Record<'_>) -> Result<(), String> {
        if self.is_log_used { self.sink.record(record) } else { Ok(()) }
    }

    fn progress(&mut self, progress: Progress) {
        self.sink.progress(progress);
    }
}

/// Hands the chunks of a snapshot to `sink`. If `salvage` is true, chunks that can't be read are
/// left out, and the report says so.
pub(super) fn load(
    device: &mut dyn Device,
    superblock: &Superblock,
    summary: &SlotSummary,
    salvage: bool,
    sink: &mut dyn RecoverSink,
    report: &mut Report,
) -> Result<(), Error> {
    let volume_id = superblock.volume_id;
    let mut reader = SlotReader::open(device, volume_id, *summary, READ_AHEAD_CHUNKS)?;
    report.root = Some(*summary);
    let mut forgive = |result: Result<(), Error>| match result {
        Err(error @ (Error::SnapshotDamaged { .. } | Error::Device { .. })) if salvage => {
            report.salvaged.push(error.to_string());
            Ok(false)
        }
        Err(error) => Err(error),
        Ok(()) => Ok(true),
    };
    let bytes_total = reader.total_bytes();
    loop {
        let (phase, bytes_done, lsn) = (Phase::Snapshot, reader.done_bytes(), summary.lsn);
        let progress = Progress { phase, bytes_done, bytes_total, lsn };
        sink.progress(progress);
        let next = reader.next_chunk_idling(device, &mut || sink.progress(progress));
        let handed_over = match next {
            Ok(None) => break,
            Ok(Some(chunk)) => sink.chunk(chunk),
            Err(error) => Err(error),
        };
        forgive(handed_over)?;
    }
    while !forgive(sink.chunks_end())? {}
    Ok(())
}

/// The highest superblock sequence in the headers of the slots.
pub(super) fn newest_header(slots: &mut SlotPaths, superblock: &Superblock) -> u64 {
    let mut newest = 0;
    for slot in SlotName::ALL {
        let Ok(device) = slots.find(slot) else { continue };
        if device.geometry().lba_count == 0 {
            continue;
        }
        let op = Op::Read { lba: Lba(0), buffer: Buffer::zeroed(1) };
        // A slot that can't be read is treated like a slot without a header. If the slot holds the
        // snapshot that recovery starts from, `load` has already found the fault.
        let block = io::run(device, op).ok().flatten();
        let sequence = block.and_then(|block| header_sequence(&block, superblock.volume_id, slot));
        newest = newest.max(sequence.unwrap_or(0));
    }
    newest
}
