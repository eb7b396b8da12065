//! Compares the tree with a map of the standard library. Clones of the tree must never change.

use std::collections::HashMap;

use fastrand::Rng;
use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob};

use super::*;
use crate::hasher::KeyHasher;

type HashTree = HashedTree<2>;

type Model = HashMap<Vec<u8>, Vec<u8>>;

/// How fields are hashed: with the keyed hash, or with so few hashes that many are equal.
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

fn owned([field, value]: [Element<'_>; 2]) -> (Vec<u8>, Vec<u8>) {
    (field.to_bytes().into_owned(), value.to_bytes().into_owned())
}

fn contents(tree: &HashTree) -> Model {
    tree.elements().map(owned).collect()
}

/// A string that is short, or has any size up to 2000 bytes, or has a size near one of the limits
/// at which the form of a string changes.
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
            let is_new = tree.put(hash, [Arg::Bytes(name), arg], &mut old);
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
        assert_eq!(
            found.map(|[_, value]| value.to_bytes()).as_deref(),
            model.get(other).map(|v| &v[..])
        );
        if rng.usize(..steps / 10) == 0 {
            clones.push((tree.clone(), model.clone()));
        }
        if step % 100 == 0 {
            tree.check();
        }
        if rng.usize(..steps / 20) == 0 {
            assert_eq!(contents(&tree), model);
            let met: usize = tree.elements().count();
            assert_eq!(met, model.len(), "the walk must visit each field once");
            let indexed: Model = (0..tree.len())
                .map(|index| owned(tree.elements_of_leaf(index).next().unwrap()))
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

/// Elements with equal hashes always stay in one leaf, so a leaf that holds only equal hashes may
/// have any number of elements.
#[test]
fn equal_hashes_overflow_a_leaf() {
    for (count, seed) in [(1, 1), (2, 2), (40, 3)] {
        run(Hashing::Few(count), 6_000, 400, seed);
    }
}

/// A field that exists during the whole walk is visited exactly once, whichever leaves and branches
/// are split or merged meanwhile.
#[test]
fn a_walk_survives_splits_and_merges() {
    let hasher = KeyHasher::new(3);
    let set = |tree: &mut HashTree, name: String| {
        let name = name.into_bytes();
        let element = [Arg::Bytes(&name), Arg::Bytes(b"v")];
        tree.put(hasher.hash(&name) as u32, element, &mut Vec::new());
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
            let names = entries.map(|[field, _]| field.to_bytes().into_owned());
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
        let element = [Arg::Bytes(&name), Arg::Bytes(&[b'v'; 64])];
        tree.put(hasher.hash(&name) as u32, element, &mut Vec::new());
    }
    let write = |tree: &mut HashTree, index: usize, value: &[u8]| {
        let name = name(index);
        let hash = hasher.hash(&name) as u32;
        let mut old = Vec::new();
        let info = allocation_counter::measure(|| {
            tree.put(hash, [Arg::Bytes(&name), Arg::Bytes(value)], &mut old);
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
    assert_eq!(own_max, 0, "a write in place allocated bytes");
    assert!(shared_max < 8 * 1024, "a write to a shared tree copied {shared_max} bytes");
    assert!(shared_max > 1024, "a write to a shared tree copied only {shared_max} bytes");
}

#[test]
fn values_are_sent_to_other_threads() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<HashTree>();
    assert_send_and_sync::<crate::value::Value>();
    assert_send_and_sync::<crate::kinds::Builder>();
}

/// A search prefetches the bytes in which the element probably is. These bytes must nearly always
/// contain the element.
#[test]
fn an_element_is_where_a_search_ends() {
    let hasher = KeyHasher::new(3);
    let (mut tree, mut old) = (HashedTree::<1>::default(), Vec::new());
    let members: Vec<String> = (0..5000).map(|number| format!("<{number}>")).collect();
    let hash = |member: &String| hasher.hash(member.as_bytes()) as u32;
    for member in &members {
        tree.put(hash(member), [Arg::Bytes(member.as_bytes())], &mut old);
    }
    let (mut found, mut size) = (0, 0);
    for member in &members {
        let mut search = tree.search(hash(member));
        while search.step() {}
        let bytes = search.bytes().expect("the last level is a leaf");
        size += bytes.len();
        found += usize::from(bytes.windows(member.len()).any(|some| some == member.as_bytes()));
    }
    assert!(found * 100 >= members.len() * 95, "only {found} members are in the prefetched bytes");
    assert!(
        size / members.len() < 1200,
        "the searches prefetched {size} bytes in all, which is too much"
    );
}
