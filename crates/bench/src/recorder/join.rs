//! Two traces of one run made into one: what arrived at the device, with what the server said of it.
//!
//! The device's trace has everything in the order in which it arrived, the kernel's own writes
//! included, and knows no streams. The server's has the stream of every write that it sent. Each block
//! that the server wrote arrives as often as it wrote it, in that order.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::Path;

use slimio_ssd::trace::{
    ByteRange, TraceError, TraceEvent, TraceHeader, TraceReader, TraceRecord, TraceWriter,
};

use super::disk::BLOCK_SIZE;
use crate::error::{BenchError, Doing, Result};

/// What came together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Events of the joined trace.
    pub events: u64,
    /// Blocks that the server had named.
    pub named_blocks: u64,
    /// Blocks that it had not: the kernel wrote them by itself. They have stream 0.
    pub other_blocks: u64,
}

/// Joins the traces of the device and the server; `out` is as the device's, with streams.
pub fn join(device: &Path, server: &Path, out: &Path) -> Result<Joined> {
    let (header, mut streams) = streams_of_blocks(server)?;
    let trace = open(device)?;
    let mut about = trace.header().about.clone();
    let names = header.get("streams").unwrap_or_default().to_owned();
    about.push(("streams".into(), names));
    let joined_header = TraceHeader { device_bytes: trace.header().device_bytes, about };
    let what = || format!("writing {}", out.display());
    let file = File::create(out).doing(what())?;
    let mut writer = TraceWriter::new(file, &joined_header).doing(what())?;
    let mut joined = Joined::default();
    for record in trace {
        let TraceRecord { time_ns, event } = record.map_err(|error| refused(device, &error))?;
        let TraceEvent::Write { range, .. } = event else {
            writer.push(time_ns, &event).doing(what())?;
            continue;
        };
        for (stream, range) in cut(range, &mut streams, &mut joined) {
            writer.push(time_ns, &TraceEvent::Write { stream, range }).doing(what())?;
        }
    }
    let missing: usize = streams.values().map(VecDeque::len).sum();
    if missing > 0 {
        return Err(BenchError::Broken(format!(
            "{missing} blocks that the server says it wrote did not arrive at the device"
        )));
    }
    joined.events = writer.event_count();
    writer.finish().doing(what())?;
    Ok(joined)
}

/// For each block the streams of its writes, in order.
type Streams = HashMap<u64, VecDeque<u8>>;

fn streams_of_blocks(server: &Path) -> Result<(TraceHeader, Streams)> {
    let trace = open(server)?;
    let header = trace.header().clone();
    let mut streams = Streams::new();
    for record in trace {
        let record = record.map_err(|error| refused(server, &error))?;
        if let TraceEvent::Write { stream, range } = record.event {
            for block in range.start / BLOCK_SIZE..range.end / BLOCK_SIZE {
                streams.entry(block).or_default().push_back(stream);
            }
        }
    }
    Ok((header, streams))
}

/// The parts of a write that have one stream each.
fn cut(range: ByteRange, streams: &mut Streams, joined: &mut Joined) -> Vec<(u8, ByteRange)> {
    let mut parts: Vec<(u8, ByteRange)> = Vec::new();
    for block in range.start / BLOCK_SIZE..range.end / BLOCK_SIZE {
        let named = streams.get_mut(&block).and_then(VecDeque::pop_front);
        joined.named_blocks += u64::from(named.is_some());
        joined.other_blocks += u64::from(named.is_none());
        let stream = named.unwrap_or(0);
        match parts.last_mut() {
            Some((last, range)) if *last == stream => range.end += BLOCK_SIZE,
            _ => parts.push((stream, ByteRange::new(block * BLOCK_SIZE, BLOCK_SIZE))),
        }
    }
    parts
}

fn open(path: &Path) -> Result<TraceReader<File>> {
    let file = File::open(path).doing(format!("opening {}", path.display()))?;
    TraceReader::new(file).map_err(|error| refused(path, &error))
}

fn refused(path: &Path, error: &TraceError) -> BenchError {
    BenchError::Server(format!("{}: {error}", path.display()))
}
