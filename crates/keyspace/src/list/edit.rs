//! Changes lists, and converts them between their two forms: listpack and tree.

use slimio_planted::is_planted;
use slimio_rdb::ListpackWriter;
use slimio_rdb::listpack::{self, NewElement};
use slimio_resp::Arg;

use super::{ListLimits, offset};
use crate::collection::positional::{End, PositionalTree};
use crate::collection::{EditForm, Element, LargeString, PACKED_SIZE_MAX};
use crate::kinds::{AnyTree, Packing};

/// If at most this many elements are removed at an end of a tree, they are removed one by one. If
/// there are more, they are cut off together.
const SINGLE_POPS_MAX: usize = 32;

/// If at most this many elements are removed within a listpack, they are removed one by one. If
/// there are more, the listpack is built anew without them.
const SINGLE_REMOVALS_MAX: usize = 8;

/// Changes a list, and its form if needed.
pub(crate) struct ListEdit<'a, 'b> {
    pub(crate) form: &'a mut EditForm<'b>,
    pub(crate) limits: ListLimits,
    /// Removed strings that take noticeable time to free.
    pub(crate) old: &'a mut Vec<LargeString>,
}

impl ListEdit<'_, '_> {
    pub(super) fn len(&self) -> usize {
        self.form.len()
    }

    /// Prepares the list for a request that adds strings of these sizes. If the strings are too
    /// many or too long for a listpack, the list becomes a tree before any string is added.
    pub(super) fn reserve(&mut self, sizes: impl Iterator<Item = usize>) {
        let EditForm::Packed { bytes, base, .. } = &*self.form else { return };
        let (mut size, mut len) = (bytes.len() - base, listpack::len(&bytes[*base..]));
        for more in sizes {
            (size, len) = (size + more, len + 1);
            // An element takes at least two bytes. So if the count of elements is above half of the
            // limit in bytes, the list is too large, however short the elements are.
            if self.limits.are_exceeded(size, len) || 2 * len > PACKED_SIZE_MAX {
                self.tree();
                return;
            }
        }
    }

    /// Adds an element at the end. If the list would be too large for a listpack, it becomes a
    /// tree.
    pub(crate) fn append(&mut self, arg: Arg<'_>) {
        self.reserve(std::iter::once(arg.size()));
        self.push(End::Last, arg);
    }

    /// Adds an element at an end.
    pub(super) fn push(&mut self, end: End, arg: Arg<'_>) {
        let added = self.add_packed(arg, |listpack| match end {
            End::First => listpack::START,
            End::Last => listpack::end(listpack),
        });
        if !added {
            self.tree().push(end, arg);
        }
    }

    /// Adds an element to a listpack, at the place that `at` returns. Returns `false` if the list
    /// is a tree, or has to become one.
    fn add_packed(&mut self, arg: Arg<'_>, at: impl FnOnce(&[u8]) -> usize) -> bool {
        let EditForm::Packed { bytes, base, .. } = &mut *self.form else { return false };
        if arg.size() > PACKED_SIZE_MAX {
            return false;
        }
        let string = arg.to_bytes();
        let new = NewElement::string(&string);
        if bytes.len() - *base + new.size() > PACKED_SIZE_MAX {
            return false;
        }
        let at = at(&bytes[*base..]);
        listpack::replace(bytes, *base, at..at, 0, &[new]);
        true
    }

    /// Inserts an element at an index, before the element that is there. If the index is the count
    /// of elements, adds the element at the end.
    pub(super) fn insert(&mut self, index: usize, arg: Arg<'_>) {
        self.reserve(std::iter::once(arg.size()));
        if !self.add_packed(arg, |listpack| offset(listpack, index)) {
            self.tree().insert(index, arg);
        }
    }

    /// Replaces the element at an index. There must be such an element.
    pub(super) fn set(&mut self, index: usize, arg: Arg<'_>) {
        self.reserve(std::iter::once(arg.size()));
        if let EditForm::Packed { bytes, base, .. } = &mut *self.form
            && arg.size() <= PACKED_SIZE_MAX
        {
            let string = arg.to_bytes();
            let new = NewElement::string(&string);
            if bytes.len() - *base + new.size() <= PACKED_SIZE_MAX {
                let start = offset(&bytes[*base..], index);
                let end = listpack::behind(&bytes[*base..], start);
                listpack::replace(bytes, *base, start..end, 1, &[new]);
                return;
            }
        }
        let (tree, old) = self.tree_and_old();
        tree.set(index, arg, old);
        self.settle();
    }

    /// Passes the element at an end to `each`, then removes the element. The list must not be
    /// empty.
    pub(super) fn pop<R>(&mut self, end: End, each: impl FnOnce(Element<'_>) -> R) -> R {
        if let EditForm::Packed { bytes, base, .. } = &mut *self.form {
            let listpack = &bytes[*base..];
            let start = match end {
                End::First => listpack::START,
                End::Last => listpack::before(listpack, listpack::end(listpack)),
            };
            let (element, behind) = listpack::element(listpack, start);
            let result = each(element.into());
            listpack::replace(bytes, *base, start..behind, 1, &[]);
            return result;
        }
        let (tree, old) = self.tree_and_old();
        let result = each(tree.end(end).expect("there is an element"));
        tree.pop(end, old);
        self.settle();
        result
    }

    /// Removes `count` elements at an end. The list must have that many. If the elements were cut
    /// off from a tree, returns them as a tree of their own; otherwise returns `None`.
    pub(super) fn remove_at_end(&mut self, end: End, count: usize) -> Option<AnyTree> {
        if let EditForm::Packed { bytes, base, .. } = &mut *self.form {
            let (listpack, len) = (&bytes[*base..], listpack::len(&bytes[*base..]));
            let range = match end {
                End::First => listpack::START..offset(listpack, count),
                End::Last => offset(listpack, len - count)..listpack::end(listpack),
            };
            listpack::replace(bytes, *base, range, count, &[]);
            return None;
        }
        if count > SINGLE_POPS_MAX {
            return Some(self.cut_at_end(end, count));
        }
        let (tree, old) = self.tree_and_old();
        (0..count).for_each(|_| tree.pop(end, old));
        self.settle();
        None
    }

    /// Removes `count` elements at an end, and returns them. `count` must be less than the list's
    /// length. A listpack is converted to a tree first. If the list is a tree already, the call
    /// takes logarithmic time.
    pub(super) fn cut_at_end(&mut self, end: End, count: usize) -> AnyTree {
        let (tree, _) = self.tree_and_old();
        let cut = match end {
            End::First => {
                let rest = tree.cut(count);
                std::mem::replace(tree, rest)
            }
            End::Last => tree.cut(tree.len() - count),
        };
        self.settle();
        AnyTree::List(cut)
    }

    /// Removes the elements at these indices. The indices must ascend. In a tree, the elements must
    /// be in one leaf.
    pub(super) fn remove(&mut self, indices: &[usize]) {
        if let EditForm::Packed { bytes, base, .. } = &mut *self.form {
            if indices.len() > SINGLE_REMOVALS_MAX {
                let rest = without(&bytes[*base..], indices);
                bytes.truncate(*base);
                bytes.extend_from_slice(&rest);
                return;
            }
            for index in indices.iter().rev() {
                let start = offset(&bytes[*base..], *index);
                let end = listpack::behind(&bytes[*base..], start);
                listpack::replace(bytes, *base, start..end, 1, &[]);
            }
            return;
        }
        let (tree, old) = self.tree_and_old();
        tree.remove(indices, old);
    }

    /// The list as a tree. A listpack is converted first.
    pub(super) fn tree(&mut self) -> &mut PositionalTree {
        self.tree_and_old().0
    }

    fn tree_and_old(&mut self) -> (&mut PositionalTree, &mut Vec<LargeString>) {
        let tree = self.form.tree(|packing, bytes| {
            let mut tree = PositionalTree::default();
            for element in packing.strings(bytes) {
                element.with_arg(|arg| tree.push(End::Last, arg));
            }
            AnyTree::List(tree)
        });
        let AnyTree::List(tree) = tree else { unreachable!("the collection is a list") };
        (tree, self.old)
    }

    /// Converts a tree that has become small to a listpack. Must be called after elements were
    /// removed or replaced.
    pub(super) fn settle(&mut self) {
        let tree = match &*self.form {
            EditForm::Tree(AnyTree::List(tree)) => tree,
            EditForm::Grown { tree, .. } => match &**tree {
                AnyTree::List(tree) => tree,
                _ => return,
            },
            _ => return,
        };
        if is_planted("shrunk-list-stays") {
            return;
        }
        let is_small = |size| self.limits.allow_packing(size, tree.len());
        if tree.len() > 0 && tree.size_of_one_leaf().is_some_and(is_small) {
            let bytes = packed(tree.elements().flatten());
            let form = EditForm::Packed { packing: Packing::ListListpack, bytes, base: 0 };
            *self.form = form;
        }
    }
}

/// A listpack of these elements.
fn packed<'a>(elements: impl Iterator<Item = Element<'a>>) -> Vec<u8> {
    let mut writer = ListpackWriter::new();
    for element in elements {
        match element {
            Element::Integer(value) => writer.push_integer(value),
            other => writer.push(&other.to_bytes()),
        }
    }
    writer.finish().to_vec()
}

/// The same listpack without the elements at these indices. The indices must ascend.
fn without(listpack: &[u8], removed: &[usize]) -> Vec<u8> {
    let mut removed = removed.iter().copied().peekable();
    let kept = listpack::elements(listpack)
        .enumerate()
        .filter(|(index, _)| removed.next_if_eq(index).is_none());
    packed(kept.map(|(_, element)| element.into()))
}
