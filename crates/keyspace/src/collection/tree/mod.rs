//! A large collection: a tree of shared nodes over packed leaves.
//!
//! ```text
//! Tree ─► branch: up to 32 children ─► ... ─► leaf: elements, packed, about 1 to 4 KiB
//!             │ for each child: a summary of the elements below it, Arc of the node
//!             │ for all children together: the memory of the nodes below
//! ```
//!
//! A clone of the tree shares all nodes with its original. A write to either of the two then copies
//! the shared nodes on the way to the element: one leaf, and branches of up to 32 children each. A
//! node that is not shared is changed in place. A write splits or merges at most one node of each
//! level. So the cost of a write hardly depends on the count of elements.
//!
//! The tree knows neither what its elements are nor how they are ordered. A [`Leaf`] packs elements
//! and says what their summary is. A branch has the [`Summary`] of each child. A [`Seek`] looks at
//! these summaries to choose the child that leads to an element.

mod check;
mod cut;
mod edit;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crate::memory::allocated;

/// Limit of children of a branch.
const CHILDREN_MAX: usize = 32;

/// Size in bytes of the smallest tree that takes noticeable time to free.
const LARGE_SIZE_MIN: usize = 64 * 1024;

/// Elements packed in one stretch of memory.
pub(crate) trait Leaf: Clone + Default + fmt::Debug {
    /// What a branch knows about the elements below a child.
    type Summary: Summary;

    /// Limit of the weight of a leaf. A heavier leaf is split if possible, because a write to a
    /// shared leaf copies all of it.
    const WEIGHT_MAX: usize;

    /// Whether elements are mostly added at the ends.
    const GROWS_AT_ENDS: bool;

    /// The approximate cost of copying the leaf, in bytes.
    fn weight(&self) -> usize;

    /// Bytes of memory that the leaf takes in addition to the node itself.
    fn memory(&self) -> usize;

    /// The summary of the elements, found by a walk over them.
    fn summary(&self) -> Self::Summary;

    /// Splits the leaf in two and returns the second leaf; `None` if the elements must stay
    /// together. `edge` says whether the leaf is at an end of the collection. The next elements are
    /// likely to be added at that end. So of the two leaves, the one away from that end should stay
    /// full.
    fn split(&mut self, edge: Edge) -> Option<Self>;

    /// Adds the elements of `behind`, the leaf that follows this one.
    fn append(&mut self, behind: &Self);

    /// Panics with a message if an invariant of the leaf does not hold.
    fn check(&self);
}

/// What is known about some elements without looking at them.
pub(crate) trait Summary: Clone + Default + fmt::Debug + PartialEq {
    /// Count of elements.
    fn len(&self) -> usize;

    /// Adds the summary of the elements that follow.
    fn append(&mut self, behind: &Self);

    /// Updates the summary of a branch after the summary of one of its children has changed from
    /// `was` to `now`. Returns `false` if the branch's summary has to be computed from the
    /// summaries of all children instead.
    fn replace(&mut self, was: &Self, now: &Self) -> bool;

    /// Whether this summary is right, given `exact`, which was computed anew from the same
    /// elements. The two may differ if a part of the summary is only a bound.
    fn is_right(&self, exact: &Self) -> bool {
        self == exact
    }
}

/// A summary that is only the count of the elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count(pub(crate) usize);

impl Summary for Count {
    fn len(&self) -> usize {
        self.0
    }

    fn append(&mut self, behind: &Self) {
        self.0 += behind.0;
    }

    fn replace(&mut self, was: &Self, now: &Self) -> bool {
        self.0 = self.0 - was.0 + now.0;
        true
    }
}

/// Which end of the collection a node is at. If [`Leaf::GROWS_AT_ENDS`] is false, both fields are
/// false.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Edge {
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
}

/// Leads from the root to a leaf.
pub(crate) trait Seek<L: Leaf> {
    /// The index of the child that leads to the leaf. There is at least one child.
    fn child(&mut self, children: &[Child<L>]) -> usize;
}

/// The elements of a large collection. A clone takes constant time and shares everything.
#[derive(Clone, Debug)]
pub(crate) struct Tree<L: Leaf> {
    root: Child<L>,
    /// Bytes of memory of all nodes.
    memory: usize,
}

#[derive(Clone, Debug)]
enum Node<L: Leaf> {
    Leaf(L),
    Branch(Branch<L>),
}

/// A node with children, at least one. All of its leaves are on the same level.
#[derive(Clone, Debug)]
struct Branch<L: Leaf> {
    children: Vec<Child<L>>,
    /// Bytes of memory of all nodes below. There is one sum for all children, instead of one for
    /// each child, because every change below has to update it.
    below: usize,
}

/// A node below a branch.
#[derive(Clone, Debug)]
pub(crate) struct Child<L: Leaf> {
    node: Arc<Node<L>>,
    summary: L::Summary,
}

/// The result of a search for a leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Found<'a, L: Leaf, S> {
    pub(crate) leaf: &'a L,
    /// The summary of the node that follows the leaf; `None` if the leaf is the last.
    pub(crate) next: Option<&'a L::Summary>,
    /// The rest of the seek, which leads to the element within the leaf.
    pub(crate) seek: S,
}

/// A search that goes down one level at a time. Several searches can take these steps in turn:
/// while a node is fetched from memory for one search, the other searches go on.
#[derive(Debug)]
pub(crate) struct Descent<'a, L: Leaf> {
    node: &'a Node<L>,
    summary: &'a L::Summary,
    next: Option<&'a L::Summary>,
}

impl<L: Leaf> Child<L> {
    fn of_leaf(leaf: L) -> Self {
        Self { summary: leaf.summary(), node: Arc::new(Node::Leaf(leaf)) }
    }

    /// Makes a branch. The time of a call does not depend on how much is below the children.
    fn of_branch(children: Vec<Child<L>>) -> Self {
        let below = memory_of(&children);
        Self { summary: sum(&children), node: Arc::new(Node::Branch(Branch { children, below })) }
    }

    /// The summary of the elements below.
    pub(crate) fn summary(&self) -> &L::Summary {
        &self.summary
    }
}

impl<L: Leaf> Default for Tree<L> {
    fn default() -> Self {
        let root = Child::of_leaf(L::default());
        Self { memory: root.node.memory_in_all(), root }
    }
}

impl<L: Leaf> Tree<L> {
    /// Count of elements.
    pub(crate) fn len(&self) -> usize {
        self.root.summary.len()
    }

    /// The summary of all elements.
    pub(crate) fn summary(&self) -> &L::Summary {
        &self.root.summary
    }

    /// Bytes that the elements take in memory, kept up to date by every change. Memory that is
    /// shared with other trees is counted in full.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    /// Whether freeing the tree takes noticeable time.
    pub(crate) fn is_large(&self) -> bool {
        self.memory >= LARGE_SIZE_MIN
    }

    /// The leaf that `seek` leads to.
    pub(crate) fn find<S: Seek<L>>(&self, mut seek: S) -> Found<'_, L, S> {
        let mut descent = self.descent();
        while descent.step(&mut seek) {}
        let Node::Leaf(leaf) = descent.node else { unreachable!("a branch has a next level") };
        Found { leaf, next: descent.next, seek }
    }

    /// Begins a search at the root.
    pub(crate) fn descent(&self) -> Descent<'_, L> {
        Descent { node: &self.root.node, summary: &self.root.summary, next: None }
    }

    /// The leaf that has all elements; `None` if there are several leaves.
    pub(crate) fn only_leaf(&self) -> Option<&L> {
        match &*self.root.node {
            Node::Leaf(leaf) => Some(leaf),
            Node::Branch(_) => None,
        }
    }

    /// Every leaf, in order. Each step takes bounded time.
    pub(crate) fn leaves(&self) -> Leaves<'_, L> {
        Leaves { root: Some(&self.root.node), levels: Vec::new() }
    }
}

impl<'a, L: Leaf> Descent<'a, L> {
    /// Goes down one level. Returns false if the search has reached a leaf.
    pub(crate) fn step<S: Seek<L>>(&mut self, seek: &mut S) -> bool {
        let Node::Branch(Branch { children, .. }) = self.node else { return false };
        let index = seek.child(children);
        let child = &children[index];
        let next = children.get(index + 1).map(Child::summary).or(self.next);
        *self = Self { node: &child.node, summary: &child.summary, next };
        true
    }

    /// The leaf; `None` if the search has not reached it yet.
    pub(crate) fn leaf(&self) -> Option<&'a L> {
        match self.node {
            Node::Leaf(leaf) => Some(leaf),
            Node::Branch(_) => None,
        }
    }

    /// The summary of the elements below the node.
    pub(crate) fn summary(&self) -> &'a L::Summary {
        self.summary
    }

    /// The summary of the node that follows this node; `None` if this node is the last.
    pub(crate) fn next(&self) -> Option<&'a L::Summary> {
        self.next
    }
}

/// A walk over all leaves.
pub(crate) struct Leaves<'a, L: Leaf> {
    /// `None` once the walk has begun.
    root: Option<&'a Node<L>>,
    /// For each branch above the leaf that was returned last, the children that have not been
    /// visited yet.
    levels: Vec<std::slice::Iter<'a, Child<L>>>,
}

impl<'a, L: Leaf> Iterator for Leaves<'a, L> {
    type Item = &'a L;

    fn next(&mut self) -> Option<&'a L> {
        let mut node = self.root.take();
        loop {
            match node {
                Some(Node::Leaf(leaf)) => return Some(leaf),
                Some(Node::Branch(branch)) => self.levels.push(branch.children.iter()),
                None => {}
            }
            let child = self.levels.last_mut()?.next();
            node = child.map(|child| &*child.node);
            if child.is_none() {
                self.levels.pop();
            }
        }
    }
}

impl<L: Leaf> Node<L> {
    /// Bytes of memory of the node, without its children.
    fn memory(&self) -> usize {
        const COUNTERS_SIZE: usize = 2 * size_of::<usize>();
        let more = match self {
            Node::Leaf(leaf) => leaf.memory(),
            Node::Branch(Branch { children, .. }) => {
                allocated(children.capacity() * size_of::<Child<L>>())
            }
        };
        allocated(COUNTERS_SIZE + size_of::<Node<L>>()) + more
    }

    /// Bytes of memory of the node and of all nodes below it.
    fn memory_in_all(&self) -> usize {
        let below = match self {
            Node::Leaf(_) => 0,
            Node::Branch(branch) => branch.below,
        };
        self.memory() + below
    }
}

/// Bytes of memory of some children and of all nodes below them.
fn memory_of<L: Leaf>(children: &[Child<L>]) -> usize {
    children.iter().map(|child| child.node.memory_in_all()).sum()
}

/// The summary of everything below these children.
fn sum<L: Leaf>(children: &[Child<L>]) -> L::Summary {
    let mut sum = L::Summary::default();
    for child in children {
        sum.append(&child.summary);
    }
    sum
}

/// A seek that leads to the element at an index, counted from 0. Once the leaf is found, the number
/// that remains is the element's index within the leaf. An index beyond the last element leads to
/// the end of the last leaf.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ByIndex(pub(crate) usize);

impl<L: Leaf> Seek<L> for ByIndex {
    fn child(&mut self, children: &[Child<L>]) -> usize {
        for (index, child) in children.iter().enumerate().take(children.len() - 1) {
            let len = child.summary.len();
            if self.0 < len {
                return index;
            }
            self.0 -= len;
        }
        children.len() - 1
    }
}
