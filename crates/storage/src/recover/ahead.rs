//! Reads ahead in the log, with several large reads in flight. The caller looks at the data in the
//! buffers that the reads have filled. Data is copied only if a view needs the data of several
//! reads.

use std::collections::VecDeque;

use slimio_device::{Buffer, Completion, Device, LBA_SIZE, Lba, Op, Token};

use crate::{Error, io};

/// Blocks of one read.
const CHUNK_LBAS: u64 = 256;

/// The largest number of reads in flight.
const CHUNKS_IN_FLIGHT: usize = 8;

/// A window that moves over the log's segments as if they were contiguous.
///
/// Positions count blocks from the start of the first segment in `slots`.
pub(crate) struct ReadAhead {
    segment_lbas: u64,
    /// The slot of each segment (its place in the log's area), in the order of the log.
    slots: Vec<u32>,
    chunk_lbas: u64,
    in_flight_max: usize,
    chunks: VecDeque<Chunk>,
    next: u64,
    spare: Vec<Buffer>,
    completions: Vec<Completion>,
    /// If the blocks of a view come from several reads, they are joined in this buffer.
    scratch: Vec<u8>,
}

struct Chunk {
    start: u64,
    lbas: u64,
    buffer: Option<Buffer>,
}

impl ReadAhead {
    pub(crate) fn new(device: &dyn Device, slots: Vec<u32>, segment_lbas: u64, start: u64) -> Self {
        let geometry = device.geometry();
        Self {
            segment_lbas,
            slots,
            chunk_lbas: CHUNK_LBAS.min(u64::from(geometry.transfer_lbas_max)).min(segment_lbas),
            in_flight_max: CHUNKS_IN_FLIGHT.min(geometry.in_flight_max as usize),
            chunks: VecDeque::new(),
            next: start,
            spare: Vec::new(),
            completions: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// Position after the last segment.
    pub(crate) fn end(&self) -> u64 {
        self.slots.len() as u64 * self.segment_lbas
    }

    /// Position up to which reads were submitted.
    pub(crate) fn reached(&self) -> u64 {
        self.next
    }

    /// The bytes of `lbas` blocks from `at` on. Afterwards, blocks before `at` can't be viewed
    /// again. While the reads are in flight, `idle` is called now and then.
    pub(crate) fn view(
        &mut self,
        device: &mut dyn Device,
        at: u64,
        lbas: u64,
        idle: &mut dyn FnMut(),
    ) -> Result<&[u8], Error> {
        let end = at + lbas;
        assert!(end <= self.end(), "a view must not go on after the end of the log");
        self.forget_before(device, at, idle)?;
        loop {
            self.submit(device, end);
            let is_there = self.next >= end
                && self
                    .chunks
                    .iter()
                    .take_while(|chunk| chunk.start < end)
                    .all(|chunk| chunk.buffer.is_some());
            if is_there {
                break;
            }
            self.reap(device, idle)?;
        }
        let first = &self.chunks[0];
        let from = (at - first.start) as usize * LBA_SIZE;
        if end <= first.start + first.lbas {
            let buffer = first.buffer.as_ref().expect("the read of this chunk is over");
            return Ok(&buffer[from..from + lbas as usize * LBA_SIZE]);
        }
        self.scratch.clear();
        for chunk in self.chunks.iter().take_while(|chunk| chunk.start < end) {
            let buffer = chunk.buffer.as_ref().expect("the read of this chunk is over");
            let from = at.saturating_sub(chunk.start) as usize * LBA_SIZE;
            let to = (end - chunk.start).min(chunk.lbas) as usize * LBA_SIZE;
            self.scratch.extend_from_slice(&buffer[from..to]);
        }
        Ok(&self.scratch)
    }

    fn forget_before(
        &mut self,
        device: &mut dyn Device,
        at: u64,
        idle: &mut dyn FnMut(),
    ) -> Result<(), Error> {
        while let Some(chunk) = self.chunks.front_mut() {
            if chunk.start + chunk.lbas > at {
                break;
            }
            match chunk.buffer.take() {
                Some(buffer) => {
                    self.spare.push(buffer);
                    self.chunks.pop_front();
                }
                None => self.reap(device, idle)?,
            }
        }
        Ok(())
    }

    /// Submits reads until as many as allowed are in flight. Beyond `end`, it reads only while
    /// fewer than [`CHUNKS_IN_FLIGHT`] chunks are held.
    fn submit(&mut self, device: &mut dyn Device, end: u64) {
        let mut is_queued = false;
        while self.next < self.end()
            && device.in_flight() < self.in_flight_max
            && (self.chunks.len() < CHUNKS_IN_FLIGHT || self.next < end)
        {
            let (index, lba) = (self.next / self.segment_lbas, self.next % self.segment_lbas);
            let lbas = self.chunk_lbas.min(self.segment_lbas - lba);
            let mut buffer =
                self.spare.pop().unwrap_or_else(|| Buffer::zeroed(self.chunk_lbas as usize));
            buffer.set_len_lbas(lbas as usize);
            let lba = Lba(u64::from(self.slots[index as usize]) * self.segment_lbas + lba);
            if device.submit(Token(self.next), Op::Read { lba, buffer }).is_err() {
                break;
            }
            is_queued = true;
            self.chunks.push_back(Chunk { start: self.next, lbas, buffer: None });
            self.next += lbas;
        }
        if is_queued {
            device.kick();
        }
    }

    fn reap(&mut self, device: &mut dyn Device, idle: &mut dyn FnMut()) -> Result<(), Error> {
        io::wait_idling(device, &mut self.completions, idle);
        for completion in self.completions.drain(..) {
            completion.result.map_err(|error| Error::Device { doing: "reading the log", error })?;
            let chunk = self.chunks.iter_mut().find(|chunk| chunk.start == completion.token.0);
            if let Some(chunk) = chunk {
                chunk.buffer = completion.buffer;
            }
        }
        Ok(())
    }

    /// Waits for the reads that are still in flight, so that the path can be used for something
    /// else.
    pub(crate) fn finish(mut self, device: &mut dyn Device) {
        while device.in_flight() > 0 {
            io::wait_for_one(device, &mut self.completions);
            self.completions.clear();
        }
    }
}
