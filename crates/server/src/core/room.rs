//! Who may append to the log, and how much.
//!
//! The invariant: nothing is appended without room for it. Before a write changes anything, it asks
//! for room for the most that it can append. Expiry and eviction, which nobody asks for, get the
//! room there is, and what does not fit in is left for later. Neither touches the room that is kept
//! for emptying the data set.

use slimio_keyspace::{Command, DbIndex, Flags};
use slimio_planted::is_planted;
use slimio_storage::{LogState, Lsn, Room};

use super::Core;
use crate::clients::Client;
use crate::commands::Entry;

/// What a write is for: how much of the log's room it may use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Purpose {
    /// Anything: admitted only while there is also room for a write that makes room.
    Any,
    /// Frees memory.
    Frees,
    /// Empties the data set, so that the log can start behind it.
    #[default]
    Empties,
    /// Empties it when the log says already that it is empty: nothing is appended.
    EmptiesAgain,
}

/// Whether a write may run.
pub(crate) enum Admission {
    Granted,
    /// The client has to wait for room.
    Wait,
    /// It may not: the error to reply with.
    Refused(String),
}

impl Core {
    /// Whether the log has room for a record with at most `size` bytes of payload.
    pub(crate) fn admit(&mut self, purpose: Purpose, size: u64) -> Admission {
        self.log_size_max = size;
        let reserved = self.long_reserved();
        let Some(wal) = &mut self.wal else { return Admission::Granted };
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
                // How much of its room a long request leaves unused is known only when it ends.
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
                "MISCONF The log is full: there is no more space on the volume. Make room on it, \
                 raise log-size-max, or FLUSHALL"
                    .into(),
            ),
        }
    }

    /// What a command that writes is for.
    pub(crate) fn purpose(&self, row: &Command<Entry>, db: DbIndex) -> Purpose {
        if !row.flags.has(Flags::FREES) {
            return Purpose::Any;
        }
        if !row.flags.has(Flags::WHOLE_DB) {
            return Purpose::Frees;
        }
        let others_are_empty =
            || self.dbs().all(|other| other == db || self.keyspace.dbsize(other) == 0);
        let empties =
            row.name == "flushall" || others_are_empty() || is_planted("flushdb-takes-last");
        if !empties {
            return Purpose::Frees;
        }
        let end = self.wal.as_ref().map(|wal| wal.log().appended());
        let is_said = end.is_some() && self.emptied_at == end;
        if is_said { Purpose::EmptiesAgain } else { Purpose::Empties }
    }

    /// Bytes of a record's payload that expiry and eviction may use now.
    pub(crate) fn room_to_free(&self) -> u64 {
        match &self.wal {
            _ if self.is_paused() => 0,
            _ if self.is_long_holding() && !is_planted("evicted-within-long") => 0,
            Some(wal) if wal.log().latched().is_some() => 0,
            Some(wal) if wal.takes_records() && !is_planted("expiry-asks-no-room") => {
                wal.log().room_to_free()
            }
            _ => u64::MAX,
        }
    }

    /// Limits the deletions of expired keys that a command comes across although it only reads: it
    /// has asked for no room.
    pub(crate) fn limit_effects(&mut self, db: DbIndex) {
        if let Some(transaction) = &self.transaction {
            self.effects.limit(transaction.room);
            return;
        }
        self.log_size_max = 0;
        if self.keyspace.expiring(db) > 0 {
            self.log_size_max = self.room_to_free();
            self.effects.limit(self.log_size_max);
        }
    }

    /// Whether no database has a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.dbs().all(|db| self.keyspace.dbsize(db) == 0)
    }

    /// The data set was flushed, and the log says already that it is empty: nothing is appended,
    /// the log only starts here. So even a log without any room can be started anew.
    pub(super) fn flushed_again(&mut self, client: &mut Client) -> Lsn {
        let Some(wal) = &mut self.wal else { return Lsn(0) };
        let lsn = wal.log().appended();
        wal.release_before(lsn);
        if !is_planted("flush-again-unwaited") {
            client.last_write = lsn;
        }
        lsn
    }

    /// The log goes on from here with the data in memory: notes whether that is empty.
    pub(crate) fn note_if_empty(&mut self) {
        let end = self.wal.as_ref().map(|wal| wal.log().appended());
        self.emptied_at = end.filter(|_| self.is_empty());
    }
}
