//! Warnings of what anybody can cause who reaches the port.

use std::fmt::Arguments;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// The time in which at most [`COUNT_MAX`] warnings are in the log.
const TIME: Duration = Duration::from_secs(60);
/// Warnings in that time.
const COUNT_MAX: u32 = 20;

/// Warnings, so few that nobody fills the disk of the log with them.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    began_at: Option<Instant>,
    count: u32,
    left_out: u64,
}

impl Warnings {
    /// Puts a warning in the log, unless there were too many of late.
    pub(crate) fn say(&self, warning: Arguments<'_>, now: Instant) {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take(now) {
            Some(0) => log::warn!("{warning}"),
            Some(left_out) => log::warn!("{warning}; {left_out} warnings before were left out"),
            None => {}
        }
    }
}

impl State {
    /// Takes a place for a warning, and returns how many had none since the last one that had.
    fn take(&mut self, now: Instant) -> Option<u64> {
        if self.began_at.is_none_or(|at| now >= at + TIME) {
            (self.began_at, self.count) = (Some(now), 0);
        }
        if self.count == COUNT_MAX {
            self.left_out += 1;
            return None;
        }
        self.count += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn warnings_are_few_in_a_minute_and_the_next_says_how_many_there_were() {
        let (mut state, now) = (State::default(), Instant::now());
        let mut said = |at: Duration| state.take(now + at);
        for _ in 0..COUNT_MAX {
            assert_eq!(said(Duration::ZERO), Some(0));
        }
        assert_eq!(said(TIME / 2), None);
        assert_eq!(said(TIME / 2), None);
        assert_eq!(said(TIME), Some(2));
        assert_eq!(said(TIME), Some(0));
    }
}
