//! A leaf of a large hash or set. It packs elements in one contiguous buffer, ordered by the hashes
//! of their keys.
//!
//! ```text
//! | hash: u32 | size of each string | each string ... | hash: u32 | ...
//! ```
//!
//! A size is a little-endian varint, with seven bits in each byte and the high bit set in all bytes
//! but the last. If the lowest bit of the varint's value is set, the string is outside: it is the
//! next string in the leaf's list of outside strings, and takes no bytes in the buffer. The other
//! bits are the number of bytes that the string takes in the buffer. Elements with equal hashes are
//! in no particular order.

use slimio_resp::Arg;

use super::Hashed;
use crate::collection::element::{Element, LargeString};
use crate::collection::tree::{Edge, Leaf};
use crate::memory::allocated;

/// Size in bytes of the longest string that is stored in the leaf itself.
const INSIDE_SIZE_MAX: usize = 512;

/// What an outside string adds to the weight of its leaf.
const OUTSIDE_WEIGHT: usize = 64;

/// Limit of unused places in the list of outside strings.
const OUTSIDE_SLACK_MAX: usize = 4;

const HASH_SIZE: usize = 4;

/// A leaf of elements that have `STRINGS` strings each, at least one. The first string is the key.
#[derive(Clone, Debug, Default)]
pub(crate) struct HashedLeaf<const STRINGS: usize> {
    bytes: Vec<u8>,
    outside: Vec<LargeString>,
}

/// Where an element is, or where it would be inserted.
#[derive(Clone, Copy, Debug)]
pub(super) struct Place {
    start: usize,
    /// Where the element ends. Equal to `start` if there is no such element.
    end: usize,
    /// Count of outside strings before the element.
    outside: usize,
}

/// How far a lookup has read the elements of a leaf.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Reading {
    /// The hash that was looked for last. No element before `at` has this hash or a higher one.
    pub(super) hash: u32,
    at: usize,
    /// Count of outside strings before `at`.
    outside: usize,
}

impl Place {
    pub(super) fn is_taken(self) -> bool {
        self.end > self.start
    }
}

/// The head of an element.
#[derive(Clone, Copy, Debug)]
struct Head<const STRINGS: usize> {
    hash: u32,
    sizes: [Size; STRINGS],
    /// Where the first string begins.
    body: usize,
}

/// The size of a string, and whether it is outside.
#[derive(Clone, Copy, Debug)]
struct Size {
    inside: usize,
    is_outside: bool,
}

impl<const STRINGS: usize> Head<STRINGS> {
    fn end(self) -> usize {
        self.body + self.sizes.iter().map(|size| size.inside).sum::<usize>()
    }

    fn outside(self) -> usize {
        self.sizes.iter().filter(|size| size.is_outside).count()
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

impl<const STRINGS: usize> Leaf for HashedLeaf<STRINGS> {
    type Summary = Hashed;

    const WEIGHT_MAX: usize = 2048;
    const GROWS_AT_ENDS: bool = false;

    fn weight(&self) -> usize {
        self.bytes.len() + OUTSIDE_WEIGHT * self.outside.len()
    }

    fn memory(&self) -> usize {
        allocated(self.bytes.capacity())
            + allocated(self.outside.capacity() * size_of::<LargeString>())
            + self.outside.iter().map(LargeString::memory).sum::<usize>()
    }

    fn summary(&self) -> Hashed {
        let (mut summary, mut outside) = (Hashed { first: self.first(), ..Hashed::default() }, 0);
        for (_, head) in self.heads() {
            let size = self.string(head, 0, outside).size();
            summary.len += 1;
            summary.key_size_max = summary.key_size_max.max(super::key_size(size));
            outside += head.outside();
        }
        summary
    }

    fn split(&mut self, _: Edge) -> Option<Self> {
        let half = self.weight() / 2;
        let (mut outside, mut last) = (0, None);
        let mut best: Option<(usize, usize, usize)> = None;
        for (at, head) in self.heads() {
            let off = half.abs_diff(at + OUTSIDE_WEIGHT * outside);
            if last.is_some_and(|last| last != head.hash)
                && best.is_none_or(|(least, ..)| off < least)
            {
                best = Some((off, at, outside));
            }
            last = Some(head.hash);
            outside += head.outside();
        }
        let (_, at, outside) = best?;
        assert!(0 < at && at < self.bytes.len(), "a half of a leaf has no element");
        let mut bytes = Vec::with_capacity(allocated(self.bytes.len() - at));
        bytes.extend_from_slice(&self.bytes[at..]);
        self.bytes.truncate(at);
        self.bytes.shrink_to(allocated(at));
        let outside = self.outside.split_off(outside);
        self.outside.shrink_to_fit();
        Some(Self { bytes, outside })
    }

    fn append(&mut self, behind: &Self) {
        self.reserve(behind.bytes.len());
        self.bytes.extend_from_slice(&behind.bytes);
        self.outside.reserve_exact(behind.outside.len());
        self.outside.extend_from_slice(&behind.outside);
    }

    fn check(&self) {
        let hashes: Vec<u32> = self.heads().map(|(_, head)| head.hash).collect();
        let end = self.heads().last().map_or(0, |(_, head)| head.end());
        let outside: usize = self.heads().map(|(_, head)| head.outside()).sum();
        assert_eq!(end, self.bytes.len(), "bytes follow the last element of a leaf");
        assert_eq!(outside, self.outside.len(), "each outside string must belong to an element");
        assert!(hashes.is_sorted(), "the elements of a leaf are not in the order of their hashes");
        let are_equal = hashes.first() == hashes.last();
        assert!(
            self.weight() <= Self::WEIGHT_MAX || are_equal,
            "a leaf of different hashes weighs {}, more than allowed",
            self.weight()
        );
    }
}

impl<const STRINGS: usize> HashedLeaf<STRINGS> {
    /// The lowest hash; 0 if the leaf is empty.
    pub(super) fn first(&self) -> u32 {
        self.bytes.first_chunk().map_or(0, |hash| u32::from_le_bytes(*hash))
    }

    /// The packed bytes.
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The elements with hashes of at least `from`, in the order of their hashes. Each element
    /// comes with its hash.
    pub(super) fn elements(
        &self,
        from: u32,
    ) -> impl Iterator<Item = (u32, [Element<'_>; STRINGS])> + use<'_, STRINGS> {
        let mut outside = 0;
        self.heads().filter_map(move |(_, head)| {
            let first = outside;
            outside += head.outside();
            (head.hash >= from).then(|| (head.hash, self.element(head, first)))
        })
    }

    /// Whether there is an element with this key. The lookup continues where the last call stopped.
    /// That call must have looked for the same hash or a lower one.
    pub(super) fn contains_from(&self, reading: &mut Reading, hash: u32, key: Arg<'_>) -> bool {
        reading.hash = hash;
        let (mut at, mut outside) = (reading.at, reading.outside);
        while at < self.bytes.len() {
            let head = self.head(at);
            if head.hash > hash {
                break;
            }
            if head.hash == hash && self.string(head, 0, outside).is(key) {
                return true;
            }
            at = head.end();
            outside += head.outside();
            // The next call may look for a key with the same hash. So it has to read the elements
            // with this hash again.
            if head.hash < hash {
                (reading.at, reading.outside) = (at, outside);
            }
        }
        false
    }

    /// Where each element begins, and its head.
    fn heads(&self) -> impl Iterator<Item = (usize, Head<STRINGS>)> + use<'_, STRINGS> {
        let mut next = 0;
        std::iter::from_fn(move || {
            let at = next;
            (at < self.bytes.len()).then(|| {
                let head = self.head(at);
                next = head.end();
                (at, head)
            })
        })
    }

    /// Where the element with a key is, or where it would be inserted.
    pub(super) fn find(&self, hash: u32, key: Arg<'_>) -> Place {
        let (mut at, mut outside) = (0, 0);
        while at < self.bytes.len() {
            let head = self.head(at);
            if head.hash > hash {
                break;
            }
            let end = head.end();
            if head.hash == hash && self.string(head, 0, outside).is(key) {
                return Place { start: at, end, outside };
            }
            at = end;
            outside += head.outside();
        }
        Place { start: at, end: at, outside }
    }

    /// The element at a place. There must be an element.
    pub(super) fn at(&self, place: Place) -> [Element<'_>; STRINGS] {
        self.element(self.head(place.start), place.outside)
    }

    /// Puts an element at the place that `find` has found. If an element is there already, its
    /// stored key is kept and its other strings are replaced. Adds to `old` the old strings that
    /// take noticeable time to free.
    pub(super) fn put(
        &mut self,
        place: Place,
        hash: u32,
        strings: [Arg<'_>; STRINGS],
        old: &mut Vec<LargeString>,
    ) {
        let sizes = strings.map(Size::of);
        let size: usize =
            HASH_SIZE + sizes.iter().map(|size| size.encoded_size() + size.inside).sum::<usize>();
        let were = if place.is_taken() { Some(self.head(place.start).sizes) } else { None };
        let mut next = place.outside;
        for (index, (&string, size)) in strings.iter().zip(sizes).enumerate() {
            let stays = index == 0 && were.is_some();
            if !stays && were.is_some_and(|were| were[index].is_outside) {
                let string = self.outside.remove(next);
                old.extend(Some(string).filter(LargeString::is_large));
            }
            if !stays && size.is_outside {
                self.insert_outside(next, string);
            }
            next += usize::from(size.is_outside);
        }
        self.resize(place, size);
        let out = &mut self.bytes[place.start..place.start + size];
        out[..HASH_SIZE].copy_from_slice(&hash.to_le_bytes());
        let mut at = HASH_SIZE;
        for size in sizes {
            at += size.write(&mut out[at..]);
        }
        for (string, size) in strings.into_iter().zip(sizes) {
            if !size.is_outside {
                for chunk in string.chunks() {
                    out[at..at + chunk.len()].copy_from_slice(chunk);
                    at += chunk.len();
                }
            }
        }
    }

    /// Removes the element at a place, where there must be one. Adds to `old` the strings of the
    /// element that take noticeable time to free.
    pub(super) fn remove(&mut self, place: Place, old: &mut Vec<LargeString>) {
        assert!(place.is_taken(), "the leaf has no element at the place");
        let count = self.head(place.start).outside();
        let removed = self.outside.drain(place.outside..place.outside + count);
        old.extend(removed.filter(LargeString::is_large));
        if self.outside.capacity() > self.outside.len() + OUTSIDE_SLACK_MAX {
            self.outside.shrink_to_fit();
        }
        self.resize(place, 0);
    }

    fn head(&self, start: usize) -> Head<STRINGS> {
        let hash = self.bytes[start..start + HASH_SIZE].try_into().expect("four bytes");
        let mut body = start + HASH_SIZE;
        let sizes = std::array::from_fn(|_| Size::read(&self.bytes, &mut body));
        Head { hash: u32::from_le_bytes(hash), sizes, body }
    }

    /// The element with this head; `outside` counts the outside strings before it.
    fn element(&self, head: Head<STRINGS>, outside: usize) -> [Element<'_>; STRINGS] {
        std::array::from_fn(|index| self.string(head, index, outside))
    }

    /// One string of the element with this head.
    fn string(&self, head: Head<STRINGS>, index: usize, outside: usize) -> Element<'_> {
        let before = &head.sizes[..index];
        let Size { inside, is_outside } = head.sizes[index];
        if is_outside {
            let more = before.iter().filter(|size| size.is_outside).count();
            return self.outside[outside + more].as_element();
        }
        let start = head.body + before.iter().map(|size| size.inside).sum::<usize>();
        Element::Bytes(&self.bytes[start..start + inside])
    }

    fn insert_outside(&mut self, index: usize, arg: Arg<'_>) {
        if self.outside.len() == self.outside.capacity() {
            self.outside.reserve_exact(2);
        }
        self.outside.insert(index, LargeString::from_arg(arg));
    }

    /// Replaces the bytes at a place with room for `size` bytes.
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
            // The allocator rounds up to this size anyway.
            self.bytes.reserve_exact(allocated(len + more) - len);
        }
    }
}
