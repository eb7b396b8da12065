//! Looks up and changes elements in place, in a listpack that is known to be valid. A listpack to
//! be changed may begin anywhere in a vector. The bytes of the vector before the listpack belong to
//! the caller.

use std::ops::Range;

use super::{
    END, HEADER_SIZE, INTEGER_16, INTEGER_24, INTEGER_32, INTEGER_64, NewElement, STRING_32,
    signed, tail_size,
};
use crate::element::Element;
use crate::integer::canonical_i64;

/// A listpack without elements.
pub const EMPTY: [u8; HEADER_SIZE + 1] = [7, 0, 0, 0, 0, 0, END];

/// If a listpack is the only content of its vector, it gets spare room when it grows. This room is
/// the listpack's size divided by this number.
const SLACK_DIVISOR: usize = 8;

/// An element that was found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// Where the element begins.
    pub start: usize,
    /// Where the next element begins.
    pub end: usize,
}

/// Count of elements. The listpack must have fewer than 65535 elements.
pub fn len(listpack: &[u8]) -> usize {
    usize::from(u16::from_le_bytes([listpack[4], listpack[5]]))
}

/// The elements, in order.
pub fn elements(listpack: &[u8]) -> impl Iterator<Item = Element<'_>> + Clone {
    let mut at = HEADER_SIZE;
    std::iter::from_fn(move || {
        (listpack[at] != END).then(|| {
            let (element, end) = element(listpack, at);
            at = end;
            element
        })
    })
}

/// The element that begins at `start`, and where the next element begins.
pub fn element(listpack: &[u8], start: usize) -> (Element<'_>, usize) {
    let (form, body) = sizes(listpack, start);
    let size = form + body;
    let bytes = &listpack[start + form..start + size];
    let element = match listpack[start] {
        first @ 0..=0x7f => Element::Integer(i64::from(first)),
        first @ 0xc0..=0xdf => {
            // Shifting the 13 bits to the top of 16 bits and back extends their sign.
            let bits = u16::from_be_bytes([first, bytes[0]]) << 3;
            Element::Integer(i64::from(bits as i16 >> 3))
        }
        INTEGER_16..=INTEGER_64 => Element::Integer(signed(bytes)),
        _ => Element::Bytes(bytes),
    };
    (element, start + size + tail_size(size))
}

/// Looks for a string among every `stride`-th element, beginning with the first element. With a
/// stride of 2, these are the first, third, fifth…
pub fn find(listpack: &[u8], string: &[u8], stride: usize) -> Option<Found> {
    let wanted = Wanted::new(string);
    let mut start = HEADER_SIZE;
    while listpack[start] != END {
        let (is_found, end) = wanted.is_at(listpack, start);
        if is_found {
            return Some(Found { start, end });
        }
        start = (1..stride).fold(end, |at, _| behind(listpack, at));
    }
    None
}

/// The elements that are equal to this string, in order, with their indices.
pub fn matches<'a>(
    listpack: &'a [u8],
    string: &'a [u8],
) -> impl Iterator<Item = (usize, Found)> + 'a {
    let wanted = Wanted::new(string);
    let (mut start, mut index) = (HEADER_SIZE, 0);
    std::iter::from_fn(move || {
        while listpack[start] != END {
            let (is_found, end) = wanted.is_at(listpack, start);
            let found = (index, Found { start, end });
            (start, index) = (end, index + 1);
            if is_found {
                return Some(found);
            }
        }
        None
    })
}

/// A string to look for.
struct Wanted<'a> {
    string: &'a [u8],
    /// The string as an integer element, if the string spells an integer.
    integer: Option<Element<'a>>,
}

impl<'a> Wanted<'a> {
    fn new(string: &'a [u8]) -> Self {
        Self { string, integer: canonical_i64(string).map(Element::Integer) }
    }

    /// Whether the element that begins at `start` is equal to this string, and where the next
    /// element begins.
    fn is_at(&self, listpack: &[u8], start: usize) -> (bool, usize) {
        let (form, body) = sizes(listpack, start);
        let size = form + body;
        let end = start + size + tail_size(size);
        let is_string = matches!(listpack[start], 0x80..=0xbf | 0xe0..=STRING_32);
        let is_found = if is_string {
            body == self.string.len() && &listpack[start + form..start + size] == self.string
        } else {
            self.integer.is_some() && self.integer == Some(element(listpack, start).0)
        };
        (is_found, end)
    }
}

/// Where the element after the one at `start` begins.
pub fn behind(listpack: &[u8], start: usize) -> usize {
    let (form, body) = sizes(listpack, start);
    start + form + body + tail_size(form + body)
}

/// Where the element that ends at `end` begins. There must be such an element.
pub fn before(listpack: &[u8], end: usize) -> usize {
    let (mut at, mut size, mut shift) = (end - 1, 0, 0);
    loop {
        size |= usize::from(listpack[at] & 0x7f) << shift;
        if listpack[at] & 0x80 == 0 {
            return at - size;
        }
        (at, shift) = (at - 1, shift + 7);
    }
}

/// Where the first element begins, if there is one.
pub const START: usize = HEADER_SIZE;

/// Where the last element ends.
pub fn end(listpack: &[u8]) -> usize {
    listpack.len() - 1
}

/// Replaces a range of a listpack with `elements`. The listpack begins at offset `base` of `bytes`
/// and ends where `bytes` end. The range is relative to `base` and covers whole elements. `removed`
/// is the count of the elements in the range.
///
/// # Panics
/// If the listpack would then have 65535 elements or more, or would take 4 GiB or more.
pub fn replace(
    bytes: &mut Vec<u8>,
    base: usize,
    range: Range<usize>,
    removed: usize,
    elements: &[NewElement<'_>],
) {
    let added: usize = elements.iter().map(NewElement::size).sum();
    let (from, to) = (base + range.start, base + range.end);
    let (before, old) = (bytes.len(), range.len());
    if added > old {
        let more = added - old;
        if bytes.capacity() < before + more {
            // A listpack that shares its vector with other bytes gets no spare room.
            let slack = if base == 0 { before / SLACK_DIVISOR } else { 0 };
            bytes.reserve_exact(more + slack);
        }
        bytes.resize(before + more, 0);
        bytes.copy_within(to..before, to + more);
    } else if added < old {
        bytes.copy_within(to.., from + added);
        bytes.truncate(before - (old - added));
    }
    let mut at = from;
    for element in elements {
        at += element.write(&mut bytes[at..]);
    }
    let size = u32::try_from(bytes.len() - base).expect("a listpack has less than 4 GiB");
    let len = len(&bytes[base..]) - removed + elements.len();
    let count = u16::try_from(len).ok().filter(|count| *count < u16::MAX);
    let count = count.expect("a listpack that is changed in place has less than 65535 elements");
    bytes[base..base + 4].copy_from_slice(&size.to_le_bytes());
    bytes[base + 4..base + HEADER_SIZE].copy_from_slice(&count.to_le_bytes());
}

/// The sizes in bytes of two parts of the element that begins at `start`. The first part states the
/// element's form and length. The second part is the integer or string, and is empty if the integer
/// is in the first part.
fn sizes(listpack: &[u8], start: usize) -> (usize, usize) {
    match listpack[start] {
        0..=0x7f => (1, 0),
        first @ 0x80..=0xbf => (1, usize::from(first & 0x3f)),
        0xc0..=0xdf => (1, 1),
        first @ 0xe0..=0xef => {
            (2, usize::from(first & 0xf) << 8 | usize::from(listpack[start + 1]))
        }
        STRING_32 => {
            let size = listpack[start + 1..start + 5].try_into().expect("the range has four bytes");
            (5, u32::from_le_bytes(size) as usize)
        }
        INTEGER_16 => (1, 2),
        INTEGER_24 => (1, 3),
        INTEGER_32 => (1, 4),
        INTEGER_64 => (1, 8),
        other => panic!("no element of a listpack begins with {other:#x}"),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::Listpack;
    use super::*;

    fn read(listpack: &[u8]) -> Vec<Vec<u8>> {
        let (mut at, mut backwards) = (end(listpack), Vec::new());
        while at > START {
            at = before(listpack, at);
            backwards.insert(0, element(listpack, at).0.to_vec());
        }
        let elements = Listpack::open(listpack).expect("the listpack is valid");
        let strings =
            elements.map(|element| element.expect("the element is valid").to_vec()).collect();
        let in_place: Vec<_> = super::elements(listpack).map(|element| element.to_vec()).collect();
        assert_eq!(in_place, strings);
        assert_eq!(backwards, strings);
        strings
    }

    proptest! {
        /// Changes pairs of a map one after the other, and compares the map with a list of the
        /// pairs.
        #[test]
        fn changes_are_those_of_a_list_of_pairs(
            base in 0_usize..3,
            changes in proptest::collection::vec((
                prop_oneof![(-300_i64..300).prop_map(|key| key.to_string().into_bytes()),
                    proptest::collection::vec(any::<u8>(), 0..3)],
                proptest::option::of(prop_oneof![
                    any::<i64>().prop_map(|value| (value >> (value & 63)).to_string().into_bytes()),
                    (0_usize..300).prop_map(|size| vec![b'v'; size]),
                    (16_370_usize..16_385).prop_map(|size| vec![b'w'; size])])), 0..100)) {
            let mut bytes = vec![b'!'; base];
            bytes.extend(EMPTY);
            let mut pairs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
            for (key, value) in changes {
                let found = find(&bytes[base..], &key, 2);
                let place = pairs.iter().position(|pair| pair.0 == key);
                prop_assert_eq!(found.is_some(), place.is_some());
                match (found, place, value) {
                    (Some(found), Some(place), Some(value)) => {
                        let end = behind(&bytes[base..], found.end);
                        replace(&mut bytes, base, found.end..end, 1, &[NewElement::string(&value)]);
                        pairs[place].1 = value;
                    }
                    (Some(found), Some(place), None) => {
                        let end = behind(&bytes[base..], found.end);
                        replace(&mut bytes, base, found.start..end, 2, &[]);
                        pairs.remove(place);
                    }
                    (_, _, Some(value)) => {
                        let end = end(&bytes[base..]);
                        let new = [&key, &value].map(|string| NewElement::string(string));
                        replace(&mut bytes, base, end..end, 0, &new);
                        pairs.push((key, value));
                    }
                    (_, _, None) => {}
                }
                prop_assert_eq!(len(&bytes[base..]), 2 * pairs.len());
                prop_assert!(bytes[..base].iter().all(|&byte| byte == b'!'));
            }
            let expected: Vec<Vec<u8>> = pairs.into_iter().flat_map(|(k, v)| [k, v]).collect();
            prop_assert_eq!(read(&bytes[base..]), expected);
        }
    }
}
