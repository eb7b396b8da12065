//! A trace with a clock, which several threads can record together.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{TraceEvent, TraceHeader, TraceWriter};

/// Records events from any thread. The time of an event is the time of the call. If an event can't
/// be recorded, the error is reported once, and the trace is given up. It then gets no end block,
/// so that readers report that its end is missing.
#[derive(Debug)]
pub struct Tape {
    began: Instant,
    writer: Mutex<Option<TraceWriter<File>>>,
}

/// Why an event was not recorded.
#[derive(Debug)]
pub enum TapeError {
    /// The trace can't be written, or can't hold the event. The trace is given up.
    Failed(io::Error),
    /// The trace was given up before, or has ended.
    Over,
}

impl fmt::Display for TapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Failed(error) => write!(f, "the trace can't be written: {error}"),
            Self::Over => f.write_str("the trace was given up before, or has ended"),
        }
    }
}

impl std::error::Error for TapeError {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            Self::Failed(error) => Some(error),
            Self::Over => None,
        }
    }
}

impl From<TapeError> for io::Error {
    fn from(error: TapeError) -> Self {
        match error {
            TapeError::Failed(error) => error,
            TapeError::Over => io::ErrorKind::BrokenPipe.into(),
        }
    }
}

impl Tape {
    /// Begins a trace in an empty file. The clock of the trace starts now.
    ///
    /// # Errors
    /// If the file can't be written, or the header is not valid.
    pub fn new(file: File, header: &TraceHeader) -> io::Result<Self> {
        let writer = TraceWriter::new(file, header)?;
        Ok(Self { began: Instant::now(), writer: Mutex::new(Some(writer)) })
    }

    /// Adds an event with the current time.
    ///
    /// # Errors
    /// [`TapeError::Failed`] if the event can't be recorded: the trace is then given up.
    /// [`TapeError::Over`] if the trace was given up or finished before.
    pub fn record(&self, event: &TraceEvent) -> Result<(), TapeError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let open = writer.as_mut().ok_or(TapeError::Over)?;
        // Read the clock under the lock, so that the times of events are in order.
        let time_ns = self.began.elapsed().as_nanos() as u64;
        open.push(time_ns, event).map_err(|error| {
            *writer = None;
            TapeError::Failed(error)
        })
    }

    /// Ends the trace. Returns how many events it has.
    ///
    /// # Errors
    /// If the end can't be written, or if the trace was given up or finished before.
    pub fn finish(&self) -> Result<u64, TapeError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or(TapeError::Over)?;
        let events = writer.event_count();
        writer.finish().map_err(TapeError::Failed)?;
        Ok(events)
    }
}
