//! A device whose writes, deallocations and flushes are recorded, with the lifetime of each write.
//!
//! Recorded is what is submitted, before it is: whatever reaches the device through a path is in the
//! trace. What the kernel writes of the log's mapped buffers does not come through one, and is not.
//! The trace has its end when the volume is closed; one that can't be written is given up, loudly, and
//! the volume goes on.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use slimio_device::{
    Contents, Device, LBA_SIZE, Layer, Layered, Lba, MappedFile, Op, OpenError, PlacementId,
    WholeDevice,
};
use slimio_ssd::trace::{ByteRange, TraceEvent, TraceHeader, TraceWriter};

use crate::placements_of_lifetimes;

/// What the streams of such a trace are, in its header.
const STREAMS: &str = "superblock, log, WAL-snapshots, on-demand snapshots";

/// A device that is recorded. It has a placement for each lifetime, whatever the device has.
pub(crate) struct Traced {
    device: Box<dyn WholeDevice>,
    /// One for each lifetime: the streams of the trace.
    placements: Vec<PlacementId>,
    tape: Arc<Tape>,
}

impl Traced {
    /// Records `device` in a file, which is made or made empty.
    ///
    /// # Errors
    /// When that can't be written.
    pub(crate) fn new(device: Box<dyn WholeDevice>, trace: &Path) -> Result<Self, OpenError> {
        let header = TraceHeader {
            device_bytes: device.lba_count() * LBA_SIZE as u64,
            about: vec![("streams".into(), STREAMS.into())],
        };
        let writer = File::create(trace).and_then(|file| TraceWriter::new(file, &header));
        let writer = writer.map_err(|error| OpenError::Unsuitable {
            path: trace.to_path_buf(),
            why: format!("no trace can be written there: {error}"),
        })?;
        let placements = (0..).take(STREAMS.split(", ").count()).map(PlacementId).collect();
        let writer = Mutex::new(Some(writer));
        let tape = Arc::new(Tape { began: Instant::now(), writer });
        Ok(Self { device, placements, tape })
    }

    fn record(&self, path: Box<dyn Device + Send>) -> Box<dyn Device + Send> {
        let below = self.device.placements();
        let indexes = placements_of_lifetimes(below.len() as u16);
        let of = |index: u16| below.get(usize::from(index)).copied().unwrap_or_default();
        let recorder = Recorder { below: indexes.map(of), tape: Arc::clone(&self.tape) };
        Box::new(Layered::new(recorder, path))
    }
}

impl WholeDevice for Traced {
    fn lba_count(&self) -> u64 {
        self.device.lba_count()
    }

    fn contents(&self) -> Result<Contents, OpenError> {
        self.device.contents()
    }

    fn open_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.device.open_path()?;
        Ok(self.record(path))
    }

    fn open_bulk_path(&mut self) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.device.open_bulk_path()?;
        Ok(self.record(path))
    }

    fn map(&mut self, offset: u64, size: usize) -> Result<MappedFile, OpenError> {
        self.device.map(offset, size)
    }

    fn placements(&self) -> &[PlacementId] {
        &self.placements
    }

    fn identity(&self) -> Option<String> {
        self.device.identity()
    }

    fn is_best(&self) -> bool {
        self.device.is_best()
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        self.device.facts()
    }

    fn describe(&self) -> String {
        format!("{}, recorded", self.device.describe())
    }

    fn notes(&self) -> Vec<String> {
        self.device.notes()
    }
}

/// Records what goes down one path.
struct Recorder {
    /// The device's own placement for each stream.
    below: [PlacementId; 4],
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

/// The trace of all paths.
struct Tape {
    began: Instant,
    writer: Mutex<Option<TraceWriter<File>>>,
}

impl Tape {
    fn record(&self, event: &TraceEvent) {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = writer.as_mut() else { return };
        let time_ns = self.began.elapsed().as_nanos() as u64;
        if let Err(error) = open.push(time_ns, event) {
            give_up(&error);
            *writer = None;
        }
    }
}

impl Drop for Tape {
    fn drop(&mut self) {
        let writer = self.writer.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(Err(error)) = writer.map(TraceWriter::finish) {
            give_up(&error);
        }
    }
}

fn give_up(error: &io::Error) {
    log::error!("the volume is recorded no further, and its trace has no end: {error}");
}

#[cfg(test)]
mod tests {
    use slimio_storage::Lifetime;

    use super::*;

    #[test]
    fn a_stream_is_a_lifetime() {
        assert_eq!(STREAMS.split(", ").count(), Lifetime::ALL.len());
    }
}
