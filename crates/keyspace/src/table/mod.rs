//! The keys of one database: a hash table that grows by one bucket at a time.
//!
//! ```text
//! groups ─► group: up to 1024 segments ─► segment: up to 1024 buckets ─► bucket: slots
//! ```
//!
//! This is linear hashing. With 2^L + S buckets, the low L bits of a hash select its bucket. The
//! first S buckets have been split. If the selected bucket is one of these, the low L + 1 bits
//! select either this bucket or the new bucket that holds its other half. An insertion that makes
//! the buckets too full on average splits the next bucket in turn. A deletion that makes the
//! buckets too empty undoes the last split. No other entry moves, so no step takes longer if there
//! are more keys. A bucket is a list of any length, so equal hashes make the list longer, but cause
//! no further splits.
//!
//! Hash order is the order of the hashes with their bits reversed. In this order, a bucket that is
//! split is followed by its other half, so a position means the same before and after the split.

mod check;
mod entry;
mod large;
mod marks;
mod meta;
mod small;
#[cfg(test)]
mod tests;

pub(crate) use entry::{BucketSlot, Form, worth_deferring};
pub(crate) use large::Large;
pub(crate) use meta::{Epoch, Meta, Written};
pub(crate) use small::SMALL_SIZE_MAX;

use std::iter::Flatten;

use slimio_planted::is_planted;

use crate::access::Access;
use crate::ahead::{AHEAD_MAX, CACHE_LINE_SIZE, ElementAhead};
use crate::memory::allocated;
use marks::Marks;

/// Buckets in a segment, and segments in a group.
const SEGMENT_LEN: usize = 1024;

/// If the buckets hold more than this many keys on average, a bucket is split.
const LOAD_MAX: usize = 9;

/// If the buckets hold fewer than this many keys on average, two buckets are merged.
const LOAD_MIN: usize = 3;

/// Count of places by which a full bucket grows. It is small, because unused places waste memory.
const BUCKET_GROWTH: usize = 2;

/// Count of the places of a bucket that a random draw can select. In practice, no bucket has that
/// many entries.
const DRAW_PLACES: usize = 64;

/// Count of places that a random draw can select if it draws among a bucket's entries with an
/// expiry. A bucket may hold few such entries, so with more places, more draws would find no entry.
/// An entry beyond these places is not drawn until the bucket holds fewer entries with an expiry.
const DRAW_EXPIRING_PLACES: usize = 32;

pub(crate) type Bucket = Vec<BucketSlot>;

/// The buckets of a table that was taken apart.
pub(crate) type Buckets = Flatten<Flatten<std::vec::IntoIter<Vec<Vec<Bucket>>>>>;

/// A position in hash order; `END` comes after all hashes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) u64);

impl Position {
    pub(crate) const START: Position = Position(0);
    pub(crate) const END: Position = Position(1 << 32);

    pub(crate) fn of(hash: u32) -> Self {
        Position(u64::from(hash.reverse_bits()))
    }
}

/// The place of an entry. It is valid until the next change of the table.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Spot {
    bucket: usize,
    slot: usize,
}

#[derive(Debug)]
pub(crate) struct Table {
    groups: Vec<Vec<Vec<Bucket>>>,
    bucket_count: usize,
    len: usize,
    /// Count of entries with an expiry.
    expiring: usize,
    /// The buckets that hold entries with an expiry.
    marks: Marks,
    /// Bytes of memory of the entries, without the slots.
    entry_bytes: usize,
    /// Bytes of memory of the slots, unused ones included.
    slot_bytes: usize,
}

impl Default for Table {
    fn default() -> Self {
        let mut table = Self {
            groups: Vec::new(),
            bucket_count: 0,
            len: 0,
            expiring: 0,
            marks: Marks::default(),
            entry_bytes: 0,
            slot_bytes: 0,
        };
        table.push_bucket(Bucket::new());
        table
    }
}

impl Table {
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Count of entries with an expiry.
    pub(crate) fn expiring(&self) -> usize {
        self.expiring
    }

    /// Bytes that the entries take in memory, with their keys and values.
    pub(crate) fn entry_bytes(&self) -> usize {
        self.entry_bytes
    }

    /// Bytes that the table itself takes.
    pub(crate) fn table_bytes(&self) -> usize {
        self.slot_bytes + self.bucket_count * size_of::<Bucket>()
    }

    pub(crate) fn bucket_count(&self) -> usize {
        self.bucket_count
    }

    /// The entries of a bucket.
    pub(crate) fn slots(&self, bucket: usize) -> &[BucketSlot] {
        self.bucket(bucket)
    }

    pub(crate) fn find(&self, hash: u32, key: &[u8]) -> Option<Spot> {
        let bucket = self.index(hash);
        let slot =
            self.bucket(bucket).iter().position(|slot| slot.hash == hash && slot.key() == key)?;
        Some(Spot { bucket, slot })
    }

    /// An entry with this stored hash (the low 32 bits of its key's hash), whatever the key is.
    pub(crate) fn find_hash(&self, hash: u32) -> Option<Spot> {
        let bucket = self.index(hash);
        let slot = self.bucket(bucket).iter().position(|slot| slot.hash == hash)?;
        Some(Spot { bucket, slot })
    }

    pub(crate) fn set_access(&mut self, spot: Spot, access: Access) {
        self.get_mut(spot).set_access(access);
    }

    pub(crate) fn get(&self, spot: Spot) -> &BucketSlot {
        &self.bucket(spot.bucket)[spot.slot]
    }

    /// Changes an entry, but not its key, and updates the table's totals.
    pub(crate) fn change<R>(&mut self, spot: Spot, change: impl FnOnce(&mut BucketSlot) -> R) -> R {
        let slot = self.get_mut(spot);
        let (memory, expired) = (slot.memory(), slot.expires());
        let result = change(slot);
        let (memory_after, expires) = (slot.memory(), slot.expires());
        assert!(self.entry_bytes >= memory, "the changed entry was not accounted for");
        self.entry_bytes = self.entry_bytes - memory + memory_after;
        if expires != expired {
            self.expiring = self.expiring + usize::from(expires) - usize::from(expired);
            self.mark(spot.bucket);
        }
        result
    }

    fn get_mut(&mut self, spot: Spot) -> &mut BucketSlot {
        &mut self.bucket_mut(spot.bucket)[spot.slot]
    }

    /// Adds an entry whose key is not in the table yet. Splits at most one bucket.
    pub(crate) fn insert(&mut self, slot: BucketSlot) -> Spot {
        debug_assert!(self.find(slot.hash, slot.key()).is_none(), "the key is there already");
        if self.len >= self.bucket_count * LOAD_MAX {
            self.split();
        }
        self.len += 1;
        self.entry_bytes += slot.memory();
        let bucket = self.index(slot.hash);
        if slot.expires() {
            self.expiring += 1;
            self.marks.set(bucket, true);
        }
        let slots = self.bucket_mut(bucket);
        let before = slots.capacity();
        push(slots, slot);
        let (after, len) = (slots.capacity(), slots.len());
        self.resized(before, after);
        Spot { bucket, slot: len - 1 }
    }

    /// If the table is empty, makes room for `len` entries, so that adding them splits no bucket.
    pub(crate) fn reserve(&mut self, len: usize) {
        while self.len == 0 && self.bucket_count * LOAD_MAX < len {
            self.push_bucket(Bucket::new());
        }
    }

    /// Adds an entry. If the key of the entry exists already, returns the entry instead.
    pub(crate) fn try_insert(&mut self, slot: BucketSlot) -> Result<(), BucketSlot> {
        if self.find(slot.hash, slot.key()).is_some() {
            return Err(slot);
        }
        let bucket = self.index(slot.hash);
        let slots = self.bucket_mut(bucket);
        if slots.capacity() == 0 {
            // More entries are likely to follow, so an allocation for every two entries would cost
            // too much time.
            slots.reserve_exact(LOAD_MAX - 1);
            let after = slots.capacity();
            self.resized(0, after);
        }
        self.insert(slot);
        Ok(())
    }

    /// Prefetches the buckets that these entries will be added to. Reading all buckets together
    /// takes less time than reading one bucket after the other. The result depends on all of these
    /// reads. So if the caller uses the result, the compiler keeps the reads.
    pub(crate) fn bring_in(&self, slots: &[BucketSlot]) -> usize {
        slots.iter().map(|slot| self.bucket(self.index(slot.hash)).len()).sum()
    }

    /// Prefetches the entries that requests will look for. Each item of `elements` has the hash of
    /// one request's key. There are three passes: first the buckets, then their slots, then the
    /// entries. Within each pass, no read waits for another. Puts the entries that were found into
    /// `found`, each at the index of its item. The result makes the compiler keep the reads, as in
    /// [`bring_in`](Self::bring_in).
    pub(crate) fn bring_in_entries<'a>(
        &'a self,
        elements: &[ElementAhead<'_>],
        found: &mut [Option<&'a BucketSlot>; AHEAD_MAX],
    ) -> usize {
        // One slot in each cache line is enough.
        const STEP: usize = CACHE_LINE_SIZE / size_of::<BucketSlot>();
        let mut buckets = [&[][..]; AHEAD_MAX];
        for (bucket, ahead) in buckets.iter_mut().zip(elements) {
            *bucket = self.bucket(self.index(ahead.hash as u32));
        }
        let buckets = &buckets[..elements.len()];
        let slots = buckets.iter().flat_map(|bucket| bucket.iter().step_by(STEP));
        let mut all = slots.fold(0, |all, slot| all ^ slot.hash as usize);
        for ((found, bucket), ahead) in found.iter_mut().zip(buckets).zip(elements) {
            *found = bucket.iter().find(|slot| slot.hash == ahead.hash as u32);
            all += found.map_or(0, |slot| slot.key().len());
        }
        all
    }

    /// Removes an entry. Merges at most two buckets.
    pub(crate) fn remove(&mut self, spot: Spot) -> BucketSlot {
        let bucket = self.bucket_mut(spot.bucket);
        let slot = bucket.swap_remove(spot.slot);
        let before = bucket.capacity();
        if before > bucket.len() + 2 * BUCKET_GROWTH {
            bucket.shrink_to(bucket.len() + BUCKET_GROWTH);
        }
        let after = bucket.capacity();
        self.resized(before, after);
        let freed = slot.memory();
        assert!(self.entry_bytes >= freed, "the removed entry was not accounted for");
        self.len -= 1;
        self.entry_bytes -= freed;
        if slot.expires() {
            self.expiring -= 1;
            self.mark(spot.bucket);
        }
        if self.bucket_count > 1 && self.len < self.bucket_count * LOAD_MIN {
            self.merge();
        }
        slot
    }

    /// The position at which the next bucket begins, and those entries of the bucket at `from`
    /// whose positions are not before `from`.
    pub(crate) fn walk(
        &self,
        from: Position,
    ) -> (Position, impl Iterator<Item = (Spot, &BucketSlot)>) {
        let (bucket, next) = self.at(from);
        let entries = self
            .bucket(bucket)
            .iter()
            .enumerate()
            .map(move |(slot, entry)| (Spot { bucket, slot }, entry))
            .filter(move |(_, entry)| Position::of(entry.hash) >= from);
        (next, entries)
    }

    /// Visits the bucket at a position. If an entry's epoch is not `epoch`, the running capture has
    /// not taken the entry yet. Passes each such entry to `take`, and gives it the epoch `epoch`.
    /// Returns where the next bucket begins, and the count of entries in the visited bucket.
    pub(crate) fn take_bucket(
        &mut self,
        from: Position,
        epoch: Epoch,
        mut take: impl FnMut(&BucketSlot),
    ) -> (Position, usize) {
        let (bucket, next) = self.at(from);
        let slots = self.bucket_mut(bucket);
        for slot in slots.iter_mut().filter(|slot| slot.epoch() != epoch) {
            take(slot);
            slot.set_epoch(epoch);
        }
        (next, slots.len())
    }

    pub(crate) fn set_epoch(&mut self, spot: Spot, epoch: Epoch) {
        self.get_mut(spot).set_epoch(epoch);
    }

    /// Takes the table apart into its buckets, to be emptied one by one.
    pub(crate) fn into_buckets(self) -> Buckets {
        self.groups.into_iter().flatten().flatten()
    }

    /// The bucket at a position, and where the next bucket begins.
    fn at(&self, from: Position) -> (usize, Position) {
        let bucket = self.index((from.0 as u32).reverse_bits());
        let half = 1 << self.bucket_count.ilog2();
        let is_split = bucket >= half || bucket + half < self.bucket_count;
        let bits = half.trailing_zeros() + u32::from(is_split);
        let step = 1u64 << (32 - bits);
        (bucket, Position((from.0 & !(step - 1)) + step))
    }

    /// The entry that a random number selects; all entries are equally likely. `None` if the number
    /// selects an empty place, as most numbers do. The caller then tries another number.
    pub(crate) fn draw(&self, random: u64) -> Option<Spot> {
        let bucket = (random >> 32) as usize % self.bucket_count;
        let places = if self.bucket_count == 1 { self.len.max(1) } else { DRAW_PLACES };
        let slot = (random as u32) as usize % places;
        (slot < self.bucket(bucket).len()).then_some(Spot { bucket, slot })
    }

    /// Like [`draw`](Self::draw), but among the entries with an expiry.
    pub(crate) fn draw_expiring(&self, random: u64) -> Option<Spot> {
        let bucket = self.marks.nth((random >> 32) as usize % self.marks.count().max(1))?;
        let place = (random as u32) as usize % DRAW_EXPIRING_PLACES;
        let slots = self.bucket(bucket).iter().enumerate();
        let (slot, _) = slots.filter(|(_, slot)| slot.expires()).nth(place)?;
        Some(Spot { bucket, slot })
    }

    /// The entries of the bucket that a random number selects; all buckets are equally likely.
    /// `None` if the table is empty.
    pub(crate) fn draw_bucket(&self, random: u64) -> Option<&[BucketSlot]> {
        let bucket = (random >> 32) as usize % self.bucket_count;
        (self.len > 0).then(|| self.slots(bucket))
    }

    /// Like [`draw_bucket`](Self::draw_bucket), but among the buckets that hold entries with an
    /// expiry. `None` if there is no such bucket.
    pub(crate) fn draw_expiring_bucket(&self, random: u64) -> Option<&[BucketSlot]> {
        let bucket = self.marks.nth((random >> 32) as usize % self.marks.count().max(1))?;
        Some(self.slots(bucket))
    }

    /// The first bucket from number `from` on that holds entries with an expiry.
    pub(crate) fn next_expiring_bucket(&self, from: usize) -> Option<usize> {
        self.marks.next(from)
    }

    fn index(&self, hash: u32) -> usize {
        let half = 1usize << self.bucket_count.ilog2();
        let index = hash as usize & (2 * half - 1);
        if index < self.bucket_count { index } else { index - half }
    }

    fn bucket(&self, index: usize) -> &Bucket {
        let (group, segment, bucket) = place(index);
        &self.groups[group][segment][bucket]
    }

    fn bucket_mut(&mut self, index: usize) -> &mut Bucket {
        let (group, segment, bucket) = place(index);
        &mut self.groups[group][segment][bucket]
    }

    /// Splits the next bucket in turn: about half of its entries move to a new last bucket.
    fn split(&mut self) {
        if self.bucket_count > u32::MAX as usize {
            return;
        }
        let half = 1usize << self.bucket_count.ilog2();
        let source = self.bucket_mut(self.bucket_count - half);
        let moves = |slot: &BucketSlot| slot.hash as usize & half != 0;
        let count = source.iter().filter(|slot| moves(slot)).count();
        let mut target = Bucket::with_capacity(count);
        target.extend(source.extract_if(.., |slot| moves(slot)));
        if is_planted("split-drops-epoch") {
            for slot in &mut target {
                slot.set_epoch(Epoch::default());
            }
        }
        let before = source.capacity();
        source.shrink_to_fit();
        let after = source.capacity();
        self.resized(before, after);
        self.resized(0, target.capacity());
        self.push_bucket(target);
        self.mark(self.bucket_count - 1 - half);
        self.mark(self.bucket_count - 1);
    }

    /// Undoes the last split.
    fn merge(&mut self) {
        self.bucket_count -= 1;
        let last = self.bucket_count;
        let (group, segment, _) = place(last);
        let segments = &mut self.groups[group];
        assert_eq!(segment + 1, segments.len(), "the last bucket is not in the last segment");
        let slots = segments[segment].pop().expect("the last bucket");
        if segments[segment].is_empty() {
            segments.pop();
            if segments.is_empty() {
                self.groups.pop();
            }
        }
        let half = 1usize << last.ilog2();
        self.resized(slots.capacity(), 0);
        let target = self.bucket_mut(last - half);
        let before = target.capacity();
        target.reserve_exact(slots.len());
        target.extend(slots);
        let after = target.capacity();
        self.resized(before, after);
        self.marks.set(last, false);
        if !is_planted("merged-unmarked") {
            self.mark(last - half);
        }
    }

    /// Updates the memory total of the slots after a bucket's capacity has changed.
    fn resized(&mut self, before: usize, after: usize) {
        let bytes = |places: usize| allocated(places * size_of::<BucketSlot>());
        self.slot_bytes = self.slot_bytes - bytes(before) + bytes(after);
    }

    /// Marks a bucket that holds entries with an expiry. Unmarks any other bucket.
    fn mark(&mut self, bucket: usize) {
        if self.expiring > 0 || self.marks.count() > 0 {
            let is_marked = self.bucket(bucket).iter().any(BucketSlot::expires);
            self.marks.set(bucket, is_marked);
        }
    }

    fn push_bucket(&mut self, bucket: Bucket) {
        let (group, segment, _) = place(self.bucket_count);
        if group == self.groups.len() {
            self.groups.push(Vec::new());
        }
        let segments = &mut self.groups[group];
        if segment == segments.len() {
            segments.push(Vec::new());
        }
        segments[segment].push(bucket);
        self.bucket_count += 1;
    }
}

/// The place of a bucket: the group, the segment, and the index within the segment.
fn place(index: usize) -> (usize, usize, usize) {
    (index / (SEGMENT_LEN * SEGMENT_LEN), index / SEGMENT_LEN % SEGMENT_LEN, index % SEGMENT_LEN)
}

fn push(bucket: &mut Bucket, slot: BucketSlot) {
    if bucket.len() == bucket.capacity() {
        bucket.reserve_exact(BUCKET_GROWTH);
    }
    bucket.push(slot);
}
