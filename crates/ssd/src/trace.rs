//! Traces: records of what a host wrote and deallocated on a device. A trace is recorded once, and
//! can be replayed any number of times.
//!
//! A trace has addresses and times, but no data, so each write takes only a few bytes. This is the
//! format of a trace. Numbers are little-endian:
//!
//! ```text
//! | magic | version | text length | device bytes | checksum | text | block | block | ... | end |
//! |  8 B  |   4 B   |     4 B     |     8 B      |   8 B    |
//!
//! block: | length of the payload, 4 B | count of events, 4 B | checksum, 8 B | payload |
//! end:   a block in which both the length and the count of events are written as zero. Its payload
//!        has 8 B nevertheless: the count of all events in the trace
//! ```
//!
//! The text says how the trace was made, in lines of the form `name: value`. In a payload, an event
//! is a tag followed by numbers. The tag is the kind of the event, plus eight times the number of
//! the event's stream. A number takes one byte for each seven of its bits. The first number is the
//! time since the previous event, in nanoseconds. If the event has a range, two numbers follow,
//! both in sectors of 512 bytes: the start of the range, relative to the end of the stream's
//! previous range, and the length of the range. If the event is a mark, the next number is the size
//! of the mark's text, and the text follows.
//!
//! A trace without an end block was not finished, and nobody knows how many events are missing. So
//! a reader first returns all events of whole blocks, and then reports an error.

mod reader;
mod tape;
mod writer;

use std::hash::Hasher as _;

pub use reader::{TraceError, TraceReader};
pub use tape::{Tape, TapeError};
pub use writer::TraceWriter;

/// The number of streams. Events may name the streams 0 to 30.
pub const STREAMS_MAX: u8 = 31;
/// Size of a sector in bytes. Both ends of a range are multiples of this size.
pub const SECTOR_SIZE: u64 = 512;
/// The longest text that a header may have, in bytes.
pub const TEXT_SIZE_MAX: usize = 64 << 10;

const MAGIC: &[u8; 8] = b"SLIMTRCE";
const VERSION: u32 = 1;
/// Size of the header's fields before the text, in bytes.
const HEADER_SIZE: usize = 32;
/// Size of the fields before a block's payload, in bytes.
const BLOCK_HEADER_SIZE: usize = 16;
/// A block is written as soon as its payload has reached this size, in bytes.
const PAYLOAD_SIZE: usize = 64 << 10;
/// The largest payload that is possible, in bytes. The last event may reach beyond
/// [`PAYLOAD_SIZE`]. The longest events are marks.
const PAYLOAD_SIZE_MAX: usize = PAYLOAD_SIZE + TEXT_SIZE_MAX + 64;

/// How a trace was made, and on which device.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TraceHeader {
    /// Size of the device, in bytes. No range reaches beyond this size.
    pub device_bytes: u64,
    /// How the trace was made, as names and values, in order. Both people and the replay read them.
    /// Names contain no colon. Neither names nor values contain a line feed. Values neither begin
    /// nor end with white space.
    pub about: Vec<(String, String)>,
}

impl TraceHeader {
    /// The value that the header has for a name.
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

/// A half-open range of a device's bytes. Both ends are multiples of [`SECTOR_SIZE`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ByteRange {
    /// First byte.
    pub start: u64,
    /// First byte after the range.
    pub end: u64,
}

impl ByteRange {
    /// The range of `size` bytes that begins at `start`.
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

/// What a host asked the device to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// Data was written. The stream stands for the lifetime that the host gave the data. The header
    /// names the streams. A host that gives no lifetimes uses only stream 0.
    Write {
        /// The number of the stream, below [`STREAMS_MAX`].
        stream: u8,
        /// The range of bytes.
        range: ByteRange,
    },
    /// The host asked the device to fill this range with zeros.
    WriteZeros {
        /// The range of bytes.
        range: ByteRange,
    },
    /// The host gave up this range, by a discard, a deallocation or a TRIM.
    Deallocate {
        /// The range of bytes.
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
    /// Time since the trace began, in nanoseconds. A record is never earlier than the record before
    /// it.
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
