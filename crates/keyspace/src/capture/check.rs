//! Checks the invariants of a capture, entry by entry. A capture takes every entry as it was at one
//! point in time: its walk goes through the databases, and a command that is about to change an
//! entry hands the entry over first.

use super::{CaptureState, CaptureStats};
use crate::db::Db;
use crate::displaced::Displaced;
use crate::keyspace::{DbIndex, Keyspace};
use crate::table::{BucketSlot, Epoch, Position};

impl Keyspace {
    /// Checks all entries of the databases, and the entries that wait to be handed out. Panics with
    /// a message if an invariant does not hold.
    pub(crate) fn check_capture(&self, dbs: &[Db]) {
        let Displaced { capture, .. } = &self.displaced;
        let (state, epoch, stats) = (capture.state, capture.epoch, capture.stats);
        let is_walking = matches!(state, CaptureState::Running | CaptureState::Settling);
        let mut left = 0;
        for db in dbs {
            let behind = if is_walking {
                walked(db.number(), capture.walk_db, capture.walk)
            } else {
                Position::END
            };
            left += check_epochs(db, epoch, behind);
        }
        self.check_numbers(dbs);
        if state != CaptureState::Running {
            let is_empty = capture.waiting.is_empty() && capture.open.is_empty();
            assert!(is_empty, "only a running capture has entries waiting");
            assert!(capture.flushed.is_empty(), "only a running capture keeps flushed entries");
        }
        let sum = |size: fn(&super::Captured) -> usize| capture.waiting.iter().map(size).sum();
        assert_eq!(
            stats.owned_size,
            sum(super::Captured::owned_size),
            "`owned_size` must be the sum of the owned sizes of the waiting batches"
        );
        assert_eq!(
            stats.shared_size,
            sum(super::Captured::shared_size),
            "`shared_size` must be the sum of the shared sizes of the waiting batches"
        );
        let flushed = capture.flushed.iter().map(|flushed| flushed.size).sum();
        assert_eq!(
            stats.flushed_size, flushed,
            "`flushed_size` must be the sum of the sizes of the flushed databases"
        );
        assert!(
            capture.flushed.iter().all(|flushed| capture.flushed_dbs.contains(&flushed.db)),
            "each database with flushed entries is in the list of flushed databases"
        );
        if state == CaptureState::Running {
            let CaptureStats { taken, total, .. } = stats;
            let none_flushed = capture.flushed.is_empty();
            assert!(
                if none_flushed { taken + left == total } else { taken + left <= total },
                "each entry is taken once: {taken} taken, {left} left, {total} in all"
            );
        }
    }

    /// Checks the numbers of the databases. Until a capture has ended and settled, swapped
    /// databases keep the numbers that they had at the capture's point in time.
    fn check_numbers(&self, dbs: &[Db]) {
        let is_swapped = self.displaced.capture.is_swapped;
        assert!(
            !is_swapped || self.displaced.capture.state != CaptureState::Idle,
            "without a capture, no database has an old number"
        );
        let mut is_seen = vec![false; dbs.len()];
        for (index, db) in dbs.iter().enumerate() {
            let number = usize::from(db.number().0);
            assert!(is_swapped || number == index, "database {index} has number {number}");
            assert!(
                !std::mem::replace(&mut is_seen[number], true),
                "no two databases have the same number"
            );
        }
    }
}

/// The position up to which the walk has taken all entries of a database.
fn walked(db: DbIndex, walk_db: u16, walk: Position) -> Position {
    match db.0.cmp(&walk_db) {
        std::cmp::Ordering::Less => Position::END,
        std::cmp::Ordering::Equal => walk,
        std::cmp::Ordering::Greater => Position::START,
    }
}

/// Counts the entries of a database that still have to be taken. Panics if the position of one of
/// these entries is before `behind`.
fn check_epochs(db: &Db, epoch: Epoch, behind: Position) -> usize {
    let table = db.table();
    let slots = (0..table.bucket_count()).flat_map(|bucket| table.slots(bucket));
    let left = |slot: &&BucketSlot| slot.epoch() != epoch;
    let mut count = 0;
    for slot in slots.filter(left) {
        assert!(
            Position::of(slot.hash) >= behind,
            "all entries before the walk's position are taken"
        );
        count += 1;
    }
    count
}
