//! Writes a snapshot into its slot.

use slimio_device::{
    Buffer, Completion, Device, DeviceError, LBA_SIZE, Lba, LbaRange, Op, POOLED_COUNT,
    POOLED_LBAS, Token, WriteCache,
};
use slimio_planted::is_planted;

use super::format::{IndexEntry, Stamp, Trailer};
use super::{SlotSummary, SnapshotPlan};
use crate::layout::{CHUNK_PAYLOAD_SIZE_MAX, chunk, slot_header, trailer};
use crate::{Error, Lifetime, Pool, io};

/// How a snapshot is written. The default is right for devices; smaller values are for tests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WriterOptions {
    /// Blocks of one write.
    pub write_lbas: u32,
    /// The largest number of writes in flight.
    pub in_flight: usize,
    /// The smallest number of blocks that a slot grows by at once, so that it grows only seldom.
    pub grow_lbas: u64,
    /// If a completed write may still be in the device's cache, a flush is submitted after this
    /// many blocks. A flush of the log writes out the whole cache, including the snapshot's blocks.
    /// So frequent flushes of the snapshot keep the log's flushes short.
    pub flush_lbas: u64,
    /// The largest number of blocks that the snapshot needs; 0 if unknown. If the file system is
    /// short of space, the slot gets these blocks before anything is written, because the log might
    /// take the space while the snapshot is written.
    pub reserve_lbas: u64,
    /// Whether the snapshot fails at once if the slot can't get all `reserve_lbas`.
    pub must_reserve: bool,
    /// Bytes of the file system that this snapshot must leave free for the next WAL-snapshot.
    /// Without that snapshot, the log could not be shortened, and would fill the file system.
    pub leave: u64,
}

impl Default for WriterOptions {
    fn default() -> Self {
        Self {
            // The path has pooled buffers. Each write is as long as one of these buffers, and all
            // of them may be in flight.
            write_lbas: POOLED_LBAS as u32,
            in_flight: POOLED_COUNT,
            grow_lbas: (64 << 20) / LBA_SIZE as u64,
            flush_lbas: (64 << 20) / LBA_SIZE as u64,
            reserve_lbas: 0,
            must_reserve: false,
            leave: 0,
        }
    }
}

const MAKING_ROOM: &str = "making room for a snapshot";
const FLUSHING: &str = "flushing a snapshot";

/// The largest number of blocks that a slot grows by at once.
const GROW_LBAS_MAX: u64 = (1 << 30) / LBA_SIZE as u64;

/// Writes one snapshot. Its methods block, so it needs a thread and a path of its own.
///
/// After an error, all later calls return the same error. Until the snapshot is finished and
/// adopted, its slot counts as empty: it remains a reserve, that is, a place for a snapshot. So
/// after an error, nothing has to be undone.
#[derive(Debug)]
pub struct SlotWriter {
    plan: SnapshotPlan,
    stamp: Stamp,
    stream: Stream,
    header_checksum: u64,
    index: Vec<IndexEntry>,
    entry_count: u64,
    payload_size: u64,
}

impl SlotWriter {
    /// Begins to write the snapshot that [`Log::begin_snapshot`](crate::Log::begin_snapshot) has
    /// planned. The snapshot overwrites what the slot held before.
    ///
    /// First waits for operations that an earlier writer left in flight on this path.
    ///
    /// # Errors
    /// Those of [`chunk`](Self::chunk).
    pub fn begin(
        device: &mut dyn Device,
        plan: SnapshotPlan,
        options: WriterOptions,
    ) -> Result<Self, Error> {
        io::drain(device);
        // `reserve` makes sure that each block of the slot has space. On a device of extents, it
        // also checks how many extents stay free: an on-demand snapshot must fail here if it would
        // leave too few of them for the next snapshot. For this check, `reserve` is called even if
        // all blocks have space already.
        let all = LbaRange { start: Lba(0), end: Lba(device.geometry().lba_count) };
        device
            .reserve(all)
            .and_then(|()| reserve_for(device, options))
            .map_err(|error| Error::Device { doing: MAKING_ROOM, error })?;
        let stamp = Stamp::of_plan(&plan);
        let mut header = [0; slot_header::SIZE];
        let header_checksum = stamp.write_header(&mut header, &plan);
        let mut stream = Stream::new(device, plan.kind.lifetime(), options);
        stream.put(device, &header)?;
        stream.pad(device)?;
        Ok(Self {
            plan,
            stamp,
            stream,
            header_checksum,
            index: Vec::new(),
            entry_count: 0,
            payload_size: 0,
        })
    }

    /// The snapshot that is being written.
    pub fn plan(&self) -> &SnapshotPlan {
        &self.plan
    }

    /// Bytes of the snapshot so far: those that were handed to the device, and those that wait in
    /// the buffer for the next write.
    pub fn written_bytes(&self) -> u64 {
        self.stream.next * LBA_SIZE as u64 + self.stream.filled as u64
    }

    /// Adds a chunk and copies its payload. Waits as long as too many writes are in flight.
    ///
    /// # Errors
    /// [`Error::Device`] if the slot can't grow ([`DeviceError::NoSpace`]) or can't be written.
    /// Such an error fails only this snapshot.
    ///
    /// # Panics
    /// If the payload is larger than [`CHUNK_PAYLOAD_SIZE_MAX`].
    pub fn chunk(
        &mut self,
        device: &mut dyn Device,
        payload: &[u8],
        entry_count: u32,
    ) -> Result<(), Error> {
        assert!(
            payload.len() <= CHUNK_PAYLOAD_SIZE_MAX,
            "a chunk's payload is not larger than `CHUNK_PAYLOAD_SIZE_MAX`"
        );
        let index = self.index.len() as u64;
        let mut header = [0; chunk::SIZE];
        let checksum = self.stamp.write_chunk_header(&mut header, index, entry_count, payload);
        let payload_size = payload.len() as u32;
        let lba = self.stream.lba();
        self.stream.put(device, &header)?;
        self.stream.put(device, payload)?;
        self.stream.pad(device)?;
        self.index.push(IndexEntry { lba, payload_size, entry_count, checksum });
        self.entry_count += u64::from(entry_count);
        self.payload_size += u64::from(payload_size);
        Ok(())
    }

    /// Writes index and trailer, and makes the whole snapshot stable. The log must then
    /// [adopt](crate::Log::adopt) the snapshot.
    ///
    /// # Errors
    /// Those of [`chunk`](Self::chunk), and [`Error::Device`] if the flush fails. Such an error
    /// fails only this snapshot.
    pub fn finish(mut self, device: &mut dyn Device) -> Result<SlotSummary, Error> {
        let finished = self.write_end(device);
        io::drain(device);
        finished
    }

    fn write_end(&mut self, device: &mut dyn Device) -> Result<SlotSummary, Error> {
        let index: Vec<u8> = self.index.iter().flat_map(IndexEntry::encode).collect();
        let index_lba = self.stream.lba();
        self.stream.put(device, &index)?;
        self.stream.pad(device)?;
        let len_lbas = self.stream.lba() + 1;
        let end = Trailer {
            lsn: self.plan.lsn.0,
            len_lbas,
            chunk_count: self.index.len() as u64,
            entry_count: self.entry_count,
            payload_size: self.payload_size,
            index_lba,
            index_checksum: self.stamp.seal_index(&index),
            header_checksum: self.header_checksum,
        };
        let mut block = vec![0; LBA_SIZE];
        let checksum = self.stamp.write_trailer(&mut block[..trailer::SIZE], &end);
        let read_again = self.stamp.read_trailer(&block, checksum);
        assert_eq!(read_again, Ok(end), "the trailer can be read again");
        self.stream.put(device, &block)?;
        self.stream.finish(device)?;
        // A file keeps the blocks after the snapshot, so that a later snapshot can overwrite them.
        // On a device, the extents after the snapshot go back to the pool.
        let behind = LbaRange { start: Lba(len_lbas), end: Lba(u64::MAX) };
        device
            .release(behind)
            .map_err(|error| Error::Device { doing: "giving back room", error })?;
        if !is_planted("adopt-unflushed") {
            io::run(device, Op::Flush).map_err(|error| Error::Device { doing: FLUSHING, error })?;
        }
        Ok(SlotSummary {
            slot: self.plan.slot,
            kind: self.plan.kind,
            epoch: self.plan.epoch,
            number: self.plan.number,
            lsn: self.plan.lsn,
            consistent_lsn: self.plan.lsn,
            len_lbas,
            checksum,
            chunk_count: end.chunk_count,
            entry_count: end.entry_count,
            payload_size: end.payload_size,
            created_ms: self.plan.created_ms,
        })
    }

    /// Gives up the snapshot. Waits for the operations in flight, so that the path can be used for
    /// something else.
    pub fn cancel(self, device: &mut dyn Device) {
        io::drain(device);
    }
}

/// Collects bytes, and writes them to the slot one after the other, in large writes.
#[derive(Debug)]
struct Stream {
    /// Lifetime of everything written.
    lifetime: Lifetime,
    options: WriterOptions,
    /// Where `current` will be written.
    next: u64,
    current: Option<Buffer>,
    /// Bytes of `current` that are filled.
    filled: usize,
    free: Vec<Buffer>,
    completions: Vec<Completion>,
    failed: Option<Error>,
    /// Token of the next write: the number of writes before it.
    next_token: u64,
    /// Blocks written since the last flush was begun.
    unflushed_lbas: u64,
    is_flushing: bool,
}

/// Token of every flush. One token is enough, because at most one flush is in flight.
const FLUSH: Token = Token(u64::MAX);

impl Stream {
    fn new(device: &dyn Device, lifetime: Lifetime, options: WriterOptions) -> Self {
        let geometry = device.geometry();
        let in_flight = options.in_flight.clamp(1, geometry.in_flight_max as usize);
        let write_lbas = options.write_lbas.clamp(1, geometry.transfer_lbas_max);
        Self {
            lifetime,
            options: WriterOptions { write_lbas, in_flight, ..options },
            next: 0,
            current: None,
            filled: 0,
            free: Vec::new(),
            completions: Vec::new(),
            failed: None,
            next_token: 0,
            unflushed_lbas: 0,
            is_flushing: false,
        }
    }

    /// The block that the next byte goes to. The block before it must be full.
    fn lba(&self) -> u64 {
        assert!(
            self.filled.is_multiple_of(LBA_SIZE),
            "each part of a snapshot begins at the start of a block"
        );
        self.next + (self.filled / LBA_SIZE) as u64
    }

    fn put(&mut self, device: &mut dyn Device, mut bytes: &[u8]) -> Result<(), Error> {
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        while !bytes.is_empty() {
            let mut buffer = match self.current.take() {
                Some(buffer) => buffer,
                None => self.take_buffer(device)?,
            };
            let step = bytes.len().min(buffer.len() - self.filled);
            let (now, later) = bytes.split_at(step);
            buffer[self.filled..self.filled + step].copy_from_slice(now);
            bytes = later;
            self.filled += step;
            if self.filled == buffer.len() {
                self.write(device, buffer)?;
            } else {
                self.current = Some(buffer);
            }
        }
        Ok(())
    }

    /// Fills the last block with zeros.
    fn pad(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        let zeros = self.filled.next_multiple_of(LBA_SIZE) - self.filled;
        self.put(device, &[0; LBA_SIZE][..zeros])
    }

    /// Writes what is left in `current`, and waits for all writes.
    fn finish(&mut self, device: &mut dyn Device) -> Result<(), Error> {
        if let Some(mut buffer) = self.current.take().filter(|_| self.filled > 0) {
            buffer.set_len_lbas(self.filled / LBA_SIZE);
            self.write(device, buffer)?;
        }
        while device.in_flight() > 0 {
            self.reap(device);
        }
        self.failed.clone().map_or(Ok(()), Err)
    }

    /// Waits until one more write may be in flight, and returns a free buffer.
    fn take_buffer(&mut self, device: &mut dyn Device) -> Result<Buffer, Error> {
        while device.in_flight() >= self.options.in_flight {
            self.reap(device);
        }
        if let Some(error) = &self.failed {
            return Err(error.clone());
        }
        let lbas = self.options.write_lbas as usize;
        let mut buffer = self.free.pop().unwrap_or_else(|| device.buffer(lbas));
        buffer.set_len_lbas(lbas);
        Ok(buffer)
    }

    fn write(&mut self, device: &mut dyn Device, buffer: Buffer) -> Result<(), Error> {
        let (start, lbas) = (self.next, buffer.len_lbas() as u64);
        self.next += lbas;
        self.filled = 0;
        if let Err(error) = grow(device, self.next, self.options.grow_lbas) {
            return Err(self.fail(MAKING_ROOM, error));
        }
        let token = Token(self.next_token);
        self.next_token += 1;
        let placement = self.lifetime.placement();
        let op = Op::Write { lba: Lba(start), buffer, placement, durable: false };
        let submitted = device.submit(token, op);
        assert!(submitted.is_ok(), "a path accepts as many operations as its geometry says");
        self.unflushed_lbas += lbas;
        self.flush_if_due(device);
        device.kick();
        Ok(())
    }

    /// Submits a flush if one is due, while writes go on. Nothing depends on the result of this
    /// flush, because the flush at the end makes the snapshot stable.
    fn flush_if_due(&mut self, device: &mut dyn Device) {
        let is_due = self.unflushed_lbas >= self.options.flush_lbas && !self.is_flushing;
        let is_needed = device.geometry().write_cache != WriteCache::Stable;
        // If the path accepts no more operations now, the flush stays due until the next write.
        if is_due && is_needed && device.submit(FLUSH, Op::Flush).is_ok() {
            self.unflushed_lbas = 0;
            self.is_flushing = true;
        }
    }

    fn reap(&mut self, device: &mut dyn Device) {
        io::wait_for_one(device, &mut self.completions);
        let mut completions = std::mem::take(&mut self.completions);
        for completion in completions.drain(..) {
            self.free.extend(completion.buffer);
            let is_flush = completion.token == FLUSH;
            self.is_flushing &= !is_flush;
            if let Err(error) = completion.result {
                self.fail(if is_flush { FLUSHING } else { "writing a snapshot" }, error);
            }
        }
        self.completions = completions;
    }

    fn fail(&mut self, doing: &'static str, error: DeviceError) -> Error {
        self.failed.get_or_insert(Error::Device { doing, error }).clone()
    }
}

/// A file system is short of space if its free space is less than this many times the space that a
/// snapshot needs. The factor is large because the log may grow by several times the data set while
/// a snapshot is written.
const SHORT_BELOW: u64 = 16;

/// If the file system is short of space, gives the slot all the blocks that the snapshot may need,
/// so that the log can't take them. Does nothing if the slot is not a file.
fn reserve_for(device: &mut dyn Device, options: WriterOptions) -> Result<(), DeviceError> {
    let lacks = options.reserve_lbas.saturating_sub(device.geometry().lba_count);
    let takes = lacks.saturating_mul(LBA_SIZE as u64).saturating_add(options.leave);
    if options.leave > 0 && device.free_space().is_some_and(|free| free < takes) {
        return Err(DeviceError::NoSpace);
    }
    let needed = options.reserve_lbas.saturating_mul(LBA_SIZE as u64);
    let is_short = device.free_space().is_some_and(|free| free / SHORT_BELOW < needed);
    if !is_short || is_planted("snapshot-unreserved") {
        return Ok(());
    }
    match device.grow(options.reserve_lbas) {
        // The snapshot may turn out shorter than `reserve_lbas`, so a lack of space is no failure
        // yet.
        Err(DeviceError::NoSpace) if !options.must_reserve => Ok(()),
        grown => grown,
    }
}

/// Makes a slot long enough, in large steps if there is room for them.
fn grow(device: &mut dyn Device, lbas: u64, step: u64) -> Result<(), DeviceError> {
    let now = device.geometry().lba_count;
    if lbas <= now {
        return Ok(());
    }
    let step = (now / 4).min(GROW_LBAS_MAX).max(step);
    match device.grow(lbas.max(now + step)) {
        Err(DeviceError::NoSpace) => device.grow(lbas),
        grown => grown,
    }
}

/// The largest number of blocks of a file that are given back in one step.
const GIVE_BACK_LBAS: u64 = (64 << 20) / LBA_SIZE as u64;

/// Gives back some of the space at the end of a reserve. See
/// [`SlotPaths::give_back`](super::SlotPaths::give_back).
///
/// # Errors
/// If the slot can't be shortened.
pub fn give_back(
    device: &mut dyn Device,
    need_lbas: u64,
    pool: Option<&Pool>,
) -> Result<bool, DeviceError> {
    let now = device.geometry().lba_count;
    let (kept, step) = match pool {
        Some(pool) => (0, GIVE_BACK_LBAS.max(pool.usage().extent)),
        None => (2 * need_lbas + GIVE_BACK_LBAS, GIVE_BACK_LBAS),
    };
    if now <= kept {
        return Ok(false);
    }
    let end = kept.max(now.saturating_sub(step));
    device.shrink(end)?;
    let is_shorter = device.geometry().lba_count < now;
    Ok(is_shorter && end > kept)
}
