//! Prefetches the keys and elements that requests will look for.

use crate::db::Db;
use crate::hasher::KeyHasher;
use crate::kinds::AnySearch;
use crate::table::BucketSlot;

/// At most this many elements are prefetched at once, because a processor can have about this many
/// memory reads in flight.
pub const AHEAD_MAX: usize = 16;

/// Size in bytes of the smallest collection whose leaves are prefetched. If a smaller collection is
/// used often, the processor's cache holds all of it anyway.
const LARGE_SIZE_MIN: usize = 4 << 20;

/// Bytes that a processor reads from memory at once.
pub(crate) const CACHE_LINE_SIZE: usize = 64;

/// The key and the element that a request will look for.
#[derive(Clone, Copy, Debug, Default)]
pub struct ElementAhead<'a> {
    /// The [hash](crate::Keyspace::hash) of the request's key.
    pub hash: u64,
    /// The member or field that the request names; empty if there is none.
    pub element: &'a [u8],
}

impl Db {
    /// Prefetches the entries of the keys. Then, for each entry that is a large collection,
    /// prefetches the leaf with the element that the request names. In each of these two passes,
    /// the reads for one request do not wait for the reads for another.
    pub(crate) fn bring_in(&self, hasher: &KeyHasher, elements: &[ElementAhead<'_>]) {
        let table = self.table();
        let mut found = [None; AHEAD_MAX];
        // The result depends on everything that is read, and `black_box` counts as a use of the
        // result. So the compiler cannot leave out the reads.
        std::hint::black_box(table.bring_in_entries(elements, &mut found));
        let mut searches = [const { None }; AHEAD_MAX];
        for ((search, slot), ahead) in searches.iter_mut().zip(found).zip(elements) {
            *search = slot.and_then(|slot| search_in(slot, hasher, ahead.element));
        }
        // In each round, every search goes down one level. A single search has to wait for each
        // level before it can read the next, but the reads of different searches do not wait for
        // each other.
        while searches.iter_mut().flatten().fold(false, |goes_on, one| one.step() | goes_on) {}
        let leaves = searches.iter().flatten().filter_map(AnySearch::bytes);
        let lines = leaves.flat_map(|leaf| leaf.iter().step_by(CACHE_LINE_SIZE));
        std::hint::black_box(lines.fold(0, |all, byte| all ^ byte));
    }
}

/// Begins to search for an element, if it is in a large collection.
fn search_in<'a>(
    slot: &'a BucketSlot,
    hasher: &KeyHasher,
    element: &[u8],
) -> Option<AnySearch<'a>> {
    if element.is_empty() {
        return None;
    }
    let tree = slot.tree().filter(|tree| tree.memory() >= LARGE_SIZE_MIN)?;
    tree.search(|| hasher.hash(element) as u32)
}
