//! Joins two traces of one run. The server's trace says which stream each write has, that is, which
//! lifetime its data has. The join adds these streams to the writes that arrived at the device.
//!
//! The device's trace has all requests in the order in which they arrived. It includes the kernel's
//! own writes, but it has no streams. The server's trace has the stream of every write that the
//! server sent. Each block arrives as often as the server wrote it, and the writes of a block
//! arrive in the order in which the server sent them.

use std::collections::{HashMap, VecDeque};
use std::fs::File;
use std::path::Path;

use slimio_ssd::trace::{
    ByteRange, TraceError, TraceEvent, TraceHeader, TraceReader, TraceRecord, TraceWriter,
};

use super::disk::BLOCK_SIZE;
use crate::error::{BenchError, Doing, Result};

/// The counts of a join.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Joined {
    /// Events of the joined trace.
    pub events: u64,
    /// Blocks whose stream the server named.
    pub named_blocks: u64,
    /// Blocks whose stream the server did not name, because the kernel wrote them by itself. They
    /// have stream 0.
    pub other_blocks: u64,
}

/// The server must have named the streams of at least 1 / `NAMED_PART_MIN` of the blocks. The
/// kernel itself writes only the log's mapped buffers, and only now and then. So if fewer blocks
/// are named, the server's trace is from another run.
const NAMED_PART_MIN: u64 = 4;

/// Joins the traces of the device and the server. Writes the device's trace, with streams, to
/// `out`.
pub fn join(device: &Path, server: &Path, out: &Path) -> Result<Joined> {
    let (header, mut streams) = streams_of_blocks(server)?;
    let trace = open(device)?;
    let mut about = trace.header().about.clone();
    let names = header.get("streams").unwrap_or_default().to_owned();
    about.retain(|(name, _)| name != "streams");
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
            "{missing} blocks did not arrive at the device, although the server says that it \
             wrote them"
        )));
    }
    let Joined { named_blocks, other_blocks, .. } = joined;
    if named_blocks < (named_blocks + other_blocks) / NAMED_PART_MIN {
        return Err(BenchError::Broken(format!(
            "of {} blocks that arrived at the device, the server's trace names \
             only {named_blocks}",
            named_blocks + other_blocks
        )));
    }
    joined.events = writer.event_count();
    writer.finish().doing(what())?;
    Ok(joined)
}

/// For each block, the streams of its writes, in order.
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

/// Cuts a write into parts. All blocks of a part have the same stream.
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

#[cfg(test)]
mod tests {
    use super::*;

    fn trace(path: &Path, events: &[TraceEvent], streams: &str) {
        let about = vec![("streams".to_owned(), streams.to_owned())];
        let header = TraceHeader { device_bytes: 1 << 20, about };
        let file = File::create(path).expect("a temporary file");
        let mut writer = TraceWriter::new(file, &header).expect("the header is written");
        for event in events {
            writer.push(0, event).expect("the event is written");
        }
        writer.finish().expect("the trace is ended");
    }

    fn write(stream: u8, block: u64, blocks: u64) -> TraceEvent {
        let range = ByteRange::new(block * BLOCK_SIZE, blocks * BLOCK_SIZE);
        TraceEvent::Write { stream, range }
    }

    #[test]
    fn what_arrived_gets_the_streams_that_the_server_named() {
        let folder = std::env::temp_dir().join(format!("slimio-join-{}", std::process::id()));
        crate::run::fresh_directory(&folder).expect("a temporary directory");
        let [device, server, out] = ["device", "server", "out"].map(|name| folder.join(name));
        // Two adjacent writes arrive as one, and one write arrives as two. Only the kernel wrote
        // block 9.
        let arrived = [write(0, 0, 4), TraceEvent::Flush, write(0, 9, 1), write(0, 4, 1)];
        let again = [write(0, 5, 1), write(0, 0, 1)];
        let sent = [write(1, 0, 2), write(3, 2, 2), write(2, 4, 2), write(2, 0, 1)];
        trace(&device, &[&arrived[..], &again].concat(), "");
        trace(&server, &sent, "a, b");
        let joined = join(&device, &server, &out).expect("the traces are from one run");
        assert_eq!(joined, Joined { events: 7, named_blocks: 7, other_blocks: 1 });
        let reader = open(&out).expect("a trace");
        assert!(reader.header().about.contains(&("streams".into(), "a, b".into())));
        let events: Vec<TraceEvent> =
            reader.map(|record| record.expect("a record").event).collect();
        let expected = [
            write(1, 0, 2),
            write(3, 2, 2),
            TraceEvent::Flush,
            write(0, 9, 1),
            write(2, 4, 1),
            write(2, 5, 1),
            write(2, 0, 1),
        ];
        assert_eq!(events, expected);

        trace(&server, &sent[..1], "a, b");
        let error = join(&device, &server, &out).map(drop);
        assert!(
            error.is_ok(),
            "a server's trace that names two of eight blocks must be accepted: {error:?}"
        );
        trace(&server, &[write(2, 0, 1)], "a, b");
        let error = join(&device, &server, &out)
            .expect_err("traces of different runs are refused")
            .to_string();
        assert!(error.contains("of 8 blocks that arrived at the device"), "{error}");
        trace(&server, &[write(1, 100, 3)], "a, b");
        let error = join(&device, &server, &out)
            .expect_err("traces of different runs are refused")
            .to_string();
        assert!(error.starts_with("3 blocks did not arrive at the device"), "{error}");
        std::fs::remove_dir_all(&folder).expect("the test can remove its folder");
    }
}
