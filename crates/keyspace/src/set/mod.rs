//! Sets. A small set is packed: an intset, which is sorted integers, or a listpack of members. Both
//! are byte for byte the same as in Redis and in RDB files. A large set is a
//! [tree](crate::collection::hashed).
//!
//! The forms, and the conversions between them, are those of Redis 7.2. A set never goes back to a
//! smaller form. The form of a new set depends on the request that makes it.

mod algebra;
mod members;
mod random;
mod rows;
mod stored;
#[cfg(test)]
mod tests;

pub(crate) use rows::ROWS;

use slimio_planted::is_planted;
use slimio_rdb::listpack::{self, Listpack, NewElement};
use slimio_rdb::{Malformed, intset};
use slimio_resp::{Arg, DecimalBuffer};

use crate::collection::hashed::HashedTree;
use crate::collection::{
    CollectionRef, EditForm, Element, LargeString, PACKED_LEN_MAX, PACKED_SIZE_MAX,
};
use crate::hasher::KeyHasher;
use crate::kinds::{AnyTree, Packing, ValueType};

/// A large set. The string of an element is a member.
pub(crate) type SetTree = HashedTree<1>;

/// Limit of members of an intset, whatever the configuration says. The limit is needed because a
/// write moves all integers after the one that is added or removed.
const INTSET_LEN_MAX: usize = PACKED_SIZE_MAX / size_of::<i64>();

/// The limits up to which a set is packed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SetLimits {
    /// Limit of members of an intset (`set-max-intset-entries`). If this value is larger than 8192,
    /// the limit is 8192.
    pub integers: usize,
    /// Limit of members of a listpack (`set-max-listpack-entries`). If this value is larger than
    /// [`PACKED_LEN_MAX`], the limit is [`PACKED_LEN_MAX`].
    pub members: usize,
    /// Size in bytes of the longest member of a listpack (`set-max-listpack-value`).
    pub member_size: usize,
}

impl Default for SetLimits {
    fn default() -> Self {
        Self { integers: 512, members: 128, member_size: 64 }
    }
}

impl SetLimits {
    pub(crate) const DIRECTIVES: [&str; 3] =
        ["set-max-intset-entries", "set-max-listpack-entries", "set-max-listpack-value"];

    pub(crate) fn of_directives([integers, members, member_size]: [usize; 3]) -> Self {
        Self { integers, members, member_size }
    }

    fn integers_max(&self) -> usize {
        self.integers.min(INTSET_LEN_MAX)
    }

    fn members_max(&self) -> usize {
        self.members.min(PACKED_LEN_MAX)
    }

    fn size_max(&self) -> usize {
        self.member_size.min(PACKED_SIZE_MAX)
    }

    /// The form of a new set to which a request adds `count` members. `first` is the first of them.
    pub(crate) fn packing(&self, first: Arg<'_>, count: usize) -> Packing {
        if first.to_i64().is_some() && count <= self.integers_max() {
            Packing::SetIntset
        } else {
            Packing::SetListpack
        }
    }
}

/// A borrowed view of a set.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SetRef<'a>(CollectionRef<'a>);

impl<'a> SetRef<'a> {
    /// Panics if the collection is not a set.
    pub(crate) fn new(collection: CollectionRef<'a>) -> Self {
        assert_eq!(collection.value_type(), ValueType::Set, "the collection is no set");
        Self(collection)
    }

    /// Count of members.
    pub(crate) fn len(self) -> usize {
        self.0.len()
    }

    /// Size in bytes of a packed set; 0 if the set is a tree.
    fn packed_size(self) -> usize {
        self.0.packed().map_or(0, |(_, bytes)| bytes.len())
    }

    pub(crate) fn tree(self) -> Option<&'a SetTree> {
        self.0.tree().map(|tree| {
            let AnyTree::Set(tree) = tree else { unreachable!("the collection is a set") };
            tree
        })
    }

    /// Every member, in the order of storage.
    fn members(self) -> impl Iterator<Item = Element<'a>> {
        self.0.strings()
    }

    /// Whether the set has this member.
    pub(crate) fn contains(self, hasher: &KeyHasher, member: Arg<'_>) -> bool {
        if let Some(tree) = self.tree() {
            return tree.get(hasher.hash_arg(member) as u32, member).is_some();
        }
        match self.0.packed() {
            Some((Packing::SetIntset, bytes)) => {
                member.to_i64().is_some_and(|value| intset::contains(bytes, value))
            }
            Some((_, bytes)) => find(bytes, member).is_some(),
            None => false,
        }
    }

    /// Whether a member of another set is also a member of this set. This set must be packed.
    fn packed_contains(self, member: Element<'_>) -> bool {
        match self.0.packed() {
            Some((Packing::SetIntset, bytes)) => {
                member.to_i64().is_some_and(|value| intset::contains(bytes, value))
            }
            Some((_, bytes)) => member.with_arg(|member| find(bytes, member).is_some()),
            None => false,
        }
    }
}

/// Where a member is in a listpack.
fn find(listpack: &[u8], member: Arg<'_>) -> Option<listpack::Found> {
    // No packed set holds a longer member.
    if member.size() > PACKED_SIZE_MAX {
        return None;
    }
    listpack::find(listpack, &member.to_bytes(), 1)
}

/// Changes a set, and its form if needed.
pub(crate) struct SetEdit<'a, 'b> {
    pub(crate) form: &'a mut EditForm<'b>,
    pub(crate) hasher: KeyHasher,
    pub(crate) limits: SetLimits,
    /// Removed strings that take noticeable time to free.
    pub(crate) old: &'a mut Vec<LargeString>,
}

impl SetEdit<'_, '_> {
    pub(crate) fn len(&self) -> usize {
        self.form.len()
    }

    /// Prepares the set for a request that adds `count` members. If these are too many for the
    /// packed form, the set becomes a tree before any member is added.
    pub(crate) fn reserve(&mut self, count: usize) {
        let limit = match &*self.form {
            EditForm::Packed { packing: Packing::SetIntset, .. } => self.limits.integers_max(),
            EditForm::Packed { .. } => self.limits.members_max(),
            EditForm::Tree(_) | EditForm::Grown { .. } => return,
        };
        if count > limit {
            self.tree();
        }
    }

    /// Adds a member. Returns whether the member is new.
    pub(crate) fn add(&mut self, member: Arg<'_>) -> bool {
        let is_new = match &*self.form {
            EditForm::Packed { packing: Packing::SetIntset, .. } => self.add_to_intset(member),
            EditForm::Packed { .. } => self.add_to_listpack(member),
            EditForm::Tree(_) | EditForm::Grown { .. } => None,
        };
        is_new.unwrap_or_else(|| {
            let hash = self.hasher.hash_arg(member) as u32;
            let (tree, old) = self.tree();
            tree.put(hash, [member], old)
        })
    }

    /// Adds a member to an intset. If the member is no integer, the intset becomes a listpack.
    /// Returns `None` if the set has to become a tree. Redis 7.2 converts in the same cases
    /// (`setTypeAddAux` of `t_set.c`).
    fn add_to_intset(&mut self, member: Arg<'_>) -> Option<bool> {
        let limits = self.limits;
        let EditForm::Packed { packing, bytes, base } = &mut *self.form else { return None };
        let len = intset::len(&bytes[*base..]);
        if let Some(value) = member.to_i64() {
            if len >= limits.integers_max() {
                return intset::contains(&bytes[*base..], value).then_some(false);
            }
            return Some(intset::insert(bytes, *base, value));
        }
        let ends = [0, len.saturating_sub(1)].map(|index| digits(&bytes[*base..], index));
        let longest = if len == 0 { 0 } else { ends[0].max(ends[1]) };
        if len >= limits.members_max() || longest.max(member.size()) > limits.size_max() {
            return None;
        }
        let mut listpack = bytes[..*base].to_vec();
        listpack.extend_from_slice(&listpack::EMPTY);
        let lost = usize::from(is_planted("last-integer-lost"));
        for value in intset::integers(&bytes[*base..]).take(len - lost.min(len)) {
            let end = listpack::end(&listpack[*base..]);
            listpack::replace(&mut listpack, *base, end..end, 0, &[NewElement::integer(value)]);
        }
        (*bytes, *packing) = (listpack, Packing::SetListpack);
        self.add_to_listpack(member)
    }

    /// Adds a member to a listpack. Returns `None` if the set has to become a tree.
    fn add_to_listpack(&mut self, member: Arg<'_>) -> Option<bool> {
        let limits = self.limits;
        let EditForm::Packed { bytes, base, .. } = &mut *self.form else { return None };
        let listpack = &bytes[*base..];
        if find(listpack, member).is_some() {
            return Some(false);
        }
        if member.size() > limits.size_max() || listpack::len(listpack) >= limits.members_max() {
            return None;
        }
        let member = member.to_bytes();
        let new = NewElement::string(&member);
        if listpack.len() + new.size() > PACKED_SIZE_MAX {
            return None;
        }
        let end = listpack::end(listpack);
        listpack::replace(bytes, *base, end..end, 0, &[new]);
        Some(true)
    }

    /// The set as a tree. A packed set is converted first.
    fn tree(&mut self) -> (&mut SetTree, &mut Vec<LargeString>) {
        let (hasher, old) = (&self.hasher, &mut *self.old);
        let tree = self.form.tree(|packing, bytes| {
            let mut tree = SetTree::default();
            for member in packing.strings(bytes) {
                member.with_arg(|member| {
                    tree.put(hasher.hash_arg(member) as u32, [member], old);
                });
            }
            AnyTree::Set(tree)
        });
        let AnyTree::Set(tree) = tree else { unreachable!("the collection is a set") };
        (tree, self.old)
    }

    /// Removes a member. Returns whether the set had this member.
    pub(crate) fn remove(&mut self, member: Arg<'_>) -> bool {
        if let EditForm::Packed { packing, bytes, base } = &mut self.form {
            if *packing == Packing::SetIntset {
                return member.to_i64().is_some_and(|value| intset::remove(bytes, *base, value));
            }
            let Some(found) = find(&bytes[*base..], member) else { return false };
            listpack::replace(bytes, *base, found.start..found.end, 1, &[]);
            return true;
        }
        let hash = self.hasher.hash_arg(member) as u32;
        let (tree, old) = self.tree();
        tree.remove(hash, member, old)
    }
}

/// The length, in characters, of the integer at `index`; 0 if there is no such integer.
fn digits(intset: &[u8], index: usize) -> usize {
    if index >= intset::len(intset) {
        return 0;
    }
    DecimalBuffer::new().format(intset::get(intset, index)).len()
}

/// Checks a listpack that may be malformed. Returns whether its size and its count of members are
/// within the limits.
pub(crate) fn check_listpack(bytes: &[u8], limits: SetLimits) -> Result<bool, Malformed> {
    let mut elements = Listpack::open(bytes)?;
    let members = elements.len_hint().unwrap_or(usize::MAX);
    if members == 0 {
        return Err(Malformed("a set has no members"));
    }
    elements.try_for_each(|element| element.map(drop))?;
    Ok(members <= limits.members_max() && bytes.len() <= PACKED_SIZE_MAX)
}

/// Checks an intset that may be malformed. Returns whether it is within the limits.
pub(crate) fn check_intset(bytes: &[u8], limits: SetLimits) -> Result<bool, Malformed> {
    intset::check(bytes)?;
    match intset::len(bytes) {
        0 => Err(Malformed("a set has no members")),
        len => Ok(len <= limits.integers_max()),
    }
}
