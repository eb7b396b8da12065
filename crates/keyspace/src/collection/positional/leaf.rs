//! A leaf of the tree that holds a large list. Each element is one string. The leaf packs its
//! elements in the order of their positions.
//!
//! ```text
//! codes | code | code | code | ...      what each string is stored as, and how long it is
//! bytes | string | string | ...         the strings, without anything between them
//! ```
//!
//! The codes and the bytes each have room at both ends, so an element can be added or removed at
//! either end without moving the others. To find an element, a leaf adds up the sizes of all
//! elements between the wanted element and the nearer end. The codes state these sizes.
//!
//! A long element is *outside*: it takes none of the leaf's own bytes. For the strings of its
//! outside elements, the leaf has a separate list, in the order of these elements.
//!
//! The *weight* of a leaf decides when the leaf is split, or merged with a neighbour.

use std::ops::Range;

use slimio_planted::is_planted;
use slimio_resp::Arg;

use super::End;
use super::code::{Code, Stored, narrow_size, narrow_sizes};
use super::stretch::Stretch;
use crate::collection::element::{Element, LargeString};
use crate::collection::tree::{Count, Edge, Leaf};
use crate::memory::allocated;

/// What a code adds to the weight of its leaf. It is the same for narrow codes (one byte each) and
/// wide codes (two bytes each), so a leaf does not become heavier when its codes become wide.
const CODE_WEIGHT: usize = 2;

/// What an outside string adds to the weight of its leaf.
const OUTSIDE_WEIGHT: usize = 64;

/// Limit of unused places in the list of outside strings.
const OUTSIDE_SLACK_MAX: usize = 4;

/// A leaf of elements, in order.
#[derive(Clone, Debug, Default)]
pub(crate) struct PositionalLeaf {
    codes: Stretch,
    bytes: Stretch,
    outside: Option<Box<Outside>>,
    /// Whether each code is two bytes instead of one.
    is_wide: bool,
    /// The end at which the newest element was added; `None` if it was added between other
    /// elements.
    grown: Option<End>,
}

/// The strings that are too long for the leaf itself.
#[derive(Clone, Debug, Default)]
struct Outside {
    strings: Vec<LargeString>,
    /// Bytes of memory that the strings take.
    memory: usize,
}

impl Outside {
    fn insert(&mut self, index: usize, string: LargeString) {
        if self.strings.len() == self.strings.capacity() {
            self.strings.reserve_exact(2);
        }
        self.memory += string.memory();
        self.strings.insert(index, string);
    }

    /// Removes strings. Adds to `old` the strings that take noticeable time to free.
    fn remove(&mut self, range: Range<usize>, old: &mut Vec<LargeString>) {
        let removed = self.strings.drain(range);
        old.extend(removed.inspect(|it| self.memory -= it.memory()).filter(LargeString::is_large));
        if self.strings.capacity() > self.strings.len() + OUTSIDE_SLACK_MAX {
            self.strings.shrink_to_fit();
        }
    }

    fn of(strings: Vec<LargeString>) -> Option<Box<Self>> {
        let memory = strings.iter().map(LargeString::memory).sum();
        (!strings.is_empty()).then(|| Box::new(Self { strings, memory }))
    }
}

/// Where an element of a leaf begins.
#[derive(Clone, Copy, Debug)]
struct Place {
    index: usize,
    /// The element's offset in the leaf's bytes.
    at: usize,
    /// Count of outside strings before the element.
    outside: usize,
}

impl Leaf for PositionalLeaf {
    type Summary = Count;

    /// The weight of 256 strings of 16 bytes, with their codes.
    const WEIGHT_MAX: usize = 256 * (16 + CODE_WEIGHT);
    const GROWS_AT_ENDS: bool = true;

    fn weight(&self) -> usize {
        CODE_WEIGHT * self.len() + self.bytes.len() + OUTSIDE_WEIGHT * self.outside_len()
    }

    fn memory(&self) -> usize {
        let of_outside = |outside: &Outside| {
            allocated(size_of::<Outside>())
                + allocated(outside.strings.capacity() * size_of::<LargeString>())
                + outside.memory
        };
        self.codes.memory() + self.bytes.memory() + self.outside.as_deref().map_or(0, of_outside)
    }

    fn summary(&self) -> Count {
        Count(self.len())
    }

    fn split(&mut self, edge: Edge) -> Option<Self> {
        let len = self.len();
        if len < 2 {
            return None;
        }
        let at = match self.grown {
            _ if is_planted("leaves-halved") => self.middle(),
            Some(End::Last) if edge.is_last => len - 1,
            Some(End::First) if edge.is_first => 1,
            _ => self.middle(),
        };
        Some(self.split_off(at))
    }

    fn append(&mut self, behind: &Self) {
        let is_wide = self.is_wide || behind.is_wide;
        let mut behind = std::borrow::Cow::Borrowed(behind);
        if self.is_wide != is_wide {
            self.widen();
        } else if behind.is_wide != is_wide {
            behind.to_mut().widen();
        }
        for (own, more) in [(&mut self.codes, &behind.codes), (&mut self.bytes, &behind.bytes)] {
            own.open(own.len(), more.len()).copy_from_slice(more);
        }
        if let Some(more) = &behind.outside {
            let outside = self.outside.get_or_insert_default();
            outside.strings.extend_from_slice(&more.strings);
            outside.memory += more.memory;
        }
    }

    fn check(&self) {
        let end = self.places().last();
        let sizes: usize = (0..self.len()).map(|index| self.code(index).size()).sum();
        assert_eq!(sizes, self.bytes.len(), "the sizes in a leaf's codes must add up to its bytes");
        let outside = (0..self.len()).filter(|index| self.code(*index).is_outside()).count();
        assert_eq!(outside, self.outside_len(), "each outside string must belong to an element");
        assert!(end.is_none_or(|place| place.index + 1 == self.len()));
        assert!(
            self.weight() <= Self::WEIGHT_MAX || self.len() < 2,
            "a leaf weighs {}, more than allowed",
            self.weight()
        );
        if let Some(outside) = &self.outside {
            let memory: usize = outside.strings.iter().map(LargeString::memory).sum();
            assert_eq!(
                outside.memory, memory,
                "the stored memory size of the outside strings is wrong"
            );
        }
    }
}

impl PositionalLeaf {
    /// Count of elements.
    pub(crate) fn len(&self) -> usize {
        self.codes.len() >> usize::from(self.is_wide)
    }

    /// About how many bytes the elements would take in a listpack.
    pub(crate) fn listpack_size(&self) -> usize {
        self.bytes.len() + 2 * self.len() + self.outside.as_deref().map_or(0, |it| it.memory)
    }

    fn outside_len(&self) -> usize {
        self.outside.as_deref().map_or(0, |outside| outside.strings.len())
    }

    fn code(&self, index: usize) -> Code {
        if self.is_wide {
            Code::of_wide([self.codes[2 * index], self.codes[2 * index + 1]])
        } else {
            Code::of_narrow(self.codes[index])
        }
    }

    /// The sum of the sizes of some elements.
    fn sizes(&self, range: Range<usize>) -> usize {
        if self.is_wide {
            range.map(|index| self.code(index).size()).sum()
        } else {
            narrow_sizes(&self.codes[range])
        }
    }

    /// Where the element at an index begins, or would begin.
    fn place(&self, index: usize) -> Place {
        let len = self.len();
        let at = if index <= len / 2 {
            self.sizes(0..index)
        } else {
            self.bytes.len() - self.sizes(index..len)
        };
        let outside = match &self.outside {
            None => 0,
            Some(outside) if index == len => outside.strings.len(),
            Some(_) => (0..index).filter(|before| self.code(*before).is_outside()).count(),
        };
        Place { index, at, outside }
    }

    /// Where each element begins.
    fn places(&self) -> impl Iterator<Item = Place> {
        let mut next = Place { index: 0, at: 0, outside: 0 };
        std::iter::from_fn(move || {
            let place = next;
            (place.index < self.len()).then(|| {
                next = self.behind(place);
                place
            })
        })
    }

    fn behind(&self, Place { index, at, outside }: Place) -> Place {
        let code = self.code(index);
        let outside = outside + usize::from(code.is_outside());
        Place { index: index + 1, at: at + code.size(), outside }
    }

    fn before(&self, Place { index, at, outside }: Place) -> Place {
        let code = self.code(index - 1);
        let outside = outside - usize::from(code.is_outside());
        Place { index: index - 1, at: at - code.size(), outside }
    }

    /// The element at a place. There must be an element.
    fn at(&self, place: Place) -> Element<'_> {
        let code = self.code(place.index);
        match &self.outside {
            Some(outside) if code.is_outside() => outside.strings[place.outside].as_element(),
            _ => code.element(&self.bytes[place.at..place.at + code.size()]),
        }
    }

    /// The element at an index; `None` if there is no such element.
    pub(crate) fn get(&self, index: usize) -> Option<Element<'_>> {
        (index < self.len()).then(|| self.at(self.place(index)))
    }

    /// The elements of a range. They can be taken from both ends.
    pub(crate) fn elements(
        &self,
        range: Range<usize>,
    ) -> impl DoubleEndedIterator<Item = Element<'_>> {
        Elements { leaf: self, front: self.place(range.start), back: self.place(range.end) }
    }

    /// Adds to `found` the indices of the elements that are equal to this string, in ascending
    /// order.
    pub(super) fn find_all(&self, wanted: &Stored<'_>, found: &mut Vec<usize>) {
        match (wanted.code.narrow(), wanted.bytes()) {
            (None, _) if !self.is_wide => {}
            (Some(code), Some(bytes)) if !self.is_wide && !wanted.code.is_outside() => {
                self.find_narrow(code, bytes, found);
            }
            _ => {
                let is_wanted = |place: &Place| {
                    self.code(place.index) == wanted.code && self.at(*place).is(wanted.arg)
                };
                found.extend(self.places().filter(is_wanted).map(|place| place.index));
            }
        }
    }

    /// The most frequent case of [`find_all`](Self::find_all): the string is stored in the leaf
    /// itself, and codes are one byte each.
    fn find_narrow(&self, wanted: u8, string: &[u8], found: &mut Vec<usize>) {
        let mut rest = &self.bytes[..];
        // Strings of one list are often alike and differ only at their ends. So the last byte is
        // compared first.
        let last = string.last();
        for (index, &code) in self.codes.iter().enumerate() {
            let (bytes, behind) = rest.split_at(narrow_size(code));
            rest = behind;
            if code == wanted && bytes.last() == last && bytes == string {
                found.push(index);
            }
        }
    }

    /// The index of the next element that is outside and has this size. The search starts at
    /// `index` and moves away from the end `from`.
    pub(crate) fn next_outside(&self, index: usize, from: End, size: usize) -> Option<usize> {
        let outside = self.outside.as_deref()?;
        let is_alike = |place: &Place| {
            self.code(place.index).is_outside()
                && outside.strings[place.outside].as_element().size() == size
        };
        let mut alike = self.places().filter(is_alike).map(|place| place.index);
        match from {
            End::First => alike.find(|it| *it >= index),
            End::Last => alike.take_while(|it| *it <= index).last(),
        }
    }

    /// Compares a range of the element at an index with the same range of a string of the same
    /// size.
    pub(crate) fn is_in(&self, index: usize, wanted: Arg<'_>, range: Range<usize>) -> bool {
        self.at(self.place(index)).is_in(wanted, range)
    }

    /// Inserts an element at an index, before the element that is there. If the index is the count
    /// of elements, adds the element at the end.
    pub(super) fn insert(&mut self, index: usize, arg: Arg<'_>) {
        self.grown = match index {
            _ if index == self.len() => Some(End::Last),
            0 => Some(End::First),
            _ => None,
        };
        self.put(self.place(index), arg);
    }

    fn put(&mut self, place: Place, arg: Arg<'_>) {
        let stored = Stored::new(arg);
        if !self.is_wide && stored.code.narrow().is_none() {
            self.widen();
        }
        match stored.code.narrow() {
            Some(code) if !self.is_wide => self.codes.open(place.index, 1)[0] = code,
            _ => self.codes.open(2 * place.index, 2).copy_from_slice(&stored.code.wide()),
        }
        if stored.code.is_outside() {
            let outside = self.outside.get_or_insert_default();
            outside.insert(place.outside, LargeString::from_arg(arg));
        } else {
            stored.write(self.bytes.open(place.at, stored.code.size()));
        }
    }

    /// Replaces the element at an index. If the old string takes noticeable time to free, adds it
    /// to `old`.
    pub(super) fn set(&mut self, index: usize, arg: Arg<'_>, old: &mut Vec<LargeString>) {
        let (place, stored) = (self.place(index), Stored::new(arg));
        if self.code(index) == stored.code && !stored.code.is_outside() {
            let range = place.at..place.at + stored.code.size();
            return stored.write(&mut self.bytes[range]);
        }
        self.remove_at(place, self.behind(place), old);
        self.put(place, arg);
        self.grown = None;
    }

    /// Removes the elements of a range. Adds to `old` the strings that take noticeable time to
    /// free.
    pub(super) fn remove(&mut self, range: Range<usize>, old: &mut Vec<LargeString>) {
        self.remove_at(self.place(range.start), self.place(range.end), old);
    }

    fn remove_at(&mut self, from: Place, to: Place, old: &mut Vec<LargeString>) {
        let width = usize::from(self.is_wide);
        self.codes.close(from.index << width..to.index << width);
        self.bytes.close(from.at..to.at);
        if let Some(outside) = &mut self.outside
            && to.outside > from.outside
        {
            outside.remove(from.outside..to.outside, old);
            if outside.strings.is_empty() {
                self.outside = None;
            }
        }
    }

    /// Removes the elements from an index on, and returns them as a leaf.
    pub(super) fn split_off(&mut self, index: usize) -> Self {
        let place = self.place(index);
        let outside = self.outside.take().map_or_else(Vec::new, |it| it.strings);
        let (mut first, mut second) = (outside, Vec::new());
        if place.outside < first.len() {
            second = first.split_off(place.outside);
        }
        first.shrink_to_fit();
        self.outside = Outside::of(first);
        let mut second = Self {
            codes: self.codes.split_off(index << usize::from(self.is_wide)),
            bytes: self.bytes.split_off(place.at),
            outside: Outside::of(second),
            is_wide: self.is_wide,
            grown: None,
        };
        self.grown = None;
        self.narrow();
        second.narrow();
        second
    }

    /// The index at which to split the leaf into halves of about the same weight. The leaf must
    /// have at least two elements.
    fn middle(&self) -> usize {
        let half = self.weight() / 2;
        let weighs =
            |place: &Place| CODE_WEIGHT * place.index + place.at + OUTSIDE_WEIGHT * place.outside;
        let place = self.places().skip(1).min_by_key(|place| half.abs_diff(weighs(place)));
        place.expect("a leaf that is split has at least two elements").index
    }

    /// Changes all codes to two bytes.
    fn widen(&mut self) {
        let codes: Vec<[u8; 2]> = (0..self.len()).map(|index| self.code(index).wide()).collect();
        let mut wide = Stretch::default();
        wide.open(0, 2 * codes.len()).copy_from_slice(codes.as_flattened());
        (self.codes, self.is_wide) = (wide, true);
    }

    /// Changes all codes to one byte, if each of them fits.
    fn narrow(&mut self) {
        if !self.is_wide {
            return;
        }
        let codes: Option<Vec<u8>> =
            (0..self.len()).map(|index| self.code(index).narrow()).collect();
        if let Some(codes) = codes {
            let mut narrow = Stretch::default();
            narrow.open(0, codes.len()).copy_from_slice(&codes);
            (self.codes, self.is_wide) = (narrow, false);
        }
    }
}

/// Iterates over some elements of a leaf, from both ends.
struct Elements<'a> {
    leaf: &'a PositionalLeaf,
    front: Place,
    back: Place,
}

impl<'a> Iterator for Elements<'a> {
    type Item = Element<'a>;

    fn next(&mut self) -> Option<Element<'a>> {
        (self.front.index < self.back.index).then(|| {
            let place = self.front;
            self.front = self.leaf.behind(place);
            self.leaf.at(place)
        })
    }
}

impl DoubleEndedIterator for Elements<'_> {
    fn next_back(&mut self) -> Option<Self::Item> {
        (self.front.index < self.back.index).then(|| {
            self.back = self.leaf.before(self.back);
            self.leaf.at(self.back)
        })
    }
}
