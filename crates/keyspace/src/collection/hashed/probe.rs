//! Looks keys up in the order of their hashes.

use slimio_resp::Arg;

use super::leaf::Reading;
use super::{ByHash, HashedLeaf, HashedTree};
use crate::collection::tree::Found;

/// Looks up keys in a tree. If the keys come in the order of their hashes, all lookups together
/// take one walk over the leaves that may have the keys. A walk over another tree gives keys in
/// this order.
#[derive(Debug)]
pub(crate) struct Probe<'a, const STRINGS: usize> {
    tree: &'a HashedTree<STRINGS>,
    leaf: &'a HashedLeaf<STRINGS>,
    /// The lowest hash of the next leaf. If there is no next leaf, a value beyond all hashes.
    end: u64,
    reading: Reading,
}

impl<'a, const STRINGS: usize> Probe<'a, STRINGS> {
    pub(crate) fn new(tree: &'a HashedTree<STRINGS>) -> Self {
        let mut probe =
            Self { tree, leaf: tree.find(ByHash(0)).leaf, end: 0, reading: Reading::default() };
        probe.seek(0);
        probe
    }

    /// Whether there is an element with this key.
    pub(crate) fn contains(&mut self, hash: u32, key: Arg<'_>) -> bool {
        if u64::from(hash) >= self.end || hash < self.reading.hash {
            self.seek(hash);
        }
        self.leaf.contains_from(&mut self.reading, hash, key)
    }

    /// Finds the leaf where a hash is, or would be.
    fn seek(&mut self, hash: u32) {
        let Found { leaf, next, .. } = self.tree.find(ByHash(hash));
        self.end = next.map_or(u64::MAX, |next| u64::from(next.first));
        (self.leaf, self.reading) = (leaf, Reading::default());
    }
}
