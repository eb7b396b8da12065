//! The results of a phase of load.

use std::time::Duration;

use hdrhistogram::Histogram;

use crate::mix::Op;

/// The largest latency that is recorded, in nanoseconds. A longer latency is recorded as this
/// number.
pub const LATENCY_NS_MAX: u64 = 600_000_000_000;
/// Interval between the points of a timeline.
pub const TICK: Duration = Duration::from_millis(100);

/// The results of one phase.
#[derive(Clone, Debug)]
pub struct PhaseReport {
    /// The number of requests that were answered, including those with error replies. A
    /// read-modify-write counts once.
    pub requests: u64,
    /// Bytes of all keys and values that were sent in writes.
    pub payload_bytes: u64,
    /// Values that reads found.
    pub hits: u64,
    /// Values that reads did not find.
    pub misses: u64,
    /// Error replies.
    pub errors: u64,
    /// Text of the first error reply.
    pub first_error: Option<String>,
    /// In an open loop: the number of requests that were due, but were never sent, because the
    /// server was too far behind. The time that these requests had waited is in the histograms.
    pub never_sent: u64,
    /// Time from the phase's start to its last reply.
    pub elapsed: Duration,
    /// Latencies in nanoseconds: from sending (closed loop) or from being due (open loop).
    pub latency: Histogram<u64>,
    /// Like `latency`, for the requests that only read.
    pub read_latency: Histogram<u64>,
    /// Like `latency`, for the requests that write.
    pub write_latency: Histogram<u64>,
    /// For each [`TICK`] since the phase began, the number of requests that were answered.
    pub timeline: Vec<u64>,
    /// In an open loop: by how many nanoseconds requests were sent too late although a connection
    /// was free. This delay is the generator's own part of the latencies.
    pub own_lag: Histogram<u64>,
}

impl PhaseReport {
    pub(super) fn new() -> Self {
        let histogram =
            Histogram::new_with_max(LATENCY_NS_MAX, 3).expect("three digits are a valid precision");
        Self {
            requests: 0,
            payload_bytes: 0,
            hits: 0,
            misses: 0,
            errors: 0,
            first_error: None,
            never_sent: 0,
            elapsed: Duration::ZERO,
            own_lag: histogram.clone(),
            read_latency: histogram.clone(),
            write_latency: histogram.clone(),
            timeline: Vec::new(),
            latency: histogram,
        }
    }

    /// Records that a request was answered, `latency_ns` after it was sent or due.
    pub(super) fn record(&mut self, op: Op, latency_ns: u64) {
        self.requests += 1;
        self.record_latency(op, latency_ns);
    }

    /// Like [`PhaseReport::record`], but does not count the request as answered. This is for
    /// requests that may have got no answer.
    pub(super) fn record_latency(&mut self, op: Op, latency_ns: u64) {
        let histogram = if op.is_read() { &mut self.read_latency } else { &mut self.write_latency };
        histogram.saturating_record(latency_ns);
    }

    /// Records that `count` requests were answered `now_ns` after the phase's start.
    pub(super) fn tick(&mut self, now_ns: u64, count: usize) {
        let tick = (now_ns / TICK.as_nanos() as u64) as usize;
        if self.timeline.len() <= tick {
            self.timeline.resize(tick + 1, 0);
        }
        self.timeline[tick] += count as u64;
    }

    /// Completes the report after the last reply.
    pub(super) fn finish(&mut self, elapsed: Duration) {
        self.elapsed = elapsed;
        for part in [&self.read_latency, &self.write_latency] {
            self.latency.add(part).expect("all histograms have the same bounds");
        }
    }

    /// Requests answered per second.
    pub fn requests_per_s(&self) -> f64 {
        self.requests as f64 / self.elapsed.as_secs_f64().max(1e-9)
    }

    /// Latency at `percentile` (0 to 100), in microseconds.
    pub fn latency_us(&self, percentile: f64) -> f64 {
        self.latency.value_at_percentile(percentile) as f64 / 1000.0
    }

    /// Longest latency, in microseconds.
    pub fn latency_us_max(&self) -> f64 {
        self.latency.max() as f64 / 1000.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_are_told_apart_and_added_up() {
        let mut report = PhaseReport::new();
        report.record(Op::Get { key: 1 }, 1_000);
        report.record(Op::Set { key: 1 }, 5_000);
        report.record_latency(Op::Set { key: 1 }, 9_000);
        report.tick(TICK.as_nanos() as u64 * 2 + 1, 2);
        report.finish(TICK * 3);
        assert_eq!((report.requests, report.latency.len()), (2, 3));
        assert_eq!((report.read_latency.len(), report.write_latency.len()), (1, 2));
        assert!((report.latency_us(100.0) - 9.0).abs() < 0.1, "{}", report.latency_us(100.0));
        assert_eq!(report.timeline, [0, 0, 2]);
    }
}
