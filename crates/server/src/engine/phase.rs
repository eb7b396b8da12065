//! What the server as a whole is doing: recovering, serving, pausing, ending.

use std::time::Instant;

use slimio_keyspace::{Command, Flags};
use slimio_planted::is_planted;
use slimio_storage::Progress;

use crate::clients::Client;
use crate::commands::Entry;
use crate::net::ConnId;

/// A recovery of the data set from the volume, while it is under way.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Loading {
    pub(crate) since: Instant,
    pub(crate) since_ms: i64,
    pub(crate) progress: Progress,
}

/// A requested shutdown: the server is to make the log durable, and then to end.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shutdown {
    /// Whether to take a snapshot first. If this is `None`, a snapshot is taken only if the
    /// directive `save` is not empty.
    pub(crate) save: Option<bool>,
    /// Whether the server ends even if the snapshot fails.
    pub(crate) is_forced: bool,
    /// The client that asked for the shutdown. If the shutdown fails, this client gets an error.
    pub(crate) by: Option<ConnId>,
}

/// What the server as a whole is doing.
#[derive(Debug, Default)]
pub(crate) struct Phase {
    pub(crate) loading: Option<Loading>,
    /// While a shutdown is set, no request is run, except during recovery.
    pub(crate) shutdown: Option<Shutdown>,
    pause: Option<Pause>,
}

/// `CLIENT PAUSE`, while it is in force.
#[derive(Clone, Copy, Debug)]
struct Pause {
    /// When the pause ends; `None` if the clock cannot represent a time that late.
    until: Option<Instant>,
    /// Whether every request is postponed, not only requests that may write.
    is_all: bool,
}

impl Phase {
    /// Whether the server is shutting down; false during recovery. During a shutdown, no more
    /// requests run, because the last snapshot would lack their effects. The requests wait and are
    /// not dropped, because the shutdown may be given up.
    pub(crate) fn is_ending(&self) -> bool {
        self.shutdown.is_some() && self.loading.is_none() && !is_planted("runs-behind-end")
    }

    /// Postpones requests until `until`. A pause in force can become longer and stricter, but never
    /// shorter or laxer.
    pub(crate) fn pause(&mut self, until: Option<Instant>, is_all: bool) {
        let new = Pause { until, is_all };
        let old = self.pause.unwrap_or(new);
        let until = new.until.zip(old.until).map(|(new, old)| new.max(old));
        self.pause = Some(Pause { until, is_all: is_all || old.is_all });
    }

    /// Ends the pause. The postponed requests run in the same turn.
    pub(crate) fn unpause(&mut self) {
        self.pause = None;
    }

    /// When the pause ends by itself.
    pub(crate) fn pause_ends(&self) -> Option<Instant> {
        self.pause.and_then(|pause| pause.until)
    }

    /// Whether a pause is in force. During a pause, expiry and eviction delete no keys.
    pub(crate) fn is_paused(&self) -> bool {
        self.pause.is_some()
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
        self.pause.is_some_and(|pause| pause.is_all || writes)
    }

    /// Ends the pause if its time is up.
    pub(crate) fn end_pause_if_over(&mut self, now: Instant) {
        if self.pause_ends().is_some_and(|until| until <= now) {
            self.unpause();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn a_pause_becomes_longer_and_stricter_only() {
        let (mut phase, now) = (Phase::default(), Instant::now());
        let at = |seconds| Some(now + Duration::from_secs(seconds));
        phase.pause(at(10), false);
        assert_eq!((phase.pause_ends(), phase.is_paused()), (at(10), true));
        phase.pause(at(5), true);
        assert_eq!(phase.pause_ends(), at(10));
        phase.pause(at(20), false);
        assert_eq!(phase.pause_ends(), at(20));
        assert!(phase.pauses(false), "the pause must still postpone all requests");
        phase.pause(None, false);
        phase.pause(at(30), false);
        assert_eq!(
            (phase.pause_ends(), phase.is_paused()),
            (None, true),
            "a pause without an end must get no end"
        );
        phase.unpause();
        assert!(!phase.is_paused());
        phase.pause(at(1), false);
        assert!(
            phase.pauses(true) && !phase.pauses(false),
            "the earlier pause must have no effect any more"
        );
        phase.end_pause_if_over(now + Duration::from_millis(999));
        assert!(phase.is_paused());
        phase.end_pause_if_over(now + Duration::from_secs(1));
        assert!(!phase.is_paused(), "the pause must end by itself");
    }
}
