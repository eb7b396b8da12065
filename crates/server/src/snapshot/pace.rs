//! The rate at which a snapshot goes through the data set. While commands are served, it is
//! `snapshot-rate`, so that the snapshot takes a small share of the cores and of the device. There
//! is no limit if nobody would notice the load, or if a late snapshot would do more harm than the
//! load.

use std::time::{Duration, Instant};

use slimio_planted::is_planted;

/// Time between two samples of how many commands were served.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
/// If fewer commands than this were served between two samples, they do not count as traffic,
/// because they may be from somebody who looks at INFO now and then.
const COMMANDS_MIN: u64 = 10;
/// After this many consecutive samples without traffic, the traffic has ended. Fewer samples are
/// not enough, because clients that wait for a core, or for each other, pause as well.
const QUIET_LOOKS: u32 = 5;
/// Shortest pause. The time of a shorter pause is added to the next pause, so that few wake-ups are
/// spent on pauses.
const PAUSE_MIN: Duration = Duration::from_millis(1);
/// The snapshot loses time while other threads run on its core. It makes up for at most this much
/// lost time.
///
/// The snapshot makes up for lost time in a burst. During the burst, other threads wait longer for
/// this core. With a limit of 50 ms, the p99.9 latency of SET under `appendfsync always` was twice
/// as long as with this limit.
const CREDIT_MAX: Duration = Duration::from_millis(5);

/// Cost of a byte written, relative to a byte of keys and values. The cost is above 1 because a log
/// that makes each batch durable waits for the same device. In a measurement with values that do
/// not compress, clients under `appendfsync always` kept 0.79 of their throughput at a cost of 1,
/// and 0.83 at this cost.
const WRITTEN_COST: f64 = 1.25;

/// The cost of a piece of `size` bytes of keys and values, in bytes that count against the rate. It
/// is the cost of these bytes, or the cost of the bytes that are written for the piece, whichever
/// is higher. The number of bytes that are written is estimated from the snapshot so far: `payload`
/// bytes of keys and values became `written` bytes on the device.
pub(super) fn cost(size: u64, payload: u64, written: u64) -> u64 {
    let per_byte = WRITTEN_COST * written as f64 / payload.max(1) as f64;
    (size as f64 * per_byte.max(1.0)) as u64
}

/// Whether commands are being served.
#[derive(Debug)]
pub(crate) struct Traffic {
    looked_at: Instant,
    commands: u64,
    quiet_looks: u32,
}

impl Traffic {
    /// Starts as if commands were being served, until the first sample. `commands` is the number of
    /// commands that were served until `now`.
    pub(crate) fn new(now: Instant, commands: u64) -> Self {
        // The traffic counts as ended only after one sample without traffic, because the snapshot
        // may have been requested amid traffic.
        Self { looked_at: now, commands, quiet_looks: QUIET_LOOKS - 1 }
    }

    /// Whether commands are being served. `commands` is the number of commands that were served
    /// until `now`.
    pub(crate) fn is_served(&mut self, now: Instant, commands: u64) -> bool {
        let since = now.saturating_duration_since(self.looked_at);
        if since >= POLL_INTERVAL {
            let served = commands.saturating_sub(self.commands);
            let per_look = served as f64 * POLL_INTERVAL.as_secs_f64();
            let is_quiet = per_look < COMMANDS_MIN as f64 * since.as_secs_f64();
            self.quiet_looks = if is_quiet { self.quiet_looks.saturating_add(1) } else { 0 };
            self.looked_at = now;
            self.commands = commands;
        }
        self.quiet_looks < QUIET_LOOKS
    }
}

/// The pauses of the snapshot thread.
#[derive(Debug)]
pub(super) struct Pace {
    /// The time at which the work so far should have ended, according to the rate.
    due: Instant,
    /// Bytes per second; 0 means no limit.
    rate: u64,
    /// Lost time that will not be made up for.
    lost: Duration,
}

impl Pace {
    pub(super) fn new(now: Instant) -> Self {
        Self { due: now, rate: 0, lost: Duration::ZERO }
    }

    /// Returns how long to pause at `now`, after `size` more bytes, to keep to `rate` bytes per
    /// second. If `rate` is 0, there is no limit.
    pub(super) fn pause_after(&mut self, now: Instant, size: u64, rate: u64) -> Option<Duration> {
        if rate != self.rate {
            self.change_rate(now, rate);
        }
        if rate == 0 {
            return None;
        }
        let earliest = now.checked_sub(CREDIT_MAX).unwrap_or(now);
        self.lost += earliest.saturating_duration_since(self.due);
        self.due = self.due.max(earliest);
        self.due += Duration::from_secs_f64(size as f64 / rate as f64);
        Some(self.due.saturating_duration_since(now)).filter(|rest| *rest >= PAUSE_MIN)
    }

    /// Changes the rate. If the bytes so far took less time than the old rate demands, the time
    /// that is still owed is scaled to the new rate. If there is no limit before or after the
    /// change, nothing is owed.
    fn change_rate(&mut self, now: Instant, rate: u64) {
        if self.rate == 0 || rate == 0 || is_planted("owed-forgotten") {
            *self = Self { due: now, rate, lost: Duration::ZERO };
            return;
        }
        let owed = self.due.saturating_duration_since(now);
        if !owed.is_zero() {
            self.due = now + owed.mul_f64(self.rate as f64 / rate as f64);
        }
        self.rate = rate;
    }

    /// Takes the time that was lost since the last call and will not be made up for.
    pub(super) fn take_lost(&mut self) -> Duration {
        std::mem::take(&mut self.lost)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn rests_make_up_the_rate_and_little_of_lost_time_is_made_up_for() {
        let begin = Instant::now() + Duration::from_secs(60);
        let mut pace = Pace::new(begin);
        let mut now = begin;
        let mut done = 0;
        while done < 100_000_000 {
            done += 64_000;
            // The work itself takes a part of the time that the rate allows.
            now += Duration::from_micros(50);
            if let Some(rest) = pace.pause_after(now, 64_000, 100_000_000) {
                assert!(rest < 10 * MS, "a single pause lasts {rest:?}");
                now += rest;
            }
        }
        let took = now - begin;
        assert!((990 * MS..1010 * MS).contains(&took), "one second's work took {took:?}");

        now += Duration::from_secs(10);
        assert_eq!(pace.take_lost(), Duration::ZERO);
        let rests: Vec<_> = (0..15).map(|_| pace.pause_after(now, 100_000, 100_000_000)).collect();
        let first = rests.iter().position(Option::is_some).unwrap();
        assert_eq!(
            first, 5,
            "the first pause must come after 5 ms of credit and 1 ms more: {rests:?}"
        );
        let lost = pace.take_lost();
        assert!((9990 * MS..10_000 * MS).contains(&lost), "{lost:?}");
    }

    /// Tests that a rate is kept even if it changes after each piece. If the server takes a
    /// WAL-snapshot by itself, the snapshot's rate changes at each sample.
    #[test]
    fn a_rate_that_changes_all_the_time_is_kept_too() {
        let begin = Instant::now() + Duration::from_secs(60);
        let (mut pace, mut now) = (Pace::new(begin), begin);
        for piece in 0..1000 {
            now += pace.pause_after(now, 100_000, 100_000_000 + piece % 2).unwrap_or_default();
        }
        let took = now - begin;
        assert!((990 * MS..1010 * MS).contains(&took), "one second's work took {took:?}");
        now += Duration::from_secs(10);
        pace.pause_after(now, 100_000, 100_000_000);
        pace.pause_after(now, 100_000, 100_000_001);
        assert!(pace.take_lost() > 9900 * MS, "the lost time is not counted");
    }

    #[test]
    fn what_does_not_compress_costs_more() {
        assert_eq!(cost(1000, 0, 0), 1000);
        assert_eq!(cost(1000, 20_000, 10_000), 1000);
        assert_eq!(cost(1000, 20_000, 16_000), 1000);
        assert_eq!(cost(1000, 20_000, 20_000), 1250);
    }

    #[test]
    fn without_a_limit_there_is_no_rest_and_under_a_new_one_what_is_owed_stays() {
        let begin = Instant::now() + Duration::from_secs(60);
        let mut pace = Pace::new(begin);
        assert_eq!(pace.pause_after(begin, 1 << 40, 0), None);
        assert_eq!(pace.pause_after(begin, 2000, 1_000_000), Some(2 * MS));
        assert_eq!(pace.pause_after(begin, 3000, 1), Some(5000 * 1000 * MS));
        assert_eq!(pace.pause_after(begin, 2000, 1_000_000), Some(7 * MS));
        assert_eq!(pace.pause_after(begin, 1 << 40, 0), None);
        assert_eq!(
            pace.pause_after(begin, 2000, 1_000_000),
            Some(2 * MS),
            "a pause is left over from the previous rate"
        );
    }

    #[test]
    fn traffic_is_seen_and_so_is_its_end() {
        let begin = Instant::now();
        let mut traffic = Traffic::new(begin, 1000);
        assert!(traffic.is_served(begin + MS, 1000), "no sample is due yet");
        assert!(!traffic.is_served(begin + 20 * MS, 1009), "9 commands are not traffic");
        assert!(!traffic.is_served(begin + 30 * MS, 2000), "no sample is due");
        assert!(traffic.is_served(begin + 40 * MS, 2000));
        assert!(traffic.is_served(begin + 140 * MS, 2050), "10 commands in 20 ms are traffic");
        for look in 0..4 {
            assert!(
                traffic.is_served(begin + (240 + 20 * look) * MS, 2099),
                "the traffic ended too early, at sample {look}"
            );
        }
        assert!(traffic.is_served(begin + 319 * MS, 2099));
        assert!(!traffic.is_served(begin + 320 * MS, 2099));
        assert!(traffic.is_served(begin + 340 * MS, 2109));
    }
}
