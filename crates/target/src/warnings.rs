//! Warnings that anybody who reaches the target's port can cause. So their number is limited.

use std::fmt::Arguments;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Time in which at most [`COUNT_MAX`] warnings go to the log.
const TIME: Duration = Duration::from_secs(60);
/// How many warnings may go to the log in [`TIME`].
const COUNT_MAX: u32 = 20;

/// Limits how many warnings go to the log, so that nobody can fill the log's disk with warnings.
#[derive(Debug, Default)]
pub(crate) struct Warnings(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    began_at: Option<Instant>,
    count: u32,
    left_out: u64,
}

impl Warnings {
    /// Logs a warning, unless there were too many lately.
    pub(crate) fn say(&self, warning: Arguments<'_>, now: Instant) {
        match self.0.lock().unwrap_or_else(PoisonError::into_inner).take(now) {
            Some(0) => log::warn!("{warning}"),
            Some(left_out) => log::warn!("{warning} ({left_out} earlier warnings were left out)"),
            None => {}
        }
    }
}

impl State {
    /// If a warning may be logged now, returns how many warnings were left out since the last
    /// logged one. Otherwise, returns `None`.
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
