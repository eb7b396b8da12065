//! `CLIENT PAUSE`: postpones requests, and runs them when the pause has ended.

use std::time::Instant;

use slimio_keyspace::{Command, Flags};

use super::Engine;
use crate::clients::Client;
use crate::commands::Entry;

/// The pause in force.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    in_force: Option<InForce>,
}

#[derive(Clone, Copy, Debug)]
struct InForce {
    /// When the pause ends; `None` if this is later than the clock can represent.
    until: Option<Instant>,
    /// Every request is postponed, not only requests that may write.
    is_all: bool,
}

impl Engine {
    /// Postpones requests until `until`. A pause in force can become longer and stricter, but never
    /// shorter or laxer.
    pub(crate) fn pause(&mut self, until: Option<Instant>, is_all: bool) {
        let new = InForce { until, is_all };
        let old = self.pause.in_force.unwrap_or(new);
        let until = new.until.zip(old.until).map(|(new, old)| new.max(old));
        self.pause.in_force = Some(InForce { until, is_all: is_all || old.is_all });
    }

    /// Ends the pause. The postponed requests run within the turn.
    pub(crate) fn unpause(&mut self) {
        self.pause.in_force = None;
    }

    /// When the pause ends by itself.
    pub(crate) fn pause_ends(&self) -> Option<Instant> {
        self.pause.in_force.and_then(|pause| pause.until)
    }

    /// Whether a pause is in force. During a pause, nothing expires or is evicted by itself.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.in_force.is_some()
    }

    /// Whether a request that could run now has to wait for the end of the pause.
    pub(crate) fn must_wait(&self, client: &Client, row: &Command<Entry>) -> bool {
        if !self.is_paused() {
            return false;
        }
        let writes = row.flags.has(Flags::WRITE)
            || row.flags.has(Flags::MAY_REPLICATE)
            || row.name == "exec" && client.multi.as_ref().is_some_and(|multi| multi.writes);
        self.pauses(writes)
    }

    /// Whether a request has to wait for the end of the pause. `writes` says whether the request
    /// writes or only reads.
    pub(crate) fn pauses(&self, writes: bool) -> bool {
        self.pause.in_force.is_some_and(|pause| pause.is_all || writes)
    }

    /// Ends the pause if its time is up.
    pub(super) fn end_pause_if_over(&mut self) {
        if self.pause_ends().is_some_and(|until| until <= self.now) {
            self.unpause();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::core::{Connections, Facts};

    #[test]
    fn a_pause_becomes_longer_and_stricter_only() {
        let mut engine = Engine::new(Config::default(), 1, Facts::default());
        let now = engine.now;
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        engine.pause(at(10), false);
        assert_eq!((engine.pause_ends(), engine.is_paused()), (at(10), true));
        engine.pause(at(5), true);
        assert_eq!(engine.pause_ends(), at(10));
        engine.pause(at(20), false);
        assert_eq!(engine.pause_ends(), at(20));
        assert!(engine.pause.in_force.is_some_and(|pause| pause.is_all));
        engine.pause(None, false);
        engine.pause(at(30), false);
        assert_eq!((engine.pause_ends(), engine.is_paused()), (None, true), "without an end");
        engine.unpause();
        assert!(!engine.is_paused());
        engine.pause(at(1), false);
        assert!(engine.pause.in_force.is_some_and(|pause| !pause.is_all), "nothing is left of it");
        engine.now = now + Duration::from_secs(1);
        Connections::default().resume_postponed(&mut engine);
        assert!(!engine.is_paused(), "it has ended by itself");
    }
}
