//! Compares the table with a model of what the table should hold.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};

use slimio_resp::Arg;

use super::*;

/// Keys from this number on stay in the table while other keys are inserted and removed.
const STAY: u32 = 1_000_000;

/// A table, and a model of what the table should hold. The hash of a key is chosen, not computed.
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
            let expiry = key.is_multiple_of(5).then_some(1);
            let slot = BucketSlot::new(hash, &key.to_le_bytes(), Arg::Bytes(b"v"), expiry);
            self.table.insert(slot);
        }
    }

    fn remove(&mut self, key: u32) {
        if let Some(hash) = self.keys.remove(&key) {
            let spot = self.table.find(hash, &key.to_le_bytes()).expect("a key of the model");
            assert_eq!(self.table.remove(spot).key(), key.to_le_bytes());
        }
    }

    fn check(&self) {
        assert_eq!(self.table.len(), self.keys.len());
        for (key, hash) in &self.keys {
            assert!(self.table.find(*hash, &key.to_le_bytes()).is_some());
        }
        self.table.check();
    }

    /// Changes either the expiry of an entry or its value.
    fn change(&mut self, key: u32) {
        let Some(hash) = self.keys.get(&key) else { return };
        let spot = self.table.find(*hash, &key.to_le_bytes()).expect("a key of the model");
        self.table.change(spot, |slot| {
            let expiry = if slot.expires() { None } else { Some(1) };
            slot.set(Arg::Bytes(&vec![b'v'; key as usize % 2_000]), expiry);
        });
    }
}

fn key(slot: &BucketSlot) -> u32 {
    u32::from_le_bytes(slot.key().try_into().expect("four bytes"))
}

#[test]
fn growing_and_shrinking_lose_nothing() {
    let mut model = Model::default();
    for round in 0..6 {
        for step in 0..20_000 {
            let (key, hash) = (model.random() % 30_000, model.random());
            // Rounds that mostly insert alternate with rounds that mostly remove.
            if model.random() % 10 < if round % 2 == 0 { 8 } else { 1 } {
                model.insert(key, hash);
            } else {
                model.remove(key);
            }
            let other = model.random() % 30_000;
            model.change(other);
            if step % 1_000 == 0 {
                model.table.check();
            }
        }
        model.check();
    }
    let keys: Vec<u32> = model.keys.keys().copied().collect();
    for key in keys {
        model.remove(key);
    }
    model.check();
    assert_eq!(model.table.bucket_count(), 1, "an empty table must be small again");
}

/// If a merged bucket with an expiring key were not marked, active expiry would never find that
/// key.
#[test]
fn merged_buckets_say_whether_anything_in_them_expires() {
    let mut model = Model::default();
    for key in 0..20_000_u32 {
        let hash = model.random();
        // Every fifth key has an expiry, but only a few of these keys are inserted.
        if !key.is_multiple_of(5) || key.is_multiple_of(200) {
            model.insert(key, hash);
        }
    }
    for key in (0..20_000_u32).filter(|key| !key.is_multiple_of(5)) {
        model.remove(key);
        if key.is_multiple_of(128) {
            model.check();
        }
    }
    model.check();
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

/// A key that exists during the whole walk is visited exactly once, whichever buckets are split or
/// merged meanwhile.
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

/// If the look-ahead found the entry of another request, it would search the element in the wrong
/// collection.
#[test]
fn looking_ahead_finds_the_entry_of_each_request() {
    let mut model = Model::default();
    for key in 0..5_000 {
        let hash = model.random();
        model.insert(key, hash);
    }
    let all: HashMap<u32, u32> = model.keys.iter().map(|(key, hash)| (*hash, *key)).collect();
    assert_eq!(all.len(), model.keys.len(), "two keys have the same hash");
    for round in 0..2_000 {
        let count = round % (AHEAD_MAX + 1);
        let hashes: Vec<u32> = (0..count)
            .map(|_| {
                let (key, other) = (model.random() % 5_000, model.random());
                if other.is_multiple_of(4) { other } else { model.keys[&key] }
            })
            .collect();
        // The table ignores the high bits.
        let hash = |low: &u32| u64::from(*low) | 7 << 32;
        let elements: Vec<ElementAhead<'_>> =
            hashes.iter().map(|low| ElementAhead { hash: hash(low), element: b"" }).collect();
        let mut found = [None; AHEAD_MAX];
        model.table.bring_in_entries(&elements, &mut found);
        let found = found.map(|slot| slot.map(key));
        for (index, key) in found.iter().enumerate() {
            let expected = hashes.get(index).and_then(|hash| all.get(hash));
            assert_eq!(key.as_ref(), expected, "item {index} of {count}");
        }
    }
}

#[test]
fn draws_are_even() {
    const DRAWS: usize = 200_000;
    let mut model = Model::default();
    // With this count of keys, half of the buckets are split. A split bucket holds half as many
    // keys as a bucket that is not split, but each key must be drawn equally often.
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
