//! Hashes, and how collections are kept in general.
//!
//! A small hash is packed: a listpack of fields and values in turn, byte for byte what Redis has
//! and RDB files hold. A short listpack lies in the key's own entry, a longer one in its own
//! memory, which is shared until somebody writes. A hash with many fields, or long ones, is a
//! [tree](tree): packed leaves below shared branches, cloned in constant time.
//!
//! ```text
//! Slot ─ Small: | expiry | key | listpack |         packed, up to 1 KiB with its key
//!      ─ Large: key, Value::PackedHash ─► listpack  packed, up to PACKED_SIZE_MAX
//!      ─ Large: key, Value::Hash ─► HashTree        any number of fields
//! ```
//!
//! The other collections fit the same three places. A set is a hash without values, packed in a
//! listpack or a sorted array of integers. A sorted set is such a tree from member to score and a
//! second one whose order is score and member. A list is a tree without hashes, in which the counts
//! in every branch lead to an index. A stream is one that is ordered by id. They share with hashes
//! the branch, and the rule that a leaf is packed bytes of bounded size.

mod builder;
mod element;
mod leaf;
mod tree;

pub use builder::HashBuilder;
pub use element::Element;
pub use tree::HashTree;

pub(crate) use element::LargeString;
pub(crate) use tree::Position;

use slimio_rdb::listpack::{self, NewElement};
use slimio_resp::{Arg, Piece};

use crate::hasher::KeyHasher;

/// Most fields of a packed hash, whatever the configuration says: every access walks over them.
pub const PACKED_FIELDS_MAX: usize = 1024;

/// Longest packed hash in bytes, whatever the configuration says: a write copies all of it if it is
/// shared.
pub const PACKED_SIZE_MAX: usize = 64 * 1024;

/// The limits up to which a hash is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLimits {
    /// Most fields (`hash-max-listpack-entries`), but never more than [`PACKED_FIELDS_MAX`].
    pub fields: usize,
    /// Longest field or value in bytes (`hash-max-listpack-value`).
    pub element_size: usize,
}

impl Default for HashLimits {
    fn default() -> Self {
        Self { fields: 128, element_size: 64 }
    }
}

impl HashLimits {
    /// Whether a string may be in a packed hash.
    fn allows(&self, arg: Arg<'_>) -> bool {
        arg.size() <= self.element_size.min(PACKED_SIZE_MAX)
    }
}

/// A hash, looked at where it lives.
#[derive(Clone, Copy, Debug)]
pub enum HashRef<'a> {
    /// The listpack of a short one, in the key's entry.
    Inline(&'a [u8]),
    /// The listpack of a longer one; can be shared.
    Packed(&'a Piece),
    /// A large one; can be shared.
    Tree(&'a HashTree),
}

impl<'a> HashRef<'a> {
    /// The listpack, if the hash is one.
    pub fn listpack(self) -> Option<&'a [u8]> {
        match self {
            HashRef::Inline(bytes) => Some(bytes),
            HashRef::Packed(piece) => Some(piece),
            HashRef::Tree(_) => None,
        }
    }

    /// Count of fields.
    pub fn len(self) -> usize {
        match self {
            HashRef::Inline(bytes) => listpack::len(bytes) / 2,
            HashRef::Packed(piece) => listpack::len(piece) / 2,
            HashRef::Tree(tree) => tree.len(),
        }
    }

    /// Whether there is no field. A hash without fields is in no keyspace.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The encoding that `OBJECT ENCODING` replies with.
    pub fn encoding_name(self) -> &'static str {
        match self {
            HashRef::Inline(_) | HashRef::Packed(_) => "listpack",
            HashRef::Tree(_) => "hashtable",
        }
    }

    /// Every field with its value, in the order of storage. A large hash is walked leaf by leaf: no
    /// step takes longer than another.
    pub fn iter(self) -> impl Iterator<Item = (Element<'a>, Element<'a>)> {
        let packed = self.listpack().into_iter().flat_map(pairs);
        let tree = match self {
            HashRef::Tree(tree) => Some(tree),
            _ => None,
        };
        packed.chain(tree.into_iter().flat_map(HashTree::iter))
    }

    /// The value of a field.
    pub(crate) fn get(self, hasher: &KeyHasher, field: Arg<'_>) -> Option<Element<'a>> {
        if let HashRef::Tree(tree) = self {
            return tree.get(hasher.hash_arg(field) as u32, field);
        }
        let bytes = self.listpack()?;
        let found = find(bytes, field)?;
        Some(listpack::element(bytes, found.end).0.into())
    }
}

/// Fields and values of a listpack.
fn pairs(listpack: &[u8]) -> impl Iterator<Item = (Element<'_>, Element<'_>)> {
    let mut items = listpack::elements(listpack).map(Element::from);
    std::iter::from_fn(move || Some((items.next()?, items.next()?)))
}

/// Where a field is in a listpack.
fn find(listpack: &[u8], field: Arg<'_>) -> Option<listpack::Found> {
    // No packed hash holds a longer field.
    if field.size() > PACKED_SIZE_MAX {
        return None;
    }
    listpack::find_key(listpack, &field.to_bytes())
}

/// A hash that is being changed, and the form it has.
pub(crate) enum HashForm<'a> {
    /// A listpack that begins at `base` of `bytes`.
    Packed { bytes: Vec<u8>, base: usize },
    /// A tree where it lives.
    Tree(&'a mut HashTree),
    /// A tree that the hash has grown into; `bytes` is the old listpack and what stood before it.
    Grown { bytes: Vec<u8>, tree: Box<HashTree> },
}

/// Changes a hash, and its form if needed.
pub(crate) struct HashEdit<'a, 'b> {
    pub(crate) form: &'a mut HashForm<'b>,
    pub(crate) hasher: KeyHasher,
    pub(crate) limits: HashLimits,
    /// Old strings that take noticeable time to free.
    pub(crate) old: &'a mut Vec<LargeString>,
}

impl HashEdit<'_, '_> {
    pub(crate) fn len(&self) -> usize {
        match &self.form {
            HashForm::Packed { bytes, base } => listpack::len(&bytes[*base..]) / 2,
            HashForm::Tree(tree) => tree.len(),
            HashForm::Grown { tree, .. } => tree.len(),
        }
    }

    /// Gives a field a value; says whether the field is new.
    pub(crate) fn set(&mut self, field: Arg<'_>, value: Arg<'_>) -> bool {
        if let Some(is_new) = self.set_packed(field, value) {
            return is_new;
        }
        let hash = self.hasher.hash_arg(field) as u32;
        let (tree, old) = self.tree();
        tree.set(hash, field, value, old)
    }

    /// The same in a listpack; `None` if the hash is not packed or cannot stay so.
    fn set_packed(&mut self, field: Arg<'_>, value: Arg<'_>) -> Option<bool> {
        let HashForm::Packed { bytes, base } = self.form else { return None };
        if !self.limits.allows(field) || !self.limits.allows(value) {
            return None;
        }
        let base = *base;
        let (field, value) = (field.to_bytes(), value.to_bytes());
        let new_value = NewElement::string(&value);
        let listpack = &bytes[base..];
        if let Some(found) = listpack::find_key(listpack, &field) {
            let end = listpack::behind(listpack, found.end);
            if listpack.len() - (end - found.end) + new_value.size() > PACKED_SIZE_MAX {
                return None;
            }
            listpack::replace(bytes, base, found.end..end, 1, &[new_value]);
            return Some(false);
        }
        let new_field = NewElement::string(&field);
        let size = listpack.len() + new_field.size() + new_value.size();
        let fields_max = self.limits.fields.min(PACKED_FIELDS_MAX);
        if size > PACKED_SIZE_MAX || listpack::len(listpack) / 2 >= fields_max {
            return None;
        }
        let end = listpack::end(listpack);
        listpack::replace(bytes, base, end..end, 0, &[new_field, new_value]);
        Some(true)
    }

    /// Turns the hash into a tree if it is none.
    fn tree(&mut self) -> (&mut HashTree, &mut Vec<LargeString>) {
        if let HashForm::Packed { bytes, base } = &mut self.form {
            let mut tree = Box::<HashTree>::default();
            for (field, value) in pairs(&bytes[*base..]) {
                let (hasher, old) = (&self.hasher, &mut *self.old);
                field.with_arg(|field| {
                    let hash = hasher.hash_arg(field) as u32;
                    value.with_arg(|value| tree.set(hash, field, value, old))
                });
            }
            *self.form = HashForm::Grown { bytes: std::mem::take(bytes), tree };
        }
        match self.form {
            HashForm::Packed { .. } => unreachable!("it has just become a tree"),
            HashForm::Tree(tree) => (tree, self.old),
            HashForm::Grown { tree, .. } => (tree, self.old),
        }
    }

    /// Deletes a field; says whether it was there.
    pub(crate) fn remove(&mut self, field: Arg<'_>) -> bool {
        if let HashForm::Packed { bytes, base } = &mut self.form {
            let Some(found) = find(&bytes[*base..], field) else { return false };
            let end = listpack::behind(&bytes[*base..], found.end);
            listpack::replace(bytes, *base, found.start..end, 2, &[]);
            return true;
        }
        let hash = self.hasher.hash_arg(field) as u32;
        let (tree, old) = self.tree();
        tree.remove(hash, field, old)
    }
}

/// The listpack of a hash without fields, to make a hash from.
pub(crate) fn empty() -> &'static [u8] {
    &listpack::EMPTY
}

#[cfg(test)]
mod tests;
