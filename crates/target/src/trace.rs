//! Records the hosts' operations on the drive, as a trace that `slimio waf` replays.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use slimio_device::LBA_SIZE;
use slimio_ssd::trace::{ByteRange, STREAMS_MAX, TraceEvent, TraceHeader, TraceWriter};

/// If this time has passed since the last write to the file, the next event causes another write.
const WRITTEN_EVERY: Duration = Duration::from_secs(1);

/// A trace to which hosts' operations are added.
#[derive(Debug)]
pub struct Recorder {
    start: Instant,
    state: Mutex<State>,
}

#[derive(Debug)]
enum State {
    Writing {
        writer: Box<TraceWriter<File>>,
        /// When events were last written to the file.
        written_at: Instant,
    },
    /// The trace has ended. If a write has failed, the error says why.
    Over(Option<io::ErrorKind>),
}

impl Recorder {
    /// Begins a trace of a device with `device_bytes` bytes, in a new file.
    ///
    /// # Errors
    /// When the file already exists, or can't be made or written.
    pub fn create(path: &Path, device_bytes: u64) -> io::Result<Self> {
        let about = [("made by", "slimio drive serve"), ("streams", "placement ids")];
        let about = about.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec();
        let header = TraceHeader { device_bytes, about };
        let writer = TraceWriter::new(File::create_new(path)?, &header)?;
        let (writer, start) = (Box::new(writer), Instant::now());
        Ok(Self { start, state: Mutex::new(State::Writing { writer, written_at: start }) })
    }

    /// Adds an event. About every second, writes the added events to the file, so that they survive
    /// if the process is killed. If the file can't be written, the trace ends, and
    /// [`finish`](Self::finish) returns the error. The drive works on without the trace.
    pub(crate) fn push(&self, now: Instant, event: &TraceEvent) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if let State::Writing { writer, written_at } = &mut *state {
            let time_ns = now.saturating_duration_since(self.start).as_nanos() as u64;
            let mut result = writer.push(time_ns, event);
            if now >= *written_at + WRITTEN_EVERY {
                *written_at = now;
                result = result.and_then(|()| writer.flush());
            }
            if let Err(error) = result {
                log::error!("the trace ends here, because it can't be written: {error}");
                *state = State::Over(Some(error.kind()));
            }
        }
    }

    /// Ends the trace. When a trace without an end is replayed, it is reported as cut off.
    ///
    /// # Errors
    /// When the trace could not be written completely. It then has no end.
    pub fn finish(&self) -> io::Result<()> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match std::mem::replace(&mut *state, State::Over(None)) {
            State::Writing { writer, .. } => writer.finish()?.sync_all(),
            State::Over(None) => Ok(()),
            State::Over(Some(kind)) => Err(kind.into()),
        }
    }
}

/// The range of bytes of `lbas` blocks, the first of which is at `lba`.
pub(crate) fn range_of(lba: u64, lbas: u64) -> ByteRange {
    ByteRange::new(lba * LBA_SIZE as u64, lbas * LBA_SIZE as u64)
}

/// The stream of a placement. A trace may have fewer streams than the drive has placements. All
/// placements whose number is too high share the last stream.
pub(crate) fn stream_of(placement: u16) -> u8 {
    placement.min(u16::from(STREAMS_MAX) - 1) as u8
}
