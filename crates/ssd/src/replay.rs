//! Replays a recorded trace on a drive, and counts what the drive writes.
//!
//! Only the order of the events matters here, not their times. A write that covers only a part of a
//! page writes the whole page. A deallocation frees only the pages that it covers completely,
//! because a drive may ignore pages that are only partly covered. A Write Zeroes is replayed as a
//! write of data, because the host wants the blocks to stay mapped.

mod separation;

pub use separation::{NotSeparate, Separation};

use std::fmt;
use std::io::Read;

use slimio_device::LBA_SIZE;

use crate::trace::{ByteRange, STREAMS_MAX, TraceError, TraceEvent, TraceReader};
use crate::{Config, ConfigError, Counters, Ftl, FtlError};
use separation::Census;

/// What the drive holds before the trace begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Precondition {
    /// Nothing, because the drive is new or all of it was deallocated.
    Empty,
    /// Every block was written once, from the first to the last, through handle 0. Only
    /// [`Outcome::counters`] counts these writes.
    Written,
}

/// How a trace is replayed.
#[derive(Clone, Debug)]
pub struct Replay {
    /// The drive.
    pub config: Config,
    /// The handle of each stream of the trace. Streams beyond the end of this list use handle 0.
    pub handles: Vec<u16>,
    /// What the drive holds before the trace begins.
    pub precondition: Precondition,
    /// A factor for every address and length of the trace. A factor of 10 repeats the experiment on
    /// a drive ten times larger, with all sizes ten times larger. A factor of 1 replays the trace
    /// as recorded.
    pub stretch: u64,
}

/// The drive at one moment of a replay. The counts do not include the writes of the precondition.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Point {
    /// Time in the trace, in nanoseconds.
    pub time_ns: u64,
    /// Bytes that the host has written.
    pub host_bytes: u64,
    /// Bytes that the drive has written to the media.
    pub media_bytes: u64,
    /// The share of the exported blocks that hold data.
    pub utilization: f64,
    /// Number of reclaim units that hold blocks of several streams.
    pub mixed_units: u32,
}

impl Point {
    /// Write amplification since `before`. `None` if the host has written nothing since then.
    pub fn waf_since(&self, before: &Self) -> Option<f64> {
        let host = self.host_bytes - before.host_bytes;
        (host > 0).then(|| (self.media_bytes - before.media_bytes) as f64 / host as f64)
    }
}

/// The result of a replay.
#[derive(Clone, Debug)]
pub struct Outcome {
    /// The drive over time. There is a point at the beginning, another whenever the host has
    /// written a hundredth of the drive's capacity, and one at the end.
    pub points: Vec<Point>,
    /// For each mark, how many bytes the host had written before the mark, and the mark's text.
    pub marks: Vec<(u64, String)>,
    /// The drive's counters. They include the precondition.
    pub counters: Counters,
    /// How many bytes were erased, without those of the precondition.
    pub erased_bytes: u64,
    /// If the trace is cut off because its recording was not finished, the number of events before
    /// the cut. `None` if the trace is complete.
    pub cut_after: Option<u64>,
    /// Whether the streams stayed apart. Blocks that the precondition wrote count as stream 0.
    pub separation: Separation,
}

impl Outcome {
    /// Write amplification of the whole trace. `None` if the trace has no write.
    pub fn waf(&self) -> Option<f64> {
        let [first, .., last] = self.points.as_slice() else { return None };
        last.waf_since(first)
    }

    /// Write amplification of the trace's second half. The trace is halved by the bytes that the
    /// host wrote.
    pub fn waf_of_second_half(&self) -> Option<f64> {
        let last = self.points.last()?;
        let middle = self.points.iter().find(|point| point.host_bytes * 2 >= last.host_bytes)?;
        last.waf_since(middle)
    }
}

/// Why a trace can't be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// The trace can't be read to its end.
    Trace(TraceError),
    /// No drive can be made with this configuration.
    Config(ConfigError),
    /// The drive exports less than the recorded device had.
    TooSmall {
        /// Size of the recorded device.
        device_bytes: u64,
        /// How much the drive exports.
        exported_bytes: u64,
    },
    /// The drive refused a request.
    Refused(FtlError),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Trace(error) => error.fmt(f),
            Self::Config(error) => error.fmt(f),
            Self::TooSmall { device_bytes, exported_bytes } => write!(
                f,
                "the trace is of a device of {device_bytes} bytes, but the drive has only \
                 {exported_bytes}"
            ),
            Self::Refused(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

impl From<TraceError> for ReplayError {
    fn from(error: TraceError) -> Self {
        Self::Trace(error)
    }
}

impl From<FtlError> for ReplayError {
    fn from(error: FtlError) -> Self {
        Self::Refused(error)
    }
}

impl Replay {
    /// Replays a trace to its end, or to the place where it is cut off. [`Outcome::cut_after`] says
    /// which of the two it was.
    ///
    /// # Errors
    /// If the trace can't be read or is cut off before its first event, if the drive can't be made,
    /// or if the drive is too small for the trace or refuses a request.
    pub fn run<R: Read>(&self, trace: TraceReader<R>) -> Result<Outcome, ReplayError> {
        let drive = Ftl::new(self.config.clone()).map_err(ReplayError::Config)?;
        let exported_bytes = self.config.lba_count * LBA_SIZE as u64;
        let device_bytes = trace.header().device_bytes.saturating_mul(self.stretch);
        if device_bytes > exported_bytes {
            return Err(ReplayError::TooSmall { device_bytes, exported_bytes });
        }
        let mut run = Run::begin(drive, self)?;
        let mut cut_after = None;
        for record in trace {
            match record {
                Ok(record) => {
                    run.apply(&record.event)?;
                    run.look(record.time_ns);
                }
                Err(TraceError::Cut { events }) if events > 0 => cut_after = Some(events),
                Err(error) => return Err(error.into()),
            }
        }
        Ok(Outcome { cut_after, ..run.finish() })
    }
}

struct Run {
    drive: Ftl,
    census: Census,
    handles: [u16; STREAMS_MAX as usize],
    stretch: u64,
    /// The host bytes, media bytes and erased bytes of the precondition.
    before: (u64, u64, u64),
    look_every: u64,
    time_ns: u64,
    points: Vec<Point>,
    marks: Vec<(u64, String)>,
}

impl Run {
    fn begin(mut drive: Ftl, replay: &Replay) -> Result<Self, ReplayError> {
        let mut handles = [0; STREAMS_MAX as usize];
        for (of_stream, handle) in handles.iter_mut().zip(&replay.handles) {
            *of_stream = *handle;
        }
        if replay.precondition == Precondition::Written {
            for lba in 0..drive.config().lba_count {
                drive.write(lba, 0)?;
            }
        }
        let counters = drive.counters();
        let before = (counters.host_bytes(), counters.media_bytes(), counters.erased_bytes());
        let look_every = (drive.config().lba_count * LBA_SIZE as u64 / 100).max(1);
        let (points, marks) = (Vec::new(), Vec::new());
        let census = Census::of(&drive);
        let mut run = Self {
            drive,
            census,
            handles,
            stretch: replay.stretch,
            before,
            look_every,
            time_ns: 0,
            points,
            marks,
        };
        run.points.push(run.point());
        Ok(run)
    }

    fn apply(&mut self, event: &TraceEvent) -> Result<(), ReplayError> {
        match event {
            TraceEvent::Write { stream, range } => self.write(*stream, self.stretched(*range)),
            TraceEvent::WriteZeros { range } => self.write(0, self.stretched(*range)),
            TraceEvent::Deallocate { range } => {
                let range = self.stretched(*range);
                let size = LBA_SIZE as u64;
                let (start, end) = (range.start.div_ceil(size), range.end / size);
                for page in (start..end).filter_map(|lba| self.drive.page_of(lba)) {
                    self.census.remove(page);
                }
                Ok(self.drive.deallocate(start, end.saturating_sub(start))?)
            }
            TraceEvent::Mark(what) => {
                self.marks.push((self.host_bytes(), what.clone()));
                Ok(())
            }
            TraceEvent::Flush => Ok(()),
        }
    }

    /// Multiplies a range by the stretch factor. The products do not overflow, because `run` has
    /// checked that the stretched device fits the drive.
    fn stretched(&self, range: ByteRange) -> ByteRange {
        ByteRange { start: range.start * self.stretch, end: range.end * self.stretch }
    }

    fn write(&mut self, stream: u8, range: ByteRange) -> Result<(), ReplayError> {
        let handle = self.handles[usize::from(stream)];
        let size = LBA_SIZE as u64;
        self.census.writes(stream);
        for lba in range.start / size..range.end.div_ceil(size) {
            self.drive.write_observed(lba, handle, &mut self.census)?;
        }
        Ok(())
    }

    fn look(&mut self, time_ns: u64) {
        self.time_ns = time_ns;
        let last = self.points.last().map_or(0, |point| point.host_bytes);
        if self.host_bytes() - last >= self.look_every {
            self.points.push(self.point());
        }
    }

    fn host_bytes(&self) -> u64 {
        self.drive.counters().host_bytes() - self.before.0
    }

    fn point(&self) -> Point {
        Point {
            time_ns: self.time_ns,
            host_bytes: self.host_bytes(),
            media_bytes: self.drive.counters().media_bytes() - self.before.1,
            utilization: self.drive.mapped_count() as f64 / self.drive.config().lba_count as f64,
            mixed_units: self.census.mixed_units(),
        }
    }

    fn finish(mut self) -> Outcome {
        self.points.push(self.point());
        let counters = self.drive.counters().clone();
        let erased_bytes = counters.erased_bytes() - self.before.2;
        let separation = self.census.finish();
        Outcome {
            points: self.points,
            marks: self.marks,
            counters,
            erased_bytes,
            cut_after: None,
            separation,
        }
    }
}
