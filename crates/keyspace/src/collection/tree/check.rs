//! Checks the invariants of a tree, node by node.

use super::{Branch, CHILDREN_MAX, Child, Leaf, Node, Summary, Tree, sum};

impl<L: Leaf> Tree<L> {
    /// Walks over all nodes. Panics with a message if an invariant does not hold.
    pub(crate) fn check(&self) {
        let (_, memory) = check(&self.root, true);
        assert_eq!(memory, self.memory, "a tree's memory is the sum of its nodes' memory");
    }
}

/// Checks a node and all nodes below it. Returns how many levels the leaves are below this node,
/// and the memory of all nodes that were checked.
fn check<L: Leaf>(child: &Child<L>, is_root: bool) -> (usize, usize) {
    let own = child.node.memory();
    match &*child.node {
        Node::Leaf(leaf) => {
            leaf.check();
            assert!(
                child.summary.is_right(&leaf.summary()),
                "a branch knows the summary of each leaf"
            );
            assert!(is_root || leaf.summary().len() > 0, "no leaf below a branch is empty");
            (0, own)
        }
        Node::Branch(Branch { children, below }) => {
            assert!((1..=CHILDREN_MAX).contains(&children.len()), "the count of children is valid");
            assert!(!is_root || children.len() > 1, "a root branch has several children");
            let nodes: Vec<_> = children.iter().map(|child| check(child, false)).collect();
            let level = nodes[0].0;
            assert!(nodes.iter().all(|it| it.0 == level), "all leaves are on the same level");
            let memory: usize = nodes.iter().map(|it| it.1).sum();
            assert_eq!(memory, *below, "a branch knows the memory of all nodes below it");
            assert!(
                child.summary.is_right(&sum(children)),
                "the summary of a branch agrees with those of its children"
            );
            (level + 1, own + memory)
        }
    }
}
