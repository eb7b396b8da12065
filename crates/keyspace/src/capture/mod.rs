//! Takes all entries as they were at one point in time, while commands continue to change entries.
//!
//! Every entry carries an epoch, which is one bit. The keyspace has an epoch of its own. A capture
//! begins by flipping this epoch. From then on, an entry whose epoch differs from that of the
//! keyspace still has to be taken. There are two ways to take it:
//!
//! * a *pre-image*: before a command changes or deletes such an entry, the command hands over the
//!   entry as it is;
//! * the *walk* takes the entries that no command has changed, in hash order and in small steps.
//!
//! Both ways give the entry the new epoch. Entries that are created during the capture start with
//! the new epoch. So each entry is taken exactly once. An entry keeps its bit when its bucket is
//! split.
//!
//! ```text
//!              begin_capture                 all taken              end_capture
//!      Idle ───────────────────► Running ───────────────► Complete ────────────► Idle
//!       ▲                           │  └─────────┬────────────┘
//!       │ walked to the end         │ end        │ everything flushed
//!       └──────────── Settling ◄────┘            └──────► Flushed ──end_capture──► Idle
//! ```
//!
//! A *fuzzy* capture ([`CaptureKind::Fuzzy`]) omits pre-images that a replay of the log does not
//! need. If a command deletes an entry, there is no pre-image. If a command overwrites an entry as
//! a whole, and the command's log record does not depend on the old entry, there is no pre-image,
//! either. The old entry is still handed over if the effect of the command depends on the old
//! value, or if the command reads the old value to write another key.
//!
//! A capture that is given up leaves entries of both epochs behind. *Settling* continues the walk,
//! hands nothing out, and gives every entry the new epoch. Then the next capture can begin.

mod captured;
mod check;

use std::collections::VecDeque;
use std::mem::take;

use slimio_planted::is_planted;
use slimio_resp::Arg;

pub use captured::Captured;
pub(crate) use captured::CapturedEntry;

use captured::Hold;

use crate::db::Db;
use crate::displaced::Displaced;
use crate::garbage::Garbage;
use crate::keyspace::{DbIndex, Keyspace};
use crate::table::{BucketSlot, Buckets, Epoch, Form, Position, Spot, Table, worth_deferring};
use crate::value::Value;

/// The state of the capture.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureState {
    /// No capture is running.
    #[default]
    Idle,
    /// Entries are being taken. Call [`Keyspace::capture_step`] until the state changes.
    Running,
    /// All entries have been taken and handed out.
    Complete,
    /// All databases were flushed. So the taken entries are useless, and no more entries will be
    /// taken.
    Flushed,
    /// The last capture was given up. Call [`Keyspace::capture_step`] until the state changes;
    /// these calls hand out nothing. Then another capture can begin.
    Settling,
}

/// Which entries a capture hands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureKind {
    /// Every entry as it was when the capture began.
    #[default]
    PointInTime,
    /// Every entry as it was when the capture began, except entries that were deleted or
    /// overwritten as a whole before they were taken. To get the data set as of the capture's end,
    /// replay the log that was written during the capture on top of the captured entries.
    Fuzzy,
}

/// Limits of what one step does.
#[derive(Clone, Copy, Debug)]
pub struct CaptureBudget {
    /// Limit of the keys and values that the step hands out, in bytes.
    pub size: usize,
    /// Limit of the entries and buckets that the step looks at. A look at one of them takes about
    /// 100 ns, most of which is the time for fetching it from memory.
    pub entries: usize,
}

/// The result of a step.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStep {
    /// Bytes of keys and values handed out. The last bucket or batch can make this number exceed
    /// the budget.
    pub size: usize,
    /// Entries handed out.
    pub entries: usize,
}

/// The progress of a capture, and the memory that it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Bytes of memory that only the capture holds, in pre-images that wait to be handed out.
    pub owned_size: usize,
    /// Bytes of memory that the keyspace shares with pre-images that wait to be handed out. A value
    /// is shared if the command for which the pre-image was taken did not replace all of the value:
    /// that command renamed the entry, gave it another expiry, or changed a part of the value. Once
    /// a command changes a shared value again, only the capture holds the old bytes.
    pub shared_size: usize,
    /// Bytes of memory of flushed databases whose entries wait to be taken.
    pub flushed_size: usize,
    /// Entries taken so far, and entries that a fuzzy capture has omitted.
    pub taken: usize,
    /// Count of the entries that existed when the capture began. `taken` is as large at the end.
    pub total: usize,
}

/// Whether the logged effect of a write depends on the old value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overwrite {
    /// The log record contains value and expiry, and neither depends on the old entry.
    Whole,
    /// The value or the expiry was computed from the old entry, or a condition tested the old
    /// entry.
    Dependent,
}

/// The capture. There is at most one at a time.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    state: CaptureState,
    kind: CaptureKind,
    epoch: Epoch,
    /// Pre-images, the oldest first.
    waiting: VecDeque<Captured>,
    /// The batch that pre-images are being added to.
    open: Captured,
    /// Databases as they were before they were flushed.
    flushed: VecDeque<Flushed>,
    /// The databases that were flushed since the capture began, each by the number that it had when
    /// the capture began.
    flushed_dbs: Vec<DbIndex>,
    /// The database of the walk, by the number that it had when the capture began; `walk` is the
    /// position in that database.
    walk_db: u16,
    walk: Position,
    /// Whether databases were swapped since the capture began.
    is_swapped: bool,
    stats: CaptureStats,
}

/// A database that was flushed, with the entries that it had before the flush. `size` is the memory
/// of the entries that have not been taken yet.
#[derive(Debug)]
struct Flushed {
    db: DbIndex,
    buckets: Buckets,
    size: usize,
}

impl Keyspace {
    /// Begins a capture of the entries that exist now. Takes constant time.
    ///
    /// Panics unless the state is [`CaptureState::Idle`].
    pub fn begin_capture(&mut self, kind: CaptureKind) {
        let (dbs, Displaced { capture, .. }) = self.dbs_and_displaced();
        assert_eq!(capture.state, CaptureState::Idle, "one capture at a time");
        let total = dbs.iter().map(Db::len).sum();
        *capture = Capture {
            state: CaptureState::Running,
            kind,
            epoch: capture.epoch.turned(),
            stats: CaptureStats { total, ..CaptureStats::default() },
            ..Capture::default()
        };
    }

    /// Takes some entries and appends them to `out`. Pre-images of entries that commands have
    /// changed come first. Makes progress even if the budget is zero.
    ///
    /// Does nothing unless the state is [`CaptureState::Running`] or [`CaptureState::Settling`].
    pub fn capture_step(&mut self, budget: CaptureBudget, out: &mut Vec<Captured>) -> CaptureStep {
        let first = out.len();
        match self.displaced.capture.state {
            CaptureState::Running => self.run_step(budget, out),
            CaptureState::Settling => self.settle_step(budget),
            CaptureState::Idle | CaptureState::Complete | CaptureState::Flushed => {}
        }
        let captured = &out[first..];
        CaptureStep {
            size: captured.iter().map(Captured::size).sum(),
            entries: captured.iter().map(Captured::len).sum(),
        }
    }

    fn run_step(&mut self, budget: CaptureBudget, out: &mut Vec<Captured>) {
        let mut size = self.displaced.capture.hand_out_waiting(budget.size, out);
        let mut looked_at = 0;
        let mut batch = Captured::default();
        while size + batch.size() < budget.size.max(1) && looked_at < budget.entries.max(1) {
            if !batch.has_room() {
                size += batch.size();
                out.push(take(&mut batch));
            }
            let before = batch.len();
            let Displaced { capture, garbage } = &mut self.displaced;
            let is_over = match capture.take_flushed(&mut batch, garbage) {
                Some(count) => {
                    looked_at += 1 + count;
                    false
                }
                None => self.walk(&mut looked_at, |db, slot| batch.push(db, slot)),
            };
            self.displaced.capture.stats.taken += batch.len() - before;
            if is_over {
                let stats = &self.displaced.capture.stats;
                assert_eq!(stats.taken, stats.total, "each entry is taken once");
                self.displaced.capture.state = CaptureState::Complete;
                break;
            }
        }
        if !batch.is_empty() {
            out.push(batch);
        }
    }

    fn settle_step(&mut self, budget: CaptureBudget) {
        let mut looked_at = 0;
        while looked_at < budget.entries.max(1) {
            if self.walk(&mut looked_at, |_, _| {}) {
                self.become_idle();
                return;
            }
        }
    }

    /// Walks over a bucket and passes to `take` the entries that have not been taken. Returns
    /// whether the bucket was the last bucket of the last database.
    fn walk(&mut self, looked_at: &mut usize, mut take: impl FnMut(DbIndex, &BucketSlot)) -> bool {
        let (dbs, Displaced { capture, .. }) = self.dbs_and_displaced();
        let number = DbIndex(capture.walk_db);
        let mut index = usize::from(number.0);
        if dbs[index].number() != number {
            // A command has swapped this database with another database.
            let found = dbs.iter().position(|db| db.number() == number);
            index = found.expect("every number belongs to a database");
        }
        let db = &mut dbs[index];
        let (next, len) =
            db.table_mut().take_bucket(capture.walk, capture.epoch, |slot| take(number, slot));
        // The bucket itself counts too, because even an empty bucket takes time.
        *looked_at += 1 + len;
        capture.walk = next;
        if next == Position::END {
            capture.walk = Position::START;
            capture.walk_db += 1;
        }
        usize::from(capture.walk_db) == dbs.len()
    }

    /// Ends a complete capture, or gives up a running one. No more entries are taken after this.
    /// Batches that were handed out stay valid.
    pub fn end_capture(&mut self) {
        match self.displaced.capture.state {
            CaptureState::Running => {
                self.displaced.drop_captured();
                self.displaced.capture.state = CaptureState::Settling;
            }
            CaptureState::Complete | CaptureState::Flushed => self.become_idle(),
            CaptureState::Idle | CaptureState::Settling => {}
        }
    }

    /// The state of the capture.
    pub fn capture_state(&self) -> CaptureState {
        self.displaced.capture.state
    }

    /// The progress of the capture, and the memory that it holds.
    pub fn capture_stats(&self) -> CaptureStats {
        let Capture { open, stats, .. } = &self.displaced.capture;
        CaptureStats {
            owned_size: stats.owned_size + open.owned_size(),
            shared_size: stats.shared_size + open.shared_size(),
            ..*stats
        }
    }

    /// Deletes all keys of a database.
    pub(crate) fn clear_db(&mut self, db: DbIndex) {
        let is_capturing = self.displaced.capture.state != CaptureState::Idle;
        let mut others = (0..self.db_count()).filter(|index| *index != usize::from(db.0));
        if is_capturing && others.all(|index| self.dbsize(DbIndex(index as u16)) == 0) {
            self.clear_all();
        } else {
            let (db, displaced) = self.db_and_displaced(db);
            db.clear(displaced);
        }
    }

    /// Deletes all keys of all databases. This ends a running or complete capture, whose state
    /// becomes [`CaptureState::Flushed`].
    pub(crate) fn clear_all(&mut self) {
        let state = self.displaced.capture.state;
        if matches!(state, CaptureState::Running | CaptureState::Complete) {
            self.displaced.drop_captured();
            self.displaced.capture.state = CaptureState::Flushed;
        }
        for index in 0..self.db_count() {
            let (db, displaced) = self.db_and_displaced(DbIndex(index as u16));
            db.clear(displaced);
        }
        if state == CaptureState::Settling {
            self.become_idle();
        }
    }

    /// Gives two swapped databases their new numbers if the capture's state is
    /// [`CaptureState::Idle`]. Otherwise, the databases keep their old numbers until it is `Idle`.
    pub(crate) fn number_swapped(&mut self, a: DbIndex, b: DbIndex) {
        let (dbs, Displaced { capture, .. }) = self.dbs_and_displaced();
        if capture.state == CaptureState::Idle || is_planted("swap-not-captured") {
            dbs[usize::from(a.0)].set_number(a);
            dbs[usize::from(b.0)].set_number(b);
        } else {
            capture.is_swapped = true;
        }
    }

    fn become_idle(&mut self) {
        let (dbs, Displaced { capture, .. }) = self.dbs_and_displaced();
        assert!(capture.flushed.is_empty(), "an idle capture keeps no flushed database");
        capture.state = CaptureState::Idle;
        if capture.is_swapped {
            capture.is_swapped = false;
            let numbered = dbs.iter_mut().enumerate();
            numbered.for_each(|(index, db)| db.set_number(DbIndex(index as u16)));
        }
    }
}

impl Displaced {
    /// Moves the entries that wait to be handed out to the garbage.
    fn drop_captured(&mut self) {
        let Displaced { capture, garbage } = self;
        garbage.add_captured(capture.waiting.drain(..));
        garbage.add_captured(Some(take(&mut capture.open)).filter(|open| !open.is_empty()));
        capture.flushed.drain(..).for_each(|flushed| garbage.add_buckets(flushed.buckets));
        let stats = &mut capture.stats;
        (stats.owned_size, stats.shared_size, stats.flushed_size) = (0, 0, 0);
    }

    /// Takes over all keys of a flushed database, either for the capture or as garbage.
    pub(crate) fn flush(&mut self, db: DbIndex, table: Table) {
        let Displaced { capture, garbage } = self;
        // After its first flush, a database has only entries that are newer than the capture.
        let has_taken_all = db.0 < capture.walk_db
            || capture.flushed_dbs.contains(&db)
            || is_planted("flush-forgets");
        if capture.state != CaptureState::Running || has_taken_all || table.len() == 0 {
            garbage.add_table(table);
            return;
        }
        let size = table.entry_bytes() + table.table_bytes();
        capture.stats.flushed_size += size;
        capture.flushed_dbs.push(db);
        capture.flushed.push_back(Flushed { db, buckets: table.into_buckets(), size });
    }
}

impl Capture {
    /// The epoch of a new entry.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether an entry still has to be taken.
    fn wants(&self, slot: &BucketSlot) -> bool {
        slot.epoch() != self.epoch && self.state == CaptureState::Running
    }

    /// Must be called before a command reads an entry in order to write another key. A fuzzy
    /// capture takes the entry, because replaying the command reads the entry again. Other captures
    /// take nothing here.
    pub(crate) fn before_copy(&mut self, db: DbIndex, table: &mut Table, spot: Spot) {
        if self.kind == CaptureKind::Fuzzy && !is_planted("copied-uncaptured") {
            self.before_change(db, table, spot);
        }
    }

    /// Takes an entry that is about to be changed in place.
    pub(crate) fn before_change(&mut self, db: DbIndex, table: &mut Table, spot: Spot) {
        let slot = table.get(spot);
        if self.wants(slot) {
            self.open.push(db, slot);
            table.set_epoch(spot, self.epoch);
            self.count_taken();
        }
    }

    /// Takes an entry that was removed and whose value moves to another key.
    pub(crate) fn before_move(&mut self, db: DbIndex, slot: &BucketSlot) {
        if self.wants(slot) && !is_planted("move-not-captured") {
            self.open.push(db, slot);
            self.count_taken();
        }
    }

    /// Takes an entry that was removed. If the entry does not have to be taken, or if the capture
    /// is fuzzy, returns the entry instead.
    pub(crate) fn take_removed(&mut self, db: DbIndex, slot: BucketSlot) -> Option<BucketSlot> {
        if !self.wants(&slot) {
            return Some(slot);
        }
        if self.kind == CaptureKind::Fuzzy {
            self.stats.taken += 1;
            return Some(slot);
        }
        self.open.push_removed(db, slot);
        self.count_taken();
        None
    }

    /// Takes an entry, then replaces its value. A fuzzy capture does not take the entry if
    /// `overwrite` is [`Overwrite::Whole`]. Returns the old value if another thread should free it.
    pub(crate) fn replace(
        &mut self,
        db: DbIndex,
        slot: &mut BucketSlot,
        value: Arg<'_>,
        expires_at_ms: Option<i64>,
        overwrite: Overwrite,
    ) -> Option<Value> {
        if !self.wants(slot) || is_planted("overwrite-before-capture") {
            return slot.set(value, expires_at_ms);
        }
        slot.set_epoch(self.epoch);
        if self.kind == CaptureKind::Fuzzy
            && (overwrite == Overwrite::Whole || is_planted("computed-uncaptured"))
        {
            self.stats.taken += 1;
            return slot.set(value, expires_at_ms);
        }
        let meta = slot.meta();
        if let Form::Small(bytes) = slot.form() {
            self.open.push_small(db, meta, bytes);
            slot.set(value, expires_at_ms);
        } else if let Some(large) = slot.exchange(value, expires_at_ms) {
            self.open.push_large(db, meta, large, Hold::Owned);
        }
        self.count_taken();
        None
    }

    /// Counts a pre-image that was added to the open batch. Queues the batch once it is full.
    fn count_taken(&mut self) {
        self.stats.taken += 1;
        if !self.open.has_room() {
            self.stats.owned_size += self.open.owned_size();
            self.stats.shared_size += self.open.shared_size();
            self.waiting.push_back(take(&mut self.open));
        }
    }

    /// Hands out pre-images until their size reaches `budget` bytes. Returns this size.
    fn hand_out_waiting(&mut self, budget: usize, out: &mut Vec<Captured>) -> usize {
        let mut size = 0;
        while let Some(batch) = self.waiting.pop_front() {
            self.stats.owned_size -= batch.owned_size();
            self.stats.shared_size -= batch.shared_size();
            size += batch.size();
            out.push(batch);
            if size >= budget {
                return size;
            }
        }
        if !self.open.is_empty() {
            size += self.open.size();
            out.push(take(&mut self.open));
        }
        size
    }

    /// Takes a bucket of a flushed database. Returns the count of the bucket's entries; `None` if
    /// no flushed database is left.
    fn take_flushed(&mut self, batch: &mut Captured, garbage: &mut Garbage) -> Option<usize> {
        let epoch = self.epoch;
        let Flushed { db, buckets, size } = self.flushed.front_mut()?;
        let Some(bucket) = buckets.next() else {
            self.stats.flushed_size -= *size;
            self.flushed.pop_front();
            return Some(0);
        };
        let len = bucket.len();
        for slot in bucket {
            let freed = slot.memory();
            *size -= freed;
            self.stats.flushed_size -= freed;
            if slot.epoch() != epoch {
                batch.push_removed(*db, slot);
            } else if slot.value().is_large() {
                garbage.add_value(worth_deferring(slot.into_value()));
            }
        }
        Some(len)
    }
}
