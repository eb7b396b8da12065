//! Requests that have to wait until the long request has ended.

use slimio_keyspace::{Command, DbIndex, Flags};
use slimio_planted::is_planted;
use slimio_resp::{Args, OwnedRequest};

use super::Long;
use crate::clients::{Client, State};
use crate::commands::{Entry, Run};
use crate::core::Core;
use crate::gate::mix;

/// Commands that have no keys, but depend on the data set as a whole or on what is in the log.
const LOOKS_AT_ALL: &[&str] =
    &["bgsave", "save", "bgrewriteaof", "config|set", "client|pause", "slimio|pin"];

impl Core {
    /// Whether a request has to wait until the long request has ended.
    pub(crate) fn is_held_up(&self, client: &Client, row: &Command<Entry>, args: Args<'_>) -> bool {
        let Some(long) = &self.long else { return false };
        let is_data = matches!(row.run.run, Run::Data(_));
        if is_data && self.is_long(client.db, row, args) {
            return true;
        }
        if !long.is_holding || is_planted("long-holds-nothing") {
            return false;
        }
        if row.name != "exec" {
            return self.meets(long, client.db, row, args);
        }
        if is_planted("exec-within-long") {
            return false;
        }
        // If a watched key is changed by the long request, this may not have been told yet.
        let watches = !client.watching.is_empty() && !is_planted("watcher-within-long");
        let multi = client.multi.as_ref();
        let mut queued = multi.into_iter().flat_map(|multi| self.queued(client.db, multi));
        watches || queued.any(|(db, row, args)| self.meets(long, db, row, args))
    }

    /// Whether a request depends on keys that the long request holds, or changes them.
    fn meets(&self, long: &Long, db: DbIndex, row: &Command<Entry>, args: Args<'_>) -> bool {
        let is_debug = row.name == "debug" && !is_planted("debug-not-held");
        let looks_at_all = LOOKS_AT_ALL.contains(&row.run.name)
            && !(row.run.name == "config|set" && is_planted("config-not-held"));
        if is_debug || looks_at_all {
            return true;
        }
        let looks_at_db = row.flags.has(Flags::WHOLE_DB) && !is_planted("counted-within-long");
        let is_of_two_dbs = row.flags.has(Flags::TWO_DBS) && !is_planted("moved-within-long");
        if looks_at_db || is_of_two_dbs {
            return true;
        }
        let writes = row.flags.has(Flags::WRITE) && !is_planted("long-read-is-written");
        if !writes && long.keys.is_empty() {
            return false;
        }
        let mut keys = row.key_indices(args);
        keys.any(|index| {
            let hash = mix(db, self.keyspace.hash(&args.bytes(index)));
            let writes_it = writes && !row.only_reads(index);
            long.keys.contains(&hash) || writes_it && long.sources.contains(&hash)
        })
    }

    /// Makes a request wait until the long request has ended.
    pub(crate) fn hold_up(&mut self, client: &mut Client) {
        client.state = State::Parked(OwnedRequest::default());
        client.keeps_request = true;
        if is_planted("held-up-last-first") {
            self.held_up.push_front(client.conn);
            return;
        }
        self.held_up.push_back(client.conn);
    }

    /// If no long request runs, retries the requests that were held up. One of these requests may
    /// become the long request. It then holds up the requests behind it.
    pub(crate) fn resume_held_up(&mut self) {
        if self.has_long() || self.shutdown.is_some() {
            return;
        }
        // Requests that are held up again stay before the requests that this turn has no time for,
        // so that the order is kept.
        let mut waiting = std::mem::take(&mut self.held_up);
        while let Some(conn) = waiting.pop_front() {
            self.retry(conn);
            if self.is_turn_over() {
                break;
            }
        }
        self.held_up.append(&mut waiting);
    }

    /// Whether requests that a long request held up can be retried now, because no long request
    /// runs any more.
    pub(crate) fn may_retry_held_up(&self) -> bool {
        !self.has_long() && !self.held_up.is_empty() && self.shutdown.is_none()
    }
}
