//! When bytes may leave.
//!
//! A reply depends on a position of the log: that of its own record, or under `always` that of the
//! newest undurable record of what it has read. [`may_leave`] is the only place that decides; the
//! rest of this file finds out what a read depends on.

use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasherDefault, Hasher};

use slimio_keyspace::{DbIndex, Touched};
use slimio_planted::is_planted;
use slimio_storage::Lsn;

/// Most changes that are forgotten at a time.
const FORGET_MAX: usize = 4096;

/// Whether bytes that depend on the log up to `needs` may leave, when replies up to `releasable`
/// may under the policy in force and `durable` is on stable media.
pub(crate) fn may_leave(needs: Lsn, releasable: Lsn, durable: Lsn) -> bool {
    needs <= releasable || needs <= durable
}

/// What has been changed by records that are not durable yet. Kept under `always` only.
#[derive(Debug, Default)]
pub(crate) struct Undurable {
    /// By hash of key and database: two keys with the same hash only wait for each other's records.
    keys: HashMap<u64, Lsn, BuildHasherDefault<AlreadyHashed>>,
    /// The same in the order of the log, to be forgotten from the front.
    order: VecDeque<(Lsn, u64)>,
    dbs: Vec<DbChanges>,
    /// What everything depends on: the end of the log when the table began to be kept.
    floor: Lsn,
}

/// Something that a record changed.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Change {
    /// A key, by its hash.
    Key(DbIndex, u64),
    /// Any key of a database.
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
    /// Starts the table. Records appended before are not in it: everything depends on them.
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

    /// Reserves memory for this many changes, so that noting each takes the same time.
    pub(crate) fn reserve(&mut self, changes: usize) {
        self.keys.reserve(changes);
        self.order.reserve(changes);
    }

    /// Forgets changes that have become durable, a bounded number at a time: an entry that is still
    /// there delays nobody.
    pub(crate) fn forget(&mut self, durable: Lsn) {
        for _ in 0..FORGET_MAX {
            let Some((lsn, hash)) = self.order.front().copied() else { return };
            if lsn > durable {
                return;
            }
            self.order.pop_front();
            // A newer record of the same key has an entry of its own further back.
            if self.keys.get(&hash) == Some(&lsn) {
                self.keys.remove(&hash);
            }
        }
    }

    /// What the value or absence of a key depends on.
    pub(crate) fn of_key(&self, db: DbIndex, hash: u64) -> Lsn {
        if is_planted("read-undurable") {
            return Lsn(0);
        }
        let key = self.keys.get(&mix(db, hash)).copied().unwrap_or_default();
        key.max(self.of_every_key(db))
    }

    /// What every key of a database depends on, beside its own records.
    fn of_every_key(&self, db: DbIndex) -> Lsn {
        self.floor.max(self.dbs[usize::from(db.0)].all)
    }

    /// What an answer about a whole database depends on.
    pub(crate) fn of_db(&self, db: DbIndex) -> Lsn {
        self.floor.max(self.dbs[usize::from(db.0)].any)
    }

    /// What an answer about all databases depends on.
    pub(crate) fn of_all(&self) -> Lsn {
        self.dbs.iter().fold(self.floor, |newest, db| newest.max(db.any))
    }
}

/// Hash of a key and its database, from the key's own hash.
pub(crate) fn mix(db: DbIndex, hash: u64) -> u64 {
    hash ^ u64::from(db.0).wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

/// The keyspace's hashes are keyed and well mixed; hashing them again would be waste.
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
        // A log that is latched or stalled releases nothing new, but what is durable stays so.
        assert!(may_leave(Lsn(5), Lsn(0), durable));
        assert!(!may_leave(Lsn(6), Lsn(0), durable));
    }

    #[test]
    fn a_read_depends_on_the_newest_undurable_record_of_what_it_read() {
        let mut table = Undurable::default();
        table.begin(2, Lsn(100));
        assert_eq!(table.of_key(DB, 1), Lsn(100), "what came before the table counts as one");
        table.note(Lsn(110), key(DB, 1));
        table.note(Lsn(120), key(DB, 2));
        table.note(Lsn(130), key(DB, 1));
        assert_eq!(table.of_key(DB, 1), Lsn(130));
        assert_eq!(table.of_key(DB, 2), Lsn(120));
        assert_eq!(table.of_key(OTHER, 1), Lsn(100), "another database's key of that name");
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
        assert_eq!(table.of_key(DB, 7), Lsn(20), "a key that was gone before");
        assert_eq!(table.of_key(OTHER, 7), Lsn(0));
    }
}
