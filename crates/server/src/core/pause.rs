//! `CLIENT PAUSE`: requests that are postponed, and when they are run after all.

use std::collections::VecDeque;
use std::time::Instant;

use slimio_keyspace::{Command, Flags};
use slimio_planted::is_planted;
use slimio_resp::OwnedRequest;

use super::Core;
use crate::clients::{Client, State};
use crate::commands::Entry;
use crate::net::ConnId;

/// What is paused and for how long, and the clients that wait for its end.
#[derive(Debug, Default)]
pub(crate) struct Pause {
    in_force: Option<InForce>,
    /// In the order in which their requests came.
    pub(super) postponed: VecDeque<ConnId>,
}

#[derive(Clone, Copy, Debug)]
struct InForce {
    /// `None`: later than the clock can represent.
    until: Option<Instant>,
    /// Every request, not only those that may write.
    is_all: bool,
}

impl Core {
    /// Postpones requests until `until`. A pause in force is made longer and stricter, never
    /// shorter or laxer.
    pub(crate) fn pause(&mut self, until: Option<Instant>, is_all: bool) {
        let new = InForce { until, is_all };
        let old = self.pause.in_force.unwrap_or(new);
        let until = new.until.zip(old.until).map(|(new, old)| new.max(old));
        self.pause.in_force = Some(InForce { until, is_all: is_all || old.is_all });
    }

    /// Ends the pause; what was postponed is run within the turn.
    pub(crate) fn unpause(&mut self) {
        self.pause.in_force = None;
    }

    /// When the pause ends by itself.
    pub(crate) fn pause_ends(&self) -> Option<Instant> {
        self.pause.in_force.and_then(|pause| pause.until)
    }

    /// Whether the data set stays as it is: nothing expires or is evicted by itself.
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

    /// Whether a request, which `writes` or only reads, has to wait for the end of the pause.
    pub(crate) fn pauses(&self, writes: bool) -> bool {
        self.pause.in_force.is_some_and(|pause| pause.is_all || writes)
    }

    /// Keeps a request until the pause has ended.
    pub(crate) fn postpone(&mut self, client: &mut Client) {
        client.state = State::Parked(OwnedRequest::default());
        client.keeps_request = true;
        self.pause.postponed.push_back(client.conn);
    }

    /// Whether something was postponed, and the pause is over.
    pub(crate) fn may_retry_postponed(&self) -> bool {
        !self.is_paused() && !self.pause.postponed.is_empty()
    }

    /// Runs what was postponed, once the pause has ended.
    pub(crate) fn resume_postponed(&mut self) {
        if self.pause_ends().is_some_and(|until| until <= self.now) {
            self.unpause();
        }
        if self.is_paused() {
            return;
        }
        // Those that are postponed again stay before those that this turn has no time for.
        let mut waiting = std::mem::take(&mut self.pause.postponed);
        while !self.is_ending()
            && let Some(conn) = waiting.pop_front()
        {
            self.retry(conn);
            // Requests that this client sent behind it run before the next client's, as in Redis.
            if !is_planted("postponed-rest-last") {
                self.serve_resumed();
            }
            if self.is_turn_over() {
                break;
            }
        }
        self.pause.postponed.append(&mut waiting);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::Config;
    use crate::core::Facts;

    #[test]
    fn a_pause_becomes_longer_and_stricter_only() {
        let mut core = Core::new(Config::default(), 1, Facts::default());
        let now = core.now;
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        core.pause(at(10), false);
        assert_eq!((core.pause_ends(), core.is_paused()), (at(10), true));
        core.pause(at(5), true);
        assert_eq!(core.pause_ends(), at(10));
        core.pause(at(20), false);
        assert_eq!(core.pause_ends(), at(20));
        assert!(core.pause.in_force.is_some_and(|pause| pause.is_all));
        core.pause(None, false);
        core.pause(at(30), false);
        assert_eq!((core.pause_ends(), core.is_paused()), (None, true), "without an end");
        core.unpause();
        assert!(!core.is_paused());
        core.pause(at(1), false);
        assert!(core.pause.in_force.is_some_and(|pause| !pause.is_all), "nothing is left of it");
        core.now = now + Duration::from_secs(1);
        core.resume_postponed();
        assert!(!core.is_paused(), "it has ended by itself");
    }
}
