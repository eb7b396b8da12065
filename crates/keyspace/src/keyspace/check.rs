//! Checks the invariants of the data set as a whole.

use super::Keyspace;
use crate::db::Db;

impl Keyspace {
    /// Walks over all data, and panics with a message if an invariant does not hold. The invariants
    /// are about counts, memory totals, order, the place of each entry, and the progress of a
    /// capture.
    ///
    /// Tests call this between two commands. Without debug assertions, the function does nothing.
    pub fn check(&self) {
        if !cfg!(debug_assertions) {
            return;
        }
        for db in &self.dbs {
            db.table().check();
            self.check_hashes(db);
        }
        let used: usize = self.dbs.iter().map(Db::used_bytes).sum();
        assert_eq!(self.used_bytes(), used, "the memory total is not the sum over all databases");
        self.check_capture(&self.dbs);
        self.pool.check();
    }

    /// Checks that every entry has the hash of its key.
    fn check_hashes(&self, db: &Db) {
        let table = db.table();
        for slot in (0..table.bucket_count()).flat_map(|bucket| table.slots(bucket)) {
            assert_eq!(self.hash(slot.key()) as u32, slot.hash, "an entry has a wrong hash");
        }
    }
}
