//! What is logged, what replies depend on, and what happens when the log has no room or fails.

use std::time::{Duration, Instant};

use slimio_keyspace::{Command, DbIndex, Flags, Read};
use slimio_planted::is_planted;
use slimio_resp::{Args, OwnedRequest};
use slimio_storage::{ACKNOWLEDGE_WITHIN, Lsn, Policy};

use super::{Core, Transaction};
use crate::clients::{Client, State};
use crate::commands::Entry;
use crate::gate::{Change, may_leave};
use crate::net::ConnId;

/// No reader is expected after this long without one.
const READERS_GONE_AFTER: Duration = Duration::from_millis(10);

impl Core {
    /// Logs what the command that just ran for `client` did, and tells those who watch its keys.
    pub(crate) fn record(&mut self, client: &mut Client, args: Args<'_>) -> Lsn {
        if !self.watches.is_empty() {
            let touched = self.effects.touched(args);
            let (keyspace, now_ms) = (&self.keyspace, self.now_ms);
            self.watches.touched(touched, keyspace, now_ms, &mut self.clients, client);
        }
        if self.effects.is_empty() {
            return Lsn(0);
        }
        self.snapshots.changes += self.effects.touched_count() as u64;
        if let Some(transaction) = &mut self.transaction {
            // The whole transaction is one record, appended when its last command has run.
            self.payload.add(&self.effects, args);
            transaction.room = transaction.room.min(self.effects.room());
            transaction.changes.extend(self.effects.touched(args).map(Change::from));
            return Lsn(0);
        }
        let flushed = self.effects.touched(args).any(|t| matches!(Change::from(t), Change::Db(_)));
        let Some(wal) = &mut self.wal else { return Lsn(0) };
        if !wal.takes_records() {
            self.changed_without_log(flushed);
            return Lsn(0);
        }
        if wal.log().latched().is_some() {
            return Lsn(0);
        }
        if flushed && self.emptied_at == Some(wal.log().appended()) {
            return self.flushed_again(client);
        }
        // The value goes from the request right into the log's memory.
        let payload = self.gather.parts(&self.effects, client.db, args);
        debug_assert!(payload.size() as u64 <= self.log_size_max, "more than was asked for");
        let lsn = wal.append(client.db, payload.as_slice());
        if self.keeps_undurable {
            self.undurable.note(lsn, self.effects.touched(args).map(Change::from));
        }
        if flushed {
            self.release_log(lsn);
        }
        client.last_write = lsn;
        lsn
    }

    /// Reaps completions of the log's device and of the keeper, and notes a commit that took long.
    pub(crate) fn reap_log(&mut self) {
        let Some(wal) = &mut self.wal else { return };
        let (oldest, durable) = (wal.log().oldest_undurable(), wal.log().durable());
        wal.reap(self.now);
        let log = wal.log();
        if let Some(oldest) = oldest
            && log.durable() > durable
        {
            let took = self.now.saturating_duration_since(oldest);
            let event = match log.policy() {
                Policy::Always => "aof-fsync-always",
                Policy::EverySec if took >= ACKNOWLEDGE_WITHIN => {
                    self.stats.delayed_flushes += 1;
                    "aof-write-pending-fsync"
                }
                Policy::EverySec | Policy::No => return,
            };
            self.latency.note(event, self.now_ms / 1000, took, self.settings.latency_from);
        }
    }

    /// Forgets changes that have become durable: replies no longer depend on them.
    pub(crate) fn forget_durable(&mut self) {
        if self.keeps_undurable {
            let durable = self.durable();
            self.undurable.forget(durable);
        }
    }

    /// Begins to gather the effects of a transaction, whose writes append at most `size` bytes of
    /// payload.
    pub(crate) fn begin_transaction(&mut self, db: DbIndex, size: u64) {
        self.payload.begin(db);
        let asked = if is_planted("exec-room-twice") { 0 } else { size };
        let room = self.room_to_free().saturating_sub(asked);
        self.log_size_max = size.saturating_add(room);
        self.transaction = Some(Transaction { room, ..Transaction::default() });
    }

    /// Logs a transaction, and notes what its reply depends on. Then turns the log on or off, if
    /// the transaction asked for that.
    pub(crate) fn end_transaction(&mut self, client: &mut Client, db: DbIndex) {
        let Some(transaction) = self.transaction.take() else { return };
        let turns_log = transaction.turns_log;
        self.log_transaction(client, db, transaction);
        if turns_log {
            self.turn_log();
        }
    }

    fn log_transaction(&mut self, client: &mut Client, db: DbIndex, transaction: Transaction) {
        client.needs = client.needs.max(transaction.needs);
        if self.payload.bytes().is_empty() {
            return;
        }
        let flushed = transaction.changes.iter().any(|c| matches!(c, Change::Db(_)));
        let Some(wal) = &mut self.wal else { return };
        if !wal.takes_records() {
            self.changed_without_log(flushed);
            return;
        }
        if wal.log().latched().is_some() {
            return;
        }
        debug_assert!(
            self.payload.bytes().len() as u64 <= self.log_size_max,
            "more than was asked for"
        );
        let lsn = wal.append(db, &[self.payload.bytes()]);
        if self.keeps_undurable {
            self.undurable.note(lsn, transaction.changes.into_iter());
        }
        if flushed {
            self.release_log(lsn);
        }
        if !is_planted("exec-unwaited") {
            client.last_write = lsn;
        }
        client.needs = client.needs.max(lsn);
    }

    /// Logs effects of expiry and eviction, and tells those who watch the keys. `current` is the
    /// client being served, which is not in `clients`.
    pub(crate) fn record_unasked(&mut self, db: DbIndex, current: &mut Client) {
        if self.effects.is_empty() {
            return;
        }
        let args = slimio_keyspace::no_args();
        if !self.watches.is_empty() {
            let touched = self.effects.touched(args);
            let (keyspace, now_ms) = (&self.keyspace, self.now_ms);
            self.watches.touched(touched, keyspace, now_ms, &mut self.clients, current);
        }
        let Some(wal) = &mut self.wal else { return };
        if !wal.takes_records() {
            return;
        }
        self.payload.begin(db);
        self.payload.add(&self.effects, args);
        let lsn = wal.append(db, &[self.payload.bytes()]);
        if self.keeps_undurable {
            self.undurable.note(lsn, self.effects.touched(args).map(Change::from));
        }
    }

    /// Without a log, the next start would undo a flush: schedules a snapshot if `save` is set.
    fn changed_without_log(&mut self, flushed: bool) {
        if flushed && !self.settings.save_points.is_empty() {
            let is_empty = self.dbs().all(|db| self.keyspace.dbsize(db) == 0);
            self.snapshots.is_of_flush |= is_empty && !self.snapshots.is_saving();
            self.snapshots.saves.is_scheduled |= is_empty;
        }
    }

    /// When no key is left, nothing before this record is needed.
    fn release_log(&mut self, lsn: Lsn) {
        if self.is_empty()
            && let Some(wal) = &mut self.wal
        {
            wal.release_before(lsn);
            self.emptied_at = Some(lsn);
        }
    }

    /// Has the effects note what the next command looks at, if replies depend on that.
    pub(super) fn note_reads(&mut self) {
        if self.keeps_undurable {
            self.effects.note_reads(0);
        }
    }

    /// What the reply of a command that appended nothing depends on: the newest of what it has looked
    /// at. `None` stands for a command that began before that was asked for.
    pub(crate) fn depends_on_reads(&self, row: &Command<Entry>, reads: Option<&[Read]>) -> Lsn {
        if !self.keeps_undurable {
            return Lsn(0);
        }
        if row.flags.has(Flags::WRITE) && is_planted("refusal-undurable") {
            return Lsn(0);
        }
        let Some(reads) = reads else { return self.undurable.of_all() };
        let of = |read: &Read| match *read {
            Read::Key(db, hash) => self.undurable.of_key(db, hash),
            Read::Db(db) => self.undurable.of_db(db),
        };
        reads.iter().map(of).max().unwrap_or_default()
    }

    /// What the value or absence of one key depends on.
    pub(crate) fn depends_on_key(&self, db: DbIndex, key: &[u8]) -> Lsn {
        if !self.keeps_undurable {
            return Lsn(0);
        }
        self.undurable.of_key(db, self.keyspace.hash(key))
    }

    /// What the state of a client's watched keys, changed or not, depends on.
    pub(crate) fn depends_on_watched(&self, client: &Client) -> Lsn {
        if !self.keeps_undurable || is_planted("exec-nil-undurable") {
            return Lsn(0);
        }
        let keys = client.watching.iter().map(|(db, key)| self.depends_on_key(*db, key));
        keys.max().unwrap_or_default()
    }

    /// Whether it may be shown that a key watched by the client was changed: only once every change
    /// to its watched keys is durable.
    pub(crate) fn is_known_stale(&self, client: &Client) -> bool {
        let is_known = || {
            self.depends_on_watched(client) <= self.durable()
                || is_planted("touched-watch-undurable")
        };
        client.is_stale && is_known()
    }

    /// Whether a reply that depends on the log up to `needs` might leave now.
    pub(crate) fn is_free(&self, needs: Lsn) -> bool {
        may_leave(needs, self.releasable(), self.durable())
    }

    /// Notes that a reply depends on the log up to `needs`. With the log latched and `needs` not
    /// durable, the reply can never leave: an error replaces it.
    pub(crate) fn hold(&mut self, client: &mut Client, needs: Lsn, before: usize) {
        if needs > self.durable() && self.is_latched() {
            client.out.truncate(before);
            client.out.error(
                "MISCONF The log has stopped before this became durable. It cannot be read; check \
                 the volume and restart the server",
            );
            return;
        }
        match &mut self.transaction {
            Some(transaction) => transaction.needs = transaction.needs.max(needs),
            None => client.needs = client.needs.max(needs),
        }
    }

    /// Lets a request wait for room in the log.
    pub(crate) fn park(&mut self, client: &mut Client) {
        client.state = State::Parked(OwnedRequest::default());
        client.keeps_request = true;
        self.parked.push_back(client.conn);
    }

    /// Retries requests that wait for room, in order, and those held up by a pause or long request.
    pub(crate) fn retry_parked(&mut self) {
        if self.shutdown.is_some() {
            return;
        }
        self.parked_untried = 0;
        self.resume_postponed();
        self.resume_held_up();
        for _ in 0..self.parked.len() {
            let Some(conn) = self.parked.pop_front() else { return };
            if self.retry(conn) && self.parked.back() == Some(&conn) {
                // Those behind it would wait, too; it keeps its place.
                if !is_planted("parked-lose-place") {
                    self.parked.rotate_right(1);
                }
                return;
            }
            if self.is_turn_over() {
                self.parked_untried = self.parked.len();
                return;
            }
        }
    }

    /// Whether requests that waited for room were not all retried, because the turn was over.
    pub(crate) fn may_retry_parked(&self) -> bool {
        self.parked_untried > 0 && self.shutdown.is_none()
    }

    /// Retries a client's parked request; returns whether it still has to wait.
    pub(crate) fn retry(&mut self, conn: ConnId) -> bool {
        let Some(mut client) = self.clients.take(conn) else { return false };
        let request = match std::mem::replace(&mut client.state, State::Running) {
            State::Parked(request) => request,
            closing => {
                if !is_planted("closing-retried") {
                    client.state = closing;
                }
                self.clients.put(client);
                return false;
            }
        };
        self.begin_lap(Instant::now());
        self.request(&mut client, request.args());
        if client.keeps_request {
            self.keep_request(&mut client, request);
        }
        let is_parked = matches!(client.state, State::Parked(_));
        if client.is_running() {
            self.resume(&mut client);
        }
        self.put_back(client);
        is_parked
    }

    /// Whether requests or long commands wait for room.
    pub(crate) fn has_parked(&self) -> bool {
        !self.parked.is_empty() || !self.short_of_room.is_empty()
    }

    /// Whether, under `always`, all clients served recently wait for the log: then it delays nobody
    /// if the command thread waits for the log's write itself.
    pub(crate) fn only_writers_wait(&self) -> bool {
        let is_gone = |seen| self.now.saturating_duration_since(seen) >= READERS_GONE_AFTER;
        self.keeps_undurable && self.reader_seen.is_none_or(is_gone)
    }

    /// Replies up to here may leave under the policy in force.
    pub(crate) fn releasable(&self) -> Lsn {
        self.wal.as_ref().map_or(Lsn(u64::MAX), |wal| wal.log().releasable(self.now))
    }

    /// What is on stable media.
    pub(crate) fn durable(&self) -> Lsn {
        self.wal.as_ref().map_or(Lsn(u64::MAX), |wal| wal.log().durable())
    }

    pub(crate) fn is_latched(&self) -> bool {
        self.wal.as_ref().is_some_and(|wal| wal.log().latched().is_some())
    }

    /// Applies the configured policy.
    pub(crate) fn policy_changed(&mut self) {
        let policy = policy(self.config.choice("appendfsync"));
        let db_count = self.db_count();
        let Some(wal) = &mut self.wal else { return };
        wal.set_policy(policy);
        let keeps = policy == Policy::Always;
        if keeps && !self.keeps_undurable {
            let end = if is_planted("floor-undurable") { Lsn(0) } else { wal.log().appended() };
            self.undurable.begin(db_count, end);
        }
        self.keeps_undurable = keeps;
    }
}

/// The policy that a word of `appendfsync` names.
pub(crate) fn policy(word: &str) -> Policy {
    match word {
        "always" => Policy::Always,
        "no" => Policy::No,
        _ => Policy::EverySec,
    }
}
