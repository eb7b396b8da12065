//! Hashes: fields, each with a value. A small hash is a listpack of fields and values in turn,
//! which is byte for byte the same as in Redis and in RDB files. A large hash is a
//! [tree](crate::collection::hashed).

mod fields;
mod random;
mod rows;
#[cfg(test)]
mod tests;
mod walk;

pub(crate) use rows::ROWS;

use slimio_rdb::Malformed;
use slimio_rdb::listpack::{self, Listpack, NewElement};
use slimio_resp::Arg;

use crate::collection::hashed::HashedTree;
use crate::collection::{
    CollectionRef, EditForm, Element, LargeString, PACKED_LEN_MAX, PACKED_SIZE_MAX,
};
use crate::hasher::KeyHasher;
use crate::kinds::{AnyTree, ValueType};

/// A large hash. The strings of an element are a field and its value.
pub(crate) type HashTree = HashedTree<2>;

/// The limits up to which a hash is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HashLimits {
    /// Limit of fields (`hash-max-listpack-entries`). If this value is larger than
    /// [`PACKED_LEN_MAX`], the limit is [`PACKED_LEN_MAX`].
    pub fields: usize,
    /// Limit of the size of each field and each value, in bytes (`hash-max-listpack-value`).
    pub element_size: usize,
}

impl Default for HashLimits {
    fn default() -> Self {
        Self { fields: 128, element_size: 64 }
    }
}

impl HashLimits {
    pub(crate) const DIRECTIVES: [&str; 2] =
        ["hash-max-listpack-entries", "hash-max-listpack-value"];

    pub(crate) fn of_directives([fields, element_size]: [usize; 2]) -> Self {
        Self { fields, element_size }
    }

    /// Whether a string may be in a packed hash.
    fn allows(&self, arg: Arg<'_>) -> bool {
        arg.size() <= self.element_size.min(PACKED_SIZE_MAX)
    }
}

/// A borrowed view of a hash.
#[derive(Clone, Copy, Debug)]
pub struct HashRef<'a>(CollectionRef<'a>);

impl<'a> HashRef<'a> {
    /// Panics if the collection is not a hash.
    pub(crate) fn new(collection: CollectionRef<'a>) -> Self {
        assert_eq!(collection.value_type(), ValueType::Hash, "the collection is no hash");
        Self(collection)
    }

    /// The hash as a collection of strings.
    pub fn as_collection(self) -> CollectionRef<'a> {
        self.0
    }

    /// Count of fields.
    pub fn len(self) -> usize {
        self.0.len()
    }

    /// Whether there is no field. Every hash in a keyspace has at least one field.
    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    /// Every field with its value, in the order of storage. A large hash is walked leaf by leaf, so
    /// that every step takes bounded time.
    pub fn iter(self) -> impl Iterator<Item = (Element<'a>, Element<'a>)> {
        let packed = self.listpack().into_iter().flat_map(pairs);
        let tree = self.tree().into_iter().flat_map(HashTree::elements);
        packed.chain(tree.map(|[field, value]| (field, value)))
    }

    pub(crate) fn listpack(self) -> Option<&'a [u8]> {
        self.0.packed().map(|(_, bytes)| bytes)
    }

    pub(crate) fn tree(self) -> Option<&'a HashTree> {
        self.0.tree().map(|tree| {
            let AnyTree::Hash(tree) = tree else { unreachable!("the collection is a hash") };
            tree
        })
    }

    /// The value of a field.
    pub(crate) fn get(self, hasher: &KeyHasher, field: Arg<'_>) -> Option<Element<'a>> {
        if let Some(tree) = self.tree() {
            return tree.get(hasher.hash_arg(field) as u32, field).map(|[_, value]| value);
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
    // No field of a packed hash is longer than the largest packed hash.
    if field.size() > PACKED_SIZE_MAX {
        return None;
    }
    listpack::find(listpack, &field.to_bytes(), 2)
}

/// Changes a hash, and its form if needed.
pub(crate) struct HashEdit<'a, 'b> {
    pub(crate) form: &'a mut EditForm<'b>,
    pub(crate) hasher: KeyHasher,
    pub(crate) limits: HashLimits,
    /// Old strings that take noticeable time to free.
    pub(crate) old: &'a mut Vec<LargeString>,
}

impl HashEdit<'_, '_> {
    pub(crate) fn len(&self) -> usize {
        self.form.len()
    }

    /// Sets the value of a field. Returns whether the field is new.
    pub(crate) fn set(&mut self, field: Arg<'_>, value: Arg<'_>) -> bool {
        if let Some(is_new) = self.set_packed(field, value) {
            return is_new;
        }
        let hash = self.hasher.hash_arg(field) as u32;
        let (tree, old) = self.tree();
        tree.put(hash, [field, value], old)
    }

    /// Like [`set`](Self::set), in a listpack. `None` if the hash is not packed, or cannot stay
    /// packed.
    fn set_packed(&mut self, field: Arg<'_>, value: Arg<'_>) -> Option<bool> {
        let EditForm::Packed { bytes, base, .. } = self.form else { return None };
        if !self.limits.allows(field) || !self.limits.allows(value) {
            return None;
        }
        let base = *base;
        let (field, value) = (field.to_bytes(), value.to_bytes());
        let new_value = NewElement::string(&value);
        let listpack = &bytes[base..];
        let (fields, fields_max) =
            (listpack::len(listpack) / 2, self.limits.fields.min(PACKED_LEN_MAX));
        // The limit may have been lowered since the hash was packed.
        if fields > fields_max {
            return None;
        }
        if let Some(found) = listpack::find(listpack, &field, 2) {
            let end = listpack::behind(listpack, found.end);
            if listpack.len() - (end - found.end) + new_value.size() > PACKED_SIZE_MAX {
                return None;
            }
            listpack::replace(bytes, base, found.end..end, 1, &[new_value]);
            return Some(false);
        }
        let new_field = NewElement::string(&field);
        let size = listpack.len() + new_field.size() + new_value.size();
        if size > PACKED_SIZE_MAX || fields >= fields_max {
            return None;
        }
        let end = listpack::end(listpack);
        listpack::replace(bytes, base, end..end, 0, &[new_field, new_value]);
        Some(true)
    }

    /// The hash as a tree. A packed hash is converted first.
    fn tree(&mut self) -> (&mut HashTree, &mut Vec<LargeString>) {
        let (hasher, old) = (&self.hasher, &mut *self.old);
        let tree = self.form.tree(|_, listpack| {
            let mut tree = HashTree::default();
            for (field, value) in pairs(listpack) {
                field.with_arg(|field| {
                    let hash = hasher.hash_arg(field) as u32;
                    value.with_arg(|value| tree.put(hash, [field, value], old))
                });
            }
            AnyTree::Hash(tree)
        });
        let AnyTree::Hash(tree) = tree else { unreachable!("the collection is a hash") };
        (tree, self.old)
    }

    /// Deletes a field. Returns whether the field existed.
    pub(crate) fn remove(&mut self, field: Arg<'_>) -> bool {
        if let EditForm::Packed { bytes, base, .. } = self.form {
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

/// Checks a listpack that may be malformed. Returns whether its size and its count of fields are
/// within the limits.
pub(crate) fn check_listpack(bytes: &[u8], limits: HashLimits) -> Result<bool, Malformed> {
    let mut elements = Listpack::open(bytes)?;
    let fields = elements.len_hint().map_or(usize::MAX, |len| len / 2);
    let is_even = elements.len_hint().is_none_or(|len| len.is_multiple_of(2));
    if !is_even || fields == 0 {
        return Err(Malformed("a hash has a field without a value, or no fields"));
    }
    elements.try_for_each(|element| element.map(drop))?;
    Ok(fields <= limits.fields.min(PACKED_LEN_MAX) && bytes.len() <= PACKED_SIZE_MAX)
}
