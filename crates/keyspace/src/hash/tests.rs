//! Compares the tree with a map of the standard library. Its clones must never change.

use std::collections::HashMap;

use fastrand::Rng;
use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob};

use super::*;

type Model = HashMap<Vec<u8>, Vec<u8>>;

/// How fields are hashed: by the keyed hash, or so that many hashes are equal.
#[derive(Clone, Copy)]
enum Hashing {
    Keyed(KeyHasher),
    Few(u32),
}

impl Hashing {
    fn hash(self, field: &[u8]) -> u32 {
        let keyed = KeyHasher::new(5).hash(field) as u32;
        match self {
            Hashing::Keyed(hasher) => hasher.hash(field) as u32,
            Hashing::Few(count) => (keyed % count).wrapping_mul(0x9e37_79b9),
        }
    }
}

fn contents(tree: &HashTree) -> Model {
    let pairs = tree.iter();
    pairs.map(|(f, v)| (f.to_bytes().into_owned(), v.to_bytes().into_owned())).collect()
}

/// A short string, or one whose size is near the limit at which the form changes.
fn string(rng: &mut Rng, first: u8) -> Vec<u8> {
    let size = match rng.usize(..60) {
        0 => 512,
        1 => 513,
        2 => 63 + rng.usize(..3),
        3 => rng.usize(..2000),
        4 if rng.usize(..30) == 0 => BLOB_PIECE_SIZE + rng.usize(..3),
        _ => rng.usize(..40),
    };
    let fill = rng.usize(..256) as u8;
    let mut bytes = vec![fill; size];
    bytes.insert(0, first);
    bytes
}

fn run(hashing: Hashing, steps: usize, fields: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (mut tree, mut model) = (HashTree::default(), Model::new());
    let mut clones: Vec<(HashTree, Model)> = Vec::new();
    let names: Vec<Vec<u8>> = (0..fields)
        .map(|n| [&string(&mut rng, 1)[..], n.to_string().as_bytes()].concat())
        .collect();
    for step in 0..steps {
        let name = &names[rng.usize(..fields)];
        let hash = hashing.hash(name);
        let grows = (step / (steps / 6)).is_multiple_of(2);
        let mut old = Vec::new();
        if rng.usize(..10) < if grows { 8 } else { 3 } {
            let value = string(&mut rng, 2);
            let blob = Blob::from_bytes(&value);
            let arg = if rng.usize(..2) == 0 { Arg::Bytes(&value) } else { Arg::Blob(&blob) };
            let is_new = tree.set(hash, Arg::Bytes(name), arg, &mut old);
            let before = model.insert(name.clone(), value);
            assert_eq!(is_new, before.is_none());
            let was_large = before.is_some_and(|value| value.len() > BLOB_PIECE_SIZE);
            assert_eq!(old.len(), usize::from(was_large));
        } else {
            let removed = tree.remove(hash, Arg::Bytes(name), &mut old);
            assert_eq!(removed, model.remove(name).is_some());
        }
        assert_eq!(tree.len(), model.len());
        let other = &names[rng.usize(..fields)];
        let found = tree.get(hashing.hash(other), Arg::Bytes(other));
        assert_eq!(found.map(Element::to_bytes).as_deref(), model.get(other).map(|v| &v[..]));
        if rng.usize(..steps / 10) == 0 {
            clones.push((tree.clone(), model.clone()));
        }
        if step % 100 == 0 {
            tree.check();
        }
        if rng.usize(..steps / 20) == 0 {
            assert_eq!(contents(&tree), model);
            let met: usize = tree.iter().count();
            assert_eq!(met, model.len(), "a field was met twice");
            let indexed: Model = (0..tree.len())
                .map(|index| tree.nth(index))
                .map(|(f, v)| (f.to_bytes().into_owned(), v.to_bytes().into_owned()))
                .collect();
            assert_eq!(indexed, model);
        }
    }
    for (tree, model) in &clones {
        tree.check();
        assert_eq!(contents(tree), *model, "a clone has changed");
    }
    for name in model.keys() {
        assert!(tree.remove(hashing.hash(name), Arg::Bytes(name), &mut Vec::new()));
    }
    tree.check();
    assert!(tree.memory() < 512, "an empty tree takes {} bytes", tree.memory());
}

#[test]
fn a_tree_is_a_map_and_its_clones_never_change() {
    for seed in 0..6 {
        run(Hashing::Keyed(KeyHasher::new(seed.into())), 30_000, 100 << (2 * seed), seed);
    }
}

/// Equal hashes are never split; a leaf that holds nothing else grows as long as it has to.
#[test]
fn equal_hashes_overflow_a_leaf() {
    for (count, seed) in [(1, 1), (2, 2), (40, 3)] {
        run(Hashing::Few(count), 6_000, 400, seed);
    }
}

/// A field that exists throughout is visited exactly once, whatever is split and merged meanwhile.
#[test]
fn a_walk_survives_splits_and_merges() {
    let hasher = KeyHasher::new(3);
    let set = |tree: &mut HashTree, name: String| {
        let name = name.into_bytes();
        tree.set(hasher.hash(&name) as u32, Arg::Bytes(&name), Arg::Bytes(b"v"), &mut Vec::new());
    };
    let remove = |tree: &mut HashTree, name: String| {
        let name = name.into_bytes();
        tree.remove(hasher.hash(&name) as u32, Arg::Bytes(&name), &mut Vec::new());
    };
    for (from, to) in [(2_000, 30_000), (30_000, 2_000), (10, 3_000), (5_000, 0)] {
        let mut tree = HashTree::default();
        (0..500).for_each(|index| set(&mut tree, format!("stays:{index}")));
        (0..from).for_each(|index| set(&mut tree, format!("goes:{index}")));
        let (mut met, mut position, mut other) = (Vec::new(), Position::START, from);
        while position != Position::END {
            let (next, entries) = tree.walk(position);
            let names = entries.map(|entry| entry.field.to_bytes().into_owned());
            met.extend(names.filter(|name| name.starts_with(b"stays:")));
            assert!(next > position);
            position = next;
            for _ in 0..20 {
                if other < to {
                    set(&mut tree, format!("goes:{other}"));
                    other += 1;
                } else if other > to {
                    other -= 1;
                    remove(&mut tree, format!("goes:{other}"));
                }
            }
        }
        assert_eq!(met.len(), 500, "{from} to {to}");
        met.sort();
        met.dedup();
        assert_eq!(met.len(), 500, "{from} to {to}");
    }
}

/// A write to a shared tree copies one leaf and the branches above it.
#[test]
fn a_write_copies_little() {
    let hasher = KeyHasher::new(9);
    let mut tree = HashTree::default();
    let name = |index: usize| format!("field:{index:012}").into_bytes();
    for index in 0..200_000 {
        let name = name(index);
        tree.set(
            hasher.hash(&name) as u32,
            Arg::Bytes(&name),
            Arg::Bytes(&[b'v'; 64]),
            &mut Vec::new(),
        );
    }
    let write = |tree: &mut HashTree, index: usize, value: &[u8]| {
        let name = name(index);
        let hash = hasher.hash(&name) as u32;
        let mut old = Vec::new();
        let info = allocation_counter::measure(|| {
            tree.set(hash, Arg::Bytes(&name), Arg::Bytes(value), &mut old);
        });
        info.bytes_total as usize
    };
    let (mut shared_max, mut own_max) = (0, 0);
    for index in 0..1_000 {
        let clone = tree.clone();
        shared_max = shared_max.max(write(&mut tree, index * 7, &[b'w'; 64]));
        drop(clone);
        own_max = own_max.max(write(&mut tree, index * 7, &[b'x'; 64]));
    }
    assert_eq!(own_max, 0, "bytes allocated to write in place");
    assert!(shared_max < 8 * 1024, "{shared_max} bytes copied by a write");
    assert!(shared_max > 1024, "{shared_max} bytes: nothing was shared");
}

#[test]
fn values_are_sent_to_other_threads() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<HashTree>();
    assert_send_and_sync::<crate::value::Value>();
    assert_send_and_sync::<HashBuilder>();
}

/// Every form of a hash holds the same fields.
#[test]
fn packed_hashes_grow_at_their_limits() {
    let hasher = KeyHasher::new(1);
    let mut rng = Rng::with_seed(4);
    for fields_max in [0, 1, 5, 128, usize::MAX] {
        for element_size in [0, 1, 64, usize::MAX] {
            let limits = HashLimits { fields: fields_max, element_size };
            let mut form = HashForm::Packed { bytes: empty().to_vec(), base: 0 };
            let (mut model, mut old) = (Model::new(), Vec::new());
            // Three quarters of the 1500 names are there in the end: more than any limit.
            for _ in 0..6_000 {
                let mut edit = HashEdit { form: &mut form, hasher, limits, old: &mut old };
                let field = (rng.usize(..1500) as i64 - 300).to_string().into_bytes();
                if rng.usize(..4) > 0 {
                    let value = string(&mut rng, b'v');
                    let is_new = edit.set(Arg::Bytes(&field), Arg::Bytes(&value));
                    assert_eq!(is_new, model.insert(field, value).is_none());
                } else {
                    assert_eq!(edit.remove(Arg::Bytes(&field)), model.remove(&field).is_some());
                }
                assert_eq!(edit.len(), model.len());
                let hash = match &form {
                    HashForm::Packed { bytes, .. } => {
                        assert!(bytes.len() <= PACKED_SIZE_MAX);
                        assert!(model.len() <= fields_max.min(PACKED_FIELDS_MAX));
                        HashRef::Inline(bytes)
                    }
                    HashForm::Grown { tree, .. } => HashRef::Tree(tree),
                    HashForm::Tree(tree) => HashRef::Tree(tree),
                };
                let asked = rng.usize(..1500).to_string().into_bytes();
                let value = hash.get(&hasher, Arg::Bytes(&asked)).map(Element::to_bytes);
                assert_eq!(value.as_deref(), model.get(&asked).map(|value| &value[..]));
            }
            assert!(matches!(form, HashForm::Grown { .. }));
        }
    }
}
