//! A large hash: a tree of shared nodes, ordered by the hashes of the fields.
//!
//! ```text
//! HashTree ─► branch: up to 32 children ─► ... ─► leaf: entries, packed, about 1 to 2 KiB
//!                 │ lowest hash, count of fields, Arc of the node
//! ```
//!
//! The tree is persistent: a clone shares all nodes. A write to one of the two then copies the
//! nodes on the way to the field, about 32 pointers each and one leaf of at most
//! [`LEAF_WEIGHT_MAX`] bytes; a node that is not shared is changed in place. A write splits or
//! merges at most one node of each level. So no step depends on how many fields there are.
//!
//! Every hash below a child is at least the child's lowest, and less than the next child's. Only
//! the first child of a branch may hold hashes below its own lowest. Equal hashes are never split:
//! a leaf of nothing else grows past its limit.

mod check;

use std::sync::Arc;

use slimio_resp::Arg;

use super::element::{Element, LargeString};
use super::leaf::{Entry, LEAF_WEIGHT_MAX, Leaf};
use crate::memory::allocated;

/// Most children of a branch.
const CHILDREN_MAX: usize = 32;

/// A node that weighs less than this is merged with a neighbour, if both together do not exceed the
/// other limit: in bytes of a leaf, and in children of a branch.
const LEAF_WEIGHT_MIN: usize = LEAF_WEIGHT_MAX / 4;
const LEAF_MERGED_MAX: usize = LEAF_WEIGHT_MAX / 4 * 3;
const CHILDREN_MIN: usize = CHILDREN_MAX / 4;
const CHILDREN_MERGED_MAX: usize = CHILDREN_MAX / 4 * 3;

/// Bytes from which freeing a tree takes noticeable time.
const LARGE_SIZE_MIN: usize = 64 * 1024;

/// A position in the order of hashes; `END` is behind all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) u64);

impl Position {
    pub(crate) const START: Position = Position(0);
    pub(crate) const END: Position = Position(1 << 32);
}

/// The fields of a large hash. A clone takes constant time and shares everything.
#[derive(Clone, Debug)]
pub struct HashTree {
    root: Arc<Node>,
    len: usize,
    memory: usize,
}

#[derive(Clone, Debug)]
enum Node {
    Leaf(Leaf),
    Branch(Vec<Child>),
}

#[derive(Clone, Debug)]
struct Child {
    node: Arc<Node>,
    /// Count of fields below.
    len: usize,
    /// Lowest hash below.
    first: u32,
}

/// What a change did to the nodes.
#[derive(Default)]
struct Change {
    /// Change of memory in bytes.
    memory: isize,
    /// Whether a field was added.
    counts: bool,
    /// Old strings that take noticeable time to free.
    old: Vec<LargeString>,
}

impl Default for HashTree {
    fn default() -> Self {
        let root = Node::Leaf(Leaf::default());
        let memory = memory(&root) as usize;
        Self { root: Arc::new(root), len: 0, memory }
    }
}

impl HashTree {
    /// Count of fields.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there is no field. A hash without fields is in no keyspace.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes that the fields and values take in memory, kept up to date by every change. What is
    /// shared with others is counted as if it were not.
    pub fn memory(&self) -> usize {
        self.memory
    }

    /// Whether freeing it takes noticeable time.
    pub(crate) fn is_large(&self) -> bool {
        self.memory >= LARGE_SIZE_MIN
    }

    /// Every field with its value. Each step is bounded; the first takes no longer than others.
    pub fn iter(&self) -> impl Iterator<Item = (Element<'_>, Element<'_>)> {
        let mut position = Position::START;
        std::iter::from_fn(move || {
            (position != Position::END).then(|| {
                let (next, entries) = self.walk(position);
                position = next;
                entries.map(|entry| (entry.field, entry.value))
            })
        })
        .flatten()
    }

    /// The leaf at a position: its entries from there on, and where the next leaf begins.
    pub(crate) fn walk(&self, from: Position) -> (Position, impl Iterator<Item = Entry<'_>>) {
        let hash = from.0 as u32;
        let (mut node, mut next) = (&self.root, Position::END);
        loop {
            match &**node {
                Node::Leaf(leaf) => return (next, leaf.entries(hash)),
                Node::Branch(children) => {
                    let index = index_of(children, hash);
                    if let Some(behind) = children.get(index + 1) {
                        next = Position(u64::from(behind.first));
                    }
                    node = &children[index].node;
                }
            }
        }
    }

    pub(crate) fn get(&self, hash: u32, field: Arg<'_>) -> Option<Element<'_>> {
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => {
                    let place = leaf.find(hash, field);
                    return place.is_taken().then(|| leaf.value(place));
                }
                Node::Branch(children) => node = &children[index_of(children, hash)].node,
            }
        }
    }

    /// The field at `index`, in the order of hashes.
    ///
    /// Panics if there are not that many fields.
    pub(crate) fn nth(&self, mut index: usize) -> (Element<'_>, Element<'_>) {
        assert!(index < self.len, "no such field");
        let mut node = &self.root;
        loop {
            match &**node {
                Node::Leaf(leaf) => {
                    let entry = leaf.entries(0).nth(index).expect("the counts are right");
                    return (entry.field, entry.value);
                }
                Node::Branch(children) => {
                    let mut children = children.iter();
                    let child = children.find(|child| {
                        let is_before = index >= child.len;
                        index -= if is_before { child.len } else { 0 };
                        !is_before
                    });
                    node = &child.expect("the counts are right").node;
                }
            }
        }
    }

    /// Gives a field a value; says whether the field is new. Old strings that take noticeable time
    /// to free are added to `old`.
    pub(crate) fn set(
        &mut self,
        hash: u32,
        field: Arg<'_>,
        value: Arg<'_>,
        old: &mut Vec<LargeString>,
    ) -> bool {
        let mut change = Change::default();
        if let Some(second) = set(&mut self.root, hash, field, value, &mut change) {
            let len = self.len + usize::from(change.counts) - second.len;
            let first = Child { node: Arc::clone(&self.root), len, first: 0 };
            let root = Node::Branch(vec![first, second]);
            change.memory += memory(&root);
            self.root = Arc::new(root);
        }
        self.len += usize::from(change.counts);
        self.account(change.memory);
        old.append(&mut change.old);
        change.counts
    }

    /// Deletes a field; says whether it was there.
    pub(crate) fn remove(&mut self, hash: u32, field: Arg<'_>, old: &mut Vec<LargeString>) -> bool {
        // Looked up first, or else a shared path would be copied for nothing.
        if self.get(hash, field).is_none() {
            return false;
        }
        let mut change = Change::default();
        remove(&mut self.root, hash, field, &mut change);
        while let Node::Branch(children) = &*self.root
            && let [only] = &children[..]
        {
            change.memory -= memory(&self.root);
            self.root = Arc::clone(&only.node);
        }
        assert!(self.len > 0, "a tree that has a field counts one");
        self.len -= 1;
        self.account(change.memory);
        old.append(&mut change.old);
        true
    }

    fn account(&mut self, change: isize) {
        let memory = self.memory.checked_add_signed(change);
        self.memory = memory.expect("no change frees more than a tree takes");
    }
}

/// The index of the child that holds a hash, if any does.
fn index_of(children: &[Child], hash: u32) -> usize {
    children.partition_point(|child| child.first <= hash).saturating_sub(1)
}

/// Bytes of memory of a node, without its children.
fn memory(node: &Node) -> isize {
    const HEAD_SIZE: usize = size_of::<Node>() + 2 * size_of::<usize>();
    let more = match node {
        Node::Leaf(leaf) => leaf.memory(),
        Node::Branch(children) => allocated(children.capacity() * size_of::<Child>()),
    };
    (allocated(HEAD_SIZE) + more) as isize
}

/// Sets a field below a node. If the node was split, returns the new node that follows it.
fn set(
    node: &mut Arc<Node>,
    hash: u32,
    field: Arg<'_>,
    value: Arg<'_>,
    change: &mut Change,
) -> Option<Child> {
    change.memory -= memory(node);
    let node = Arc::make_mut(node);
    let split = match node {
        Node::Leaf(leaf) => {
            let place = leaf.find(hash, field);
            change.counts = !place.is_taken();
            change.old.extend(leaf.put(place, hash, field, value));
            if leaf.weight() > LEAF_WEIGHT_MAX { leaf.split() } else { None }.map(
                |(first, leaf)| {
                    let len = leaf.entries(0).count();
                    Child { node: Arc::new(Node::Leaf(leaf)), len, first }
                },
            )
        }
        Node::Branch(children) => {
            let index = index_of(children, hash);
            let child = &mut children[index];
            child.first = child.first.min(hash);
            let split = set(&mut child.node, hash, field, value, change);
            child.len += usize::from(change.counts);
            if let Some(second) = split {
                child.len -= second.len;
                children.insert(index + 1, second);
            }
            (children.len() > CHILDREN_MAX).then(|| {
                let second = children.split_off(children.len() / 2);
                children.shrink_to(CHILDREN_MERGED_MAX);
                let len = second.iter().map(|child| child.len).sum();
                let first = second[0].first;
                Child { node: Arc::new(Node::Branch(second)), len, first }
            })
        }
    };
    change.memory += memory(node) + split.as_ref().map_or(0, |split| memory(&split.node));
    split
}

/// Deletes a field that is below a node.
fn remove(node: &mut Arc<Node>, hash: u32, field: Arg<'_>, change: &mut Change) {
    change.memory -= memory(node);
    let node = Arc::make_mut(node);
    match node {
        Node::Leaf(leaf) => {
            let place = leaf.find(hash, field);
            change.old.extend(leaf.remove(place).into_iter().flatten());
        }
        Node::Branch(children) => {
            let index = index_of(children, hash);
            let child = &mut children[index];
            remove(&mut child.node, hash, field, change);
            assert!(child.len > 0, "a branch counts the field that is below it");
            child.len -= 1;
            merge(children, index, change);
        }
    }
    change.memory += memory(node);
}

/// Merges a child that has become small with a neighbour, or removes it if it is empty.
fn merge(children: &mut Vec<Child>, index: usize, change: &mut Change) {
    if children.len() == 1 || !children[index].node.is_small() {
        return;
    }
    let first = index.min(children.len() - 2);
    let fits = children[first].node.fits(&children[first + 1].node);
    // An empty child always fits: its neighbour may weigh more than the limit for merging.
    if !fits && children[index].len > 0 {
        return;
    }
    let second = children.remove(first + 1);
    let child = &mut children[first];
    change.memory -= memory(&child.node) + memory(&second.node);
    if child.len == 0 {
        child.node = second.node;
    } else if second.len > 0 {
        match (Arc::make_mut(&mut child.node), &*second.node) {
            (Node::Leaf(leaf), Node::Leaf(behind)) => leaf.append(behind),
            (Node::Branch(children), Node::Branch(behind)) => children.extend_from_slice(behind),
            _ => unreachable!("all leaves are of the same level"),
        }
    }
    child.len += second.len;
    change.memory += memory(&child.node);
    if let Node::Branch(children) = &*child.node {
        assert!(children.len() <= CHILDREN_MAX, "what is merged is no larger than a node may be");
    }
}

impl Node {
    fn is_small(&self) -> bool {
        match self {
            Node::Leaf(leaf) => leaf.weight() < LEAF_WEIGHT_MIN,
            Node::Branch(children) => children.len() < CHILDREN_MIN,
        }
    }

    /// Whether the two can be merged.
    fn fits(&self, other: &Node) -> bool {
        match (self, other) {
            (Node::Leaf(a), Node::Leaf(b)) => a.weight() + b.weight() <= LEAF_MERGED_MAX,
            (Node::Branch(a), Node::Branch(b)) => a.len() + b.len() <= CHILDREN_MERGED_MAX,
            _ => false,
        }
    }
}
