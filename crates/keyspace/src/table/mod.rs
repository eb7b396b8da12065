//! The keys of one database: a hash table that grows by one bucket at a time.
//!
//! ```text
//! groups ─► group: up to 1024 segments ─► segment: up to 1024 buckets ─► bucket: slots
//! ```
//!
//! Linear hashing: with 2^L + S buckets, the low L bits of a hash name a bucket, and L + 1 bits one
//! of those that have been split (the first S, and the S they were split into). An insertion that
//! makes the buckets too full on average splits the next one in turn; a deletion that empties them
//! undoes the last split. Nothing else moves: no step depends on how many keys there are. A bucket
//! is a list of any length, so equal hashes overflow it and split nothing.
//!
//! Hash order is the order of the hash's bits reversed: then the bucket that is split is followed by
//! its own half, and a position in that order means the same before and after.

mod entry;

pub(crate) use entry::{Slot, worth_deferring};

/// Buckets in a segment, and segments in a group.
const SEGMENT_LEN: usize = 1024;

/// Keys per bucket, on average over all buckets, above which one is split.
const LOAD_MAX: usize = 9;

/// Keys per bucket below which two are merged.
const LOAD_MIN: usize = 3;

/// By how many places a bucket grows: the places not used yet are what a key costs in vain.
const BUCKET_GROWTH: usize = 2;

/// Places of a bucket that a random draw reaches: more than a bucket ever has.
const DRAW_PLACES: usize = 64;

type Bucket = Vec<Slot>;

/// A position in hash order; `END` is behind all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) u64);

impl Position {
    pub(crate) const START: Position = Position(0);
    pub(crate) const END: Position = Position(1 << 32);

    fn of(hash: u32) -> Self {
        Position(u64::from(hash.reverse_bits()))
    }
}

/// Where an entry is, until the next change of the table.
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
}

impl Default for Table {
    fn default() -> Self {
        let mut table = Self { groups: Vec::new(), bucket_count: 0, len: 0 };
        table.push_bucket(Bucket::new());
        table
    }
}

impl Table {
    /// Count of entries.
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn bucket_count(&self) -> usize {
        self.bucket_count
    }

    /// The entries of a bucket.
    pub(crate) fn slots(&self, bucket: usize) -> &[Slot] {
        self.bucket(bucket)
    }

    pub(crate) fn find(&self, hash: u32, key: &[u8]) -> Option<Spot> {
        let bucket = self.index(hash);
        let slot =
            self.bucket(bucket).iter().position(|slot| slot.hash == hash && slot.key() == key)?;
        Some(Spot { bucket, slot })
    }

    pub(crate) fn get(&self, spot: Spot) -> &Slot {
        &self.bucket(spot.bucket)[spot.slot]
    }

    pub(crate) fn get_mut(&mut self, spot: Spot) -> &mut Slot {
        &mut self.bucket_mut(spot.bucket)[spot.slot]
    }

    /// Adds an entry whose key is not there yet. Splits at most one bucket.
    pub(crate) fn insert(&mut self, slot: Slot) -> Spot {
        if self.len >= self.bucket_count * LOAD_MAX {
            self.split();
        }
        self.len += 1;
        let bucket = self.index(slot.hash);
        let slots = self.bucket_mut(bucket);
        push(slots, slot);
        Spot { bucket, slot: slots.len() - 1 }
    }

    /// Takes an entry out. Merges at most two buckets.
    pub(crate) fn remove(&mut self, spot: Spot) -> Slot {
        let bucket = self.bucket_mut(spot.bucket);
        let slot = bucket.swap_remove(spot.slot);
        if bucket.capacity() > bucket.len() + 2 * BUCKET_GROWTH {
            bucket.shrink_to(bucket.len() + BUCKET_GROWTH);
        }
        self.len -= 1;
        if self.bucket_count > 1 && self.len < self.bucket_count * LOAD_MIN {
            self.merge();
        }
        slot
    }

    /// The bucket at a position: its entries from that position on, and where the next one begins.
    pub(crate) fn walk(&self, from: Position) -> (Position, impl Iterator<Item = (Spot, &Slot)>) {
        let hash = (from.0 as u32).reverse_bits();
        let bucket = self.index(hash);
        let half = 1 << self.bucket_count.ilog2();
        let is_split = bucket >= half || bucket + half < self.bucket_count;
        let bits = half.trailing_zeros() + u32::from(is_split);
        let step = 1u64 << (32 - bits);
        let next = Position((from.0 & !(step - 1)) + step);
        let entries = self
            .bucket(bucket)
            .iter()
            .enumerate()
            .map(move |(slot, entry)| (Spot { bucket, slot }, entry))
            .filter(move |(_, entry)| Position::of(entry.hash) >= from);
        (next, entries)
    }

    /// An entry that a random number chooses, every one as likely as any other; `None` if the
    /// number points at a place that is empty, as most are: to be called again.
    pub(crate) fn draw(&self, random: u64) -> Option<Spot> {
        let bucket = (random >> 32) as usize % self.bucket_count;
        let places = if self.bucket_count == 1 { self.len.max(1) } else { DRAW_PLACES };
        let slot = (random as u32) as usize % places;
        (slot < self.bucket(bucket).len()).then_some(Spot { bucket, slot })
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

    /// Splits the bucket whose turn it is into itself and a new one behind all others.
    fn split(&mut self) {
        if self.bucket_count > u32::MAX as usize {
            return;
        }
        let half = 1usize << self.bucket_count.ilog2();
        let source = self.bucket_mut(self.bucket_count - half);
        let moves = |slot: &Slot| slot.hash as usize & half != 0;
        let count = source.iter().filter(|slot| moves(slot)).count();
        let mut target = Bucket::with_capacity(count);
        target.extend(source.extract_if(.., |slot| moves(slot)));
        source.shrink_to_fit();
        self.push_bucket(target);
    }

    /// Undoes the last split.
    fn merge(&mut self) {
        self.bucket_count -= 1;
        let last = self.bucket_count;
        let (group, segment, _) = place(last);
        let segments = &mut self.groups[group];
        let slots = segments[segment].pop().expect("the last bucket");
        if segments[segment].is_empty() {
            segments.pop();
            if segments.is_empty() {
                self.groups.pop();
            }
        }
        let half = 1usize << last.ilog2();
        let target = self.bucket_mut(last - half);
        target.reserve_exact(slots.len());
        target.extend(slots);
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

/// Group, segment and bucket within the segment.
fn place(index: usize) -> (usize, usize, usize) {
    (index / (SEGMENT_LEN * SEGMENT_LEN), index / SEGMENT_LEN % SEGMENT_LEN, index % SEGMENT_LEN)
}

fn push(bucket: &mut Bucket, slot: Slot) {
    if bucket.len() == bucket.capacity() {
        bucket.reserve_exact(BUCKET_GROWTH);
    }
    bucket.push(slot);
}
