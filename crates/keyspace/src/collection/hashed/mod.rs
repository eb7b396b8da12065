//! Large sets, and large hashes (the type of Redis). Their elements are ordered by the hash values
//! of the elements' keys.
//!
//! All elements of a collection have the same number of strings. The first string of an element is
//! its key. In a set, an element is one string, the member. In a hash, an element is a field and
//! its value. In a branch, all hash values of one child's elements are less than all hash values of
//! the next child's elements. Elements with equal hash values always stay in one leaf. So if all
//! elements of a leaf have the same hash value, the leaf grows past its limit.

mod leaf;
mod probe;
#[cfg(test)]
mod tests;

pub(crate) use leaf::HashedLeaf;
pub(crate) use probe::Probe;

use slimio_resp::Arg;

use super::element::{Element, LargeString};
use super::tree::{ByIndex, Child, Descent, Found, Leaf, Seek, Summary, Tree};

/// A tree whose elements have `STRINGS` strings each.
pub(crate) type HashedTree<const STRINGS: usize> = Tree<HashedLeaf<STRINGS>>;

/// A position in the order of hashes; `END` is after all hashes. Cursors of scans are positions,
/// because a position stays valid whatever changes in the tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Position(pub(crate) u64);

impl Position {
    pub(crate) const START: Position = Position(0);
    pub(crate) const END: Position = Position(1 << 32);
}

/// A prefetch covers this many bytes beyond the expected place of an element.
const SEARCHED_MORE: usize = 192;

/// The summary of some elements.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Hashed {
    len: usize,
    /// The lowest hash; 0 if there are no elements.
    first: u32,
    /// No key is longer than this many bytes. Removing an element leaves this bound as it is.
    key_size_max: u32,
}

impl Summary for Hashed {
    fn len(&self) -> usize {
        self.len
    }

    fn append(&mut self, behind: &Self) {
        if self.len == 0 {
            self.first = behind.first;
        }
        self.len += behind.len;
        self.key_size_max = self.key_size_max.max(behind.key_size_max);
    }

    fn replace(&mut self, was: &Self, now: &Self) -> bool {
        self.len = self.len - was.len + now.len;
        if self.first == was.first {
            self.first = now.first;
        }
        self.key_size_max = self.key_size_max.max(now.key_size_max);
        // If the changed child is empty now, the lowest hash is that of another child. Then the
        // summary has to be computed from the summaries of all children.
        now.len > 0
    }

    fn is_right(&self, exact: &Self) -> bool {
        let bound = self.key_size_max.max(exact.key_size_max);
        *self == Self { key_size_max: bound, ..exact.clone() }
    }
}

/// The size of a key, as a summary stores it. A size that does not fit is stored as `u32::MAX`.
fn key_size(size: usize) -> u32 {
    u32::try_from(size).unwrap_or(u32::MAX)
}

/// A seek that leads to the leaf where a hash is, or would be.
#[derive(Clone, Copy, Debug)]
struct ByHash(u32);

impl<L: Leaf<Summary = Hashed>> Seek<L> for ByHash {
    fn child(&mut self, children: &[Child<L>]) -> usize {
        let behind = children.partition_point(|child| child.summary().first <= self.0);
        behind.saturating_sub(1)
    }
}

/// A search that goes down one level at a time.
#[derive(Debug)]
pub(crate) struct Search<'a, const STRINGS: usize> {
    descent: Descent<'a, HashedLeaf<STRINGS>>,
    hash: ByHash,
}

impl<'a, const STRINGS: usize> Search<'a, STRINGS> {
    /// Goes down one level. Returns false if the search has reached a leaf.
    pub(crate) fn step(&mut self) -> bool {
        self.descent.step(&mut self.hash)
    }

    /// The bytes of the leaf that a lookup probably reads: the bytes up to the element with the
    /// hash. `None` if the search has not reached a leaf yet.
    ///
    /// Hashes are spread evenly. So the place of a hash can be estimated from the hashes at both
    /// ends of the leaf.
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        let bytes = self.descent.leaf()?.bytes();
        let first = u64::from(self.descent.summary().first);
        let span =
            self.descent.next().map_or(1 << 32, |next| u64::from(next.first)).saturating_sub(first);
        let before = u64::from(self.hash.0).saturating_sub(first) * bytes.len() as u64;
        let before = before.checked_div(span).unwrap_or(0) as usize;
        Some(&bytes[..bytes.len().min(before + SEARCHED_MORE)])
    }
}

impl<const STRINGS: usize> HashedTree<STRINGS> {
    /// No key is longer than this many bytes.
    pub(crate) fn key_size_max(&self) -> usize {
        self.summary().key_size_max as usize
    }

    /// Every element, in the order of hashes. Each step takes bounded time, and the first step
    /// takes no longer than the others.
    pub(crate) fn elements(
        &self,
    ) -> impl Iterator<Item = [Element<'_>; STRINGS]> + use<'_, STRINGS> {
        self.leaves().flat_map(|leaf| leaf.elements(0)).map(|(_, element)| element)
    }

    /// Finds the leaf in which position `from` is. Returns the leaf's elements from this position
    /// on, and the position at which the next leaf begins.
    pub(crate) fn walk(
        &self,
        from: Position,
    ) -> (Position, impl Iterator<Item = [Element<'_>; STRINGS]> + use<'_, STRINGS>) {
        let (next, elements) = self.walk_hashes(from);
        (next, elements.map(|(_, element)| element))
    }

    /// The same as [`walk`](Self::walk), with the hash of each element.
    pub(crate) fn walk_hashes(
        &self,
        from: Position,
    ) -> (Position, impl Iterator<Item = (u32, [Element<'_>; STRINGS])> + use<'_, STRINGS>) {
        let hash = from.0 as u32;
        let Found { leaf, next, .. } = self.find(ByHash(hash));
        let next = next.map_or(Position::END, |next| Position(u64::from(next.first)));
        (next, leaf.elements(hash))
    }

    /// The element with a key.
    pub(crate) fn get(&self, hash: u32, key: Arg<'_>) -> Option<[Element<'_>; STRINGS]> {
        let leaf = self.find(ByHash(hash)).leaf;
        let place = leaf.find(hash, key);
        place.is_taken().then(|| leaf.at(place))
    }

    /// Begins a search for the leaf where a hash is, or would be.
    pub(crate) fn search(&self, hash: u32) -> Search<'_, STRINGS> {
        Search { descent: self.descent(), hash: ByHash(hash) }
    }

    /// The element at `index` and those after it in its leaf, in the order of hashes.
    pub(crate) fn elements_of_leaf(
        &self,
        index: usize,
    ) -> impl Iterator<Item = [Element<'_>; STRINGS]> + use<'_, STRINGS> {
        let Found { leaf, seek: ByIndex(index), .. } = self.find(ByIndex(index));
        leaf.elements(0).skip(index).map(|(_, element)| element)
    }

    /// Puts an element. Returns whether its key is new. Old strings that take noticeable time to
    /// free are added to `old`.
    pub(crate) fn put(
        &mut self,
        hash: u32,
        strings: [Arg<'_>; STRINGS],
        old: &mut Vec<LargeString>,
    ) -> bool {
        self.edit(ByHash(hash), |leaf, summary, _| {
            let place = leaf.find(hash, strings[0]);
            leaf.put(place, hash, strings, old);
            summary.len += usize::from(!place.is_taken());
            summary.first = leaf.first();
            summary.key_size_max = summary.key_size_max.max(key_size(strings[0].size()));
            !place.is_taken()
        })
    }

    /// Removes the element with a key. Returns whether there was such an element. Strings that take
    /// noticeable time to free are added to `old`.
    pub(crate) fn remove(&mut self, hash: u32, key: Arg<'_>, old: &mut Vec<LargeString>) -> bool {
        // The key is looked up first, because `edit` copies shared nodes on its way. If there is no
        // such key, these copies would be useless.
        if self.get(hash, key).is_none() {
            return false;
        }
        self.edit(ByHash(hash), |leaf, summary, _| {
            let place = leaf.find(hash, key);
            leaf.remove(place, old);
            (summary.len, summary.first) = (summary.len - 1, leaf.first());
        });
        true
    }
}
