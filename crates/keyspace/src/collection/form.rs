//! Views of a collection: one for reading, and one for changing. A collection can have three forms.

use std::sync::Arc;

use slimio_resp::Piece;

use super::{Element, Strings};
use crate::kinds::{AnyTree, Packing, ValueType};
use crate::value::Value;

/// Size in bytes of the smallest [huge](CollectionRef::is_huge) collection.
const HUGE_SIZE_MIN: usize = 16 << 20;

/// A change of a [huge](CollectionRef::is_huge) collection takes the time of about this many
/// lookups, because the change may have to copy nodes that are shared with a snapshot or a clone.
const CHANGE_OF_HUGE_COST: usize = 8;

/// A borrowed view of a collection.
#[derive(Clone, Copy, Debug)]
pub struct CollectionRef<'a>(pub(crate) Form<'a>);

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form<'a> {
    /// The bytes of a short collection, in the key's entry.
    Inline(Packing, &'a [u8]),
    /// The bytes of a longer collection, which can be shared.
    Packed(Packing, &'a Piece),
    /// A large collection, which can be shared.
    Tree(&'a AnyTree),
}

impl<'a> CollectionRef<'a> {
    /// The type of the collection.
    pub fn value_type(self) -> ValueType {
        match self.0 {
            Form::Inline(packing, _) | Form::Packed(packing, _) => packing.value_type(),
            Form::Tree(tree) => tree.value_type(),
        }
    }

    /// Count of elements.
    pub fn len(self) -> usize {
        match self.packed() {
            Some((packing, bytes)) => packing.len(bytes),
            None => self.tree().map_or(0, AnyTree::len),
        }
    }

    /// Whether the collection has no elements. A keyspace holds no collection without elements.
    pub fn is_empty(self) -> bool {
        self.len() == 0
    }

    /// The encoding that `OBJECT ENCODING` replies with.
    pub fn encoding_name(self) -> &'static str {
        match self.0 {
            Form::Inline(packing, _) | Form::Packed(packing, _) => packing.encoding_name(),
            Form::Tree(tree) => tree.encoding_name(),
        }
    }

    /// The strings of all elements, in the order of storage. For a hash, these are its fields and
    /// values in turn. A large collection is walked leaf by leaf, so that every step takes bounded
    /// time.
    pub fn strings(self) -> Strings<'a> {
        match self.0 {
            Form::Inline(packing, bytes) => packing.strings(bytes),
            Form::Packed(packing, piece) => packing.strings(piece),
            Form::Tree(tree) => tree.strings(),
        }
    }

    /// The strings of the element at `index`, and of the elements that follow it in the same
    /// memory: in the same leaf if the collection is large, or up to the end if it is packed. Takes
    /// bounded time.
    pub(crate) fn strings_of_leaf(self, index: usize) -> Strings<'a> {
        match self.tree() {
            Some(tree) => tree.strings_of_leaf(index),
            None => Box::new(self.strings().skip(index * self.value_type().strings())),
        }
    }

    /// Count of strings per element.
    pub(crate) fn strings_each(self) -> usize {
        self.value_type().strings()
    }

    /// The first string of the element at `index`, in the order of storage.
    ///
    /// Panics if there is no element at `index`.
    pub(crate) fn nth(self, index: usize) -> Element<'a> {
        let found = match self.packed() {
            Some((packing, bytes)) => packing.nth(bytes, index),
            None => self.strings_of_leaf(index).next(),
        };
        found.expect("the collection has an element at the index")
    }

    /// The bytes of a packed collection.
    pub(crate) fn packed(self) -> Option<(Packing, &'a [u8])> {
        match self.0 {
            Form::Inline(packing, bytes) => Some((packing, bytes)),
            Form::Packed(packing, piece) => Some((packing, piece)),
            Form::Tree(_) => None,
        }
    }

    /// The tree of a large collection.
    pub(crate) fn tree(self) -> Option<&'a AnyTree> {
        match self.0 {
            Form::Tree(tree) => Some(tree),
            Form::Inline(..) | Form::Packed(..) => None,
        }
    }

    /// The approximate size of all strings, in bytes. Takes constant time.
    pub(crate) fn size(self) -> usize {
        match self.packed() {
            Some((_, bytes)) => bytes.len(),
            None => self.tree().map_or(0, AnyTree::memory),
        }
    }

    /// Whether freeing the collection takes noticeable time.
    pub(crate) fn is_large(self) -> bool {
        self.tree().is_some_and(AnyTree::is_large)
    }

    /// Whether the collection takes so much memory that changing an element takes a few
    /// microseconds. The change is that slow because the processor's cache holds little of the
    /// collection, and because a snapshot may share all of the collection.
    pub(crate) fn is_huge(self) -> bool {
        self.tree().is_some_and(|tree| tree.memory() >= HUGE_SIZE_MIN)
    }

    /// The cost of changing one element, as the number of lookups that take the same time.
    pub(crate) fn change_cost(self) -> usize {
        if self.is_huge() { CHANGE_OF_HUGE_COST } else { 1 }
    }

    /// An owned copy; large parts are shared.
    pub(crate) fn to_value(self) -> Value {
        match self.0 {
            Form::Inline(packing, bytes) => Value::Packed(packing, Arc::new(bytes.to_vec())),
            Form::Packed(packing, piece) => Value::Packed(packing, Piece::clone(piece)),
            Form::Tree(tree) => Value::Tree(Box::new(tree.clone())),
        }
    }

    /// Panics with a message if an invariant does not hold.
    pub(crate) fn check(self) {
        match self.packed() {
            Some((packing, bytes)) => {
                let strings = packing.len(bytes) * packing.value_type().strings();
                let found = packing.strings(bytes).count();
                assert_eq!(found, strings, "packed bytes must hold the stored number of strings");
            }
            None => self.tree().into_iter().for_each(AnyTree::check),
        }
    }
}

/// A collection that is being changed, in one of its forms.
#[derive(Debug)]
pub(crate) enum EditForm<'a> {
    /// Packed bytes that begin at `base` of `bytes`.
    Packed { packing: Packing, bytes: Vec<u8>, base: usize },
    /// A tree, which is changed in place.
    Tree(&'a mut AnyTree),
    /// The tree that the collection has grown into. `bytes` are those that the `Packed` form had.
    /// They are empty if the form was made from a tree that is in no keyspace.
    Grown { bytes: Vec<u8>, tree: Box<AnyTree> },
}

impl EditForm<'static> {
    /// The form in which to change a value that is not in a keyspace; `None` if the value is not a
    /// collection. If a tree is shared, the other holders of the tree do not see the changes.
    pub(crate) fn of_value(value: Value) -> Option<Self> {
        match value {
            Value::Piece(_) | Value::Blob(_) => None,
            Value::Packed(packing, piece) => {
                let bytes = Arc::unwrap_or_clone(piece);
                Some(EditForm::Packed { packing, bytes, base: 0 })
            }
            Value::Tree(tree) => Some(EditForm::Grown { bytes: Vec::new(), tree }),
        }
    }

    /// A collection without elements that is in no keyspace yet.
    pub(crate) fn empty(packing: Packing) -> Self {
        EditForm::Packed { packing, bytes: packing.empty().to_vec(), base: 0 }
    }

    /// The collection as a value; `None` if it has no element.
    pub(crate) fn into_value(self) -> Option<Value> {
        let value = match self {
            EditForm::Packed { packing, mut bytes, .. } => {
                bytes.shrink_to_fit();
                Value::Packed(packing, Piece::new(bytes))
            }
            EditForm::Grown { tree, .. } => Value::Tree(tree),
            EditForm::Tree(_) => unreachable!("the form borrows no tree"),
        };
        let is_empty = value.as_ref().as_collection().is_none_or(CollectionRef::is_empty);
        (!is_empty).then_some(value)
    }
}

impl EditForm<'_> {
    /// The tree. If the collection is packed, `grow` first makes a tree of its bytes.
    pub(crate) fn tree(&mut self, grow: impl FnOnce(Packing, &[u8]) -> AnyTree) -> &mut AnyTree {
        if let EditForm::Packed { packing, bytes, base } = self {
            let tree = Box::new(grow(*packing, &bytes[*base..]));
            *self = EditForm::Grown { bytes: std::mem::take(bytes), tree };
        }
        match self {
            EditForm::Packed { .. } => unreachable!("the collection has just become a tree"),
            EditForm::Tree(tree) => tree,
            EditForm::Grown { tree, .. } => tree,
        }
    }

    /// The cost of changing one element, as the number of lookups that take the same time.
    pub(crate) fn change_cost(&self) -> usize {
        match self {
            EditForm::Packed { .. } => 1,
            EditForm::Tree(tree) => CollectionRef(Form::Tree(tree)).change_cost(),
            EditForm::Grown { tree, .. } => CollectionRef(Form::Tree(tree)).change_cost(),
        }
    }

    /// Count of elements.
    pub(crate) fn len(&self) -> usize {
        match self {
            EditForm::Packed { packing, bytes, base } => packing.len(&bytes[*base..]),
            EditForm::Tree(tree) => tree.len(),
            EditForm::Grown { tree, .. } => tree.len(),
        }
    }
}
