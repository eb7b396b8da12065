//! What a tree promises, looked at node by node.

use super::{CHILDREN_MAX, HashTree, Node, Position, memory};

/// What is below a node.
#[derive(Default)]
struct Below {
    len: usize,
    memory: usize,
    /// The level of all leaves.
    leaf_depth: Option<usize>,
}

impl HashTree {
    /// Walks over all nodes. Panics with a sentence where something is not as it is promised.
    pub(crate) fn check(&self) {
        let below = check_node(&self.root, Position::START.0, Position::END.0, 0);
        assert_eq!(below.len, self.len, "a tree counts its fields");
        assert_eq!(below.memory, self.memory, "a tree's account of memory is that of its nodes");
    }
}

/// Checks a node whose hashes lie in a range.
fn check_node(node: &Node, from: u64, to: u64, depth: usize) -> Below {
    let own = memory(node) as usize;
    match node {
        Node::Leaf(leaf) => {
            let hashes = leaf.check();
            assert!(
                hashes.iter().all(|&hash| (from..to).contains(&u64::from(hash))),
                "the hashes of a leaf are those that its branch leads to"
            );
            assert!(depth == 0 || !hashes.is_empty(), "no leaf below a branch is empty");
            Below { len: hashes.len(), memory: own, leaf_depth: Some(depth) }
        }
        Node::Branch(children) => {
            assert!((1..=CHILDREN_MAX).contains(&children.len()), "a branch has some children");
            assert!(depth > 0 || children.len() > 1, "a root of one child is none");
            let mut all = Below { memory: own, ..Below::default() };
            for (index, child) in children.iter().enumerate() {
                let first = if index == 0 { from } else { u64::from(child.first) };
                let next = children.get(index + 1).map_or(to, |next| u64::from(next.first));
                assert!(first < next, "the children of a branch are in the order of their hashes");
                let below = check_node(&child.node, first, next, depth + 1);
                assert_eq!(below.len, child.len, "a branch counts the fields below each child");
                assert!(
                    all.leaf_depth.is_none() || all.leaf_depth == below.leaf_depth,
                    "all leaves are of the same level"
                );
                all.leaf_depth = below.leaf_depth;
                all.len += below.len;
                all.memory += below.memory;
            }
            all
        }
    }
}
