//! Listpack: a list of strings and integers in one piece of memory, used since version 10 of the
//! RDB format.
//!
//! ```text
//! | size: u32 | count: u16 | element ... | 0xff |
//!
//! element:  | form and length | bytes | size of form, length and bytes, read backwards |
//!
//! 0nnnnnnn                     integer 0..=127
//! 10llllll                     string of up to 63 bytes
//! 110nnnnn nnnnnnnn            integer of 13 bits
//! 1110llll llllllll            string of up to 4095 bytes
//! 11110000 + u32               string of that size
//! 11110001..=11110100          integer of 2, 3, 4, 8 bytes, little-endian
//! ```
//!
//! A `count` of 65535 means that there are 65535 elements or more. (`listpack.c` in Redis.)
//!
//! [`Listpack`] reads untrusted bytes, and [`ListpackWriter`] makes a whole listpack. The functions
//! of this module look up and change elements in place. They may panic if the listpack is invalid.
//! A listpack is known to be valid if this module made it, or if a [`Listpack`] read it to its end
//! without an error.

mod edit;
mod element;
mod reader;
mod writer;

pub use edit::{
    EMPTY, Found, START, before, behind, element, elements, end, find, len, matches, replace,
};
pub use element::NewElement;
pub use reader::Listpack;
pub use writer::ListpackWriter;

pub(crate) use reader::Cursor;

use crate::cursor::{COUNT_UNKNOWN, END};

const HEADER_SIZE: usize = 6;

const STRING_32: u8 = 0xf0;
const INTEGER_16: u8 = 0xf1;
const INTEGER_24: u8 = 0xf2;
const INTEGER_32: u8 = 0xf3;
const INTEGER_64: u8 = 0xf4;

/// Count of bits of the smallest two's complement that holds `value`.
pub(crate) fn bits_of(value: i64) -> u32 {
    65 - (if value < 0 { !value } else { value }).leading_zeros()
}

/// An element of `size` bytes is followed by its size. Returns the count of bytes that this size
/// takes there. The sizes 16383, 2097151 and 268435455 take one byte more than they need, as in
/// Redis.
fn tail_size(size: usize) -> usize {
    match size {
        0..=127 => 1,
        128..16_383 => 2,
        16_383..2_097_151 => 3,
        2_097_151..268_435_455 => 4,
        _ => 5,
    }
}

/// The signed little-endian integer that these bytes hold. There are at most eight bytes.
pub(crate) fn signed(bytes: &[u8]) -> i64 {
    let mut wide = [0; 8];
    wide[8 - bytes.len()..].copy_from_slice(bytes);
    i64::from_le_bytes(wide) >> (64 - 8 * bytes.len())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::element::Element;
    use crate::error::Malformed;

    fn read(bytes: &[u8]) -> Result<Vec<Element<'_>>, Malformed> {
        Listpack::open(bytes)?.collect()
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut writer = ListpackWriter::new();
        for string in [&b"a"[..], b"127", b"-1", b"4096", b"-32769"] {
            writer.push(string);
        }
        let expected = [
            &[28, 0, 0, 0, 5, 0][..],
            &[0x81, b'a', 2],
            &[127, 1],
            &[0xdf, 0xff, 2],
            &[0xf1, 0x00, 0x10, 3],
            &[0xf2, 0xff, 0x7f, 0xff, 4],
        ];
        let mut expected = expected.concat();
        expected.push(0xff);
        expected[0] = expected.len() as u8;
        assert_eq!(writer.size(), expected.len());
        assert_eq!(writer.finish(), expected);
        writer.clear();
        assert_eq!(writer.finish(), [7, 0, 0, 0, 0, 0, 0xff]);
    }

    #[test]
    fn integers_and_strings_of_every_size() {
        let mut writer = ListpackWriter::new();
        let integers: Vec<i64> = (0..64)
            .flat_map(|bits| [0, 1, -1].map(|add| (1_i64 << bits).wrapping_add(add)))
            .flat_map(|value| [value, value.wrapping_neg()])
            .collect();
        let strings: Vec<Vec<u8>> = [
            0, 1, 63, 64, 125, 126, 4095, 4096, 16_377, 16_378, 16_379, 70_000, 2_097_145,
            2_097_146,
        ]
        .map(|size| vec![b'x'; size])
        .into();
        for value in &integers {
            writer.push_integer(*value);
        }
        for string in &strings {
            writer.push(string);
        }
        assert_eq!(writer.len(), integers.len() + strings.len());
        let elements = read(writer.finish()).unwrap();
        let expected: Vec<Element<'_>> = integers
            .iter()
            .map(|value| Element::Integer(*value))
            .chain(strings.iter().map(|string| Element::Bytes(string)))
            .collect();
        assert_eq!(elements, expected);
    }

    /// The size behind an element must be readable backwards. Otherwise, a reader that goes
    /// backwards would leave the listpack.
    #[test]
    fn sizes_that_can_not_be_read_backwards_are_refused() {
        for size in [3, 200, 20_000] {
            let mut writer = ListpackWriter::new();
            writer.push(&vec![b'x'; size]);
            let mut bytes = writer.finish().to_vec();
            let (last, first) = (bytes.len() - 2, bytes.len() - 1 - tail_size(size + 1));
            assert!(read(&bytes).is_ok());
            for at in first..=last {
                bytes[at] ^= 0x80;
                assert!(read(&bytes).is_err(), "byte {at} of {size}");
                bytes[at] ^= 0x80;
            }
        }
    }

    /// The size 16383 takes three bytes after its element, as in a dump of `redis-server` 7.0.
    #[test]
    fn the_largest_size_of_two_bytes_takes_three() {
        for (size, tail) in
            [(16_377, &[0x7f, 0xfe][..]), (16_378, &[0, 0xff, 0xff]), (16_379, &[1, 0x80, 0x80])]
        {
            let mut writer = ListpackWriter::new();
            writer.push(&vec![b'x'; size]);
            let bytes = writer.finish();
            assert_eq!(bytes[HEADER_SIZE + 5 + size..], [tail, &[END]].concat());
        }
    }

    #[test]
    fn more_elements_than_the_header_can_count() {
        let mut writer = ListpackWriter::new();
        (0..70_000).for_each(|value| writer.push_integer(value));
        let bytes = writer.finish();
        assert_eq!(bytes[4..6], [0xff, 0xff]);
        assert_eq!(Listpack::open(bytes).unwrap().len_hint(), None);
        assert_eq!(read(bytes).unwrap().len(), 70_000);
    }

    #[test]
    fn every_cut_and_every_wrong_count_is_seen() {
        let mut writer = ListpackWriter::new();
        for string in [&b"field"[..], b"12345", &[b'v'; 200]] {
            writer.push(string);
        }
        let bytes = writer.finish().to_vec();
        for end in 0..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            assert!(read(&cut).is_err(), "{end}");
            if end > HEADER_SIZE {
                // The cut bytes get a correct frame, so that only the elements are wrong.
                cut.push(END);
                let size = cut.len() as u32;
                cut[..4].copy_from_slice(&size.to_le_bytes());
                assert_eq!(read(&cut).is_err(), end + 1 != bytes.len(), "{end}");
            }
        }
        for count in [0, 2, 4] {
            let mut wrong = bytes.clone();
            wrong[4] = count;
            assert!(read(&wrong).is_err(), "{count}");
        }
    }

    proptest! {
        #[test]
        fn strings_come_back(strings in proptest::collection::vec(
            prop_oneof![any::<i64>().prop_map(|value| value.to_string().into_bytes()),
                proptest::collection::vec(any::<u8>(), 0..200)], 0..40)) {
            let mut writer = ListpackWriter::new();
            for string in &strings {
                writer.push(string);
            }
            let elements = read(writer.finish()).unwrap();
            let back: Vec<Vec<u8>> = elements.iter().map(Element::to_vec).collect();
            prop_assert_eq!(back, strings);
        }

        #[test]
        fn any_bytes_are_survived(bytes in proptest::collection::vec(any::<u8>(), 0..100)) {
            let mut framed = ((bytes.len() + 7) as u32).to_le_bytes().to_vec();
            framed.extend_from_slice(&[0xff, 0xff]);
            framed.extend_from_slice(&bytes);
            framed.push(END);
            if let Ok(elements) = read(&framed) {
                prop_assert!(elements.len() * 2 <= bytes.len());
            }
        }
    }
}
