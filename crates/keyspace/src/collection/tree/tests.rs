//! A tree whose elements are ordered by position, as in a list. The elements are numbers, and each
//! has the weight 1.

mod cut;

use super::*;

const NUMBERS_MAX: usize = 16;

#[derive(Clone, Debug, Default)]
struct Numbers(Vec<u32>);

impl Leaf for Numbers {
    type Summary = Count;

    const WEIGHT_MAX: usize = NUMBERS_MAX;
    const GROWS_AT_ENDS: bool = true;

    fn weight(&self) -> usize {
        self.0.len()
    }

    fn memory(&self) -> usize {
        allocated(self.0.capacity() * size_of::<u32>())
    }

    fn summary(&self) -> Count {
        Count(self.0.len())
    }

    fn split(&mut self, edge: Edge) -> Option<Self> {
        let at = match edge {
            Edge { is_last: true, .. } => self.0.len() - 1,
            Edge { is_first: true, .. } => 1,
            _ => self.0.len() / 2,
        };
        Some(Self(self.0.split_off(at)))
    }

    fn append(&mut self, behind: &Self) {
        self.0.extend(&behind.0);
    }

    fn check(&self) {
        assert!(self.0.len() <= NUMBERS_MAX);
    }
}

fn insert(tree: &mut Tree<Numbers>, index: usize, number: u32) {
    tree.edit(ByIndex(index), |leaf, summary, ByIndex(index)| {
        leaf.0.insert(index, number);
        summary.0 += 1;
    });
}

fn remove(tree: &mut Tree<Numbers>, index: usize) -> u32 {
    tree.edit(ByIndex(index), |leaf, summary, ByIndex(index)| {
        summary.0 -= 1;
        leaf.0.remove(index)
    })
}

fn contents(tree: &Tree<Numbers>) -> Vec<u32> {
    tree.leaves().flat_map(|leaf| leaf.0.iter().copied()).collect()
}

#[test]
fn elements_are_found_by_their_index() {
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut tree, mut model) = (Tree::default(), Vec::new());
    let mut clones = Vec::new();
    for step in 0..40_000 {
        let grows = step % 20_000 < 12_000;
        if rng.usize(..10) < if grows { 7 } else { 2 } || model.is_empty() {
            let index = rng.usize(..=model.len());
            insert(&mut tree, index, step);
            model.insert(index, step);
        } else {
            let index = rng.usize(..model.len());
            assert_eq!(remove(&mut tree, index), model.remove(index));
        }
        assert_eq!(tree.len(), model.len());
        if step % 1_000 == 0 {
            tree.check();
            assert_eq!(contents(&tree), model);
            for (index, number) in model.iter().enumerate() {
                let Found { leaf, seek: ByIndex(at), .. } = tree.find(ByIndex(index));
                assert_eq!(leaf.0[at], *number);
            }
            clones.push((tree.clone(), model.clone()));
        }
    }
    for (clone, model) in clones {
        clone.check();
        assert_eq!(contents(&clone), model, "a clone has changed");
    }
}

/// If elements are added at one end only, as in a queue, the leaves must not stay half empty.
#[test]
fn what_grows_at_an_end_stays_full() {
    let count = 100_000;
    for at_front in [false, true] {
        let mut tree = Tree::default();
        for number in 0..count {
            let end = tree.len();
            insert(&mut tree, if at_front { 0 } else { end }, number);
        }
        tree.check();
        let leaves = tree.leaves().count();
        let least = (count as usize).div_ceil(NUMBERS_MAX);
        assert!(leaves <= least + 2, "{leaves} leaves, at front: {at_front}");
        let numbers = contents(&tree);
        let is_sorted = numbers.is_sorted_by(|a, b| if at_front { a > b } else { a < b });
        assert!(is_sorted && numbers.len() == count as usize);
    }
}
