//! Requests that have to wait until the long request has ended, or until clients that began to wait
//! earlier are served. The long request is the one that runs in steps, between which other requests
//! run.

use slimio_keyspace::{Command, DbIndex, Flags};
use slimio_planted::is_planted;
use slimio_resp::Args;

use super::Long;
use crate::clients::Client;
use crate::commands::{Entry, Run};
use crate::engine::Data;
use crate::gate::mix;
use crate::waiting::Reason;

/// Commands that have no keys, but depend on the whole data set or on the contents of the log.
const LOOKS_AT_ALL: &[&str] =
    &["bgsave", "save", "bgrewriteaof", "config|set", "client|pause", "slimio|pin"];

impl Data {
    /// Whether a request has to wait until the long request has ended, or until clients that began
    /// to wait earlier have been served from the request's keys. `is_served` says whether the
    /// request itself has waited for keys and is being served now.
    pub(crate) fn is_held_up(
        &self,
        client: &Client,
        row: &Command<Entry>,
        args: Args<'_>,
        is_served: bool,
    ) -> Option<Reason> {
        if self.long.is_none() && !self.blocking_keys.has_ready() {
            return None;
        }
        if self.is_held_by_long(client, row, args) {
            return Some(Reason::LongRequest);
        }
        // Clients that are being served do not wait for each other.
        (!is_served && self.meets_ready(client, row, args)).then_some(Reason::TakenKeys)
    }

    fn is_held_by_long(&self, client: &Client, row: &Command<Entry>, args: Args<'_>) -> bool {
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
        // The long request may have changed a watched key, but not reported the change yet.
        let watches = !client.watching.is_empty() && !is_planted("watcher-within-long");
        watches || self.any_queued(client, |db, row, args| self.meets(long, db, row, args))
    }

    /// Whether `is_met` is true for any request in a client's transaction.
    fn any_queued(
        &self,
        client: &Client,
        is_met: impl Fn(DbIndex, &Command<Entry>, Args<'_>) -> bool,
    ) -> bool {
        let multi = client.multi.as_ref();
        let mut queued = multi.into_iter().flat_map(|multi| self.queued(client.db, multi));
        queued.any(|(db, row, args)| is_met(db, row, args))
    }

    /// Whether a request reads or changes keys that are ready for clients which began to wait
    /// earlier, or keys to which those clients may move an element.
    fn meets_ready(&self, client: &Client, row: &Command<Entry>, args: Args<'_>) -> bool {
        if !self.blocking_keys.has_ready() || is_planted("taken-keys-free") {
            return false;
        }
        let meets = |db, row: &Command<Entry>, args: Args<'_>| {
            // `CLIENT UNBLOCK` must not end the wait of a client that is to be served in the next
            // turn.
            let ends_waits =
                row.run.name == "client|unblock" && !is_planted("unblocked-when-served");
            let is_of_more = row.flags.has(Flags::TWO_DBS)
                || matches!(row.name, "flushall" | "swapdb")
                || is_planted("other-dbs-held");
            let looks_at_all =
                is_of_more || row.flags.has(Flags::WHOLE_DB) && self.blocking_keys.has_ready_in(db);
            looks_at_all
                || ends_waits
                || row.key_indices(args).any(|index| {
                    let key = (db, self.keyspace.hash(&args.bytes(index)));
                    self.blocking_keys.is_taken(key) || self.blocking_keys.may_be_moved_to(key)
                })
        };
        if row.name == "exec" {
            return self.any_queued(client, meets);
        }
        meets(client.db, row, args)
    }

    /// Whether a request depends on keys that the long request holds, or changes such keys.
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
}
