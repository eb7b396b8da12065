//! Cuts a tree in two, and joins two trees. The place where two trees are joined is the seam.
//!
//! ```text
//!        [ a b C d e ]                  The cut is within C. The first tree is the branch
//!              │                        [ a b ], joined with the first part of C. The second
//!          [ f | g ]                    tree is the second part of C, joined with [ d e ].
//! ```
//!
//! Nodes away from the cut or the seam do not change, and stay shared. The nodes along the cut or
//! the seam are changed. If such a node is shared, a copy of it is changed instead, as for any
//! other write.

use std::sync::Arc;

use slimio_planted::is_planted;

use super::{Branch, CHILDREN_MAX, Child, Edge, Leaf, Node, Seek, Summary, Tree};

impl<L: Leaf> Tree<L> {
    /// Removes and returns the element that `seek` leads to, together with all elements after that
    /// element. `cut` must do the same within one leaf: it gets the leaf, and the rest of the seek,
    /// which leads to the element within the leaf. The time of a call grows only with the height of
    /// the tree.
    pub(crate) fn split_off<S: Seek<L>>(
        &mut self,
        seek: S,
        cut: impl FnOnce(&mut L, S) -> L,
    ) -> Self {
        let counted = self.memory;
        let [first, second] = Part::of_tree(std::mem::take(self)).cut(seek, cut);
        *self = Self::of_part(first);
        if is_planted("cut-memory-stays") {
            self.memory = counted;
        }
        Self::of_part(second)
    }

    /// Adds the elements of `behind`. In the trees' order, they must follow the elements of this
    /// tree. The time of a call grows only with the heights of the trees.
    #[cfg_attr(not(test), expect(dead_code, reason = "no command joins collections yet"))]
    pub(crate) fn append(&mut self, behind: Self) {
        let parts = [std::mem::take(self), behind].map(Part::of_tree).map(Part::unless_empty);
        *self = Self::of_part(Part::join(parts));
    }

    fn of_part(part: Option<Part<L>>) -> Self {
        let Some(Part { root, .. }) = part else { return Self::default() };
        Self { memory: root.node.memory_in_all(), root }
    }
}

/// A tree whose leaves are `level` levels below its root.
struct Part<L: Leaf> {
    root: Child<L>,
    level: usize,
}

impl<L: Leaf> Part<L> {
    fn of_tree(tree: Tree<L>) -> Self {
        let (mut node, mut level) = (&tree.root.node, 0);
        while let Node::Branch(branch) = &**node {
            (node, level) = (&branch.children[0].node, level + 1);
        }
        Self { level, root: tree.root }
    }

    /// Makes a part out of children that were below a branch of this level; `None` if there are no
    /// children.
    fn of_children(mut children: Vec<Child<L>>, level: usize) -> Option<Self> {
        match children.len() {
            0 => None,
            1 => children.pop().map(|root| Self { root, level: level - 1 }),
            _ => Some(Self { root: branch(children), level }),
        }
    }

    fn unless_empty(self) -> Option<Self> {
        (self.root.summary.len() > 0).then_some(self)
    }

    /// Cuts this part in two. The second one begins with the element that `seek` leads to.
    fn cut<S: Seek<L>>(self, mut seek: S, cut: impl FnOnce(&mut L, S) -> L) -> [Option<Self>; 2] {
        let Self { root, level } = self;
        match Arc::unwrap_or_clone(root.node) {
            Node::Leaf(mut leaf) => {
                let second = cut(&mut leaf, seek);
                let leaves = [leaf, second].map(Child::of_leaf);
                leaves.map(|root| Self { root, level }.unless_empty())
            }
            Node::Branch(Branch { mut children, .. }) => {
                let index = seek.child(&children);
                let behind = children.split_off(index + 1);
                let root = children.pop().expect("there is a child at the index");
                let [first, second] = Self { root, level: level - 1 }.cut(seek, cut);
                [
                    Self::join([Self::of_children(children, level), first]),
                    Self::join([second, Self::of_children(behind, level)]),
                ]
            }
        }
    }

    /// Joins two parts into one.
    fn join(parts: [Option<Self>; 2]) -> Option<Self> {
        match parts {
            [Some(first), Some(second)] => {
                let level = first.level.max(second.level);
                Some(match Self::join_both(first, second) {
                    (root, None) => Self { root, level },
                    (first, Some(second)) => {
                        Self { root: branch(vec![first, second]), level: level + 1 }
                    }
                })
            }
            [part, None] | [None, part] => part,
        }
    }

    /// Joins two parts into one node, or into two nodes that can be neighbours. The result is at
    /// the level of the higher part.
    fn join_both(first: Self, second: Self) -> (Child<L>, Option<Child<L>>) {
        let level = first.level.max(second.level);
        if level == 0 {
            return join_leaves(first.root, second.root);
        }
        // The children before and behind the seam, and the two parts that meet there.
        let (mut children, first) = if first.level < level {
            (Vec::new(), first)
        } else {
            let mut children = into_children(first.root);
            let root = children.pop().expect("a branch has a child");
            (children, Self { root, level: level - 1 })
        };
        let (second, behind) = if second.level < level {
            (second, Vec::new())
        } else {
            let mut children = into_children(second.root);
            let behind = children.split_off(1);
            let root = children.pop().expect("a branch has a child");
            (Self { root, level: level - 1 }, behind)
        };
        let (joined, more) = Self::join_both(first, second);
        children.push(joined);
        children.extend(more);
        children.extend(behind);
        if children.len() <= CHILDREN_MAX {
            return (branch(children), None);
        }
        let second = children.split_off(children.len() / 2);
        (branch(children), Some(branch(second)))
    }
}

/// A branch whose list of children has no unused places.
fn branch<L: Leaf>(mut children: Vec<Child<L>>) -> Child<L> {
    children.shrink_to_fit();
    Child::of_branch(children)
}

fn into_children<L: Leaf>(child: Child<L>) -> Vec<Child<L>> {
    match Arc::unwrap_or_clone(child.node) {
        Node::Branch(branch) => branch.children,
        Node::Leaf(_) => unreachable!("the node is above the leaves"),
    }
}

/// Joins two leaves into one leaf, or into two leaves that are not small.
fn join_leaves<L: Leaf>(mut first: Child<L>, second: Child<L>) -> (Child<L>, Option<Child<L>>) {
    if !first.node.fits(&second.node) && !first.node.is_small() && !second.node.is_small() {
        return (first, Some(second));
    }
    first.append(&second);
    let Node::Leaf(leaf) = Arc::make_mut(&mut first.node) else {
        unreachable!("both joined nodes are leaves");
    };
    let is_heavy = leaf.weight() > L::WEIGHT_MAX;
    let edge = Edge { is_first: false, is_last: false };
    let second = if is_heavy { leaf.split(edge) } else { None };
    if second.is_some() {
        first.summary = leaf.summary();
    }
    (first, second.map(Child::of_leaf))
}
