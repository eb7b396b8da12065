//! What is logged, what replies depend on, and what happens when the log has no room or fails.

use std::time::Duration;

use slimio_keyspace::{Command, DbIndex, Flags, Read, Touched, no_args};
use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::{ACKNOWLEDGE_WITHIN, Lsn, Policy};

use super::changes::{Place, Ran, Source};
use super::{Engine, Purpose, Transaction};
use crate::clients::Client;
use crate::commands::Entry;
use crate::gate::{Change, may_leave};

/// If every reply has had to wait for the log for this long, the next replies are expected to wait,
/// too.
const READERS_GONE_AFTER: Duration = Duration::from_millis(10);

impl Engine {
    /// Logs the effects of the command that just ran for `client`, and tells of its changes. Returns
    /// the LSN that the reply has to wait for, or 0 if the command appended nothing of its own.
    pub(crate) fn record(&mut self, client: &mut Client, args: Args<'_>) -> Lsn {
        let items = 0..self.effects.noted_count();
        let is_logged = !self.effects.is_empty();
        if items.is_empty() && !is_logged {
            return Lsn(0);
        }
        let place = if is_logged { self.place(client, args) } else { Place::Nowhere };
        let now_ms = self.now_ms;
        let (of_long, is_counted) = (None, is_logged);
        let ran = Ran { of_long, args, items, now_ms, client: client.id, is_counted };
        self.tell(&ran, place);
        match place {
            Place::Record(lsn) => {
                client.last_write = lsn;
                lsn
            }
            Place::Said(lsn) => lsn,
            Place::Nowhere | Place::Stopped | Place::Pending => Lsn(0),
        }
    }

    /// Brings the effects of the command that just ran to their place in the log.
    fn place(&mut self, client: &mut Client, args: Args<'_>) -> Place {
        if let Some(transaction) = &mut self.transaction {
            // The whole transaction is one record, appended when its last command has run.
            self.payload.add(&self.effects, args);
            transaction.room = transaction.room.min(self.effects.room());
            transaction.value_room = transaction.value_room.min(self.effects.value_room());
            return Place::Pending;
        }
        let flushed = self.effects.touched(args).any(|t| matches!(t, Touched::Db(_)));
        if flushed
            && let Some(wal) = &self.wal
            && wal.takes_records()
            && wal.log().latched().is_none()
            && self.emptied_at == Some(wal.log().appended())
        {
            return Place::Said(self.flushed_again(client));
        }
        self.put(client.db, Source::Command(args), flushed)
    }

    /// Reaps completions of the log's device and of the keeper (the thread that looks after the
    /// log's segments), and notes a slow commit for `LATENCY`.
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

    /// Forgets changes that have become durable, because replies no longer depend on them.
    pub(crate) fn forget_durable(&mut self) {
        if self.keeps_undurable {
            let durable = self.durable();
            self.undurable.forget(durable);
        }
    }

    /// Begins to gather the effects of a transaction, whose writes append at most `size` bytes of
    /// payload. `value_room` of these are for what effects have from values.
    pub(crate) fn begin_transaction(
        &mut self,
        db: DbIndex,
        purpose: Purpose,
        size: u64,
        value_room: u64,
    ) {
        self.payload.begin(db);
        let asked = if is_planted("exec-room-twice") { 0 } else { size };
        let room = self.room_to_free().saturating_sub(asked);
        self.log_size_max = size.saturating_add(room);
        let transaction =
            Transaction { room, value_room, asked: size, purpose, ..Transaction::default() };
        self.transaction = Some(transaction);
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
        let place = self.put(db, Source::Transaction, flushed);
        self.tell_transaction(transaction, place);
        if let Place::Record(lsn) = place {
            if !is_planted("exec-unwaited") {
                client.last_write = lsn;
            }
            client.needs = client.needs.max(lsn);
        }
    }

    /// Logs effects of expiry and eviction, and tells of the deleted keys.
    pub(crate) fn record_unasked(&mut self, db: DbIndex) {
        if self.effects.is_empty() {
            return;
        }
        let place = self.put(db, Source::Unasked, false);
        let (items, args, now_ms) = (0..self.effects.noted_count(), no_args(), self.now_ms);
        let (of_long, client, is_counted) = (None, 0, false);
        self.tell(&Ran { of_long, args, items, now_ms, client, is_counted }, place);
    }

    /// Called for a change while there is no log. If a flush empties the data set while `save` is
    /// set, schedules a snapshot, because the next start would otherwise undo the flush.
    pub(super) fn changed_without_log(&mut self, flushed: bool) {
        if flushed && !self.settings.save_points.is_empty() {
            let is_empty = self.dbs().all(|db| self.keyspace.dbsize(db) == 0);
            self.snapshots.is_of_flush |= is_empty && !self.snapshots.is_saving();
            self.snapshots.saves.is_scheduled |= is_empty;
        }
    }

    /// If no key is left, releases the part of the log before the record at `lsn`, because recovery
    /// no longer needs that part.
    pub(super) fn release_log(&mut self, lsn: Lsn) {
        if self.is_empty()
            && let Some(wal) = &mut self.wal
        {
            wal.release_before(lsn);
            self.emptied_at = Some(lsn);
        }
    }

    /// Makes the effects note what the next command reads, if replies depend on what was read.
    pub(super) fn note_reads(&mut self) {
        if self.keeps_undurable {
            self.effects.note_reads(0);
        }
    }

    /// The LSN that a reply depends on if its command appended nothing. It is the LSN of the newest
    /// record that changed anything that the command read. `reads` is `None` if the command began
    /// before reads were noted. The reply then depends on all changes.
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

    /// The LSN that the value or absence of one key depends on.
    pub(crate) fn depends_on_key(&self, db: DbIndex, key: &[u8]) -> Lsn {
        if !self.keeps_undurable {
            return Lsn(0);
        }
        self.undurable.of_key(db, self.keyspace.hash(key))
    }

    /// The LSN that the state (changed or not) of a client's watched keys depends on.
    pub(crate) fn depends_on_watched(&self, client: &Client) -> Lsn {
        if !self.keeps_undurable || is_planted("exec-nil-undurable") {
            return Lsn(0);
        }
        let keys = client.watching.iter().map(|(db, key)| self.depends_on_key(*db, key));
        keys.max().unwrap_or_default()
    }

    /// Whether a key that the client watches was changed, and the change may be shown. The change
    /// may be shown as soon as every change to the client's watched keys is durable.
    pub(crate) fn is_known_stale(&self, client: &Client) -> bool {
        let is_known = || {
            self.depends_on_watched(client) <= self.durable()
                || is_planted("touched-watch-undurable")
        };
        self.watches.is_stale(client) && is_known()
    }

    /// Whether a reply that depends on the log up to `needs` may leave now.
    pub(crate) fn is_free(&self, needs: Lsn) -> bool {
        may_leave(needs, self.releasable(), self.durable())
    }

    /// Notes that a reply depends on the log up to `needs`. If the log is latched and `needs` is
    /// not durable, the reply could never leave, so an error replaces the reply.
    pub(crate) fn hold(&mut self, client: &mut Client, needs: Lsn, before: usize) {
        if self.withhold(client, needs, before) {
            return;
        }
        match &mut self.transaction {
            Some(transaction) => transaction.needs = transaction.needs.max(needs),
            None => client.needs = client.needs.max(needs),
        }
    }

    /// Replaces a reply that could never leave by an error. Returns whether it has done that.
    pub(super) fn withhold(&self, client: &mut Client, needs: Lsn, before: usize) -> bool {
        let is_lost = needs > self.durable() && self.is_latched();
        if is_lost {
            client.out.truncate(before);
            client.out.error(
                "MISCONF The log has stopped before the data in this reply became durable, so the \
                 reply is withheld; check the volume and restart the server",
            );
        }
        is_lost
    }

    /// Whether, under `appendfsync always`, all clients that were served recently wait for the log.
    /// If so, the command thread may itself wait for the log's write, because this delays nobody.
    pub(crate) fn only_writers_wait(&self) -> bool {
        let is_gone = |seen| self.now.saturating_duration_since(seen) >= READERS_GONE_AFTER;
        self.keeps_undurable && self.reader_seen.is_none_or(is_gone)
    }

    /// Replies that depend on the log up to this LSN may leave under the policy in force.
    pub(crate) fn releasable(&self) -> Lsn {
        self.wal.as_ref().map_or(Lsn(u64::MAX), |wal| wal.log().releasable(self.now))
    }

    /// The log is on stable media up to this LSN.
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
