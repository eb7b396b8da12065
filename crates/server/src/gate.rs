//! The log, and when replies may leave the server.
//!
//! A reply depends on a position of the log. For a write, this is the position of its own record.
//! For a read under `appendfsync always`, it is the position of the newest undurable record that
//! changed anything the command has read. The function [`may_leave`] alone decides whether a reply
//! may leave. The rest of this file finds out what a read depends on.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};
use std::time::{Duration, Instant};

use slimio_keyspace::{Command, DbIndex, Flags, Read, Touched};
use slimio_planted::is_planted;
use slimio_storage::{LogState, Lsn};

use crate::clients::Client;
use crate::commands::Entry;
use crate::waiting::WantedKeys;
use crate::wal::Wal;

/// One call of [`Undurable::forget`] forgets at most this many changes.
const FORGET_MAX: usize = 4096;

/// Whether bytes that depend on the log up to `needs` may leave. The policy in force releases
/// replies that depend on the log up to `releasable`. The log is on stable media up to `durable`.
pub(crate) fn may_leave(needs: Lsn, releasable: Lsn, durable: Lsn) -> bool {
    needs <= releasable || needs <= durable
}

/// If all replies had to wait for the log during a period of this length, the next replies are
/// expected to wait, too.
const READERS_GONE_AFTER: Duration = Duration::from_millis(10);

/// The log, and what replies depend on.
#[derive(Default)]
pub(crate) struct Gate {
    /// `None` if there is no volume.
    pub(crate) wal: Option<Wal>,
    /// Changes that are not durable yet. They are kept only while `keeps_undurable` is set, which
    /// is the case under `appendfsync always`.
    pub(crate) undurable: Undurable,
    pub(crate) keeps_undurable: bool,
    /// How many bytes of payload the running command's record may have. The command asked for this
    /// much room.
    pub(crate) log_size_max: u64,
    /// End of the log when the data set was last found empty. If the log still ends at this LSN,
    /// the data set has not changed since.
    pub(crate) emptied_at: Option<Lsn>,
    /// The last time that a served client's reply did not have to wait for the log to become
    /// durable.
    pub(crate) reader_seen: Option<Instant>,
}

impl Gate {
    /// Forgets changes that have become durable, because replies no longer depend on them.
    pub(crate) fn forget_durable(&mut self) {
        if self.keeps_undurable {
            let durable = self.durable();
            self.undurable.forget(durable);
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

    /// The LSN for a reply that may depend on any key.
    pub(crate) fn depends_on_all(&self) -> Lsn {
        if self.keeps_undurable { self.undurable.of_all() } else { Lsn(0) }
    }

    /// Whether a reply that depends on the log up to `needs` may leave now.
    pub(crate) fn is_free(&self, needs: Lsn, now: Instant) -> bool {
        may_leave(needs, self.releasable(now), self.durable())
    }

    /// If a reply could never leave, replaces it with an error. Returns whether the reply was
    /// replaced.
    pub(crate) fn withhold(&self, client: &mut Client, needs: Lsn, before: usize) -> bool {
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
    pub(crate) fn only_writers_wait(&self, now: Instant) -> bool {
        let is_gone = |seen| now.saturating_duration_since(seen) >= READERS_GONE_AFTER;
        self.keeps_undurable && self.reader_seen.is_none_or(is_gone)
    }

    /// Replies that depend on the log up to this LSN may leave under the policy in force.
    pub(crate) fn releasable(&self, now: Instant) -> Lsn {
        self.wal.as_ref().map_or(Lsn(u64::MAX), |wal| wal.log().releasable(now))
    }

    /// The log is on stable media up to this LSN.
    pub(crate) fn durable(&self) -> Lsn {
        self.wal.as_ref().map_or(Lsn(u64::MAX), |wal| wal.log().durable())
    }

    pub(crate) fn is_latched(&self) -> bool {
        self.wal.as_ref().is_some_and(|wal| wal.log().latched().is_some())
    }

    pub(crate) fn depends_on_wanted(&self, client: &Client, wanted: &WantedKeys) -> Lsn {
        if !self.keeps_undurable || is_planted("nothing-found-undurable") {
            return Lsn(0);
        }
        let lsns = wanted.hashes().map(|hash| self.undurable.of_key(client.db, hash));
        lsns.max().unwrap_or_default()
    }

    /// Bytes of the root snapshot and of the log after it.
    pub(crate) fn root_and_log(&self) -> (u64, u64) {
        let Some(wal) = &self.wal else { return (0, 0) };
        let log = wal.log();
        let root = log.snapshots().root();
        let base = root.map_or(0, |root| root.payload_size);
        (base, log.appended().bytes_since(log.start_lsn()))
    }

    /// Whether the log was turned on again, but its records do not count yet, because no new
    /// snapshot has been adopted.
    pub(crate) fn is_log_resuming(&self) -> bool {
        self.wal.as_ref().is_some_and(|wal| wal.log().log_state() == LogState::Resuming)
    }

    /// Whether the log is on, or will be on as soon as its snapshot has been adopted.
    pub(crate) fn is_log_on(&self) -> bool {
        self.wal.as_ref().is_some_and(Wal::takes_records)
    }

    /// Handles a `FLUSHALL` or `FLUSHDB` if the log already says that the data set is empty.
    /// Appends nothing. Releases the log up to its present end, so that even a log without any room
    /// becomes empty.
    pub(crate) fn flushed_again(&mut self, client: &mut Client) -> Lsn {
        let Some(wal) = &mut self.wal else { return Lsn(0) };
        let lsn = wal.log().appended();
        wal.release_before(lsn);
        if !is_planted("flush-again-unwaited") {
            client.last_write = lsn;
        }
        lsn
    }

    /// Whether the next start finds everything written up to `lsn`. False if there is no log, or if
    /// the log is being turned on again and its first snapshot is not adopted yet.
    pub(crate) fn is_recoverable(&self, lsn: Lsn) -> bool {
        let log = self.wal.as_ref().map(Wal::log);
        log.is_some_and(|log| {
            let counts = match log.log_state() {
                LogState::On => true,
                LogState::Resuming => false,
                LogState::Ending | LogState::Off => is_planted("kept-without-log"),
            };
            counts && log.durable() >= lsn
        })
    }
}

/// The changes of records that are not durable yet. The table is kept only under `appendfsync
/// always`.
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    /// The newest record that changed each key, by the hash of key and database. If two keys have
    /// the same hash, replies about one key also wait for the records of the other key, which does
    /// no harm.
    keys: HashMap<u64, Lsn, BuildHasherDefault<AlreadyHashed>>,
    /// The same changes in the order of the log. They are forgotten from the front.
    order: VecDeque<(Lsn, u64)>,
    dbs: Vec<DbChanges>,
    /// End of the log when this table was begun. Every reply depends on the log up to this
    /// position.
    floor: Lsn,
}

/// Something that a record changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A key, named by its hash.
    Key(DbIndex, u64),
    /// Possibly every key of a database.
    Db(DbIndex),
}

impl From<Touched<'_>> for Change {
    fn from(touched: Touched<'_>) -> Self {
        match touched {
            Touched::Key { db, hash, .. } => Self::Key(db, hash),
            Touched::Db(db) => Self::Db(db),
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
struct DbChanges {
    /// The newest record that changed any key.
    any: Lsn,
    /// The newest record that may have changed every key.
    all: Lsn,
}

impl Undurable {
    /// Starts the table. Every reply depends on all records that were appended before, because
    /// those records are not in the table.
    pub(crate) fn begin(&mut self, db_count: usize, appended: Lsn) {
        *self = Self { floor: appended, ..Self::default() };
        self.dbs.resize(db_count, DbChanges::default());
    }

    /// Notes what a record changed.
    pub(crate) fn note(&mut self, lsn: Lsn, changes: impl Iterator<Item = Change>) {
        for change in changes {
            match change {
                Change::Key(db, hash) => {
                    let hash = mix(db, hash);
                    self.keys.insert(hash, lsn);
                    self.order.push_back((lsn, hash));
                    self.dbs[usize::from(db.0)].any = lsn;
                }
                Change::Db(db) => {
                    self.dbs[usize::from(db.0)] = DbChanges { any: lsn, all: lsn };
                }
            }
        }
    }

    /// Reserves memory for this many changes, so that noting each change takes the same time.
    pub(crate) fn reserve(&mut self, changes: usize) {
        self.keys.reserve(changes);
        self.order.reserve(changes);
    }

    /// Forgets changes that have become durable, a bounded number at a time. A leftover entry
    /// delays nobody, because its record is durable.
    pub(crate) fn forget(&mut self, durable: Lsn) {
        for _ in 0..FORGET_MAX {
            let Some((lsn, hash)) = self.order.front().copied() else { return };
            if lsn > durable {
                return;
            }
            self.order.pop_front();
            // If a newer record has changed the same key, `keys` has that record's LSN. The entry
            // then stays until the newer record is forgotten.
            if self.keys.get(&hash) == Some(&lsn) {
                self.keys.remove(&hash);
            }
        }
    }

    /// The LSN that the value or absence of a key depends on.
    pub(crate) fn of_key(&self, db: DbIndex, hash: u64) -> Lsn {
        if is_planted("read-undurable") {
            return Lsn(0);
        }
        let key = self.keys.get(&mix(db, hash)).copied().unwrap_or_default();
        key.max(self.of_every_key(db))
    }

    /// The LSN that every key of a database depends on, in addition to the records of the key
    /// itself.
    fn of_every_key(&self, db: DbIndex) -> Lsn {
        self.floor.max(self.dbs[usize::from(db.0)].all)
    }

    /// The LSN that an answer about a whole database depends on.
    pub(crate) fn of_db(&self, db: DbIndex) -> Lsn {
        self.floor.max(self.dbs[usize::from(db.0)].any)
    }

    /// The LSN that an answer about all databases depends on.
    pub(crate) fn of_all(&self) -> Lsn {
        self.dbs.iter().fold(self.floor, |newest, db| newest.max(db.any))
    }
}

/// Hash of a key and its database, made from the key's own hash.
pub(crate) fn mix(db: DbIndex, hash: u64) -> u64 {
    hash ^ u64::from(db.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// A hasher that returns its input. The keyspace's hashes are already keyed and well mixed, so
/// hashing them again would be a waste.
#[derive(Debug, Default)]
pub(crate) struct AlreadyHashed(u64);

impl Hasher for AlreadyHashed {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.0 = (self.0 << 8) | u64::from(byte);
        }
    }

    fn write_u64(&mut self, hash: u64) {
        self.0 = hash;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    const DB: DbIndex = DbIndex(0);
    const OTHER: DbIndex = DbIndex(1);

    fn key(db: DbIndex, hash: u64) -> impl Iterator<Item = Change> {
        std::iter::once(Change::Key(db, hash))
    }

    #[test]
    fn bytes_leave_when_what_they_depend_on_is_there() {
        let (releasable, durable) = (Lsn(10), Lsn(5));
        assert!(may_leave(Lsn(0), Lsn(0), Lsn(0)));
        assert!(may_leave(Lsn(10), releasable, durable));
        assert!(!may_leave(Lsn(11), releasable, durable));
        // A log that has failed (is latched) or is stalled releases no new replies, but replies
        // that depend only on durable records may still leave.
        assert!(may_leave(Lsn(5), Lsn(0), durable));
        assert!(!may_leave(Lsn(6), Lsn(0), durable));
    }

    #[test]
    fn a_read_depends_on_the_newest_undurable_record_of_what_it_read() {
        let mut table = Undurable::default();
        table.begin(2, Lsn(100));
        assert_eq!(
            table.of_key(DB, 1),
            Lsn(100),
            "every key depends on the records before the table"
        );
        table.note(Lsn(110), key(DB, 1));
        table.note(Lsn(120), key(DB, 2));
        table.note(Lsn(130), key(DB, 1));
        assert_eq!(table.of_key(DB, 1), Lsn(130));
        assert_eq!(table.of_key(DB, 2), Lsn(120));
        assert_eq!(
            table.of_key(OTHER, 1),
            Lsn(100),
            "the same key of another database has not changed"
        );
        assert_eq!(table.of_db(DB), Lsn(130));
        assert_eq!(table.of_db(OTHER), Lsn(100));
        assert_eq!(table.of_all(), Lsn(130));

        table.forget(Lsn(120));
        assert_eq!(table.of_key(DB, 1), Lsn(130), "the newer record is not forgotten");
        assert_eq!(table.of_key(DB, 2), Lsn(100));
        table.forget(Lsn(130));
        assert!(table.keys.is_empty());
    }

    #[test]
    fn after_a_flush_every_key_depends_on_it() {
        let mut table = Undurable::default();
        table.begin(2, Lsn(0));
        table.note(Lsn(10), key(DB, 1));
        table.note(Lsn(20), std::iter::once(Change::Db(DB)));
        assert_eq!(table.of_key(DB, 1), Lsn(20));
        assert_eq!(table.of_key(DB, 7), Lsn(20), "the flush counts for absent keys, too");
        assert_eq!(table.of_key(OTHER, 7), Lsn(0));
    }
}
