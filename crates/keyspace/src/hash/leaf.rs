//! A leaf of the tree: entries packed in one stretch of memory, in the order of their hashes.
//!
//! ```text
//! | hash: u32 | size of field | size of value | field ... | value ... | hash: u32 | ...
//! ```
//!
//! A size is a varint, little-endian, seven bits to a byte, the high bit set on all but the last.
//! Its lowest bit says that the string lies outside, as the next in the list of those, and takes no
//! bytes here. Equal hashes stand in no particular order.

use slimio_resp::Arg;

use super::element::{Element, LargeString};
use crate::memory::allocated;

/// Longest string, in bytes, that lies in the leaf itself.
const INSIDE_SIZE_MAX: usize = 512;

/// Weight of the heaviest leaf, unless all its hashes are equal: a write to a shared leaf copies
/// it.
pub(super) const LEAF_WEIGHT_MAX: usize = 2048;

/// Weight of a string outside.
const OUTSIDE_WEIGHT: usize = 64;

/// Most unused places in the list of strings outside.
const OUTSIDE_SLACK_MAX: usize = 4;

const HASH_SIZE: usize = 4;

#[derive(Clone, Debug, Default)]
pub(super) struct Leaf {
    bytes: Vec<u8>,
    outside: Vec<LargeString>,
}

/// An entry, looked at where it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Entry<'a> {
    pub(crate) field: Element<'a>,
    pub(crate) value: Element<'a>,
}

/// Where an entry is or would be.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    start: usize,
    /// The same as `start` if there is no such entry.
    end: usize,
    /// Count of strings outside that come before it.
    outside: usize,
}

impl Place {
    pub(super) fn is_taken(self) -> bool {
        self.end > self.start
    }
}

/// The head of an entry.
#[derive(Clone, Copy, Debug)]
struct Head {
    hash: u32,
    field: Size,
    value: Size,
    /// Where the field begins.
    body: usize,
}

/// The size of a string, and where it lies.
#[derive(Clone, Copy, Debug)]
struct Size {
    inside: usize,
    is_outside: bool,
}

impl Head {
    fn end(self) -> usize {
        self.body + self.field.inside + self.value.inside
    }

    fn outside(self) -> usize {
        usize::from(self.field.is_outside) + usize::from(self.value.is_outside)
    }
}

impl Size {
    fn of(arg: Arg<'_>) -> Self {
        let is_outside = arg.size() > INSIDE_SIZE_MAX;
        Self { inside: if is_outside { 0 } else { arg.size() }, is_outside }
    }

    fn bits(self) -> usize {
        self.inside << 1 | usize::from(self.is_outside)
    }

    /// Size in bytes of the varint.
    fn encoded_size(self) -> usize {
        if self.bits() < 0x80 { 1 } else { 2 }
    }

    fn write(self, out: &mut [u8]) -> usize {
        let bits = self.bits();
        if bits < 0x80 {
            out[0] = bits as u8;
            return 1;
        }
        out[0] = bits as u8 | 0x80;
        out[1] = (bits >> 7) as u8;
        2
    }

    fn read(bytes: &[u8], at: &mut usize) -> Self {
        let mut bits = usize::from(bytes[*at]);
        *at += 1;
        if bits >= 0x80 {
            bits = bits & 0x7f | usize::from(bytes[*at]) << 7;
            *at += 1;
        }
        Self { inside: bits >> 1, is_outside: bits & 1 != 0 }
    }
}

const _: () = assert!(INSIDE_SIZE_MAX * 2 + 1 < 1 << 14, "a size takes two bytes at most");

impl Leaf {
    /// The weight by which leaves are split and merged: about what copying the leaf costs, in
    /// bytes.
    pub(super) fn weight(&self) -> usize {
        self.bytes.len() + OUTSIDE_WEIGHT * self.outside.len()
    }

    /// Bytes of memory beside the node's own.
    pub(super) fn memory(&self) -> usize {
        allocated(self.bytes.capacity())
            + allocated(self.outside.capacity() * size_of::<LargeString>())
            + self.outside.iter().map(LargeString::memory).sum::<usize>()
    }

    /// The entries with hashes of at least `from`, in the order of their hashes.
    pub(super) fn entries(&self, from: u32) -> impl Iterator<Item = Entry<'_>> {
        let (mut at, mut outside) = (0, 0);
        std::iter::from_fn(move || {
            while at < self.bytes.len() {
                let head = self.head(at);
                let first = outside;
                at = head.end();
                outside += head.outside();
                if head.hash >= from {
                    return Some(self.entry(head, first));
                }
            }
            None
        })
    }

    /// Where the entry of a field is, or would be.
    pub(super) fn find(&self, hash: u32, field: Arg<'_>) -> Place {
        let (mut at, mut outside) = (0, 0);
        while at < self.bytes.len() {
            let head = self.head(at);
            if head.hash > hash {
                break;
            }
            let end = head.end();
            if head.hash == hash && self.entry(head, outside).field.is(field) {
                return Place { start: at, end, outside };
            }
            at = end;
            outside += head.outside();
        }
        Place { start: at, end: at, outside }
    }

    /// The value of the entry at a place that is taken.
    pub(super) fn value(&self, place: Place) -> Element<'_> {
        self.entry(self.head(place.start), place.outside).value
    }

    /// Puts an entry where `find` has found its place. Returns an old value whose freeing takes
    /// noticeable time.
    pub(super) fn put(
        &mut self,
        place: Place,
        hash: u32,
        field: Arg<'_>,
        value: Arg<'_>,
    ) -> Option<LargeString> {
        let (field_size, value_size) = (Size::of(field), Size::of(value));
        let size = HASH_SIZE
            + field_size.encoded_size()
            + value_size.encoded_size()
            + field_size.inside
            + value_size.inside;
        let mut next = place.outside;
        let mut old = None;
        if place.is_taken() {
            // The field stays what it is.
            next += usize::from(field_size.is_outside);
            if self.head(place.start).value.is_outside {
                old = Some(self.outside.remove(next));
            }
        } else if field_size.is_outside {
            self.insert_outside(next, field);
            next += 1;
        }
        if value_size.is_outside {
            self.insert_outside(next, value);
        }
        self.resize(place, size);
        let out = &mut self.bytes[place.start..place.start + size];
        out[..HASH_SIZE].copy_from_slice(&hash.to_le_bytes());
        let mut at = HASH_SIZE;
        at += field_size.write(&mut out[at..]);
        at += value_size.write(&mut out[at..]);
        for arg in [field, value] {
            if !Size::of(arg).is_outside {
                for chunk in arg.chunks() {
                    out[at..at + chunk.len()].copy_from_slice(chunk);
                    at += chunk.len();
                }
            }
        }
        old.filter(LargeString::is_large)
    }

    /// Removes the entry at a place that is taken. Returns strings that take noticeable time to
    /// free.
    pub(super) fn remove(&mut self, place: Place) -> [Option<LargeString>; 2] {
        assert!(place.is_taken(), "there is an entry to be removed");
        let head = self.head(place.start);
        let mut take = |is_outside| {
            let taken = if is_outside { Some(self.outside.remove(place.outside)) } else { None };
            taken.filter(LargeString::is_large)
        };
        let taken = [take(head.field.is_outside), take(head.value.is_outside)];
        if self.outside.capacity() > self.outside.len() + OUTSIDE_SLACK_MAX {
            self.outside.shrink_to_fit();
        }
        self.resize(place, 0);
        taken
    }

    /// Splits the leaf in two of about the same weight. Returns the second and its first hash;
    /// `None` if all hashes are equal.
    pub(super) fn split(&mut self) -> Option<(u32, Leaf)> {
        let half = self.weight() / 2;
        let (mut at, mut outside, mut last) = (0, 0, None);
        let mut best: Option<(usize, usize, usize, u32)> = None;
        while at < self.bytes.len() {
            let head = self.head(at);
            let off = half.abs_diff(at + OUTSIDE_WEIGHT * outside);
            if last.is_some_and(|last| last != head.hash)
                && best.is_none_or(|(least, ..)| off < least)
            {
                best = Some((off, at, outside, head.hash));
            }
            last = Some(head.hash);
            at = head.end();
            outside += head.outside();
        }
        let (_, at, outside, first) = best?;
        assert!(0 < at && at < self.bytes.len(), "both halves of a leaf have an entry");
        let mut bytes = Vec::with_capacity(allocated(self.bytes.len() - at));
        bytes.extend_from_slice(&self.bytes[at..]);
        self.bytes.truncate(at);
        self.bytes.shrink_to(allocated(at));
        let outside = self.outside.split_off(outside);
        self.outside.shrink_to_fit();
        Some((first, Leaf { bytes, outside }))
    }

    /// Adds the entries of the leaf that comes behind this one.
    pub(super) fn append(&mut self, behind: &Leaf) {
        self.reserve(behind.bytes.len());
        self.bytes.extend_from_slice(&behind.bytes);
        self.outside.reserve_exact(behind.outside.len());
        self.outside.extend_from_slice(&behind.outside);
    }

    fn head(&self, start: usize) -> Head {
        let hash = self.bytes[start..start + HASH_SIZE].try_into().expect("four bytes");
        let mut at = start + HASH_SIZE;
        let field = Size::read(&self.bytes, &mut at);
        let value = Size::read(&self.bytes, &mut at);
        Head { hash: u32::from_le_bytes(hash), field, value, body: at }
    }

    /// The entry of a head; `outside` counts the strings outside before it.
    fn entry(&self, head: Head, outside: usize) -> Entry<'_> {
        let middle = head.body + head.field.inside;
        let value_outside = outside + usize::from(head.field.is_outside);
        Entry {
            field: if head.field.is_outside {
                self.outside[outside].as_element()
            } else {
                Element::Bytes(&self.bytes[head.body..middle])
            },
            value: if head.value.is_outside {
                self.outside[value_outside].as_element()
            } else {
                Element::Bytes(&self.bytes[middle..head.end()])
            },
        }
    }

    fn insert_outside(&mut self, index: usize, arg: Arg<'_>) {
        if self.outside.len() == self.outside.capacity() {
            self.outside.reserve_exact(2);
        }
        self.outside.insert(index, LargeString::from_arg(arg));
    }

    /// Replaces the bytes at a place by room for `size` bytes.
    fn resize(&mut self, place: Place, size: usize) {
        let (before, old) = (self.bytes.len(), place.end - place.start);
        if size > old {
            self.reserve(size - old);
            self.bytes.resize(before + size - old, 0);
            self.bytes.copy_within(place.end..before, place.start + size);
        } else if size < old {
            self.bytes.copy_within(place.end.., place.start + size);
            self.bytes.truncate(before - (old - size));
            let wanted = allocated(self.bytes.len());
            if self.bytes.capacity() > allocated(wanted + 1) {
                self.bytes.shrink_to(wanted);
            }
        }
    }

    fn reserve(&mut self, more: usize) {
        let len = self.bytes.len();
        if len + more > self.bytes.capacity() {
            // As much as the allocator gives anyway.
            self.bytes.reserve_exact(allocated(len + more) - len);
        }
    }
}

impl Leaf {
    /// Walks over all entries and returns their hashes, in order. Panics if an invariant of the
    /// leaf does not hold.
    pub(super) fn check(&self) -> Vec<u32> {
        let (mut at, mut hashes, mut outside) = (0, Vec::new(), 0);
        while at < self.bytes.len() {
            let head = self.head(at);
            hashes.push(head.hash);
            at = head.end();
            outside += head.outside();
        }
        assert_eq!(at, self.bytes.len(), "the last entry of a leaf ends where the leaf does");
        assert_eq!(outside, self.outside.len(), "each string outside is that of an entry");
        assert!(hashes.is_sorted(), "the entries of a leaf are in the order of their hashes");
        let are_equal = hashes.first() == hashes.last();
        assert!(
            self.weight() <= LEAF_WEIGHT_MAX || are_equal,
            "a leaf weighs {}: only one of equal hashes may be so heavy",
            self.weight()
        );
        hashes
    }
}
