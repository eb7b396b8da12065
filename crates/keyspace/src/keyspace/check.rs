//! Checks the invariants of the data set as a whole.

use super::Keyspace;
use crate::db::Db;

impl Keyspace {
    /// Walks over everything, and panics with a sentence if an invariant between the structures
    /// does not hold: counts, memory, order, what is in which place, what a capture has taken.
    ///
    /// For tests, between two commands. In a build without debug assertions it does nothing.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for db in &self.dbs {
            db.table().check();
            self.check_hashes(db);
        }
        let used: usize = self.dbs.iter().map(Db::used_bytes).sum();
        assert_eq!(self.used_bytes(), used, "the memory of all databases is their sum");
        self.check_capture(&self.dbs);
        self.pool.check();
    }

    /// Every entry has the hash of its key.
    fn check_hashes(&self, db: &Db) {
        let table = db.table();
        for slot in (0..table.bucket_count()).flat_map(|bucket| table.slots(bucket)) {
            assert_eq!(self.hash(slot.key()) as u32, slot.hash, "an entry has its key's hash");
        }
    }
}
