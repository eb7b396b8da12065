//! Lists. A small list is a listpack of its elements, which is byte for byte the same as in Redis
//! and in RDB files. A large list is a [tree](crate::collection::positional).
//!
//! Both forms, and the conversions between them, are those of Redis 7.2, which calls the large form
//! quicklist. If a request would take a listpack over its limit (`list-max-listpack-size`), the
//! list becomes a tree before anything is added. A tree that has shrunk to half of the limit becomes
//! a listpack.

mod blocking;
mod edit;
mod ends;
mod moves;
mod places;
mod rows;
mod search;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use edit::ListEdit;
pub(crate) use rows::ROWS;

use std::ops::Range;

use slimio_planted::is_planted;
use slimio_rdb::Malformed;
use slimio_rdb::listpack::{self, Listpack};
use slimio_resp::ReplyBuf;

use crate::collection::positional::{End, PositionalTree};
use crate::collection::{CollectionRef, Element, PACKED_SIZE_MAX};
use crate::commands::elements::STEP_SIZE_MAX;
use crate::commands::lookup::Found;
use crate::context::Context;
use crate::events::{Event, events};
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::{AnyTree, Packing, ValueType};
use crate::table::worth_deferring;
use crate::value::Value;

/// The limits, in bytes, that the values -1 to -5 of `list-max-listpack-size` stand for.
const SIZES: [usize; 5] = [4096, 8192, 16_384, 32_768, 65_536];

/// A command replies with at most this many bytes of elements at once.
const SIZE_AT_ONCE_MAX: usize = 1 << 20;

/// Size in bytes of the largest packed list if the configuration limits the count of elements.
const COUNTED_SIZE_MAX: usize = 8192;

const _: () = assert!(SIZES[4] <= PACKED_SIZE_MAX && COUNTED_SIZE_MAX <= PACKED_SIZE_MAX);

/// The limits up to which a list is packed. Unlike other packed collections, a list is not limited
/// to [`PACKED_LEN_MAX`](crate::PACKED_LEN_MAX) elements, because most commands look only at the
/// ends of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListLimits {
    /// Size in bytes of the largest packed list.
    pub size: usize,
    /// The largest number of elements of a packed list; `None` if only the size is limited.
    pub elements: Option<usize>,
}

impl Default for ListLimits {
    fn default() -> Self {
        Self::of_directives([-2])
    }
}

impl ListLimits {
    pub(crate) const DIRECTIVES: [&str; 1] = ["list-max-listpack-size"];

    pub(crate) fn of_directives([fill]: [i64; 1]) -> Self {
        if let Ok(elements) = usize::try_from(fill) {
            return Self { size: COUNTED_SIZE_MAX, elements: Some(elements.max(1)) };
        }
        let level = fill.unsigned_abs().min(SIZES.len() as u64) as usize;
        Self { size: SIZES[level - 1], elements: None }
    }

    /// Whether a listpack of this size and this many elements is too large.
    fn are_exceeded(self, size: usize, elements: usize) -> bool {
        size > self.size || self.elements.is_some_and(|most| elements > most)
    }

    /// Whether a tree with this many elements, whose listpack would have this size, becomes a
    /// listpack.
    fn allow_packing(self, size: usize, elements: usize) -> bool {
        match self.elements {
            None => size <= self.size / 2,
            Some(most) => size <= self.size && elements <= most / 2,
        }
    }
}

/// A borrowed view of a list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ListRef<'a>(CollectionRef<'a>);

impl<'a> ListRef<'a> {
    /// Panics if the collection is not a list.
    pub(crate) fn new(collection: CollectionRef<'a>) -> Self {
        assert_eq!(collection.value_type(), ValueType::List, "the collection is no list");
        Self(collection)
    }

    /// Count of elements.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    fn tree(self) -> Option<&'a PositionalTree> {
        self.0.tree().map(|tree| {
            let AnyTree::List(tree) = tree else { unreachable!("the collection is a list") };
            tree
        })
    }

    fn listpack(self) -> Option<&'a [u8]> {
        self.0.packed().map(|(_, bytes)| bytes)
    }

    /// The element at an index; `None` if there is no such element.
    fn get(self, index: usize) -> Option<Element<'a>> {
        if let Some(tree) = self.tree() {
            return tree.get(index);
        }
        let listpack = self.listpack().filter(|bytes| index < listpack::len(bytes))?;
        Some(listpack::element(listpack, offset(listpack, index)).0.into())
    }

    /// An owned copy; large parts are shared.
    fn to_value(self) -> Value {
        self.0.to_value()
    }

    /// Whether the elements of a range are together so large that a reply with them is made in
    /// steps. The range must not be empty.
    fn is_large_in(self, range: Range<usize>) -> bool {
        let Some(tree) = self.tree().filter(|tree| tree.memory() > SIZE_AT_ONCE_MAX) else {
            return false;
        };
        let (mut size, mut next) = (0, range.start);
        while next < range.end && size <= SIZE_AT_ONCE_MAX {
            let (first, leaf) = tree.leaf_at(next);
            size += leaf.listpack_size();
            next = first + leaf.len();
        }
        size > SIZE_AT_ONCE_MAX && !is_planted("large-elements-at-once")
    }

    /// Whether the leaf with the element at an index has more bytes than one step should reply
    /// with.
    fn is_large_at(self, index: usize) -> bool {
        self.tree().is_some_and(|tree| tree.leaf_at(index).1.listpack_size() > STEP_SIZE_MAX)
    }

    /// Replies with `count` elements. Starts with the element at `index`, and moves away from the
    /// end `from`. There must be that many elements.
    fn reply(self, index: usize, count: usize, from: End, reply: &mut ReplyBuf) {
        let (mut next, mut left) = (index, count);
        while left > 0 {
            let passed = self.run(next, left, from, |element| element.reply(reply));
            left -= passed;
            next = match from {
                End::First => next + passed,
                End::Last => next.saturating_sub(passed),
            };
        }
    }

    /// Passes up to `count` elements to `each`. Starts with the element at `index`, moves away from
    /// the end `from`, and stops at the end of the leaf or listpack. Returns the count of the
    /// passed elements. There must be an element at the index.
    fn run(
        self,
        index: usize,
        count: usize,
        from: End,
        mut each: impl FnMut(Element<'a>),
    ) -> usize {
        if let Some(tree) = self.tree() {
            let (first, leaf) = tree.leaf_at(index);
            let within = index - first;
            return match from {
                End::First => {
                    let end = leaf.len().min(within + count);
                    leaf.elements(within..end).for_each(each);
                    end - within
                }
                End::Last => {
                    let start = (within + 1).saturating_sub(count);
                    leaf.elements(start..within + 1).rev().for_each(each);
                    within + 1 - start
                }
            };
        }
        let listpack = self.listpack().expect("a list that is no tree is packed");
        let mut at = offset(listpack, index);
        let count = match from {
            End::First => count.min(listpack::len(listpack) - index),
            End::Last => count.min(index + 1),
        };
        for left in (0..count).rev() {
            let (element, behind) = listpack::element(listpack, at);
            each(element.into());
            at = match from {
                End::First => behind,
                End::Last if left > 0 => listpack::before(listpack, at),
                End::Last => at,
            };
        }
        count
    }
}

/// Where the element at an index of a listpack begins. For the index after the last element, this is
/// where the last element ends.
fn offset(listpack: &[u8], index: usize) -> usize {
    let len = listpack::len(listpack);
    if index <= len / 2 {
        (0..index).fold(listpack::START, |at, _| listpack::behind(listpack, at))
    } else {
        (index..len).fold(listpack::end(listpack), |at, _| listpack::before(listpack, at))
    }
}

/// Checks a listpack that may be malformed. Returns whether it is within the limits.
pub(crate) fn check_listpack(bytes: &[u8], limits: ListLimits) -> Result<bool, Malformed> {
    let mut elements = Listpack::open(bytes)?;
    let len = elements.len_hint().unwrap_or(usize::MAX);
    if len == 0 {
        return Err(Malformed("a list has no elements"));
    }
    elements.try_for_each(|element| element.map(drop))?;
    Ok(!limits.are_exceeded(bytes.len(), len))
}

impl Context<'_> {
    /// The list at a key; `None` if the key does not exist.
    ///
    /// Panics if the key holds another type.
    fn list_at(&self, found: &Found<'_>) -> Option<ListRef<'_>> {
        list_in(self.keyspace, found)
    }

    /// Changes the list at a key, or a new list if the key does not exist. The caller must not
    /// leave the list empty, and must note the change.
    fn edit_list<R>(
        &mut self,
        found: &Found<'_>,
        edit: impl FnOnce(&mut ListEdit<'_, '_>) -> R,
    ) -> R {
        let spot = found.spot.unwrap_or_else(|| self.insert_empty(found, Packing::ListListpack));
        let limits = self.keyspace.config.packed_limits.list;
        self.keyspace
            .edit_collection(found.db, spot, |form, old| edit(&mut ListEdit { form, limits, old }))
    }
}

/// The list at a key; `None` if the key does not exist.
///
/// Panics if the key holds another type.
fn list_in<'k>(keyspace: &'k Keyspace, found: &Found<'_>) -> Option<ListRef<'k>> {
    let value = keyspace.db(found.db).value(found.spot?);
    value.as_collection().map(ListRef::new)
}

/// The length of the list at a key; `None` if there is no list.
fn len_at(keyspace: &Keyspace, db: DbIndex, key: &[u8]) -> Option<usize> {
    let collection = keyspace.get(db, key, i64::MIN)?.as_collection()?;
    (collection.value_type() == ValueType::List).then(|| collection.len())
}

/// A tree as a value that is in no keyspace.
fn value_of(tree: AnyTree) -> Value {
    Value::Tree(Box::new(tree))
}

/// Frees the elements that were cut off. If they are large, they go to the garbage, which another
/// thread frees.
fn discard(context: &mut Context<'_>, cut: Option<AnyTree>) {
    let large = cut.map(value_of).and_then(worth_deferring);
    context.keyspace.displaced.garbage.add_value(large);
}

events!(List: LPUSH "lpush", RPUSH "rpush", LPOP "lpop", RPOP "rpop");
events!(List: LSET "lset", LINSERT "linsert", LREM "lrem", LTRIM "ltrim");

/// The events of pushes and pops at one end.
struct EndEvents {
    push: Event,
    pop: Event,
}

fn ends_events(end: End) -> EndEvents {
    match end {
        End::First => EndEvents { push: LPUSH, pop: LPOP },
        End::Last => EndEvents { push: RPUSH, pop: RPOP },
    }
}
