//! The latency monitor. It keeps delays of at least `latency-monitor-threshold` that clients have
//! noticed, sorted by kind.
//!
//! The kinds have Redis's names: `command` and `fast-command` for a command, `expire-cycle` for
//! expiry, `aof-fsync-always` for the log under `always`, and `aof-write-pending-fsync` for the log
//! under `everysec` if replies had to wait for it. The kind `snapshot-step` exists only in SlimIO.

mod report;

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

pub(crate) use report::{doctor, graph};

/// At most this many samples of each kind are kept.
const SAMPLES_MAX: usize = 160;

/// The longest delay within one second.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Sample {
    /// Seconds since 1970.
    pub(crate) at_s: i64,
    /// Length of the delay, in milliseconds.
    pub(crate) ms: u64,
}

/// The samples of one kind of delay.
#[derive(Clone, Debug, Default)]
pub(crate) struct Series {
    /// Oldest first, at most one for each second.
    pub(crate) samples: VecDeque<Sample>,
    /// The longest delay since the last reset, in milliseconds.
    pub(crate) ms_max: u64,
}

#[derive(Debug, Default)]
pub(crate) struct Latency {
    by_event: BTreeMap<&'static str, Series>,
}

impl Latency {
    /// Notes a delay if it took at least `threshold`. If `threshold` is `None`, notes nothing.
    pub(crate) fn note(
        &mut self,
        event: &'static str,
        at_s: i64,
        took: Duration,
        threshold: Option<Duration>,
    ) {
        if threshold.is_some_and(|threshold| took >= threshold) {
            self.add(event, at_s, took.as_millis() as u64);
        }
    }

    fn add(&mut self, event: &'static str, at_s: i64, ms: u64) {
        let series = self.by_event.entry(event).or_default();
        series.ms_max = series.ms_max.max(ms);
        match series.samples.back_mut() {
            Some(last) if last.at_s == at_s => last.ms = last.ms.max(ms),
            _ => {
                if series.samples.len() == SAMPLES_MAX {
                    series.samples.pop_front();
                }
                series.samples.push_back(Sample { at_s, ms });
            }
        }
    }

    /// Every kind that has samples, sorted by name.
    pub(crate) fn events(&self) -> impl ExactSizeIterator<Item = (&'static str, &Series)> {
        self.by_event.iter().map(|(name, series)| (*name, series))
    }

    /// The samples of the kind with this name; `None` if it has no samples.
    pub(crate) fn event(&self, name: &[u8]) -> Option<(&'static str, &Series)> {
        self.events().find(|(event, _)| event.as_bytes() == name)
    }

    /// Forgets the samples of one kind; returns whether it had samples.
    pub(crate) fn reset(&mut self, name: &[u8]) -> bool {
        let found = self.event(name).map(|(event, _)| event);
        found.is_some_and(|event| self.by_event.remove(event).is_some())
    }

    /// Forgets the samples of all kinds; returns how many kinds had samples.
    pub(crate) fn reset_all(&mut self) -> usize {
        std::mem::take(&mut self.by_event).len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const THRESHOLD: Option<Duration> = Some(Duration::from_millis(10));

    #[test]
    fn only_what_is_long_enough_is_noted_and_the_longest_of_a_second() {
        let mut latency = Latency::default();
        latency.note("command", 7, Duration::from_micros(9_999), THRESHOLD);
        latency.note("command", 7, Duration::from_secs(9), None);
        assert_eq!(latency.events().len(), 0);
        for (at_s, ms) in [(7, 10), (7, 30), (7, 20), (8, 11)] {
            latency.note("command", at_s, Duration::from_millis(ms), THRESHOLD);
        }
        let (name, series) = latency.event(b"command").unwrap();
        assert_eq!(name, "command");
        assert_eq!(series.samples, [Sample { at_s: 7, ms: 30 }, Sample { at_s: 8, ms: 11 }]);
        assert_eq!(series.ms_max, 30);
        assert!(latency.reset(b"command"));
        assert!(!latency.reset(b"command"));
    }

    #[test]
    fn the_oldest_samples_go() {
        let mut latency = Latency::default();
        for second in 0..500 {
            latency.note("command", second, Duration::from_millis(10), THRESHOLD);
        }
        let (_, series) = latency.event(b"command").unwrap();
        assert_eq!(series.samples.len(), SAMPLES_MAX);
        assert_eq!(series.samples[0].at_s, 500 - SAMPLES_MAX as i64);
    }
}
