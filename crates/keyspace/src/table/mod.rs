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

#[cfg(test)]
mod tests {
    use std::collections::hash_map::Entry;
    use std::collections::{HashMap, HashSet};

    use slimio_resp::Arg;

    use super::*;

    /// Keys from here on are not touched while others come and go.
    const STAY: u32 = 1_000_000;

    /// A table beside what it should hold. The hash of a key is chosen, not computed.
    #[derive(Default)]
    struct Model {
        table: Table,
        keys: HashMap<u32, u32>,
        state: u64,
    }

    impl Model {
        fn random(&mut self) -> u32 {
            self.state = self.state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (self.state >> 33) as u32 ^ (self.state >> 11) as u32
        }

        fn insert(&mut self, key: u32, hash: u32) {
            if let Entry::Vacant(place) = self.keys.entry(key) {
                place.insert(hash);
                self.table.insert(Slot::new(hash, &key.to_le_bytes(), Arg::Bytes(b"v"), None));
            }
        }

        fn remove(&mut self, key: u32) {
            if let Some(hash) = self.keys.remove(&key) {
                let spot = self.table.find(hash, &key.to_le_bytes()).expect("it is there");
                assert_eq!(self.table.remove(spot).key(), key.to_le_bytes());
            }
        }

        fn check(&self) {
            assert_eq!(self.table.len(), self.keys.len());
            for (key, hash) in &self.keys {
                assert!(self.table.find(*hash, &key.to_le_bytes()).is_some());
            }
            let slots: usize =
                (0..self.table.bucket_count()).map(|bucket| self.table.slots(bucket).len()).sum();
            assert_eq!(slots, self.keys.len());
        }
    }

    fn key(slot: &Slot) -> u32 {
        u32::from_le_bytes(slot.key().try_into().expect("four bytes"))
    }

    #[test]
    fn growing_and_shrinking_lose_nothing() {
        let mut model = Model::default();
        for round in 0..6 {
            for _ in 0..20_000 {
                let (key, hash) = (model.random() % 30_000, model.random());
                // Rounds of growth and rounds of decay.
                if model.random() % 10 < if round % 2 == 0 { 8 } else { 1 } {
                    model.insert(key, hash);
                } else {
                    model.remove(key);
                }
            }
            model.check();
        }
        let keys: Vec<u32> = model.keys.keys().copied().collect();
        for key in keys {
            model.remove(key);
        }
        model.check();
        assert_eq!(model.table.bucket_count(), 1, "an empty table is small again");
    }

    #[test]
    fn one_operation_splits_or_merges_one_bucket() {
        let mut model = Model::default();
        let mut before = model.table.bucket_count();
        for key in 0..50_000 {
            let hash = model.random();
            model.insert(key, hash);
            assert!(model.table.bucket_count() <= before + 1);
            before = model.table.bucket_count();
        }
        let longest = (0..before).map(|bucket| model.table.slots(bucket).len()).max();
        assert!(longest < Some(DRAW_PLACES), "{longest:?} entries in a bucket");
        for key in 0..50_000 {
            model.remove(key);
            assert!(model.table.bucket_count() + 1 >= before);
            before = model.table.bucket_count();
        }
    }

    /// What is there all the while is met exactly once, whatever is split and merged meanwhile.
    #[test]
    fn a_walk_survives_splits_and_merges() {
        for (from, to) in [(2_000, 30_000), (30_000, 2_000), (10, 3_000), (5_000, 0)] {
            let mut model = Model::default();
            for key in 0..500 {
                let hash = model.random();
                model.insert(STAY + key, hash);
            }
            for key in 0..from {
                let hash = model.random();
                model.insert(key, hash);
            }
            let mut met = Vec::new();
            let (mut position, mut steps, mut other) = (Position::START, 0, from);
            while position != Position::END {
                let (next, entries) = model.table.walk(position);
                met.extend(entries.map(|(_, slot)| key(slot)).filter(|key| *key >= STAY));
                assert!(next > position);
                position = next;
                steps += 1;
                for _ in 0..20 {
                    let hash = model.random();
                    if other < to {
                        model.insert(other, hash);
                        other += 1;
                    } else if other > to {
                        other -= 1;
                        model.remove(other);
                    }
                }
            }
            let distinct: HashSet<u32> = met.iter().copied().collect();
            assert_eq!((met.len(), distinct.len()), (500, 500), "{from} to {to} in {steps} steps");
        }
    }

    #[test]
    fn equal_hashes_overflow_a_bucket_and_split_nothing_for_ever() {
        let mut model = Model::default();
        for key in 0..2_000 {
            model.insert(key, 0x1234_5678);
        }
        model.check();
        assert!(model.table.bucket_count() <= 2_000 / LOAD_MAX + 1);
        let mut position = Position::START;
        let mut met = 0;
        while position != Position::END {
            let (next, entries) = model.table.walk(position);
            met += entries.count();
            position = next;
        }
        assert_eq!(met, 2_000);
    }

    #[test]
    fn draws_are_even() {
        const DRAWS: usize = 200_000;
        let mut model = Model::default();
        // A count for which half of the buckets are split and hold half as many.
        for key in 0..200 {
            let hash = model.random();
            model.insert(key, hash);
        }
        let mut counts = HashMap::new();
        let mut drawn = 0;
        while drawn < DRAWS {
            let random = u64::from(model.random()) << 32 | u64::from(model.random());
            if let Some(spot) = model.table.draw(random) {
                *counts.entry(key(model.table.get(spot))).or_insert(0usize) += 1;
                drawn += 1;
            }
        }
        let expected = DRAWS / model.keys.len();
        for key in model.keys.keys() {
            let count = counts.get(key).copied().unwrap_or(0);
            assert!(count.abs_diff(expected) < expected / 4, "{count} draws, not {expected}");
        }
    }
}
