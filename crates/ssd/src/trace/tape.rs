//! A trace that several threads record, and its clock.

use std::fmt;
use std::fs::File;
use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use super::{TraceEvent, TraceHeader, TraceWriter};

/// Records events with the time of the call, from any thread. The first one that can't be recorded
/// is reported; the trace is given up then and has no end, as something is missing from it.
#[derive(Debug)]
pub struct Tape {
    began: Instant,
    writer: Mutex<Option<TraceWriter<File>>>,
}

/// Why an event was not recorded.
#[derive(Debug)]
pub enum TapeError {
    /// It can't be written: the trace is given up.
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
    /// Begins a trace in an empty file. Its clock starts now.
    ///
    /// # Errors
    /// When it can't be written, or the header can't be in a trace.
    pub fn new(file: File, header: &TraceHeader) -> io::Result<Self> {
        let writer = TraceWriter::new(file, header)?;
        Ok(Self { began: Instant::now(), writer: Mutex::new(Some(writer)) })
    }

    /// Adds an event at this moment.
    ///
    /// # Errors
    /// When it is not in the trace: [`TapeError::Failed`] the first time, [`TapeError::Over`] from then
    /// on.
    pub fn record(&self, event: &TraceEvent) -> Result<(), TapeError> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let open = writer.as_mut().ok_or(TapeError::Over)?;
        // Under the lock, so that times are in order.
        let time_ns = self.began.elapsed().as_nanos() as u64;
        open.push(time_ns, event).map_err(|error| {
            *writer = None;
            TapeError::Failed(error)
        })
    }

    /// Ends the trace; returns how many events it has.
    ///
    /// # Errors
    /// When its end can't be written, or it was given up or ended before.
    pub fn finish(&self) -> Result<u64, TapeError> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or(TapeError::Over)?;
        let events = writer.event_count();
        writer.finish().map_err(TapeError::Failed)?;
        Ok(events)
    }
}
