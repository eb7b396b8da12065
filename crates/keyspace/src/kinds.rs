//! The types of values: their numbers and names, and the packings and trees of collections. Only
//! this module lists the types; everything else about a type is in the type's folder.

use std::borrow::Cow;

use slimio_rdb::{
    Kind as RdbKind, Malformed, Part as RdbPart, QUICKLIST_NODE_PACKED, ValueType as RdbType,
    Version, intset, listpack,
};
use slimio_resp::Arg;

use crate::collection::hashed::{Position, Search};
use crate::collection::positional::PositionalTree;
use crate::collection::{EditForm, Element, LargeString, Strings};
use crate::hash::{self, HashEdit, HashLimits, HashTree};
use crate::hasher::KeyHasher;
use crate::incoming::ValueRefused;
use crate::list::{self, ListEdit, ListLimits};
use crate::set::{self, SetEdit, SetLimits, SetTree};
use crate::value::Value;

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A string.
    String,
    /// A list.
    List,
    /// A set.
    Set,
    /// A hash.
    Hash,
}

/// How the bytes of a packed collection are laid out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Packing {
    /// A listpack of fields and values in turn.
    HashListpack,
    /// Sorted integers.
    SetIntset,
    /// A listpack of members.
    SetListpack,
    /// A listpack of elements.
    ListListpack,
}

/// A large collection.
#[derive(Clone, Debug)]
pub(crate) enum AnyTree {
    Hash(HashTree),
    Set(SetTree),
    List(PositionalTree),
}

/// The largest count of strings per element, over all types.
pub(crate) const STRINGS_MAX: usize = 2;

/// Evaluates an expression that uses the tree, whatever the type of the tree is.
macro_rules! with_tree {
    ($any:expr, $tree:ident => $what:expr) => {
        match $any {
            AnyTree::Hash($tree) => $what,
            AnyTree::Set($tree) => $what,
            AnyTree::List($tree) => $what,
        }
    };
}

/// The limits up to which collections are packed, by type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PackedLimits {
    /// The limits of hashes.
    pub hash: HashLimits,
    /// The limits of sets.
    pub set: SetLimits,
    /// The limits of lists.
    pub list: ListLimits,
}

impl PackedLimits {
    /// The directives of the configuration that set the limits, by type.
    const DIRECTIVES: &[&[&str]] =
        &[&HashLimits::DIRECTIVES, &SetLimits::DIRECTIVES, &ListLimits::DIRECTIVES];

    /// Whether a directive of this name sets a limit.
    pub fn has_directive(name: &str) -> bool {
        Self::DIRECTIVES.iter().any(|names| names.contains(&name))
    }

    /// The same limits, for elements of any size.
    fn of_any_size(mut self) -> Self {
        self.hash.element_size = usize::MAX;
        self.set.member_size = usize::MAX;
        self
    }

    /// The limits that the directives set. `value` returns the value of the directive with the
    /// given name.
    pub fn of_directives(value: &dyn Fn(&str) -> i64) -> Self {
        let count = |name| usize::try_from(value(name)).unwrap_or(0);
        Self {
            hash: HashLimits::of_directives(HashLimits::DIRECTIVES.map(count)),
            set: SetLimits::of_directives(SetLimits::DIRECTIVES.map(count)),
            list: ListLimits::of_directives(ListLimits::DIRECTIVES.map(value)),
        }
    }
}

impl ValueType {
    const ALL: [Self; 4] = [ValueType::String, ValueType::List, ValueType::Set, ValueType::Hash];

    /// The name that `TYPE` replies with.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::String => "string",
            ValueType::List => "list",
            ValueType::Set => "set",
            ValueType::Hash => "hash",
        }
    }

    /// The number of the type in the chunks of a snapshot.
    pub(crate) fn number(self) -> u8 {
        match self {
            ValueType::String => 0,
            ValueType::List => 1,
            ValueType::Set => 2,
            ValueType::Hash => 4,
        }
    }

    pub(crate) fn of_number(number: u8) -> Option<Self> {
        Self::ALL.into_iter().find(|value_type| value_type.number() == number)
    }

    /// Count of strings per element. For a hash it is 2, because an element is a field and its
    /// value.
    pub fn strings(self) -> usize {
        match self {
            ValueType::String | ValueType::List | ValueType::Set => 1,
            ValueType::Hash => 2,
        }
    }

    /// The type of RDB values of this kind, if this crate has such a type.
    pub(crate) fn of_kind(kind: RdbKind) -> Option<Self> {
        Self::ALL.into_iter().find(|value_type| value_type.rdb_type().kind() == kind)
    }

    /// The type of the values that have this RDB type, if it is a type whose strings are written
    /// one by one.
    pub(crate) fn of_rdb_type(rdb_type: RdbType) -> Option<Self> {
        Self::ALL.into_iter().find(|value_type| value_type.rdb_type() == rdb_type)
    }

    /// The RDB type of a value whose strings are written one by one.
    pub(crate) fn rdb_type(self) -> RdbType {
        match self {
            ValueType::String => RdbType::String,
            ValueType::List => RdbType::List,
            ValueType::Set => RdbType::Set,
            ValueType::Hash => RdbType::Hash,
        }
    }
}

impl Packing {
    const ALL: [Self; 4] =
        [Packing::HashListpack, Packing::SetIntset, Packing::SetListpack, Packing::ListListpack];

    /// The number of the packing in an entry's attributes, at least 1.
    pub(crate) fn number(self) -> u32 {
        match self {
            Packing::HashListpack => 1,
            Packing::SetIntset => 2,
            Packing::SetListpack => 3,
            Packing::ListListpack => 4,
        }
    }

    pub(crate) fn of_number(number: u32) -> Option<Self> {
        Self::ALL.into_iter().find(|packing| packing.number() == number)
    }

    /// The type of the collections that are packed like this.
    pub(crate) fn value_type(self) -> ValueType {
        match self {
            Packing::HashListpack => ValueType::Hash,
            Packing::SetIntset | Packing::SetListpack => ValueType::Set,
            Packing::ListListpack => ValueType::List,
        }
    }

    /// The encoding that `OBJECT ENCODING` replies with.
    pub(crate) fn encoding_name(self) -> &'static str {
        match self {
            Packing::HashListpack | Packing::SetListpack | Packing::ListListpack => "listpack",
            Packing::SetIntset => "intset",
        }
    }

    /// The RDB type of a collection that is written as its packed bytes.
    pub(crate) fn rdb_type(self) -> RdbType {
        match self {
            Packing::HashListpack => RdbType::HashListpack,
            Packing::SetIntset => RdbType::SetIntset,
            Packing::SetListpack => RdbType::SetListpack,
            Packing::ListListpack => RdbType::ListQuicklist2,
        }
    }

    /// The RDB type that a collection with this packing has in files of this version. It is either
    /// a packed type, or the type of collections whose elements are written one by one.
    pub(crate) fn rdb_type_in(self, version: Version) -> RdbType {
        match self {
            Packing::HashListpack => version.packed_hash(),
            Packing::SetIntset => RdbType::SetIntset,
            Packing::SetListpack => version.packed_set(),
            Packing::ListListpack => version.packed_list(),
        }
    }

    /// The lengths that precede the packed bytes in a value of this packing's [RDB
    /// type](Self::rdb_type).
    pub(crate) fn rdb_head(self) -> &'static [u64] {
        match self {
            Packing::HashListpack | Packing::SetIntset | Packing::SetListpack => &[],
            // The list has one node, and the node is a listpack.
            Packing::ListListpack => &[1, QUICKLIST_NODE_PACKED],
        }
    }

    /// The packing of the values that have this RDB type, if it is a packed type.
    pub(crate) fn of_rdb_type(rdb_type: RdbType) -> Option<Self> {
        Self::ALL.into_iter().find(|packing| packing.rdb_type() == rdb_type)
    }

    /// The bytes of a collection without elements.
    pub(crate) fn empty(self) -> &'static [u8] {
        match self {
            Packing::HashListpack | Packing::SetListpack | Packing::ListListpack => {
                &listpack::EMPTY
            }
            Packing::SetIntset => &intset::EMPTY,
        }
    }

    /// Count of elements.
    pub(crate) fn len(self, bytes: &[u8]) -> usize {
        match self {
            Packing::HashListpack => listpack::len(bytes) / 2,
            Packing::SetIntset => intset::len(bytes),
            Packing::SetListpack | Packing::ListListpack => listpack::len(bytes),
        }
    }

    /// The first string of the element at `index`; `None` if there are no more than `index`
    /// elements.
    pub(crate) fn nth(self, bytes: &[u8], index: usize) -> Option<Element<'_>> {
        match self {
            Packing::HashListpack => listpack::elements(bytes).nth(2 * index).map(Element::from),
            Packing::SetIntset => {
                let is_there = index < intset::len(bytes);
                is_there.then(|| Element::Integer(intset::get(bytes, index)))
            }
            Packing::SetListpack | Packing::ListListpack => {
                listpack::elements(bytes).nth(index).map(Element::from)
            }
        }
    }

    /// The strings of all elements.
    pub(crate) fn strings(self, bytes: &[u8]) -> Strings<'_> {
        match self {
            Packing::HashListpack | Packing::SetListpack | Packing::ListListpack => {
                Box::new(listpack::elements(bytes).map(Element::from))
            }
            Packing::SetIntset => Box::new(intset::integers(bytes).map(Element::Integer)),
        }
    }

    /// Checks bytes that may be malformed. This is necessary because later reads do not check
    /// bounds. Returns whether the collection is within the limits. Fails if the bytes are damaged.
    pub(crate) fn check(self, bytes: &[u8], limits: &PackedLimits) -> Result<bool, Malformed> {
        match self {
            Packing::HashListpack => hash::check_listpack(bytes, limits.hash),
            Packing::SetIntset => set::check_intset(bytes, limits.set),
            Packing::SetListpack => set::check_listpack(bytes, limits.set),
            Packing::ListListpack => list::check_listpack(bytes, limits.list),
        }
    }
}

impl AnyTree {
    /// The type of the collection.
    pub(crate) fn value_type(&self) -> ValueType {
        match self {
            AnyTree::Hash(_) => ValueType::Hash,
            AnyTree::Set(_) => ValueType::Set,
            AnyTree::List(_) => ValueType::List,
        }
    }

    /// The encoding that `OBJECT ENCODING` replies with.
    pub(crate) fn encoding_name(&self) -> &'static str {
        match self {
            AnyTree::Hash(_) | AnyTree::Set(_) => "hashtable",
            AnyTree::List(_) => "quicklist",
        }
    }

    /// Count of elements.
    pub(crate) fn len(&self) -> usize {
        with_tree!(self, tree => tree.len())
    }

    /// Bytes that the tree takes in memory, in addition to this value itself; see
    /// [`Tree::memory`](crate::collection::tree).
    pub(crate) fn memory(&self) -> usize {
        with_tree!(self, tree => tree.memory())
    }

    /// Whether freeing the tree takes noticeable time.
    pub(crate) fn is_large(&self) -> bool {
        with_tree!(self, tree => tree.is_large())
    }

    /// The strings of all elements, in order.
    pub(crate) fn strings(&self) -> Strings<'_> {
        with_tree!(self, tree => Box::new(tree.elements().flatten()))
    }

    /// Passes to `each` the elements of one leaf, from a position on. Returns the position at which
    /// the next leaf begins.
    ///
    /// Panics if the elements are not in the order of hashes.
    pub(crate) fn walk(&self, from: Position, each: &mut dyn FnMut(&[Element<'_>])) -> Position {
        match self {
            AnyTree::Hash(tree) => {
                let (next, elements) = tree.walk(from);
                elements.for_each(|element| each(&element));
                next
            }
            AnyTree::Set(tree) => {
                let (next, elements) = tree.walk(from);
                elements.for_each(|element| each(&element));
                next
            }
            AnyTree::List(_) => panic!("a list has no order of hashes"),
        }
    }

    /// Begins a search for the leaf where an element with this hash is, or would be; `None` if the
    /// elements are not in the order of hashes.
    pub(crate) fn search(&self, hash: impl FnOnce() -> u32) -> Option<AnySearch<'_>> {
        match self {
            AnyTree::Hash(tree) => Some(AnySearch::Hash(tree.search(hash()))),
            AnyTree::Set(tree) => Some(AnySearch::Set(tree.search(hash()))),
            AnyTree::List(_) => None,
        }
    }

    /// The strings of the elements from `index` on that are in the same leaf.
    pub(crate) fn strings_of_leaf(&self, index: usize) -> Strings<'_> {
        with_tree!(self, tree => Box::new(tree.elements_of_leaf(index).flatten()))
    }

    /// Panics with a message if an invariant does not hold.
    pub(crate) fn check(&self) {
        with_tree!(self, tree => tree.check());
    }
}

/// A search in a large collection.
#[derive(Debug)]
pub(crate) enum AnySearch<'a> {
    Hash(Search<'a, 2>),
    Set(Search<'a, 1>),
}

impl<'a> AnySearch<'a> {
    /// Goes down one level. Returns false if the search has reached a leaf.
    pub(crate) fn step(&mut self) -> bool {
        match self {
            AnySearch::Hash(search) => search.step(),
            AnySearch::Set(search) => search.step(),
        }
    }

    /// The bytes of the leaf that a lookup probably reads; `None` if the search has not reached a
    /// leaf yet.
    pub(crate) fn bytes(&self) -> Option<&'a [u8]> {
        match self {
            AnySearch::Hash(search) => search.bytes(),
            AnySearch::Set(search) => search.bytes(),
        }
    }
}

/// Makes a collection from its elements, on any thread.
#[derive(Debug)]
pub(crate) struct Builder {
    value_type: ValueType,
    form: EditForm<'static>,
    hasher: KeyHasher,
    limits: PackedLimits,
}

impl Builder {
    /// A collection without elements, for the keyspace that has this hasher; `None` if values of
    /// this type are not collections.
    pub(crate) fn new(
        value_type: ValueType,
        hasher: KeyHasher,
        limits: PackedLimits,
    ) -> Option<Self> {
        let packing = match value_type {
            ValueType::String => return None,
            ValueType::List => Packing::ListListpack,
            ValueType::Set => Packing::SetIntset,
            ValueType::Hash => Packing::HashListpack,
        };
        Some(Self { value_type, form: EditForm::empty(packing), hasher, limits })
    }

    /// Like [`new`](Self::new), for the elements of a value that has this RDB type. As in Redis, a
    /// value that is packed in RDB stays packed unless it has too many elements, however large its
    /// elements are.
    pub(crate) fn of_rdb_type(
        rdb_type: RdbType,
        hasher: KeyHasher,
        limits: PackedLimits,
    ) -> Option<Self> {
        let mut builder = Self::new(ValueType::of_kind(rdb_type.kind())?, hasher, limits)?;
        let packing = match rdb_type {
            RdbType::HashZiplist => Some(Packing::HashListpack),
            _ => Packing::of_rdb_type(rdb_type),
        };
        if let Some(packing) = packing {
            builder.form = EditForm::empty(packing);
            builder.limits = limits.of_any_size();
        }
        Some(builder)
    }

    /// The type of the collection.
    pub(crate) fn value_type(&self) -> ValueType {
        self.value_type
    }

    /// Adds an element, which has as many strings as [`ValueType::strings`] says. Returns whether
    /// the element is new.
    pub(crate) fn add(&mut self, strings: &[Arg<'_>]) -> bool {
        let Self { value_type, form, hasher, limits } = self;
        // A string is replaced only if a field comes twice. No valid value has such a field, so a
        // replaced string is simply freed at once.
        let old: &mut Vec<LargeString> = &mut Vec::new();
        match value_type {
            ValueType::String => unreachable!("a string is not a collection"),
            ValueType::Hash => HashEdit { form, hasher: *hasher, limits: limits.hash, old }
                .set(strings[0], strings[1]),
            ValueType::Set => {
                SetEdit { form, hasher: *hasher, limits: limits.set, old }.add(strings[0])
            }
            ValueType::List => {
                ListEdit { form, limits: limits.list, old }.append(strings[0]);
                true
            }
        }
    }

    /// Adds a part of a value in an RDB file. The part must be a new element of this type.
    pub(crate) fn add_part(&mut self, part: RdbPart) -> Result<(), ValueRefused> {
        let (is_new, name) = match (self.value_type, part) {
            (ValueType::Hash, RdbPart::Field(field)) if field.expire_at_ms.is_some() => {
                return Err(ValueRefused::Expires);
            }
            (ValueType::Hash, RdbPart::Field(field)) => {
                (self.add(&[Arg::Bytes(&field.name), Arg::Bytes(&field.value)]), field.name)
            }
            (ValueType::Set, RdbPart::Element(member)) => {
                (self.add(&[Arg::Bytes(&member)]), member)
            }
            (ValueType::List, RdbPart::Element(element)) => {
                (self.add(&[Arg::Bytes(&element)]), element)
            }
            _ => return Err(ValueRefused::Misplaced),
        };
        if is_new { Ok(()) } else { Err(ValueRefused::Twice(name)) }
    }

    /// Adds the elements that consist of these strings. If the last strings do not make a whole
    /// element, they are left out.
    pub(crate) fn add_all<'a>(&mut self, mut strings: impl Iterator<Item = Element<'a>>) {
        let count = self.value_type.strings();
        let mut element: [Cow<'a, [u8]>; STRINGS_MAX] = Default::default();
        loop {
            for string in &mut element[..count] {
                let Some(next) = strings.next() else { return };
                *string = next.to_bytes();
            }
            let args: [Arg<'_>; STRINGS_MAX] = std::array::from_fn(|at| Arg::Bytes(&element[at]));
            self.add(&args[..count]);
        }
    }

    /// The collection; `None` if it has no element.
    pub(crate) fn finish(self) -> Option<Value> {
        self.form.into_value()
    }
}
