//! Compares the tree with a deque of the standard library. Clones of the tree must never change.

use std::collections::VecDeque;

use fastrand::Rng;
use slimio_resp::{BLOB_PIECE_SIZE, Blob};

use super::*;

type Model = VecDeque<Vec<u8>>;

/// A string in any of the forms: text of any size, an integer, or a string outside the leaf.
fn string(rng: &mut Rng) -> Vec<u8> {
    let size = match rng.usize(..60) {
        0 => 239 + rng.usize(..4),
        1 => 1023 + rng.usize(..3),
        2 => rng.usize(..3000),
        3 if rng.usize(..40) == 0 => BLOB_PIECE_SIZE + rng.usize(..3),
        4..30 => return (rng.i64(..) >> rng.u32(..64)).to_string().into_bytes(),
        _ => rng.usize(..40),
    };
    vec![rng.u8(..); size]
}

fn contents(tree: &PositionalTree) -> Model {
    tree.elements().map(|[element]| element.to_bytes().into_owned()).collect()
}

fn compare(tree: &PositionalTree, model: &Model) {
    tree.check();
    assert_eq!(tree.len(), model.len());
    assert!(contents(tree) == *model, "the elements differ");
    let mut end = tree.len();
    let mut backwards = Vec::new();
    while end > 0 {
        let (first, leaf) = tree.leaf_at(end - 1);
        backwards.extend(leaf.elements(0..end - first).rev().map(|it| it.to_bytes().into_owned()));
        end = first;
    }
    assert!(backwards.iter().eq(model.iter().rev()), "the elements differ when read from the end");
}

/// Whether a string takes noticeable time to free.
fn is_large(string: &[u8]) -> bool {
    string.len() > BLOB_PIECE_SIZE
}

fn run(steps: usize, target: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let (mut tree, mut model) = (PositionalTree::default(), Model::new());
    let mut clones: Vec<(PositionalTree, Model)> = Vec::new();
    for step in 0..steps {
        let mut old = Vec::new();
        let mut freed = 0;
        let end = if rng.bool() { End::First } else { End::Last };
        let index = rng.usize(..=model.len());
        let grows = model.len() < target;
        match rng.usize(..20) {
            0..8 if grows => {
                let string = string(&mut rng);
                let blob = Blob::from_bytes(&string);
                let arg = if rng.bool() { Arg::Bytes(&string) } else { Arg::Blob(&blob) };
                tree.push(end, arg);
                match end {
                    End::First => model.push_front(string),
                    End::Last => model.push_back(string),
                }
            }
            8..11 if grows => {
                let string = string(&mut rng);
                tree.insert(index, Arg::Bytes(&string));
                model.insert(index, string);
            }
            11..15 if !model.is_empty() => {
                let string = if end == End::First { model.pop_front() } else { model.pop_back() };
                let string = string.unwrap();
                assert_eq!(tree.end(end).unwrap().to_bytes(), string);
                tree.pop(end, &mut old);
                freed += usize::from(is_large(&string));
            }
            15..17 if index < model.len() => {
                let string = string(&mut rng);
                tree.set(index, Arg::Bytes(&string), &mut old);
                freed += usize::from(is_large(&std::mem::replace(&mut model[index], string)));
            }
            17 if index < model.len() => {
                let wanted = model[index].clone();
                let (first, leaf) = tree.leaf_at(index);
                let mut found = Vec::new();
                Wanted::new(Arg::Bytes(&wanted)).find_in(leaf, &mut found);
                for index in &mut found {
                    *index += first;
                }
                let range = first..first + leaf.len();
                let expected: Vec<usize> = range.filter(|index| model[*index] == wanted).collect();
                assert_eq!(found, expected);
                tree.remove(&found, &mut old);
                found.iter().rev().for_each(|index| drop(model.remove(*index)));
                freed += if is_large(&wanted) { found.len() } else { 0 };
            }
            18 if rng.usize(..20) == 0 => {
                let second = tree.cut(index);
                let model_second = model.split_off(index);
                compare(&second, &model_second);
                if rng.bool() {
                    tree.append(second);
                    model.extend(model_second);
                }
            }
            _ => assert_eq!(
                tree.get(index).map(|it| it.to_bytes().into_owned()),
                model.get(index).cloned()
            ),
        }
        assert_eq!(old.len(), freed, "step {step}");
        assert_eq!(tree.len(), model.len());
        if rng.usize(..steps / 10) == 0 {
            clones.push((tree.clone(), model.clone()));
        }
        if step % 100 == 0 {
            tree.check();
        }
        if rng.usize(..steps / 20) == 0 {
            compare(&tree, &model);
        }
    }
    for (tree, model) in &clones {
        compare(tree, model);
    }
    while !model.is_empty() {
        model.pop_back();
        tree.pop(End::Last, &mut Vec::new());
    }
    tree.check();
    assert!(tree.memory() < 1024, "an empty tree takes {} bytes", tree.memory());
}

#[test]
fn a_tree_is_a_deque_and_its_clones_never_change() {
    for seed in 0..6 {
        run(10_000, 30 << (2 * seed), seed);
    }
}

/// A list that grows at one end has full leaves, and a leaf is freed once all its elements are
/// popped.
#[test]
fn leaves_stay_full_whichever_end_grows() {
    for end in [End::First, End::Last] {
        let mut tree = PositionalTree::default();
        for number in 0..200_000 {
            tree.push(end, Arg::Bytes(format!("element-{number:08}").as_bytes()));
        }
        tree.check();
        let each = tree.memory() as f64 / 200_000.0;
        assert!(each < 17.7, "{each} bytes for an element of 16 bytes");
        let other = if end == End::First { End::Last } else { End::First };
        for _ in 0..199_000 {
            tree.pop(other, &mut Vec::new());
        }
        tree.check();
        let each = tree.memory() as f64 / 1_000.0;
        assert!(each < 25.0, "{each} bytes for an element of 16 bytes");
    }
}

/// After any mix of pushes and pops at both ends of a large list, most of its memory still holds
/// elements.
#[test]
fn a_queue_takes_memory_for_what_it_holds() {
    let mut tree = PositionalTree::default();
    let mut rng = Rng::with_seed(1);
    for _ in 0..300_000 {
        let end = if rng.bool() { End::First } else { End::Last };
        if rng.usize(..10) < 5 || tree.len() < 5_000 {
            tree.push(end, Arg::Bytes(&[b'x'; 16]));
        } else {
            tree.pop(end, &mut Vec::new());
        }
    }
    tree.check();
    let each = tree.memory() as f64 / tree.len() as f64;
    assert!(each < 20.0, "{each} bytes for an element of 16 bytes");
}

/// Pops within a leaf do not allocate, and a write to a shared tree copies one leaf and the
/// branches above it.
#[test]
fn pops_allocate_nothing_and_writes_copy_little() {
    let mut tree = PositionalTree::default();
    for number in 0..100_000 {
        tree.push(End::Last, Arg::Bytes(format!("element-{number:08}").as_bytes()));
    }
    let mut old = Vec::new();
    let info = allocation_counter::measure(|| {
        // A leaf gives memory back only when less than a quarter of its memory is in use. After so
        // few pops, more is in use.
        for _ in 0..80 {
            tree.pop(End::First, &mut old);
            tree.pop(End::Last, &mut old);
        }
    });
    assert_eq!(info.count_total, 0, "allocations of pops within a leaf");
    let mut copied_max = 0;
    for index in 0..1_000 {
        let clone = tree.clone();
        let info = allocation_counter::measure(|| {
            tree.set(index * 90, Arg::Bytes(&[b'y'; 16]), &mut old);
        });
        copied_max = copied_max.max(info.bytes_total);
        drop(clone);
    }
    assert!(copied_max < 16 * 1024, "{copied_max} bytes copied by a write");
    assert!(copied_max > 2 * 1024, "{copied_max} bytes: nothing was shared");
}

/// A leaf of very short elements gets a long element, or is merged with a leaf that has a long
/// element. In neither case may the weight of the leaf exceed `WEIGHT_MAX`.
#[test]
fn a_leaf_with_wide_codes_is_not_too_heavy() {
    for index in [0, 1_500, 2_100, 3_000, 4_200] {
        let mut tree = PositionalTree::default();
        (0..4_200).for_each(|_| tree.push(End::Last, Arg::Bytes(b"")));
        tree.insert(index, Arg::Bytes(&[b'w'; 900]));
        tree.check();
        let mut old = Vec::new();
        // Removes elements until a leaf has become small and is merged with its neighbour.
        while tree.len() > 1 {
            let at = if index < 2_000 { tree.len() - 1 } else { 0 };
            tree.remove(&[at], &mut old);
            tree.check();
        }
    }
}
