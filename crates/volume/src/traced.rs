//! The trace of a device: its writes, deallocations and flushes, with the lifetime of each write. A
//! lifetime is a kind of data that is deleted together.
//!
//! An operation is recorded before it is submitted, so every operation that this process submits is
//! in the trace. The log's buffers are mapped into memory, and the kernel writes them by itself. So
//! these writes are missing from the trace. The trace ends when the volume is closed. If the trace
//! can't be written, recording stops with an error message, but the volume keeps working.

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use slimio_device::{Device, LBA_SIZE, Layer, Layered, Lba, Op, OpenError, PlacementId};
use slimio_ssd::trace::{self, ByteRange, TapeError, TraceEvent, TraceHeader};
use slimio_storage::Lifetime;

/// Names of the streams, in the trace's header.
const STREAMS: &str = "superblock, log, WAL-snapshots, on-demand snapshots";

/// Records the operations of one path (the opened device, with an I/O queue of its own). Writes
/// arrive with lifetimes, and are passed on with placements.
struct Recorder {
    /// The device's placement for each lifetime.
    below: [PlacementId; Lifetime::ALL.len()],
    tape: Arc<Tape>,
}

impl Layer for Recorder {
    fn translate(&mut self, op: Op) -> Op {
        let bytes = |lba: Lba, size: usize| ByteRange::new(lba.0 * LBA_SIZE as u64, size as u64);
        match op {
            Op::Write { lba, buffer, placement, durable } => {
                let range = bytes(lba, buffer.len());
                self.tape.record(&TraceEvent::Write { stream: placement.0 as u8, range });
                let placement = self.below[usize::from(placement.0)];
                Op::Write { lba, buffer, placement, durable }
            }
            Op::Deallocate { range } => {
                let size = (range.end.0 - range.start.0) as usize * LBA_SIZE;
                self.tape.record(&TraceEvent::Deallocate { range: bytes(range.start, size) });
                op
            }
            Op::Flush => {
                self.tape.record(&TraceEvent::Flush);
                op
            }
            Op::Read { .. } => op,
        }
    }
}

/// The trace of all paths. The trace ends when the last path is dropped.
pub(crate) struct Tape(trace::Tape);

impl Tape {
    /// Begins the trace in a new file. `device_bytes` is the device's size.
    ///
    /// # Errors
    /// When the file exists already, or can't be made or written.
    pub(crate) fn new(path: &Path, device_bytes: u64) -> Result<Arc<Self>, OpenError> {
        let header = TraceHeader { device_bytes, about: vec![("streams".into(), STREAMS.into())] };
        let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
        let tape = opened.and_then(|file| trace::Tape::new(file, &header)).map_err(|error| {
            OpenError::Unsuitable {
                path: path.to_path_buf(),
                why: match error.kind() {
                    io::ErrorKind::AlreadyExists => {
                        "a trace needs a new file, but a file of this name exists".into()
                    }
                    _ => format!("no trace can be written there: {error}"),
                },
            }
        })?;
        Ok(Arc::new(Self(tape)))
    }

    /// Puts a recorder over a path to the device. Writes to the recorder must name lifetimes.
    /// `below` has the device's placement for each lifetime.
    pub(crate) fn over(
        self: &Arc<Self>,
        path: Box<dyn Device + Send>,
        below: [PlacementId; Lifetime::ALL.len()],
    ) -> Box<dyn Device + Send> {
        Box::new(Layered::new(Recorder { below, tape: Arc::clone(self) }, path))
    }

    fn record(&self, event: &TraceEvent) {
        // Only the first failure is reported. Later calls return another error.
        if let Err(error @ TapeError::Failed(_)) = self.0.record(event) {
            give_up(&error);
        }
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        if let Err(error @ TapeError::Failed(_)) = self.0.finish() {
            give_up(&error);
        }
    }
}

fn give_up(error: &TapeError) {
    log::error!(
        "the volume's operations are not recorded any more, and the trace is incomplete: {error}"
    );
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_a_lifetime() {
        assert_eq!(STREAMS.split(", ").count(), Lifetime::ALL.len());
    }

    #[test]
    fn a_file_that_is_there_is_not_written_over() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("letters");
        std::fs::write(&path, "dear").unwrap();
        let refused = Tape::new(&path, 1 << 20).map(drop).unwrap_err().to_string();
        assert!(refused.ends_with("but a file of this name exists"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"dear");
        let refused = Tape::new(&path.join("below"), 1 << 20).map(drop).unwrap_err().to_string();
        assert!(refused.contains("no trace can be written there: "), "{refused}");
        Tape::new(&directory.path().join("new"), 1 << 20).unwrap();
    }
}
