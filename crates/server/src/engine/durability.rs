//! What is logged, what replies depend on, and what happens when the log has no room or fails.

use slimio_keyspace::{DbIndex, Touched, no_args};
use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::{ACKNOWLEDGE_WITHIN, Lsn, Policy};

use super::changes::{Place, Ran, Source};
use super::{Engine, Purpose, Transaction};
use crate::clients::Client;
use crate::gate::Change;

impl Engine {
    /// Logs the effects of the command that just ran for `client`, and reports its changes. Returns
    /// the LSN that the reply has to wait for, or 0 if these effects do not make it wait.
    pub(crate) fn record(&mut self, client: &mut Client, args: Args<'_>) -> Lsn {
        let items = 0..self.data.effects.noted_count();
        let is_logged = !self.data.effects.is_empty();
        if items.is_empty() && !is_logged {
            return Lsn(0);
        }
        let place = if is_logged { self.place(client, args) } else { Place::Nowhere };
        let now_ms = self.clock.now_ms;
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

    /// Appends the effects of the last command to the log, or adds them to the record of the
    /// running transaction. Returns the place of the effects' record.
    fn place(&mut self, client: &mut Client, args: Args<'_>) -> Place {
        if let Some(transaction) = &mut self.data.transaction {
            // The whole transaction is one record, appended when its last command has run.
            self.data.payload.add(&self.data.effects, args);
            transaction.room = transaction.room.min(self.data.effects.room());
            transaction.value_room = transaction.value_room.min(self.data.effects.value_room());
            return Place::Pending;
        }
        let flushed = self.data.effects.touched(args).any(|t| matches!(t, Touched::Db(_)));
        if flushed
            && let Some(wal) = &self.gate.wal
            && wal.takes_records()
            && wal.log().latched().is_none()
            && self.gate.emptied_at == Some(wal.log().appended())
        {
            return Place::Said(self.gate.flushed_again(client));
        }
        self.put(client.db, Source::Command(args), flushed)
    }

    /// Reaps completions of the log's device and of the keeper (the thread that looks after the
    /// log's segments), and notes a slow commit for `LATENCY`.
    pub(crate) fn reap_log(&mut self) {
        let Some(wal) = &mut self.gate.wal else { return };
        let (oldest, durable) = (wal.log().oldest_undurable(), wal.log().durable());
        wal.reap(self.clock.now);
        let log = wal.log();
        if let Some(oldest) = oldest
            && log.durable() > durable
        {
            let took = self.clock.now.saturating_duration_since(oldest);
            let event = match log.policy() {
                Policy::Always => "aof-fsync-always",
                Policy::EverySec if took >= ACKNOWLEDGE_WITHIN => {
                    self.stats.delayed_flushes += 1;
                    "aof-write-pending-fsync"
                }
                Policy::EverySec | Policy::No => return,
            };
            self.latency.note(event, self.clock.now_ms / 1000, took, self.settings.latency_from);
        }
    }

    /// Begins to gather the effects of a transaction, whose writes append at most `size` bytes of
    /// payload. Of these bytes, `value_room` are for data from stored values.
    pub(crate) fn begin_transaction(
        &mut self,
        db: DbIndex,
        purpose: Purpose,
        size: u64,
        value_room: u64,
    ) {
        self.data.payload.begin(db);
        let asked = if is_planted("exec-room-twice") { 0 } else { size };
        let room = self.room_to_free().saturating_sub(asked);
        self.gate.log_size_max = size.saturating_add(room);
        let transaction =
            Transaction { room, value_room, asked: size, purpose, ..Transaction::default() };
        self.data.transaction = Some(transaction);
    }

    /// Logs a transaction, and notes what its reply depends on. Then turns the log on or off, if
    /// the transaction asked for that.
    pub(crate) fn end_transaction(&mut self, client: &mut Client, db: DbIndex) {
        let Some(transaction) = self.data.transaction.take() else { return };
        let turns_log = transaction.turns_log;
        self.log_transaction(client, db, transaction);
        if turns_log {
            self.turn_log();
        }
    }

    fn log_transaction(&mut self, client: &mut Client, db: DbIndex, transaction: Transaction) {
        client.needs = client.needs.max(transaction.needs);
        if self.data.payload.bytes().is_empty() {
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

    /// Logs effects of expiry and eviction, and reports the deleted keys.
    pub(crate) fn record_unasked(&mut self, db: DbIndex) {
        if self.data.effects.is_empty() {
            return;
        }
        let place = self.put(db, Source::Unasked, false);
        let (items, args, now_ms) =
            (0..self.data.effects.noted_count(), no_args(), self.clock.now_ms);
        let (of_long, client, is_counted) = (None, 0, false);
        self.tell(&Ran { of_long, args, items, now_ms, client, is_counted }, place);
    }

    /// Called for a change while no log takes records. If `FLUSHALL` or `FLUSHDB` empties the data
    /// set while `save` is set, schedules a snapshot. Without this snapshot, the next start would
    /// bring the old data back.
    pub(super) fn changed_without_log(&mut self, flushed: bool) {
        if flushed && !self.settings.save_points.is_empty() {
            let is_empty = self.data.dbs().all(|db| self.data.keyspace.dbsize(db) == 0);
            self.snapshots.is_of_flush |= is_empty && !self.snapshots.is_saving();
            self.snapshots.saves.is_scheduled |= is_empty;
        }
    }

    /// If no key is left, releases the part of the log before the record at `lsn`, because recovery
    /// no longer needs that part.
    pub(super) fn release_log(&mut self, lsn: Lsn) {
        if self.data.is_empty()
            && let Some(wal) = &mut self.gate.wal
        {
            wal.release_before(lsn);
            self.gate.emptied_at = Some(lsn);
        }
    }

    /// Makes the effects note what the next command reads, if replies depend on what was read.
    pub(super) fn note_reads(&mut self) {
        if self.gate.keeps_undurable {
            self.data.effects.note_reads(0);
        }
    }

    /// The LSN that the value or absence of one key depends on.
    pub(crate) fn depends_on_key(&self, db: DbIndex, key: &[u8]) -> Lsn {
        if !self.gate.keeps_undurable {
            return Lsn(0);
        }
        self.gate.undurable.of_key(db, self.data.keyspace.hash(key))
    }

    /// The LSN that the state (changed or not) of a client's watched keys depends on.
    pub(crate) fn depends_on_watched(&self, client: &Client) -> Lsn {
        if !self.gate.keeps_undurable || is_planted("exec-nil-undurable") {
            return Lsn(0);
        }
        let keys = client.watching.iter().map(|(db, key)| self.depends_on_key(*db, key));
        keys.max().unwrap_or_default()
    }

    /// Whether a key that the client watches was changed, and the change may be shown. The change
    /// may be shown as soon as every change to the client's watched keys is durable.
    pub(crate) fn is_known_stale(&self, client: &Client) -> bool {
        let is_known = || {
            self.depends_on_watched(client) <= self.gate.durable()
                || is_planted("touched-watch-undurable")
        };
        self.data.watches.is_stale(client) && is_known()
    }

    /// Notes that a reply depends on the log up to `needs`. If the log is latched (it has failed,
    /// and nothing is written any more) and `needs` is not durable, the reply could never leave, so
    /// an error replaces the reply.
    pub(crate) fn hold(&mut self, client: &mut Client, needs: Lsn, before: usize) {
        if self.gate.withhold(client, needs, before) {
            return;
        }
        match &mut self.data.transaction {
            Some(transaction) => transaction.needs = transaction.needs.max(needs),
            None => client.needs = client.needs.max(needs),
        }
    }

    /// Applies the policy of `appendfsync`, which may have changed.
    pub(crate) fn policy_changed(&mut self) {
        let policy = policy(self.config.choice("appendfsync"));
        let db_count = self.data.db_count();
        let Some(wal) = &mut self.gate.wal else { return };
        wal.set_policy(policy);
        let keeps = policy == Policy::Always;
        if keeps && !self.gate.keeps_undurable {
            let end = if is_planted("floor-undurable") { Lsn(0) } else { wal.log().appended() };
            self.gate.undurable.begin(db_count, end);
        }
        self.gate.keeps_undurable = keeps;
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
