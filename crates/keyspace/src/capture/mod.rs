//! Taking all entries as they were at one point in time, while commands go on changing them.
//!
//! Every entry carries an epoch, a bit. To begin is to turn the keyspace's own: from then on an
//! entry that carries the other one has still to be taken. Two ways lead there:
//!
//! * a *pre-image*: a command that is about to change or delete such an entry hands over what it
//!   was, before;
//! * the *walk*, in hash order, in small steps, takes what nobody has changed.
//!
//! Either lets the entry carry the new epoch, and a new entry carries it from its birth, so each is
//! taken exactly once. The bit goes wherever the entry goes: a bucket that is split hands it on.
//!
//! ```text
//!              begin_capture                 all taken              end_capture
//!      Idle ───────────────────► Running ───────────────► Complete ────────────► Idle
//!       ▲                           │  └─────────┬────────────┘
//!       │ walked to the end         │ end        │ everything flushed
//!       └──────────── Settling ◄────┘            └──────► Flushed ──end_capture──► Idle
//! ```
//!
//! A *fuzzy* capture ([`CaptureKind::Fuzzy`]) does without one kind of pre-image: what was deleted, or
//! overwritten as a whole by a command that logs the same whatever was there. Whoever does that later
//! again, from the log, needs no old value. What depends on one, or reads it to write another key, still
//! hands it over.
//!
//! A capture that is given up leaves entries with either epoch behind. *Settling* walks on, hands
//! nothing out, and lets all of them carry the new one; the next capture can begin after that.

mod captured;

use std::collections::VecDeque;
use std::mem::take;

use slimio_planted::is_planted;
use slimio_resp::Arg;

pub use captured::Captured;
pub(crate) use captured::CapturedEntry;

use captured::Hold;

use crate::db::Db;
use crate::garbage::Garbage;
use crate::keyspace::{DbIndex, Keyspace};
use crate::past::Past;
use crate::table::{Buckets, Epoch, Form, Position, Slot, Spot, Table, worth_deferring};
use crate::value::Value;

/// Where a capture is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureState {
    /// There is none.
    #[default]
    Idle,
    /// Entries are being taken: [`Keyspace::capture_step`] is to be called until this changes.
    Running,
    /// All entries have been taken and handed out.
    Complete,
    /// Everything was flushed: what was taken is worth nothing, and no more of it comes.
    Flushed,
    /// The last one was given up. [`Keyspace::capture_step`] is to be called, which hands out
    /// nothing, until this changes; then another can begin.
    Settling,
}

/// What a capture hands out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CaptureKind {
    /// Every entry as it was when the capture began.
    #[default]
    PointInTime,
    /// The same without entries that were deleted or overwritten as a whole before they were taken.
    /// With what was logged from its beginning to its end, done again on top of it, it is the data
    /// set as it was at that end; alone it lacks those entries.
    Fuzzy,
}

/// How much one step may do.
#[derive(Clone, Copy, Debug)]
pub struct CaptureBudget {
    /// Bytes of keys and values to be handed out.
    pub size: usize,
    /// Entries and buckets to be looked at. About 100 ns each, as a rule the time for bringing in
    /// what they are made of from memory.
    pub entries: usize,
}

/// What a step did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStep {
    /// Bytes of keys and values handed out; may be more than asked for by what was last.
    pub size: usize,
    /// Entries handed out.
    pub entries: usize,
}

/// How far a capture is, and what it holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CaptureStats {
    /// Bytes of memory of pre-images that wait to be handed out, and that nobody else holds.
    pub owned_size: usize,
    /// Bytes of memory of pre-images that wait and share it with the keyspace, whose entries came
    /// to carry on with the same value: they were renamed, or given another time to expire, or
    /// changed in part. What is changed of them later comes to be the capture's alone.
    pub shared_size: usize,
    /// Bytes of memory of databases that were flushed and whose entries wait to be taken.
    pub flushed_size: usize,
    /// Entries taken so far.
    pub taken: usize,
    /// Entries to be taken in all: those that there were when it began.
    pub total: usize,
}

/// Whether what the log says of a new value depends on the old one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Overwrite {
    /// Value and expiry are in the log, and come to be the same whatever was there.
    Whole,
    /// They were computed from what was there, or a condition looked at it.
    Dependent,
}

/// The one capture that there can be.
#[derive(Debug, Default)]
pub(crate) struct Capture {
    state: CaptureState,
    kind: CaptureKind,
    epoch: Epoch,
    /// Pre-images, the oldest first.
    waiting: VecDeque<Captured>,
    /// Pre-images that more are added to.
    open: Captured,
    /// Databases as they were before they were flushed.
    flushed: VecDeque<Flushed>,
    /// All that were flushed since the point in time, by their numbers at it.
    flushed_dbs: Vec<DbIndex>,
    /// The database, by its number at the point in time, and the position in it.
    walk_db: u16,
    walk: Position,
    /// Whether databases have changed places since the point in time.
    is_swapped: bool,
    stats: CaptureStats,
}

/// A database as it was before it was flushed, and the bytes of memory that are left of it.
#[derive(Debug)]
struct Flushed {
    db: DbIndex,
    buckets: Buckets,
    size: usize,
}

impl Keyspace {
    /// Begins a capture: what is there now is what will be taken. Takes the same time however much
    /// that is.
    ///
    /// Panics unless the state is [`CaptureState::Idle`].
    pub fn begin_capture(&mut self, kind: CaptureKind) {
        let (dbs, Past { capture, .. }) = self.dbs_and_past();
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

    /// Takes some entries and appends them to `out`: first those that commands have changed since,
    /// then others. At least one, if there is any left.
    ///
    /// Does nothing unless the state is [`CaptureState::Running`] or [`CaptureState::Settling`].
    pub fn capture_step(&mut self, budget: CaptureBudget, out: &mut Vec<Captured>) -> CaptureStep {
        let first = out.len();
        match self.past.capture.state {
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
        let mut size = self.past.capture.hand_out_waiting(budget.size, out);
        let mut looked_at = 0;
        let mut batch = Captured::default();
        while size + batch.size() < budget.size.max(1) && looked_at < budget.entries.max(1) {
            if !batch.has_room() {
                size += batch.size();
                out.push(take(&mut batch));
            }
            let before = batch.len();
            let Past { capture, garbage } = &mut self.past;
            let is_over = match capture.take_flushed(&mut batch, garbage) {
                Some(count) => {
                    looked_at += 1 + count;
                    false
                }
                None => self.walk(&mut looked_at, |db, slot| batch.push(db, slot)),
            };
            self.past.capture.stats.taken += batch.len() - before;
            if is_over {
                self.past.capture.state = CaptureState::Complete;
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

    /// Walks over a bucket; `take` is given what has not been taken of it. Says whether that was the
    /// last one of all.
    fn walk(&mut self, looked_at: &mut usize, mut take: impl FnMut(DbIndex, &Slot)) -> bool {
        let (dbs, Past { capture, .. }) = self.dbs_and_past();
        let number = DbIndex(capture.walk_db);
        let mut index = usize::from(number.0);
        if dbs[index].number() != number {
            // It has changed places.
            let found = dbs.iter().position(|db| db.number() == number);
            index = found.expect("every number is that of one");
        }
        let db = &mut dbs[index];
        let (next, len) =
            db.table_mut().take_bucket(capture.walk, capture.epoch, |slot| take(number, slot));
        // An empty bucket is work, too.
        *looked_at += 1 + len;
        capture.walk = next;
        if next == Position::END {
            capture.walk = Position::START;
            capture.walk_db += 1;
        }
        usize::from(capture.walk_db) == dbs.len()
    }

    /// Ends a capture, or gives it up: nothing more is taken. What was handed out stays as it is.
    pub fn end_capture(&mut self) {
        match self.past.capture.state {
            CaptureState::Running => {
                self.past.drop_captured();
                self.past.capture.state = CaptureState::Settling;
            }
            CaptureState::Complete | CaptureState::Flushed => self.become_idle(),
            CaptureState::Idle | CaptureState::Settling => {}
        }
    }

    /// Where the capture is.
    pub fn capture_state(&self) -> CaptureState {
        self.past.capture.state
    }

    /// How far the capture is, and what it holds.
    pub fn capture_stats(&self) -> CaptureStats {
        let Capture { open, stats, .. } = &self.past.capture;
        CaptureStats {
            owned_size: stats.owned_size + open.owned_size(),
            shared_size: stats.shared_size + open.shared_size(),
            ..*stats
        }
    }

    /// Deletes all keys of a database.
    pub(crate) fn clear_db(&mut self, db: DbIndex) {
        let is_capturing = self.past.capture.state != CaptureState::Idle;
        let mut others = (0..self.db_count()).filter(|index| *index != usize::from(db.0));
        if is_capturing && others.all(|index| self.dbsize(DbIndex(index as u16)) == 0) {
            self.clear_all();
        } else {
            let (db, past) = self.db_and_past(db);
            db.clear(past);
        }
    }

    /// Deletes all keys of all databases. That ends a capture.
    pub(crate) fn clear_all(&mut self) {
        let state = self.past.capture.state;
        if matches!(state, CaptureState::Running | CaptureState::Complete) {
            self.past.drop_captured();
            self.past.capture.state = CaptureState::Flushed;
        }
        for index in 0..self.db_count() {
            let (db, past) = self.db_and_past(DbIndex(index as u16));
            db.clear(past);
        }
        if state == CaptureState::Settling {
            self.become_idle();
        }
    }

    /// Gives two databases that have changed places their numbers. To a running capture they stay
    /// what they were.
    pub(crate) fn number_swapped(&mut self, a: DbIndex, b: DbIndex) {
        let (dbs, Past { capture, .. }) = self.dbs_and_past();
        if capture.state == CaptureState::Idle || is_planted("swap-not-captured") {
            dbs[usize::from(a.0)].set_number(a);
            dbs[usize::from(b.0)].set_number(b);
        } else {
            capture.is_swapped = true;
        }
    }

    fn become_idle(&mut self) {
        let (dbs, Past { capture, .. }) = self.dbs_and_past();
        capture.state = CaptureState::Idle;
        if capture.is_swapped {
            capture.is_swapped = false;
            let numbered = dbs.iter_mut().enumerate();
            numbered.for_each(|(index, db)| db.set_number(DbIndex(index as u16)));
        }
    }
}

impl Past {
    /// Lets go of what waits to be handed out.
    fn drop_captured(&mut self) {
        let Past { capture, garbage } = self;
        garbage.add_captured(capture.waiting.drain(..));
        garbage.add_captured(Some(take(&mut capture.open)).filter(|open| !open.is_empty()));
        capture.flushed.drain(..).for_each(|flushed| garbage.add_buckets(flushed.buckets));
        let stats = &mut capture.stats;
        (stats.owned_size, stats.shared_size, stats.flushed_size) = (0, 0, 0);
    }

    /// Lets go of all keys of a database.
    pub(crate) fn flush(&mut self, db: DbIndex, table: Table) {
        let Past { capture, garbage } = self;
        // What came behind the first flush of a database is new.
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
    /// What a new entry carries.
    pub(crate) fn epoch(&self) -> Epoch {
        self.epoch
    }

    /// Whether an entry has still to be taken.
    fn wants(&self, slot: &Slot) -> bool {
        slot.epoch() != self.epoch && self.state == CaptureState::Running
    }

    /// Takes an entry that a command is about to read for what it writes elsewhere. Done again from the
    /// log, it reads the entry again.
    pub(crate) fn before_copy(&mut self, db: DbIndex, table: &mut Table, spot: Spot) {
        if self.kind == CaptureKind::Fuzzy && !is_planted("copied-uncaptured") {
            self.before_change(db, table, spot);
        }
    }

    /// Takes an entry that is about to be changed where it is.
    pub(crate) fn before_change(&mut self, db: DbIndex, table: &mut Table, spot: Spot) {
        let slot = table.get(spot);
        if self.wants(slot) {
            self.open.push(db, slot);
            table.set_epoch(spot, self.epoch);
            self.taken_one();
        }
    }

    /// Takes an entry that has been removed and whose value goes elsewhere.
    pub(crate) fn before_move(&mut self, db: DbIndex, slot: &Slot) {
        if self.wants(slot) && !is_planted("move-not-captured") {
            self.open.push(db, slot);
            self.taken_one();
        }
    }

    /// Takes an entry that has been removed; gives it back if that is done already, or not wanted.
    pub(crate) fn take_removed(&mut self, db: DbIndex, slot: Slot) -> Option<Slot> {
        if !self.wants(&slot) {
            return Some(slot);
        }
        if self.kind == CaptureKind::Fuzzy {
            self.stats.taken += 1;
            return Some(slot);
        }
        self.open.push_removed(db, slot);
        self.taken_one();
        None
    }

    /// Replaces the value of an entry, having taken it; by `overwrite` a fuzzy capture does not take
    /// it. Returns an old value that is worth dropping elsewhere.
    pub(crate) fn replace(
        &mut self,
        db: DbIndex,
        slot: &mut Slot,
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
        self.taken_one();
        None
    }

    /// Keeps account of a pre-image that has been added to the open batch.
    fn taken_one(&mut self) {
        self.stats.taken += 1;
        if !self.open.has_room() {
            self.stats.owned_size += self.open.owned_size();
            self.stats.shared_size += self.open.shared_size();
            self.waiting.push_back(take(&mut self.open));
        }
    }

    /// Hands out pre-images until they are so many bytes, and says how many they are.
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

    /// Takes a bucket of a database that was flushed, and says how many entries it had. `None` if
    /// there is no such database.
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
