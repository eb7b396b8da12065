//! Changes of one leaf, and of the branches above it.

use std::sync::Arc;

use super::{Branch, CHILDREN_MAX, Child, Edge, Leaf, Node, Seek, Summary, Tree, memory_of, sum};

/// A branch with fewer children than this is merged with a neighbour, if both together have at most
/// [`CHILDREN_MERGED_MAX`] children. For leaves, the limits are a quarter and three quarters of
/// [`Leaf::WEIGHT_MAX`].
const CHILDREN_MIN: usize = CHILDREN_MAX / 4;
const CHILDREN_MERGED_MAX: usize = CHILDREN_MAX / 4 * 3;

impl<L: Leaf> Tree<L> {
    /// Changes the leaf that `seek` leads to. `change` gets the leaf, the leaf's summary, and the
    /// rest of `seek`, which leads to the element within the leaf. `change` must keep the summary
    /// up to date, and may add one element, remove some, or replace some.
    pub(crate) fn edit<S: Seek<L>, R>(
        &mut self,
        seek: S,
        change: impl FnOnce(&mut L, &mut L::Summary, S) -> R,
    ) -> R {
        let edge = Edge { is_first: L::GROWS_AT_ENDS, is_last: L::GROWS_AT_ENDS };
        let (result, second) = self.root.edit(seek, edge, &mut self.memory, change);
        if let Some(second) = second {
            self.root = Child::of_branch(vec![self.root.clone(), second]);
            self.memory += self.root.node.memory();
        }
        while let Node::Branch(Branch { children, .. }) = &*self.root.node
            && let [only] = &children[..]
        {
            self.memory -= self.root.node.memory();
            self.root = only.clone();
        }
        result
    }
}

impl<L: Leaf> Child<L> {
    /// Changes a leaf below this node. If the node was split, returns the new node that follows it.
    /// `memory` is a sum that includes the memory of this node and of all nodes below it. This
    /// function updates `memory`, and the sums in all branches below.
    fn edit<S: Seek<L>, R>(
        &mut self,
        mut seek: S,
        edge: Edge,
        memory: &mut usize,
        change: impl FnOnce(&mut L, &mut L::Summary, S) -> R,
    ) -> (R, Option<Child<L>>) {
        let before = self.node.memory_in_all();
        let node = Arc::make_mut(&mut self.node);
        let (result, second) = match node {
            Node::Leaf(leaf) => {
                let result = change(leaf, &mut self.summary, seek);
                let is_heavy = leaf.weight() > L::WEIGHT_MAX;
                let second = if is_heavy { leaf.split(edge) } else { None };
                if second.is_some() {
                    self.summary = leaf.summary();
                }
                (result, second.map(Child::of_leaf))
            }
            Node::Branch(Branch { children, below }) => {
                let index = seek.child(children);
                let edge = edge.below(index, children.len());
                let child = &mut children[index];
                let was = child.summary.clone();
                let (result, second) = child.edit(seek, edge, below, change);
                let mut now = child.summary.clone();
                let is_split = second.is_some();
                if let Some(second) = second {
                    now.append(&second.summary);
                    children.insert(index + 1, second);
                } else if now.len() < was.len() {
                    merge(children, index, below);
                }
                if !self.summary.replace(&was, &now) {
                    self.summary = sum(children);
                }
                let second = (is_split && children.len() > CHILDREN_MAX).then(|| {
                    let second = split_off(children, edge);
                    *below -= memory_of(&second);
                    self.summary = sum(children);
                    Child::of_branch(second)
                });
                (result, second)
            }
        };
        let after =
            self.node.memory_in_all() + second.as_ref().map_or(0, |it| it.node.memory_in_all());
        *memory = *memory - before + after;
        (result, second)
    }
}

impl Edge {
    /// The edge of the node's child `index`, that is, at which ends of the collection the child is.
    /// `self` is the node's edge, and `len` is the number of the node's children.
    fn below(self, index: usize, len: usize) -> Self {
        Self { is_first: self.is_first && index == 0, is_last: self.is_last && index + 1 == len }
    }
}

/// Splits a branch that has too many children, and returns the children of its second half. `edge`
/// is the edge of the child whose own split has made the branch too wide.
fn split_off<L: Leaf>(children: &mut Vec<Child<L>>, edge: Edge) -> Vec<Child<L>> {
    let at = match edge {
        Edge { is_last: true, .. } => children.len() - 1,
        Edge { is_first: true, .. } => 1,
        _ => children.len() / 2,
    };
    let second = children.split_off(at);
    children.shrink_to(at.max(CHILDREN_MERGED_MAX));
    second
}

/// Merges a child that has become small with a neighbour, or removes the child if it is empty.
/// Updates `memory`, which counts the children and everything below them.
fn merge<L: Leaf>(children: &mut Vec<Child<L>>, index: usize, memory: &mut usize) {
    if children.len() == 1 || !children[index].node.is_small() {
        return;
    }
    let first = index.min(children.len() - 2);
    let fits = children[first].node.fits(&children[first + 1].node);
    // An empty child is always removed, even if its neighbour alone is above the limit for merging.
    if !fits && children[index].summary.len() > 0 {
        return;
    }
    let second = children.remove(first + 1);
    let child = &mut children[first];
    *memory -= child.node.memory_in_all() + second.node.memory_in_all();
    if child.summary.len() == 0 {
        *child = second;
    } else if second.summary.len() > 0 {
        child.append(&second);
    }
    *memory += child.node.memory_in_all();
}

impl<L: Leaf> Child<L> {
    /// Adds everything that is in `behind`, the node that follows this one.
    pub(super) fn append(&mut self, behind: &Self) {
        match (Arc::make_mut(&mut self.node), &*behind.node) {
            (Node::Leaf(leaf), Node::Leaf(behind)) => leaf.append(behind),
            (Node::Branch(branch), Node::Branch(behind)) => {
                branch.children.extend_from_slice(&behind.children);
                branch.below += behind.below;
                assert!(
                    branch.children.len() <= CHILDREN_MAX,
                    "a merged branch has more than `CHILDREN_MAX` children"
                );
            }
            _ => unreachable!("neighbours are on the same level"),
        }
        self.summary.append(&behind.summary);
    }
}

impl<L: Leaf> Node<L> {
    pub(super) fn is_small(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.weight() < L::WEIGHT_MAX / 4,
            Node::Branch(branch) => branch.children.len() < CHILDREN_MIN,
        }
    }

    /// Whether the two nodes can be merged.
    pub(super) fn fits(&self, other: &Self) -> bool {
        match (self, other) {
            (Node::Leaf(a), Node::Leaf(b)) => a.weight() + b.weight() <= L::WEIGHT_MAX / 4 * 3,
            (Node::Branch(a), Node::Branch(b)) => {
                a.children.len() + b.children.len() <= CHILDREN_MERGED_MAX
            }
            _ => false,
        }
    }
}
