//! The trace that a recorded device writes, with the clock that it goes by.

use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use slimio_ssd::trace::{TraceEvent, TraceHeader, TraceWriter};

use crate::error::{BenchError, Doing, Result};

/// A trace that is being recorded. What can't be written is an error to whoever is recorded, too.
#[derive(Debug)]
pub struct Tape {
    began: Instant,
    writer: Mutex<Option<TraceWriter<File>>>,
}

impl Tape {
    /// Begins a trace in a file, which is made or made empty. Its clock starts now.
    pub fn new(path: &Path, header: &TraceHeader) -> Result<Self> {
        let what = || format!("recording {}", path.display());
        let file = File::create(path).doing(what())?;
        let writer = TraceWriter::new(file, header).doing(what())?;
        Ok(Self { began: Instant::now(), writer: Mutex::new(Some(writer)) })
    }

    /// Adds an event at this moment.
    pub fn record(&self, event: &TraceEvent) -> io::Result<()> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(open) = writer.as_mut() else { return Err(io::ErrorKind::BrokenPipe.into()) };
        // Under the lock, so that times are in order.
        let time_ns = self.began.elapsed().as_nanos() as u64;
        let pushed = open.push(time_ns, event);
        if pushed.is_err() {
            // The trace stays without an end: something is missing from it.
            *writer = None;
        }
        pushed
    }

    /// Ends the trace; returns how many events it has. What comes now fails.
    pub fn finish(&self) -> Result<u64> {
        let writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner).take();
        let writer = writer.ok_or_else(|| {
            BenchError::Server("the trace could not be written to its end".into())
        })?;
        let events = writer.event_count();
        writer.finish().doing("ending the trace")?;
        Ok(events)
    }
}
