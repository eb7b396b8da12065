//! Writes a trace, one event at a time.

use std::io::{self, Write};

use super::{
    BLOCK_HEADER_SIZE, ByteRange, MAGIC, PAYLOAD_SIZE, STREAMS_MAX, TEXT_SIZE_MAX, TraceEvent,
    TraceHeader, VERSION, checksum, tag,
};

/// Writes a trace. If [`finish`](Self::finish) is not called, the trace has no end block, and
/// readers report the trace as cut off.
#[derive(Debug)]
pub struct TraceWriter<W> {
    out: W,
    device_bytes: u64,
    payload: Vec<u8>,
    payload_events: u32,
    events: u64,
    time_ns: u64,
    /// Where the last range of each stream ended, in sectors.
    ends: [u64; STREAMS_MAX as usize],
}

impl<W: Write> TraceWriter<W> {
    /// Begins a trace on `out`. `out` needs no buffer, because it gets blocks of 64 KiB.
    ///
    /// # Errors
    /// If `out` can't be written, if the header's text is too long, or if a reader could not read
    /// the text back.
    pub fn new(mut out: W, header: &TraceHeader) -> io::Result<Self> {
        let text = header.text();
        let is_plain = |(name, value): &(String, String)| {
            !name.contains([':', '\n']) && !value.contains('\n') && value.trim() == value
        };
        if text.len() > TEXT_SIZE_MAX || !header.about.iter().all(is_plain) {
            return Err(refused(
                "the trace's header is too long, or a name or value in it is not allowed",
            ));
        }
        let mut fields = Vec::new();
        fields.extend(MAGIC);
        fields.extend(VERSION.to_le_bytes());
        fields.extend((text.len() as u32).to_le_bytes());
        fields.extend(header.device_bytes.to_le_bytes());
        let sum = checksum(&[&fields, text.as_bytes()]);
        fields.extend(sum.to_le_bytes());
        out.write_all(&fields)?;
        out.write_all(text.as_bytes())?;
        Ok(Self {
            out,
            device_bytes: header.device_bytes,
            payload: Vec::with_capacity(PAYLOAD_SIZE + BLOCK_HEADER_SIZE),
            payload_events: 0,
            events: 0,
            time_ns: 0,
            ends: [0; STREAMS_MAX as usize],
        })
    }

    /// Adds an event. If `time_ns` is earlier than the time of the last event, the event gets the
    /// time of the last event instead.
    ///
    /// # Errors
    /// If the trace can't be written, or can't hold the event. A trace can't hold an event whose
    /// range is beyond the device or does not consist of whole sectors, whose stream is too high,
    /// or whose mark is too long. Such an event is not added.
    pub fn push(&mut self, time_ns: u64, event: &TraceEvent) -> io::Result<()> {
        let (kind, stream, range) = match event {
            TraceEvent::Write { stream, range } => (tag::WRITE, *stream, Some(*range)),
            TraceEvent::WriteZeros { range } => (tag::WRITE_ZEROS, 0, Some(*range)),
            TraceEvent::Deallocate { range } => (tag::DEALLOCATE, 0, Some(*range)),
            TraceEvent::Flush => (tag::FLUSH, 0, None),
            TraceEvent::Mark(text) if text.len() > TEXT_SIZE_MAX => {
                return Err(refused("the text of a mark is too long"));
            }
            TraceEvent::Mark(_) => (tag::MARK, 0, None),
        };
        if stream >= STREAMS_MAX {
            return Err(refused("a trace has only the streams 0 to 30"));
        }
        if range.is_some_and(|range| !range.is_valid(self.device_bytes)) {
            return Err(refused(&format!("{range:?} is not a range of the device's sectors")));
        }
        self.payload.push(kind | stream << tag::STREAM_SHIFT);
        put_number(&mut self.payload, time_ns.saturating_sub(self.time_ns));
        self.time_ns = self.time_ns.max(time_ns);
        if let Some(range) = range {
            self.put_range(stream, range);
        }
        if let TraceEvent::Mark(text) = event {
            put_number(&mut self.payload, text.len() as u64);
            self.payload.extend(text.as_bytes());
        }
        self.payload_events += 1;
        self.events += 1;
        if self.payload.len() >= PAYLOAD_SIZE { self.end_block() } else { Ok(()) }
    }

    /// Number of events so far.
    pub fn event_count(&self) -> u64 {
        self.events
    }

    /// Writes all added events, so that readers find them even if the trace is never finished.
    ///
    /// # Errors
    /// If the trace can't be written.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.payload_events > 0 { self.end_block() } else { Ok(()) }
    }

    /// Ends the trace, flushes its output and returns it.
    ///
    /// # Errors
    /// If the trace can't be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.flush()?;
        let (fields, events) = ([0; 8], self.events.to_le_bytes());
        let sum = checksum(&[&fields, &events]).to_le_bytes();
        for part in [&fields[..], &sum, &events] {
            self.out.write_all(part)?;
        }
        self.out.flush()?;
        Ok(self.out)
    }

    fn put_range(&mut self, stream: u8, range: ByteRange) {
        let [start, end] = [range.start, range.end].map(|byte| byte / super::SECTOR_SIZE);
        let last = &mut self.ends[usize::from(stream)];
        put_number(&mut self.payload, zigzag(start.wrapping_sub(*last) as i64));
        put_number(&mut self.payload, end - start);
        *last = end;
    }

    fn end_block(&mut self) -> io::Result<()> {
        let length = (self.payload.len() as u32).to_le_bytes();
        let events = self.payload_events.to_le_bytes();
        let sum = checksum(&[&length, &events, &self.payload]);
        for part in [&length[..], &events, &sum.to_le_bytes(), &self.payload] {
            self.out.write_all(part)?;
        }
        self.payload.clear();
        self.payload_events = 0;
        Ok(())
    }
}

fn refused(why: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, why)
}

fn put_number(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Maps numbers near zero, positive or negative, to small unsigned numbers.
fn zigzag(number: i64) -> u64 {
    (number << 1 ^ number >> 63) as u64
}
