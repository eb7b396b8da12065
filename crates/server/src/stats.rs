//! Counters for INFO.

use std::collections::BTreeMap;
use std::collections::VecDeque;
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

/// Number of samples that a rate is averaged over.
const RATE_SAMPLES: usize = 16;
/// Time between two samples.
const SAMPLE_EVERY: Duration = Duration::from_millis(100);
/// Largest number of error codes that are counted separately.
const ERROR_CODES_MAX: usize = 128;

/// Longest time in a command's histogram, in nanoseconds. A longer time is recorded as this time.
const LATENCY_NS_MAX: u64 = 1_000_000_000;
/// Significant decimal digits of the times in a histogram.
const LATENCY_DIGITS: u8 = 2;

/// Counters of one command.
#[derive(Clone, Debug, Default)]
pub(crate) struct CommandStats {
    pub(crate) calls: u64,
    pub(crate) nanoseconds: u64,
    pub(crate) rejected: u64,
    pub(crate) failed: u64,
    /// Times of the command's calls, in nanoseconds; `None` if no call has ended while
    /// `latency-tracking` was on.
    pub(crate) latency: Option<Box<Histogram<u64>>>,
}

impl CommandStats {
    /// Counts a call, and the time that it has taken so far. `is_tracking` is set if the call is
    /// over and its time is to be recorded in the histogram.
    pub(crate) fn count(&mut self, took: Duration, is_tracking: bool) {
        self.calls += 1;
        self.goes_on(took, is_tracking);
    }

    /// Adds the time that a call took after [`count`](Self::count) had counted it.
    pub(crate) fn goes_on(&mut self, took: Duration, is_tracking: bool) {
        let nanoseconds = took.as_nanos() as u64;
        self.nanoseconds += nanoseconds;
        if is_tracking {
            self.latency
                .get_or_insert_with(|| Box::new(new_histogram()))
                .saturating_record(nanoseconds.max(1));
        }
    }
}

#[cold]
fn new_histogram() -> Histogram<u64> {
    Histogram::new_with_bounds(1, LATENCY_NS_MAX, LATENCY_DIGITS)
        .expect("the bounds of the histogram are valid constants")
}

/// Counters of the server.
#[derive(Debug, Default)]
pub(crate) struct Stats {
    pub(crate) connections: u64,
    pub(crate) rejected_connections: u64,
    /// Clients that were disconnected because all clients together took too much memory.
    pub(crate) evicted_clients: u64,
    pub(crate) commands: u64,
    pub(crate) input_bytes: u64,
    pub(crate) output_bytes: u64,
    pub(crate) reads: u64,
    pub(crate) writes: u64,
    pub(crate) error_replies: u64,
    pub(crate) errors: BTreeMap<String, u64>,
    pub(crate) by_command: Vec<CommandStats>,
    pub(crate) output_limit_disconnections: u64,
    pub(crate) query_limit_disconnections: u64,
    pub(crate) undelivered: u64,
    /// Largest CPU time that a command took without a break while `command-cpu-tracking` was on.
    pub(crate) command_cpu_max: Duration,
    /// Largest CPU time of one turn of the event loop while `command-cpu-tracking` was on. A turn
    /// serves only requests that arrived before the turn.
    pub(crate) turn_cpu_max: Duration,
    /// Number of flushes of the log under `everysec` that came so late that replies had to wait.
    pub(crate) delayed_flushes: u64,
    /// Recent samples of three counters: commands, bytes in and bytes out.
    samples: VecDeque<(Instant, [u64; 3])>,
}

impl Stats {
    /// Counts an error reply by its code.
    pub(crate) fn error(&mut self, reply: &[u8]) {
        self.error_replies += 1;
        let code = reply.strip_prefix(b"-").unwrap_or(reply);
        let end = code.iter().position(|b| matches!(b, b' ' | b'\r')).unwrap_or(code.len());
        let code = String::from_utf8_lossy(&code[..end]);
        if let Some(count) = self.errors.get_mut(&*code) {
            *count += 1;
        } else if self.errors.len() < ERROR_CODES_MAX {
            self.errors.insert(code.into_owned(), 1);
        }
    }

    /// `CONFIG RESETSTAT`: resets the counters.
    pub(crate) fn reset(&mut self) {
        let commands = self.by_command.len();
        *self = Self::default();
        self.by_command.resize(commands, CommandStats::default());
    }

    /// Samples the counters, at most once per [`SAMPLE_EVERY`].
    pub(crate) fn sample(&mut self, now: Instant) {
        let is_due = self.samples.back().is_none_or(|(at, _)| now - *at >= SAMPLE_EVERY);
        if is_due {
            if self.samples.len() == RATE_SAMPLES {
                self.samples.pop_front();
            }
            let counters = [self.commands, self.input_bytes, self.output_bytes];
            self.samples.push_back((now, counters));
        }
    }

    /// Whether a counter has changed since the oldest sample. If so, at least one rate is not zero.
    pub(crate) fn is_moving(&self) -> bool {
        let counters = [self.commands, self.input_bytes, self.output_bytes];
        self.samples.front().is_some_and(|(_, then)| *then != counters)
    }

    /// The averages per second since the oldest sample, of commands, bytes in and bytes out.
    pub(crate) fn rates(&self, now: Instant) -> [f64; 3] {
        let Some((at, then)) = self.samples.front() else { return [0.0; 3] };
        let seconds = now.saturating_duration_since(*at).as_secs_f64().max(0.1);
        let counters = [self.commands, self.input_bytes, self.output_bytes];
        std::array::from_fn(|i| (counters[i] - then[i]) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_are_counted_by_their_code() {
        let mut stats = Stats::default();
        stats.error(b"-ERR x\r\n");
        stats.error(b"-ERR y\r\n");
        stats.error(b"-EXECABORT\r\n");
        assert_eq!(stats.errors["ERR"], 2);
        assert_eq!(stats.errors["EXECABORT"], 1);
        assert_eq!(stats.error_replies, 3);
    }

    #[test]
    fn rates_are_those_of_the_last_seconds() {
        let start = Instant::now();
        let mut stats = Stats::default();
        for second in 0..100u64 {
            stats.commands = second * 10;
            stats.sample(start + Duration::from_secs(second));
        }
        let [commands, ..] = stats.rates(start + Duration::from_secs(99));
        assert!((commands - 10.0).abs() < 0.01, "{commands}");
    }
}
