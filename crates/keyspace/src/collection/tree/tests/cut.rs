//! Cuts and joins trees, does the same with vectors, and compares the two.

use std::collections::HashSet;

use super::*;

fn split_off(tree: &mut Tree<Numbers>, index: usize) -> Tree<Numbers> {
    tree.split_off(ByIndex(index), |leaf, ByIndex(at)| Numbers(leaf.0.split_off(at)))
}

fn of_numbers(numbers: std::ops::Range<u32>) -> Tree<Numbers> {
    let mut tree = Tree::default();
    for number in numbers {
        let end = tree.len();
        insert(&mut tree, end, number);
    }
    tree
}

#[test]
fn cut_and_joined_trees_hold_what_vectors_hold() {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut both: Vec<(Tree<Numbers>, Vec<u32>)> = vec![Default::default()];
    // These clones stand for those that a capture holds.
    let mut clones = Vec::new();
    for step in 0..1_500 {
        let at = rng.usize(..both.len());
        let (tree, model) = &mut both[at];
        let index = rng.usize(..=model.len());
        match rng.usize(..10) {
            0..3 => {
                for number in step..step + rng.u32(..200) {
                    insert(tree, index, number);
                    model.insert(index, number);
                }
            }
            3..5 => {
                for _ in index..model.len().min(index + rng.usize(..100)) {
                    assert_eq!(remove(tree, index), model.remove(index));
                }
            }
            5..7 => {
                let second = (split_off(tree, index), model.split_off(index));
                second.0.check();
                both.push(second);
            }
            7..9 => {
                let (second, numbers) = both.swap_remove(rng.usize(..both.len()));
                match both.first_mut() {
                    Some((first, model)) => {
                        first.append(second);
                        model.extend(numbers);
                    }
                    None => both.push((second, numbers)),
                }
            }
            _ => {
                clones.push((tree.clone(), model.clone()));
                if clones.len() > 20 {
                    clones.swap_remove(rng.usize(..20));
                }
            }
        }
        let (tree, model) = &both[at.min(both.len() - 1)];
        tree.check();
        assert_eq!((tree.len(), contents(tree)), (model.len(), model.clone()));
    }
    for (tree, model) in both.iter().chain(&clones) {
        tree.check();
        assert_eq!(contents(tree), *model);
    }
}

#[test]
fn every_cut_gives_back_what_was_there() {
    for len in [0, 1, 15, 16, 17, 300, 600] {
        let whole = of_numbers(0..len);
        let numbers: Vec<u32> = (0..len).collect();
        for index in 0..=len as usize {
            let mut first = whole.clone();
            let second = split_off(&mut first, index);
            for (tree, part) in [(&first, &numbers[..index]), (&second, &numbers[index..])] {
                tree.check();
                assert_eq!(contents(tree), part, "{len} cut at {index}");
            }
            first.append(second);
            first.check();
            assert_eq!(contents(&first), numbers, "{len} cut at {index} and joined");
        }
    }
}

#[test]
fn cuts_and_joins_leave_no_small_leaf() {
    let mut rng = fastrand::Rng::with_seed(2);
    let mut tree = of_numbers(0..20_000);
    for _ in 0..2_000 {
        let index = rng.usize(..=tree.len());
        let mut second = split_off(&mut tree, index);
        // Joins the two parts in the opposite order.
        std::mem::swap(&mut tree, &mut second);
        tree.append(second);
    }
    tree.check();
    let is_small = |leaf: &&Numbers| leaf.weight() < Numbers::WEIGHT_MAX / 4;
    assert_eq!(tree.leaves().filter(is_small).count(), 0);
    let mut numbers = contents(&tree);
    numbers.sort_unstable();
    assert!(numbers.into_iter().eq(0..20_000));
}

/// A cut or a join may copy only the leaves where the trees are cut or joined. If it copied all
/// leaves, its time would grow with the number of elements, and the memory would double during a
/// capture.
#[test]
fn leaves_away_from_the_cut_stay_shared() {
    let mut tree = of_numbers(0..100_000);
    let clone = tree.clone();
    let of_clone: HashSet<_> = clone.leaves().map(std::ptr::from_ref).collect();
    let mut last = split_off(&mut tree, 70_000);
    let middle = split_off(&mut tree, 20_000);
    last.append(middle);
    let own = |tree: &Tree<Numbers>| {
        tree.leaves().filter(|leaf| !of_clone.contains(&std::ptr::from_ref(*leaf))).count()
    };
    // Each cut and each join makes two leaves that are not shared with the clone. If one of the two
    // is small, it is merged with the leaf next to it. Then that leaf, too, is not shared any more.
    assert!(own(&tree) <= 4 && own(&last) <= 8, "{} and {}", own(&tree), own(&last));
    tree.check();
    last.check();
    assert!(contents(&last).into_iter().eq((70_000..100_000).chain(20_000..70_000)));
    assert!(contents(&clone).into_iter().eq(0..100_000));
}
