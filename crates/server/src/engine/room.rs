//! Which writes may append to the log, and how much.
//!
//! The invariant: nothing is appended without room for it. Before a write changes anything, it asks
//! for room for the largest record that it can append. Expiry and eviction, which no client asks
//! for, delete only as many keys as the log has room for. The other keys are deleted later. Some
//! room is kept for emptying the data set. Expiry, eviction and ordinary writes do not use this
//! room.

use slimio_keyspace::{Command, DbIndex, Flags};
use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::{LogState, Room};

use super::Engine;
use crate::commands::Entry;

/// The purpose of a write. It decides how much of the log's room the write may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// The write has no special purpose. It is admitted only if its record does not need the room
    /// that is kept for writes that free memory.
    Any,
    /// The write frees memory.
    Frees,
    /// The write empties the data set, so that the log can start anew after this write.
    #[default]
    Empties,
    /// The write empties a data set that is already empty according to the log, so nothing is
    /// appended.
    EmptiesAgain,
}

/// Whether a write may run.
pub(crate) enum Admission {
    Granted,
    /// The client has to wait for room.
    Wait,
    /// The write may not run. Reply with this error.
    Refused(String),
}

impl Engine {
    /// Whether a write may run if its record has at most `size` bytes of payload.
    pub(crate) fn admit(&mut self, purpose: Purpose, size: u64) -> Admission {
        self.gate.log_size_max = size;
        let reserved = self.data.long_reserved();
        let Some(wal) = &mut self.gate.wal else { return Admission::Granted };
        if let Some(latch) = wal.log().latched() {
            return Admission::Refused(format!(
                "MISCONF The log has stopped: {latch}. Nothing more is written; check the volume \
                 and restart the server"
            ));
        }
        let room = match wal.log().log_state() {
            LogState::Off => Room::Free,
            LogState::Ending => Room::Wait,
            LogState::On | LogState::Resuming if purpose == Purpose::EmptiesAgain => Room::Free,
            LogState::On | LogState::Resuming if reserved > 0 => {
                // A long request, which runs in steps, has reserved room. If the write does not fit
                // beside this room, the write waits. It may fit later, because the long request may
                // leave a part of its room unused.
                let room = wal.room(size.saturating_add(reserved));
                if room == Room::Free { room } else { Room::Wait }
            }
            LogState::On | LogState::Resuming => wal.room(size),
        };
        match room {
            Room::Free if purpose == Purpose::Any && self.is_snapshot_full() => Admission::Wait,
            Room::Free => Admission::Granted,
            Room::Scarce if purpose >= Purpose::Frees => Admission::Granted,
            Room::Last if purpose >= Purpose::Empties => Admission::Granted,
            Room::Wait => Admission::Wait,
            Room::Scarce | Room::Last | Room::Full if self.may_gain_room() => Admission::Wait,
            Room::Scarce | Room::Last | Room::Full => Admission::Refused(
                "MISCONF The log is full: there is no more space on the volume. Make room on the \
                 volume, raise log-size-max, or run FLUSHALL"
                    .into(),
            ),
        }
    }

    /// Called for a command of the running transaction. The command may need more room than was
    /// estimated at the transaction's beginning, because the transaction has since changed the
    /// command's values or swapped databases. If so, asks for the rest. If there is not enough
    /// room, the command fails.
    pub(crate) fn ask_for_more(&mut self, db: DbIndex, row: &Command<Entry>, args: Args<'_>) {
        let wanted = self.data.weigh(db, row, args).log_size;
        let Some(transaction) = &self.data.transaction else { return };
        let lacking = wanted.saturating_sub(transaction.value_room);
        if lacking == 0 || is_planted("exec-asks-once") {
            return;
        }
        let (asked, size_max) = (transaction.asked.saturating_add(lacking), self.gate.log_size_max);
        let is_granted = matches!(self.admit(transaction.purpose, asked), Admission::Granted);
        self.gate.log_size_max = size_max;
        if let Some(transaction) = self.data.transaction.as_mut().filter(|_| is_granted) {
            transaction.asked = asked;
            transaction.value_room += lacking;
            // The room for deletions of expired keys becomes smaller by the same number of bytes.
            let less = if is_planted("exec-more-for-all") { 0 } else { lacking };
            transaction.room = transaction.room.saturating_sub(less);
            self.gate.log_size_max = size_max.max(asked.saturating_add(transaction.room));
        }
    }

    /// The purpose of a command that writes.
    pub(crate) fn purpose(&self, row: &Command<Entry>, db: DbIndex) -> Purpose {
        if !row.flags.has(Flags::FREES) {
            return Purpose::Any;
        }
        if !row.flags.has(Flags::WHOLE_DB) {
            return Purpose::Frees;
        }
        let others_are_empty =
            || self.data.dbs().all(|other| other == db || self.data.keyspace.dbsize(other) == 0);
        let empties =
            row.name == "flushall" || others_are_empty() || is_planted("flushdb-takes-last");
        if !empties {
            return Purpose::Frees;
        }
        let end = self.gate.wal.as_ref().map(|wal| wal.log().appended());
        let is_said = end.is_some() && self.gate.emptied_at == end;
        if is_said { Purpose::EmptiesAgain } else { Purpose::Empties }
    }

    /// The largest payload in bytes that a record of expiry or eviction may have now.
    pub(crate) fn room_to_free(&self) -> u64 {
        match &self.gate.wal {
            _ if self.phase.is_paused() => 0,
            _ if self.data.is_long_holding() && !is_planted("evicted-within-long") => 0,
            Some(wal) if wal.log().latched().is_some() => 0,
            Some(wal) if wal.takes_records() && !is_planted("expiry-asks-no-room") => {
                wal.log().room_to_free()
            }
            _ => u64::MAX,
        }
    }

    /// Called for a command that only reads. Limits how many expired keys may be deleted while the
    /// command runs, because it has not asked for room in the log.
    pub(crate) fn limit_effects(&mut self, db: DbIndex) {
        if let Some(transaction) = &self.data.transaction {
            self.data.effects.limit(transaction.room);
            return;
        }
        self.gate.log_size_max = 0;
        if self.data.keyspace.expiring(db) > 0 {
            self.gate.log_size_max = self.room_to_free();
            self.data.effects.limit(self.gate.log_size_max);
        }
    }

    /// Notes whether the data set is empty at the present end of the log.
    pub(crate) fn note_if_empty(&mut self) {
        let end = self.gate.wal.as_ref().map(|wal| wal.log().appended());
        self.gate.emptied_at = end.filter(|_| self.data.is_empty());
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::connections::Connections;
    use crate::engine::Facts;
    use crate::net::{ConnId, Peer};
    use slimio_resp::OwnedRequest;

    /// If a command asks for more room while its transaction runs, this room is taken from the room
    /// for deletions of expired keys. The transaction's record must not become longer than the room
    /// that the transaction had at the beginning.
    #[test]
    fn what_a_transaction_asks_for_later_is_not_used_twice() {
        let mut engine = Engine::new(Config::default(), 1, Facts::default());
        let mut connections = Connections::default();
        let conn = ConnId { index: 0, generation: 0 };
        connections.accepted(&mut engine, conn, Peer { remote: None, local: None });
        let add = format!("SADD k {}\r\n", "v".repeat(1000));
        connections.received(&mut engine, conn, add.as_bytes());
        engine.begin_transaction(DbIndex(0), Purpose::Any, 100, 10);
        let room = |engine: &Engine| {
            let transaction = engine.data.transaction.as_ref().expect("the transaction has begun");
            (transaction.asked, u128::from(transaction.asked) + u128::from(transaction.room))
        };
        let (asked, whole) = room(&engine);
        let pop = OwnedRequest::from_args(["SPOP", "k"]);
        let row = crate::commands::find(pop.args()).expect("SPOP is a command");
        engine.ask_for_more(DbIndex(0), row, pop.args());
        let (asked_now, whole_now) = room(&engine);
        assert!(asked_now > asked + 900, "the transaction asked for only {asked_now} bytes");
        assert_eq!(whole_now, whole);
    }
}
