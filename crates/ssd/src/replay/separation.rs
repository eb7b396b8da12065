//! Checks whether the streams of a trace stay apart, both in the host's addresses and in the
//! drive's reclaim units.
//!
//! Write amplification alone does not show whether data placement works. A host that deallocates
//! the blocks that it frees may have a write amplification of 1 even without data placement.

use std::collections::BTreeMap;
use std::fmt;

use crate::trace::STREAMS_MAX;
use crate::{Ftl, NandPage, Observer};

const STREAMS: usize = STREAMS_MAX as usize;

/// How far the streams of a trace stayed apart.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Separation {
    /// How many blocks the host wrote in each stream. The list ends with the last stream that has
    /// any blocks.
    pub written: Vec<u64>,
    /// Blocks of one stream that another stream overwrote: the stream that the blocks were in, the
    /// stream that overwrote them, and the number of blocks.
    pub changed: Vec<(u8, u8, u64)>,
    /// How many reclaim units held blocks of several streams, at the moment when there were most
    /// such units.
    pub mixed_units_max: u32,
}

/// Why the streams of a trace do not count as separate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotSeparate {
    /// Nothing was written in a stream.
    Nothing {
        /// The stream.
        stream: usize,
    },
    /// Blocks of one stream were overwritten by another stream.
    Changed {
        /// The stream that the blocks were in.
        from: u8,
        /// The stream that overwrote the blocks.
        to: u8,
        /// How many blocks were overwritten.
        blocks: u64,
    },
    /// Reclaim units held blocks of several streams.
    Mixed {
        /// The largest number of such units at one time.
        units: u32,
    },
}

impl fmt::Display for NotSeparate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing { stream } => write!(f, "nothing is written in stream {stream}"),
            Self::Changed { from, to, blocks } => write!(
                f,
                "{blocks} blocks are in stream {from} and then written in stream {to}, without being \
                 deallocated in between"
            ),
            Self::Mixed { units } => {
                write!(f, "{units} reclaim units hold blocks of several streams at the same time")
            }
        }
    }
}

impl std::error::Error for NotSeparate {}

impl Separation {
    /// Checks three conditions. Each of the first `streams` streams has writes. Blocks of one
    /// stream were deallocated before another stream wrote them, unless both streams are in
    /// `sharing`.
    /// No reclaim unit held data of two streams at the same time.
    ///
    /// # Errors
    /// If a condition does not hold. The error names the first such condition.
    pub fn check(&self, streams: usize, sharing: &[u8]) -> Result<(), NotSeparate> {
        let of = |stream: usize| self.written.get(stream).copied().unwrap_or(0);
        if let Some(stream) = (0..streams).find(|stream| of(*stream) == 0) {
            return Err(NotSeparate::Nothing { stream });
        }
        let is_allowed = |from, to| sharing.contains(from) && sharing.contains(to);
        if let Some(&(from, to, blocks)) =
            self.changed.iter().find(|(from, to, _)| !is_allowed(from, to))
        {
            return Err(NotSeparate::Changed { from, to, blocks });
        }
        match self.mixed_units_max {
            0 => Ok(()),
            units => Err(NotSeparate::Mixed { units }),
        }
    }
}

/// Follows the data of each stream through the drive.
pub(super) struct Census {
    unit_pages: u32,
    /// For each page, the stream of the data that the page was last programmed with.
    stream_of_page: Vec<u8>,
    /// For each unit, the number of valid pages of each stream.
    valid: Vec<[u32; STREAMS]>,
    /// For each unit, the number of streams that have valid pages in the unit.
    kinds: Vec<u8>,
    mixed_units: u32,
    mixed_units_max: u32,
    written: [u64; STREAMS],
    changed: BTreeMap<(u8, u8), u64>,
    /// The stream that the host is writing.
    stream: u8,
}

impl Census {
    /// Begins a census of a drive. Blocks that are already mapped count as stream 0.
    pub(super) fn of(drive: &Ftl) -> Self {
        let geometry = drive.config().geometry;
        let units = geometry.unit_count() as usize;
        let mut census = Self {
            unit_pages: geometry.unit_pages(),
            stream_of_page: vec![0; geometry.page_count() as usize],
            valid: vec![[0; STREAMS]; units],
            kinds: vec![0; units],
            mixed_units: 0,
            mixed_units_max: 0,
            written: [0; STREAMS],
            changed: BTreeMap::new(),
            stream: 0,
        };
        for page in (0..drive.config().lba_count).filter_map(|lba| drive.page_of(lba)) {
            census.add(page, 0);
        }
        census
    }

    /// Notes that the host's writes belong to this stream from now on.
    pub(super) fn writes(&mut self, stream: u8) {
        self.stream = stream;
    }

    /// Notes that the page no longer holds data.
    pub(super) fn remove(&mut self, page: NandPage) {
        let stream = self.stream_of_page[page.0 as usize];
        let unit = (page.0 / self.unit_pages) as usize;
        let count = &mut self.valid[unit][usize::from(stream)];
        *count -= 1;
        if *count == 0 {
            self.kinds[unit] -= 1;
            self.mixed_units -= u32::from(self.kinds[unit] == 1);
        }
    }

    pub(super) fn mixed_units(&self) -> u32 {
        self.mixed_units
    }

    pub(super) fn finish(self) -> Separation {
        let used = self.written.iter().rposition(|blocks| *blocks > 0).map_or(0, |last| last + 1);
        Separation {
            written: self.written[..used].to_vec(),
            changed: self.changed.iter().map(|(&(from, to), &count)| (from, to, count)).collect(),
            mixed_units_max: self.mixed_units_max,
        }
    }

    fn add(&mut self, page: NandPage, stream: u8) {
        self.stream_of_page[page.0 as usize] = stream;
        let unit = (page.0 / self.unit_pages) as usize;
        let count = &mut self.valid[unit][usize::from(stream)];
        *count += 1;
        if *count == 1 {
            self.kinds[unit] += 1;
            self.mixed_units += u32::from(self.kinds[unit] == 2);
            self.mixed_units_max = self.mixed_units_max.max(self.mixed_units);
        }
    }
}

impl Observer for Census {
    fn program(&mut self, page: NandPage, _lba: u64) {
        self.written[usize::from(self.stream)] += 1;
        self.add(page, self.stream);
    }

    fn outdated(&mut self, page: NandPage) {
        let held = self.stream_of_page[page.0 as usize];
        if held != self.stream {
            *self.changed.entry((held, self.stream)).or_default() += 1;
        }
        self.remove(page);
    }

    fn copy(&mut self, from: NandPage, to: NandPage) {
        let stream = self.stream_of_page[from.0 as usize];
        self.remove(from);
        self.add(to, stream);
    }
}
