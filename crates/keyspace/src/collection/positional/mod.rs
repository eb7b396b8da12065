//! Large lists. Elements are in the order of their positions, and each element is one string.

mod code;
mod leaf;
mod stretch;
#[cfg(test)]
mod tests;

pub(crate) use code::INSIDE_SIZE_MAX;
pub(crate) use leaf::PositionalLeaf;

use slimio_resp::Arg;

use super::element::{Element, LargeString};
use super::tree::{ByIndex, Child, Found, Leaf, Seek, Tree};
use code::Stored;

/// A tree of elements in the order of their positions.
pub(crate) type PositionalTree = Tree<PositionalLeaf>;

/// An end of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum End {
    First,
    Last,
}

/// A seek that leads to the leaf at an end of the list.
#[derive(Clone, Copy, Debug)]
struct AtEnd(End);

impl<L: Leaf> Seek<L> for AtEnd {
    fn child(&mut self, children: &[Child<L>]) -> usize {
        match self.0 {
            End::First => 0,
            End::Last => children.len() - 1,
        }
    }
}

/// The index of the element at an end of `len` elements. `len` must not be zero.
fn index_at(end: End, len: usize) -> usize {
    match end {
        End::First => 0,
        End::Last => len - 1,
    }
}

impl PositionalTree {
    /// Every element, in order. Each step takes bounded time.
    pub(crate) fn elements(&self) -> impl Iterator<Item = [Element<'_>; 1]> {
        self.leaves().flat_map(|leaf| leaf.elements(0..leaf.len())).map(|element| [element])
    }

    /// The element at `index`, and all elements after it in its leaf.
    pub(crate) fn elements_of_leaf(&self, index: usize) -> impl Iterator<Item = [Element<'_>; 1]> {
        let (first, leaf) = self.leaf_at(index);
        leaf.elements((index - first).min(leaf.len())..leaf.len()).map(|element| [element])
    }

    /// The leaf that has the element at an index, and the index of its first element.
    pub(crate) fn leaf_at(&self, index: usize) -> (usize, &PositionalLeaf) {
        let Found { leaf, seek: ByIndex(within), .. } = self.find(ByIndex(index));
        (index - within, leaf)
    }

    /// The element at an index; `None` if there is no such element.
    pub(crate) fn get(&self, index: usize) -> Option<Element<'_>> {
        let (first, leaf) = self.leaf_at(index);
        leaf.get(index - first)
    }

    /// The element at an end; `None` if there is none.
    pub(crate) fn end(&self, end: End) -> Option<Element<'_>> {
        let leaf = self.find(AtEnd(end)).leaf;
        leaf.get(index_at(end, leaf.len().max(1)))
    }

    /// Adds an element at an end.
    pub(crate) fn push(&mut self, end: End, arg: Arg<'_>) {
        self.edit(AtEnd(end), |leaf, summary, _| {
            leaf.insert(if end == End::First { 0 } else { leaf.len() }, arg);
            summary.0 += 1;
        });
    }

    /// Removes the element at an end. There must be such an element. Like all functions that take
    /// `old`, adds the removed string to `old` if freeing it takes noticeable time.
    pub(crate) fn pop(&mut self, end: End, old: &mut Vec<LargeString>) {
        self.edit(AtEnd(end), |leaf, summary, _| {
            let index = index_at(end, leaf.len());
            leaf.remove(index..index + 1, old);
            summary.0 -= 1;
        });
    }

    /// Inserts an element at an index, before the element that is there. If the index is the count
    /// of elements, adds the element at the end.
    pub(crate) fn insert(&mut self, index: usize, arg: Arg<'_>) {
        self.edit(ByIndex(index), |leaf, summary, ByIndex(within)| {
            leaf.insert(within, arg);
            summary.0 += 1;
        });
    }

    /// Replaces the element at an index. There must be such an element.
    pub(crate) fn set(&mut self, index: usize, arg: Arg<'_>, old: &mut Vec<LargeString>) {
        self.edit(ByIndex(index), |leaf, _, ByIndex(within)| leaf.set(within, arg, old));
    }

    /// Removes the elements at these indices. The indices must ascend, and all elements must be in
    /// one leaf.
    pub(crate) fn remove(&mut self, indices: &[usize], old: &mut Vec<LargeString>) {
        let Some(&first) = indices.first() else { return };
        self.edit(ByIndex(first), |leaf, summary, ByIndex(within)| {
            for index in indices.iter().rev() {
                let index = index - first + within;
                leaf.remove(index..index + 1, old);
            }
            summary.0 -= indices.len();
        });
    }

    /// Removes the elements from an index on, and returns them. Takes logarithmic time.
    pub(crate) fn cut(&mut self, index: usize) -> Self {
        self.split_off(ByIndex(index), |leaf, ByIndex(within)| {
            leaf.split_off(within.min(leaf.len()))
        })
    }

    /// About how many bytes all elements would take in a listpack; `None` if there are several
    /// leaves.
    pub(crate) fn size_of_one_leaf(&self) -> Option<usize> {
        self.only_leaf().map(PositionalLeaf::listpack_size)
    }
}

/// A string to look for.
#[derive(Debug)]
pub(crate) struct Wanted<'a>(Stored<'a>);

impl<'a> Wanted<'a> {
    pub(crate) fn new(arg: Arg<'a>) -> Self {
        Self(Stored::new(arg))
    }

    /// Adds to `found` the indices of the leaf's elements that are equal to this string, in
    /// ascending order. Indices count within the leaf.
    pub(crate) fn find_in(&self, leaf: &PositionalLeaf, found: &mut Vec<usize>) {
        leaf.find_all(&self.0, found);
    }
}
