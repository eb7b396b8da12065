//! The rate at which a WAL-snapshot (the snapshot that the log goes on from) is written if nobody
//! waits for it. The rate is low while the log has much room, rises as the room shrinks, and is
//! never so low that the snapshot would come too late.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

/// Time between two samples of the log.
const POLL_INTERVAL: Duration = Duration::from_millis(50);
/// The rate is at least `snapshot-rate` divided by this number, because a snapshot that hardly
/// advances keeps its slot occupied and delays the next snapshot.
const SHARE_MIN: u64 = 16;
/// During a snapshot, the log may grow by this many times the data set's size. The growth is
/// limited because a restart must read the snapshot and also the whole growth of the log.
const GROWTH_MAX: u64 = 3;
/// If a data set has fewer bytes than this, it counts as having this size.
const DATA_MIN: u64 = 64 << 20;
/// The rate that would just suffice for the log's room is multiplied by this factor, because the
/// log may grow faster later, or the snapshot may turn out slower than its rate.
const SAFETY_FACTOR: f64 = 1.5;
/// Shares of the memory limit of a snapshot. If more than `MEMORY_FROM` is held, the rate rises
/// with the held memory, up to the full rate at `MEMORY_TO`. If more than `MEMORY_TO` is held, the
/// caller sets no limit.
const MEMORY_FROM: f64 = 0.125;
const MEMORY_TO: f64 = 0.5;

/// The sizes that the rate depends on, in bytes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RateInputs {
    /// Size of the data set.
    pub(crate) data: u64,
    /// The part of the data set that is still to be encoded.
    pub(crate) left: u64,
    /// How much the log may grow before a snapshot must make room in the log.
    pub(crate) room: u64,
    /// Memory held for the snapshot; `memory_max` is its limit.
    pub(crate) memory: u64,
    pub(crate) memory_max: u64,
}

/// How fast the log grows.
#[derive(Debug)]
pub(crate) struct Growth {
    /// Number of bytes that had been written to the log's area when the snapshot began.
    began: u64,
    /// Number of bytes that had been written to the log's area at the last sample.
    written: u64,
    looked_at: Instant,
    per_s: f64,
}

impl Growth {
    /// The state at the beginning of a snapshot, when no growth is known yet.
    pub(crate) fn new(now: Instant, written: u64) -> Self {
        Self { began: written, looked_at: now, written, per_s: 0.0 }
    }

    /// Samples the log. Up to the time `now`, `written` bytes were written to the log's area. These
    /// are whole blocks, however small the records were.
    pub(crate) fn look(&mut self, now: Instant, written: u64) {
        let since = now.saturating_duration_since(self.looked_at);
        if since < POLL_INTERVAL {
            return;
        }
        let per_s = written.saturating_sub(self.written) as f64 / since.as_secs_f64();
        // If the log grows faster than before, the new speed counts at once. If the log grows more
        // slowly, the new speed counts only gradually.
        self.per_s = per_s.max(self.per_s * 0.9 + per_s * 0.1);
        (self.looked_at, self.written) = (now, written);
    }

    /// How many bytes of keys and values the snapshot may take per second; 0 means that there is no
    /// limit. `full` is the rate of a snapshot that somebody waits for.
    pub(crate) fn rate(&self, full: u64, inputs: RateInputs) -> u64 {
        if is_planted("too-late") {
            return full / SHARE_MIN;
        }
        if inputs.room == 0 {
            return 0;
        }
        let grown = self.written.saturating_sub(self.began);
        let growth_max = inputs.data.max(DATA_MIN) * GROWTH_MAX;
        let within = |bytes: u64| self.per_s * inputs.left as f64 / bytes.max(1) as f64;
        // The full rate is not exceeded merely to shorten a restart.
        let for_restart = within(growth_max.saturating_sub(grown)).min(full as f64);
        let held = inputs.memory as f64 / inputs.memory_max.max(1) as f64;
        let for_memory = full as f64 * (held - MEMORY_FROM) / (MEMORY_TO - MEMORY_FROM);
        let rate = (SAFETY_FACTOR * within(inputs.room)).max(for_restart).max(for_memory);
        (rate as u64).max(full / SHARE_MIN).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MB: u64 = 1 << 20;
    const FULL: u64 = 400 * MB;
    const INPUTS: RateInputs = RateInputs {
        data: 1000 * MB,
        left: 1000 * MB,
        room: 80_000 * MB,
        memory: 0,
        memory_max: 128 * MB,
    };

    /// The growth of a log that has grown by `mb_per_s` for two seconds.
    fn grown(mb_per_s: u64) -> Growth {
        let began = Instant::now();
        let mut growth = Growth::new(began, 0);
        for tenth in 1..=20 {
            let now = began + Duration::from_millis(100) * tenth;
            growth.look(now, mb_per_s * MB * u64::from(tenth) / 10);
        }
        growth
    }

    #[test]
    fn with_much_room_it_takes_its_time() {
        assert_eq!(grown(0).rate(FULL, INPUTS), FULL / 16);
        assert_eq!(grown(1).rate(FULL, INPUTS), FULL / 16);
    }

    #[test]
    fn it_is_over_before_the_log_has_grown_by_three_times_the_data_set() {
        // The log may grow by 3000 MB. After two seconds at 100 MB/s, 2800 MB of these are left,
        // which will be used up in 28 seconds.
        let rate = grown(100).rate(FULL, INPUTS);
        assert!((35 * MB..37 * MB).contains(&rate), "{rate}");
        assert_eq!(grown(1400).rate(FULL, INPUTS), FULL, "the rate must not exceed the full rate");
        // Nothing is left of the 3000 MB.
        assert_eq!(grown(2000).rate(FULL, INPUTS), FULL);
    }

    #[test]
    fn it_is_over_before_the_log_has_no_room() {
        let rate = grown(100).rate(FULL, RateInputs { room: 200 * MB, ..INPUTS });
        assert!(
            (740 * MB..760 * MB).contains(&rate),
            "a rate of {rate} does not fit a log whose room lasts for two seconds"
        );
        assert_eq!(
            grown(100).rate(FULL, RateInputs { room: 0, ..INPUTS }),
            0,
            "without room, there must be no limit"
        );
        assert_eq!(grown(100).rate(FULL, RateInputs { left: 0, ..INPUTS }), FULL / 16);
    }

    #[test]
    fn it_goes_faster_the_more_memory_it_holds() {
        let rate = |memory| grown(0).rate(FULL, RateInputs { memory, ..INPUTS });
        assert_eq!(rate(16 * MB), FULL / 16);
        assert_eq!(rate(40 * MB), FULL / 2);
        assert_eq!(rate(64 * MB), FULL);
    }

    #[test]
    fn a_log_that_grows_faster_is_believed_at_once() {
        let mut growth = grown(10);
        let before = growth.rate(FULL, INPUTS);
        let now = growth.looked_at + Duration::from_millis(50);
        growth.look(now, growth.written + 10 * MB);
        assert!(
            2 * growth.rate(FULL, INPUTS) > 5 * before,
            "a growth of 200 MB per second instead of 10 must count at once"
        );
        growth.look(now + Duration::from_millis(50), growth.written);
        assert!(
            growth.rate(FULL, INPUTS) > 2 * before,
            "a single sample without growth must not count much"
        );
    }
}
