//! Reads a trace, one block at a time.

use std::fmt;
use std::io::{self, Read};

use super::{
    BLOCK_HEADER_SIZE, ByteRange, HEADER_SIZE, MAGIC, PAYLOAD_SIZE_MAX, SECTOR_SIZE, STREAMS_MAX,
    TEXT_SIZE_MAX, TraceEvent, TraceHeader, TraceRecord, VERSION, checksum, tag,
};

/// Why a trace can't be read.
#[derive(Debug)]
pub enum TraceError {
    /// The input can't be read.
    Io(io::Error),
    /// The input is not a trace.
    NotATrace,
    /// The trace has a version that this program does not know.
    Version(u32),
    /// The trace's end is missing, because its recording or copying was interrupted.
    Cut {
        /// Number of events before the cut.
        events: u64,
    },
    /// A part of the trace is not as a recording writes it. Usually, the trace's bytes have changed
    /// since they were written.
    Damaged {
        /// Number of events before the damage.
        events: u64,
    },
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Io(error) => write!(f, "the trace can't be read: {error}"),
            Self::NotATrace => f.write_str("the input is not a trace of a device's writes"),
            Self::Version(version) => {
                write!(
                    f,
                    "the trace has version {version}, but this program reads only version {VERSION}"
                )
            }
            Self::Cut { events } => {
                write!(
                    f,
                    "the trace is cut off after {events} events: its recording was not finished"
                )
            }
            Self::Damaged { events } => {
                write!(f, "the trace is damaged after {events} events: record it again")
            }
        }
    }
}

impl std::error::Error for TraceError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Io(error) => Some(error),
            _ => None,
        }
    }
}

/// Reads a trace, as an iterator over its records. The iterator ends with the trace, or after an
/// error.
#[derive(Debug)]
pub struct TraceReader<R> {
    input: R,
    header: TraceHeader,
    payload: Vec<u8>,
    /// How many bytes of `payload` are already decoded.
    taken: usize,
    /// How many events are left in `payload`, according to the header of the block.
    payload_events: u32,
    events: u64,
    time_ns: u64,
    ends: [u64; STREAMS_MAX as usize],
    is_over: bool,
}

impl<R: Read> TraceReader<R> {
    /// Reads the header. `input` need not be buffered.
    ///
    /// # Errors
    /// If the input can't be read or is not a trace.
    pub fn new(mut input: R) -> Result<Self, TraceError> {
        let mut fields = [0; HEADER_SIZE];
        let got = fill(&mut input, &mut fields)?;
        if got < MAGIC.len() || fields[..8] != *MAGIC {
            return Err(TraceError::NotATrace);
        }
        let cut = TraceError::Cut { events: 0 };
        if got < HEADER_SIZE {
            return Err(cut);
        }
        let version = word(&fields, 8);
        if version != VERSION {
            return Err(TraceError::Version(version));
        }
        let text_size = word(&fields, 12) as usize;
        if text_size > TEXT_SIZE_MAX {
            return Err(TraceError::Damaged { events: 0 });
        }
        let mut text = vec![0; text_size];
        if fill(&mut input, &mut text)? < text_size {
            return Err(cut);
        }
        if checksum(&[&fields[..24], &text]) != long(&fields, 24) {
            return Err(TraceError::Damaged { events: 0 });
        }
        let text = String::from_utf8(text).map_err(|_| TraceError::Damaged { events: 0 })?;
        let lines = text.lines().filter_map(|line| line.split_once(": "));
        let about = lines.map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        Ok(Self {
            input,
            header: TraceHeader { device_bytes: long(&fields, 16), about },
            payload: Vec::new(),
            taken: 0,
            payload_events: 0,
            events: 0,
            time_ns: 0,
            ends: [0; STREAMS_MAX as usize],
            is_over: false,
        })
    }

    /// The trace's header.
    pub fn header(&self) -> &TraceHeader {
        &self.header
    }

    fn next_record(&mut self) -> Result<Option<TraceRecord>, TraceError> {
        if self.payload_events == 0 {
            if self.taken < self.payload.len() {
                return Err(self.damaged());
            }
            if !self.next_block()? {
                return Ok(None);
            }
        }
        let record = self.decode().ok_or_else(|| self.damaged())?;
        self.payload_events -= 1;
        self.events += 1;
        Ok(Some(record))
    }

    /// Reads the next block. Returns `false` at the end of the trace.
    fn next_block(&mut self) -> Result<bool, TraceError> {
        let mut fields = [0; BLOCK_HEADER_SIZE];
        if fill(&mut self.input, &mut fields)? < BLOCK_HEADER_SIZE {
            return Err(self.cut());
        }
        let (size, sum) = (word(&fields, 0) as usize, long(&fields, 8));
        if size > PAYLOAD_SIZE_MAX {
            return Err(self.damaged());
        }
        let is_end = size == 0;
        self.payload.resize(if is_end { 8 } else { size }, 0);
        if fill(&mut self.input, &mut self.payload)? < self.payload.len() {
            return Err(self.cut());
        }
        if checksum(&[&fields[..8], &self.payload]) != sum {
            return Err(self.damaged());
        }
        if is_end {
            let is_whole = long(&self.payload, 0) == self.events;
            return if is_whole { Ok(false) } else { Err(self.damaged()) };
        }
        self.payload_events = word(&fields, 4);
        self.taken = 0;
        if self.payload_events == 0 { Err(self.damaged()) } else { Ok(true) }
    }

    /// Decodes the next event. `None` if the event is malformed. The cause can't be random damage,
    /// because the checksum was verified before.
    fn decode(&mut self) -> Option<TraceRecord> {
        let tag = *self.payload.get(self.taken)?;
        self.taken += 1;
        let stream = tag >> tag::STREAM_SHIFT;
        let step_ns = self.number()?;
        self.time_ns = self.time_ns.checked_add(step_ns)?;
        let event = match tag & ((1 << tag::STREAM_SHIFT) - 1) {
            tag::WRITE => TraceEvent::Write { stream, range: self.range(stream)? },
            tag::WRITE_ZEROS => TraceEvent::WriteZeros { range: self.range(stream)? },
            tag::DEALLOCATE => TraceEvent::Deallocate { range: self.range(stream)? },
            tag::FLUSH => TraceEvent::Flush,
            tag::MARK => {
                let size = self.number()? as usize;
                let text = self.payload.get(self.taken..self.taken.checked_add(size)?)?.to_vec();
                self.taken += size;
                TraceEvent::Mark(String::from_utf8(text).ok()?)
            }
            _ => return None,
        };
        Some(TraceRecord { time_ns: self.time_ns, event })
    }

    fn range(&mut self, stream: u8) -> Option<ByteRange> {
        let last = *self.ends.get(usize::from(stream))?;
        let step = self.number()?;
        let step = (step >> 1) as i64 ^ -((step & 1) as i64);
        let start = last.checked_add_signed(step)?;
        let end = start.checked_add(self.number()?)?;
        self.ends[usize::from(stream)] = end;
        let range = ByteRange {
            start: start.checked_mul(SECTOR_SIZE)?,
            end: end.checked_mul(SECTOR_SIZE)?,
        };
        range.is_valid(self.header.device_bytes).then_some(range)
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let byte = *self.payload.get(self.taken)?;
            self.taken += 1;
            number |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Some(number);
            }
        }
        None
    }

    fn cut(&self) -> TraceError {
        TraceError::Cut { events: self.events }
    }

    fn damaged(&self) -> TraceError {
        TraceError::Damaged { events: self.events }
    }
}

impl<R: Read> Iterator for TraceReader<R> {
    type Item = Result<TraceRecord, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.is_over {
            return None;
        }
        let next = self.next_record().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

/// Reads until `bytes` is full or the input ends. Returns how many bytes were read.
fn fill(input: &mut impl Read, bytes: &mut [u8]) -> Result<usize, TraceError> {
    let mut filled = 0;
    while filled < bytes.len() {
        match input.read(&mut bytes[filled..]) {
            Ok(0) => break,
            Ok(count) => filled += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(TraceError::Io(error)),
        }
    }
    Ok(filled)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}
