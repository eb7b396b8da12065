//! Traces: what a host wrote to a device and deallocated there, recorded once and replayed often.
//!
//! A trace has addresses and times, but no data, so it needs only a few bytes for each write. Its
//! format, little-endian:
//!
//! ```text
//! | magic | version | text length | device bytes | checksum | text | block | block | ... | end |
//! |  8 B  |   4 B   |     4 B     |     8 B      |   8 B    |
//!
//! block: | length of the payload, 4 B | events, 4 B | checksum, 8 B | payload |
//! end:   a block with zero length and zero events; its payload is the count of all events, 8 B
//! ```
//!
//! The text says how the trace was made, in lines `name: value`. In a payload, an event is a tag
//! (its kind, plus eight times its stream), then numbers. Each byte holds seven bits of a number.
//! The first number is the nanoseconds since the event before. If the event has a range, two
//! numbers follow, both in sectors of 512 bytes. They are the range's start, relative to the end of
//! the stream's last range, and the range's length. If the event is a mark, the next number is the
//! size of the mark's text, and the text follows. If a trace has no end block, it was not finished.
//! Then a reader reports this behind the last whole block, because nobody knows what is missing.

mod reader;
mod tape;
mod writer;

use std::hash::Hasher as _;

pub use reader::{TraceError, TraceReader};
pub use tape::{Tape, TapeError};
pub use writer::TraceWriter;

/// Streams that an event may name: 0 to 30.
pub const STREAMS_MAX: u8 = 31;
/// Both ends of a range are multiples of this, in bytes.
pub const SECTOR_SIZE: u64 = 512;
/// Limit of the size of a header's text, in bytes.
pub const TEXT_SIZE_MAX: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"SLIMTRCE";
const VERSION: u32 = 1;
/// Size of the header's fields in front of its text.
const HEADER_SIZE: usize = 32;
/// Size of the fields in front of a block's payload.
const BLOCK_HEADER_SIZE: usize = 16;
/// A block is written when its payload has reached this size.
const PAYLOAD_SIZE: usize = 64 << 10;
/// Limit of the size of a payload. The last event may reach beyond [`PAYLOAD_SIZE`], and the
/// longest events are marks.
const PAYLOAD_SIZE_MAX: usize = PAYLOAD_SIZE + TEXT_SIZE_MAX + 64;

/// How a trace was made, and of which device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// Size of the device, in bytes. No range reaches beyond it.
    pub device_bytes: u64,
    /// How the trace was made, for people and for the replay: names and values, in order. Names
    /// have no colon. Neither names nor values have a line feed. Values have no white space at
    /// their ends.
    pub about: Vec<(String, String)>,
}

impl TraceHeader {
    /// The value of a name.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.about.iter().find(|(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, value) in &self.about {
            text.extend([name, ": ", value, "\n"]);
        }
        text
    }
}

/// Bytes of a device, half-open; both ends are multiples of [`SECTOR_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte after the range.
    pub end: u64,
}

impl ByteRange {
    /// `size` bytes from `start` on.
    pub fn new(start: u64, size: u64) -> Self {
        Self { start, end: start + size }
    }

    /// The size in bytes.
    pub fn size(self) -> u64 {
        self.end - self.start
    }

    fn is_valid(self, device_bytes: u64) -> bool {
        let whole = self.start.is_multiple_of(SECTOR_SIZE) && self.end.is_multiple_of(SECTOR_SIZE);
        whole && self.start < self.end && self.end <= device_bytes
    }
}

/// What a host asked of the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// Data was written. The stream is the lifetime that the host gave the data; the header names
    /// the streams. A host that gives no lifetimes has only stream 0.
    Write {
        /// The number of the stream, below [`STREAMS_MAX`].
        stream: u8,
        /// Where.
        range: ByteRange,
    },
    /// The host asked the device to fill this range with zeros.
    WriteZeros {
        /// Where.
        range: ByteRange,
    },
    /// This range holds nothing any more, after a discard, a deallocation or a TRIM.
    Deallocate {
        /// Where.
        range: ByteRange,
    },
    /// The host asked the device to make earlier writes stable.
    Flush,
    /// A note that something began or ended.
    Mark(String),
}

/// An event and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TraceRecord {
    /// Nanoseconds since the trace began. The times of the records never decrease.
    pub time_ns: u64,
    /// What happened.
    pub event: TraceEvent,
}

mod tag {
    pub(super) const WRITE: u8 = 0;
    pub(super) const WRITE_ZEROS: u8 = 1;
    pub(super) const DEALLOCATE: u8 = 2;
    pub(super) const FLUSH: u8 = 3;
    pub(super) const MARK: u8 = 4;
    pub(super) const STREAM_SHIFT: u8 = 3;
}

fn checksum(parts: &[&[u8]]) -> u64 {
    let mut hasher = twox_hash::XxHash3_64::new();
    for part in parts {
        hasher.write(part);
    }
    hasher.finish()
}

#[cfg(test)]
mod tests;
