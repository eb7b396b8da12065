//! The clocks of the command thread. The time of day comes from the system, or is set from outside.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use slimio_planted::is_planted;

use crate::cpu::CpuLap;

/// Time after which a turn of the event loop runs no further requests; the remaining requests run
/// in the next turn. Only slow requests or very many clients use up this time.
pub(crate) const TURN_TIME: Duration = Duration::from_millis(4);

/// The source of the wall-clock time.
#[derive(Clone, Debug)]
pub enum WallClock {
    /// The system's clock.
    System,
    /// Milliseconds since 1970, set from outside.
    Given(Arc<AtomicI64>),
}

impl WallClock {
    /// Milliseconds since 1970.
    pub(crate) fn now_ms(&self) -> i64 {
        match self {
            Self::System => {
                let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
                since.as_millis() as i64
            }
            Self::Given(clock) => clock.load(Ordering::SeqCst),
        }
    }
}

/// What time it is, and how long the present turn and the present command have taken.
#[derive(Debug)]
pub(crate) struct Clock {
    /// When the server was started.
    pub(crate) started: Instant,
    /// When the turn began.
    pub(crate) now: Instant,
    /// When the turn's time for requests is used up.
    turn_ends: Instant,
    /// Wall-clock time of the turn, in milliseconds since 1970. Unlike `now`, it may jump.
    pub(crate) now_ms: i64,
    /// The number of the turn.
    pub(crate) turn: u64,
    /// When the next round of background work is due.
    pub(crate) next_cron: Instant,
    /// Whether CPU time is measured, as `command-cpu-tracking` says.
    pub(crate) is_cpu_tracked: bool,
    wall: WallClock,
    /// When the last command ended, or when `begin_lap` was last called, whichever came later.
    lap: Instant,
    /// CPU time of the present command; `None` if it was not measured when the command began.
    cpu_lap: Option<CpuLap>,
    /// CPU time of the turn; `None` if it was not measured when the turn began.
    turn_cpu: Option<CpuLap>,
}

impl Clock {
    pub(crate) fn new() -> Self {
        let now = Instant::now();
        let mut clock = Self {
            started: now,
            now,
            turn_ends: now + TURN_TIME,
            now_ms: 0,
            turn: 0,
            next_cron: now,
            is_cpu_tracked: false,
            wall: WallClock::System,
            lap: now,
            cpu_lap: None,
            turn_cpu: None,
        };
        clock.tick();
        clock
    }

    /// From now on, takes the time of day from another clock.
    pub(crate) fn set_wall_clock(&mut self, clock: WallClock) {
        self.wall = clock;
        self.tick();
    }

    /// Reads the clocks.
    pub(crate) fn tick(&mut self) {
        self.now = Instant::now();
        self.turn_ends = self.now + TURN_TIME;
        self.begin_lap(self.now);
        self.now_ms = self.wall.now_ms();
    }

    /// Begins a turn, just after the sockets were polled.
    pub(crate) fn begin_turn(&mut self) {
        self.tick();
        self.turn += 1;
        self.turn_cpu = self.is_cpu_tracked.then(CpuLap::begin);
    }

    /// Ends the turn. Returns the CPU time that it took, if that was measured.
    pub(crate) fn end_turn(&mut self) -> Option<Duration> {
        self.turn_cpu.take().map(|mut lap| lap.end())
    }

    /// Whether the turn's time for requests was used up when the last command ended.
    pub(crate) fn is_turn_over(&self) -> bool {
        self.lap > self.turn_ends && !is_planted("turn-without-end")
    }

    /// Begins to time a command, or a part of a command.
    pub(crate) fn begin_lap(&mut self, now: Instant) {
        self.lap = now;
        self.cpu_lap = self.is_cpu_tracked.then(CpuLap::begin);
    }

    /// Ends a command, or a part of one, and returns the time that it took. The next command begins
    /// at the same time.
    pub(crate) fn end_lap(&mut self) -> Duration {
        let now = Instant::now();
        now - std::mem::replace(&mut self.lap, now)
    }

    /// Like [`end_lap`](Self::end_lap), but in CPU time; `None` if CPU time was not measured.
    pub(crate) fn end_cpu_lap(&mut self) -> Option<Duration> {
        self.cpu_lap.as_mut().map(CpuLap::end)
    }

    /// When the last command ended, or when [`begin_lap`](Self::begin_lap) was last called,
    /// whichever came later.
    pub(crate) fn lap(&self) -> Instant {
        self.lap
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpu_time_that_was_not_measured_from_the_beginning_does_not_count() {
        let mut clock = Clock::new();
        clock.begin_turn();
        clock.is_cpu_tracked = true;
        assert_eq!((clock.end_cpu_lap(), clock.end_turn()), (None, None));
        clock.begin_turn();
        assert!(clock.end_cpu_lap().is_some() && clock.end_turn().is_some());
    }

    #[test]
    fn every_turn_has_time_of_its_own() {
        let mut clock = Clock::new();
        for _ in 0..3 {
            clock.begin_turn();
            assert!(!clock.is_turn_over());
            clock.begin_lap(clock.now + TURN_TIME);
            assert!(!clock.is_turn_over());
            clock.begin_lap(clock.now + TURN_TIME + Duration::from_nanos(1));
            assert!(clock.is_turn_over());
        }
    }
}
