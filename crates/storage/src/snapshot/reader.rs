//! Reads a snapshot from its slot.

use std::collections::VecDeque;
use std::ops::Range;

use slimio_device::{Buffer, Completion, Device, DeviceError, LBA_SIZE, Lba, Op, Token};
use slimio_planted::is_planted;

use super::SlotSummary;
use super::format::{IndexEntry, Stamp, Trailer};
use crate::layout::{CHUNK_LBAS_MAX, CHUNK_PAYLOAD_SIZE_MAX, index_entry};
use crate::{Area, Error, SlotName, VolumeId, io};

/// Number of chunks to read ahead when a snapshot is to be read as fast as the device allows.
pub const READ_AHEAD_CHUNKS: usize = 16;

/// Reads a snapshot chunk by chunk, with the reads of the next chunks already in flight.
///
/// [`open`](Self::open) checks everything but the chunks. [`Chunk::payload`] checks a chunk,
/// possibly on another thread. Each method waits for the reads that it needs. Nothing else may use
/// the [`Device`] that the methods get until [`finish`](Self::finish) is called or the last chunk
/// was returned.
#[derive(Debug)]
pub struct SlotReader {
    summary: SlotSummary,
    stamp: Stamp,
    index: Vec<IndexEntry>,
    /// Chunks whose reads are not submitted yet.
    wanted: Range<usize>,
    ahead: usize,
    reads: VecDeque<Read>,
    spare: Vec<Buffer>,
    completions: Vec<Completion>,
}

#[derive(Debug)]
struct Read {
    index: usize,
    done: Option<(Option<Buffer>, Result<(), DeviceError>)>,
}

/// A chunk as it was read, not yet checked. A chunk owns its memory, so it can be sent to another
/// thread.
#[derive(Debug)]
pub struct Chunk {
    stamp: Stamp,
    slot: SlotName,
    index: u64,
    entry: IndexEntry,
    buffer: Buffer,
}

impl Chunk {
    /// Index of the chunk in the snapshot, counted from 0.
    pub fn index(&self) -> u64 {
        self.index
    }

    /// Number of entries in the chunk, according to the index.
    pub fn entry_count(&self) -> u32 {
        self.entry.entry_count
    }

    /// Checks the chunk, and returns its payload.
    ///
    /// # Errors
    /// [`Error::SnapshotDamaged`] if the chunk does not match the snapshot's index.
    pub fn payload(&self) -> Result<&[u8], Error> {
        self.stamp.read_chunk(&self.buffer, self.index, &self.entry).map_err(|why| {
            let (index, lba) = (self.index, self.entry.lba);
            damaged(self.slot, format!("chunk {index} at block {lba}: {why}"))
        })
    }

    /// The chunk's memory, for [`SlotReader::give_back`].
    pub fn into_buffer(self) -> Buffer {
        self.buffer
    }
}

impl SlotReader {
    /// Opens the snapshot that the superblock describes, and checks header, index and trailer. The
    /// chunks are read later, with the reads of up to `ahead` chunks in flight at the same time.
    ///
    /// # Errors
    /// [`Error::Truncated`] if the slot is too short, [`Error::SnapshotDamaged`] if the slot does
    /// not hold this snapshot, [`Error::Device`] if the slot can't be read.
    pub fn open(
        device: &mut dyn Device,
        volume_id: VolumeId,
        summary: SlotSummary,
        ahead: usize,
    ) -> Result<Self, Error> {
        io::drain(device);
        let slot = summary.slot;
        let found_lbas = device.geometry().lba_count;
        if found_lbas < summary.len_lbas {
            let area = Area::Snapshot(slot).name();
            let expected_lbas = summary.len_lbas;
            return Err(Error::Truncated { area, found_lbas, expected_lbas });
        }
        let wrong = |part: &str, why: &str| damaged(slot, format!("its {part}: {why}"));
        let stamp = Stamp::of_summary(volume_id, &summary);
        let last = summary.len_lbas.checked_sub(1).ok_or_else(|| wrong("length", "it is zero"))?;
        let block = read(device, last, 1)?;
        let trailer =
            stamp.read_trailer(&block, summary.checksum).map_err(|why| wrong("trailer", why))?;
        if !is_described(&trailer, &summary) {
            return Err(wrong("trailer", "it does not match the superblock"));
        }
        let index = read_index(device, stamp, &trailer).map_err(|why| match why {
            Ok(why) => wrong("index", &why),
            Err(error) => error,
        })?;
        let header = read(device, 0, 1)?;
        if !stamp.is_header(&header, trailer.header_checksum) {
            return Err(wrong("header", "its checksum is wrong, or it is another snapshot's"));
        }
        let in_flight_max = device.geometry().in_flight_max as usize;
        let wanted = 0..index.len();
        Ok(Self {
            summary,
            stamp,
            index,
            wanted,
            ahead: ahead.clamp(1, in_flight_max),
            reads: VecDeque::new(),
            spare: Vec::new(),
            completions: Vec::new(),
        })
    }

    /// The snapshot that is being read.
    pub fn summary(&self) -> &SlotSummary {
        &self.summary
    }

    /// Number of chunks of the snapshot.
    pub fn chunk_count(&self) -> usize {
        self.index.len()
    }

    /// How many of the [`total_bytes`](Self::total_bytes) lie before the next chunk.
    pub fn done_bytes(&self) -> u64 {
        let next = self.reads.front().map_or(self.wanted.start, |read| read.index);
        self.index.get(next).map_or(self.total_bytes(), |entry| entry.lba * LBA_SIZE as u64)
    }

    /// Bytes of the slot from its start to the end of the last chunk.
    pub fn total_bytes(&self) -> u64 {
        self.index.last().map_or(0, |last| (last.lba + last.lbas()) * LBA_SIZE as u64)
    }

    /// Waits for the next chunk in order and returns it; `None` after the last one. If a chunk
    /// can't be read, the next call goes on after that chunk.
    ///
    /// # Errors
    /// [`Error::Device`] if the device can't read the chunk.
    pub fn next_chunk(&mut self, device: &mut dyn Device) -> Result<Option<Chunk>, Error> {
        self.next_chunk_idling(device, &mut || {})
    }

    /// Like [`next_chunk`](Self::next_chunk), but calls `idle` repeatedly while it waits.
    pub(crate) fn next_chunk_idling(
        &mut self,
        device: &mut dyn Device,
        idle: &mut dyn FnMut(),
    ) -> Result<Option<Chunk>, Error> {
        self.submit(device);
        while self.reads.front().is_some_and(|first| first.done.is_none()) {
            self.reap(device, idle);
        }
        let Some(first) = self.reads.pop_front() else { return Ok(None) };
        self.submit(device);
        let (buffer, result) =
            first.done.expect("the loop above waits until the first read is done");
        if let Err(error) = result {
            self.spare.extend(buffer);
            return Err(failed(error));
        }
        let buffer = buffer.expect("a read that succeeds returns its buffer");
        let entry = self.index[first.index];
        let (stamp, slot) = (self.stamp, self.summary.slot);
        Ok(Some(Chunk { stamp, slot, index: first.index as u64, entry, buffer }))
    }

    /// Returns the buffer of a chunk to the reader, which then reads another chunk into it.
    pub fn give_back(&mut self, buffer: Buffer) {
        if self.spare.len() < self.ahead {
            self.spare.push(buffer);
        }
    }

    /// Waits for the reads that are still in flight, so that `device` can be used for something
    /// else.
    pub fn finish(self, device: &mut dyn Device) {
        io::drain(device);
    }

    fn submit(&mut self, device: &mut dyn Device) {
        let mut is_queued = false;
        while self.reads.len() < self.ahead {
            let Some(index) = self.wanted.next() else { break };
            let entry = self.index[index];
            let lbas = entry.lbas() as usize;
            // Any buffer that is large enough will do, because most chunks have the same size.
            let fitting = self.spare.iter().rposition(|spare| spare.capacity_lbas() >= lbas);
            let mut buffer =
                fitting.map_or_else(|| Buffer::zeroed(lbas), |at| self.spare.swap_remove(at));
            buffer.set_len_lbas(lbas);
            let op = Op::Read { lba: Lba(entry.lba), buffer };
            if device.submit(Token(index as u64), op).is_err() {
                self.wanted.start = index;
                break;
            }
            self.reads.push_back(Read { index, done: None });
            is_queued = true;
        }
        if is_queued {
            device.kick();
        }
    }

    fn reap(&mut self, device: &mut dyn Device, idle: &mut dyn FnMut()) {
        io::wait_idling(device, &mut self.completions, idle);
        for completion in self.completions.drain(..) {
            let index = completion.token.0 as usize;
            let read = self.reads.iter_mut().find(|read| read.index == index);
            if let Some(read) = read {
                read.done = Some((completion.buffer, completion.result));
            }
        }
    }
}

/// Whether the trailer agrees with the superblock's entry for the snapshot.
fn is_described(trailer: &Trailer, summary: &SlotSummary) -> bool {
    if is_planted("slot-unstamped") {
        return true;
    }
    trailer.lsn == summary.lsn.0
        && trailer.len_lbas == summary.len_lbas
        && trailer.chunk_count == summary.chunk_count
        && trailer.entry_count == summary.entry_count
        && trailer.payload_size == summary.payload_size
}

/// Reads and checks the index. There are two kinds of `Err`: a string that says what is wrong with
/// the index, or the [`Error`] of a failed read.
fn read_index(
    device: &mut dyn Device,
    stamp: Stamp,
    trailer: &Trailer,
) -> Result<Vec<IndexEntry>, Result<String, Error>> {
    let Trailer { chunk_count, index_lba, len_lbas, .. } = *trailer;
    let size = chunk_count.saturating_mul(index_entry::SIZE as u64);
    let lbas = size.div_ceil(LBA_SIZE as u64);
    if index_lba.checked_add(lbas).and_then(|end| end.checked_add(1)) != Some(len_lbas) {
        return Err(Ok("it is not where the trailer says".into()));
    }
    let mut bytes = Vec::new();
    let mut at = index_lba;
    while at < index_lba + lbas {
        let step = (index_lba + lbas - at).min(device.geometry().transfer_lbas_max.into());
        bytes.extend_from_slice(&read(device, at, step as usize).map_err(Err)?);
        at += step;
    }
    let (index, padding) = bytes.split_at(size as usize);
    if stamp.seal_index(index) != trailer.index_checksum || padding.iter().any(|&byte| byte != 0) {
        return Err(Ok("its checksum is wrong".into()));
    }
    let index: Vec<_> = index.chunks_exact(index_entry::SIZE).map(IndexEntry::decode).collect();
    let mut next = 1;
    for entry in &index {
        let is_possible = entry.lba == next
            && entry.payload_size as usize <= CHUNK_PAYLOAD_SIZE_MAX
            && entry.lbas() <= CHUNK_LBAS_MAX;
        if !is_possible {
            return Err(Ok(format!(
                "the entry for the chunk at block {} is impossible",
                entry.lba
            )));
        }
        next += entry.lbas();
    }
    if next != index_lba {
        return Err(Ok("the chunks do not end where the index starts".into()));
    }
    Ok(index)
}

fn read(device: &mut dyn Device, lba: u64, lbas: usize) -> Result<Buffer, Error> {
    let buffer = Buffer::zeroed(lbas);
    let buffer = io::run(device, Op::Read { lba: Lba(lba), buffer }).map_err(failed)?;
    Ok(buffer.expect("a read that succeeds returns its buffer"))
}

fn failed(error: DeviceError) -> Error {
    Error::Device { doing: "reading a snapshot", error }
}

fn damaged(slot: SlotName, what: String) -> Error {
    Error::SnapshotDamaged { slot, what }
}
