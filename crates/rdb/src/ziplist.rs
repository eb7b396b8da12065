//! Ziplist: the predecessor of the listpack, used up to version 9 of the RDB format.
//!
//! ```text
//! | size: u32 | offset of the last element: u32 | count: u16 | element ... | 0xff |
//!
//! element:  | size of the previous element | form and length | bytes |
//!
//! 00llllll                     string of up to 63 bytes
//! 01llllll llllllll            string of up to 16383 bytes
//! 10000000 + u32, big-endian   string of that size
//! 11000000, 11010000, 11100000 integer of 2, 4, 8 bytes, little-endian
//! 11110000, 11111110           integer of 3 bytes, of 1 byte
//! 11110001..=11111101          integer 0..=12
//! ```
//!
//! The size of the previous element is one byte, or 0xfe and a `u32`. A `count` of 65535 means that
//! there are 65535 elements or more. (`ziplist.c` in Redis.)

use crate::cursor::{self, COUNT_UNKNOWN, CUT, END, Elements};
use crate::element::Element;
use crate::error::Malformed;
use crate::integer::canonical_i64;
use crate::listpack::{bits_of, signed};

const HEADER_SIZE: usize = 10;
/// This byte means that the size of the previous element is in the next four bytes.
const LARGE_BEFORE: u8 = 0xfe;

const STRING_32: u8 = 0x80;
const INTEGER_16: u8 = 0xc0;
const INTEGER_32: u8 = 0xd0;
const INTEGER_64: u8 = 0xe0;
const INTEGER_24: u8 = 0xf0;
const INTEGER_8: u8 = 0xfe;
/// The form of the integer 0. The forms of the integers 1 to 12 are the numbers after it.
const SMALL_MIN: u8 = 0xf1;
const SMALL_MAX: u8 = 0xfd;
/// Size in bytes of the longest string that may be stored as an integer.
const DIGITS_MAX: usize = 31;

/// Builds a ziplist. The writer can be used again for the next ziplist.
#[derive(Clone, Debug)]
pub struct ZiplistWriter {
    bytes: Vec<u8>,
    len: usize,
    /// Where the last element begins.
    last: usize,
}

impl Default for ZiplistWriter {
    fn default() -> Self {
        Self::new()
    }
}

impl ZiplistWriter {
    /// An empty writer.
    pub fn new() -> Self {
        Self { bytes: vec![0; HEADER_SIZE], len: 0, last: HEADER_SIZE }
    }

    /// Begins a new ziplist. Keeps the allocated memory.
    pub fn clear(&mut self) {
        self.bytes.truncate(HEADER_SIZE);
        self.len = 0;
        self.last = HEADER_SIZE;
    }

    /// Appends a string. If the string is the decimal form of an integer, that integer is appended.
    ///
    /// # Panics
    /// If the string has 4 GiB or more.
    pub fn push(&mut self, string: &[u8]) {
        let before = self.bytes.len() - self.last;
        self.last = self.bytes.len();
        if before < usize::from(LARGE_BEFORE) {
            self.bytes.push(before as u8);
        } else {
            self.bytes.push(LARGE_BEFORE);
            self.bytes.extend_from_slice(&(before as u32).to_le_bytes());
        }
        let is_short = string.len() <= DIGITS_MAX;
        match canonical_i64(string).filter(|_| is_short) {
            Some(value) => self.integer(value),
            None => self.string(string),
        }
        self.len += 1;
    }

    fn integer(&mut self, value: i64) {
        if (0..=12).contains(&value) {
            return self.bytes.push(SMALL_MIN + value as u8);
        }
        let (form, size) = match bits_of(value) {
            ..=8 => (INTEGER_8, 1),
            9..=16 => (INTEGER_16, 2),
            17..=24 => (INTEGER_24, 3),
            25..=32 => (INTEGER_32, 4),
            _ => (INTEGER_64, 8),
        };
        self.bytes.push(form);
        self.bytes.extend_from_slice(&value.to_le_bytes()[..size]);
    }

    fn string(&mut self, string: &[u8]) {
        let size = u32::try_from(string.len()).expect("a ziplist's string has less than 4 GiB");
        if size < 1 << 6 {
            self.bytes.push(size as u8);
        } else if size < 1 << 14 {
            self.bytes.extend_from_slice(&(size as u16 | 0x4000).to_be_bytes());
        } else {
            self.bytes.push(STRING_32);
            self.bytes.extend_from_slice(&size.to_be_bytes());
        }
        self.bytes.extend_from_slice(string);
    }

    /// Ends the ziplist and returns it. [`clear`](Self::clear) the writer before appending to it
    /// again.
    ///
    /// # Panics
    /// If the ziplist has 4 GiB or more, which the format does not allow.
    pub fn finish(&mut self) -> &[u8] {
        self.bytes.push(END);
        let size = u32::try_from(self.bytes.len()).expect("a ziplist has less than 4 GiB");
        let count = u16::try_from(self.len).unwrap_or(COUNT_UNKNOWN);
        self.bytes[..4].copy_from_slice(&size.to_le_bytes());
        self.bytes[4..8].copy_from_slice(&(self.last as u32).to_le_bytes());
        self.bytes[8..HEADER_SIZE].copy_from_slice(&count.to_le_bytes());
        &self.bytes
    }
}

/// Reads a ziplist from front to end. After an error it yields nothing more.
#[derive(Clone, Debug)]
pub struct Ziplist<'a> {
    bytes: &'a [u8],
    cursor: Cursor,
}

impl<'a> Ziplist<'a> {
    /// Checks the ziplist's size and its end mark. Each element is checked when it is read.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Cursor::open(bytes).map(|cursor| Self { bytes, cursor })
    }
}

impl<'a> Iterator for Ziplist<'a> {
    type Item = Result<Element<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.next(self.bytes)
    }
}

/// A place in a ziplist.
pub(crate) type Cursor = cursor::Cursor<ZiplistElements>;

#[derive(Clone, Debug, Default)]
pub(crate) struct ZiplistElements {
    /// Size in bytes of the element that was read last; 0 before the first element.
    before: usize,
}

impl Elements for ZiplistElements {
    const HEADER_SIZE: usize = HEADER_SIZE;

    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<(Element<'a>, usize), Malformed> {
        let (&first, mut behind) = rest.split_first().ok_or(Malformed(CUT))?;
        let mut before = usize::from(first);
        if first == LARGE_BEFORE {
            let (size, after) = behind.split_first_chunk().ok_or(Malformed(CUT))?;
            before = u32::from_le_bytes(*size) as usize;
            behind = after;
        }
        if before != self.before {
            return Err(Malformed(
                "an element of a ziplist states a wrong size for the previous element",
            ));
        }
        let (&form, behind) = behind.split_first().ok_or(Malformed(CUT))?;
        let (element, behind) = element(form, behind)?;
        self.before = rest.len() - behind.len();
        Ok((element, self.before))
    }
}

/// The element with this form, and the bytes after the element.
fn element(form: u8, behind: &[u8]) -> Result<(Element<'_>, &[u8]), Malformed> {
    let string = |skip: usize, size: usize| {
        let (bytes, rest) = behind
            .get(skip..)
            .and_then(|rest| rest.split_at_checked(size))
            .ok_or(Malformed(CUT))?;
        Ok((Element::Bytes(bytes), rest))
    };
    let integer = |size: usize| {
        let (bytes, rest) = behind.split_at_checked(size).ok_or(Malformed(CUT))?;
        Ok((Element::Integer(signed(bytes)), rest))
    };
    match form {
        0..=0x3f => string(0, usize::from(form)),
        0x40..=0x7f => {
            let low = behind.first().ok_or(Malformed(CUT))?;
            string(1, usize::from(form & 0x3f) << 8 | usize::from(*low))
        }
        STRING_32 => {
            let size = behind.first_chunk().ok_or(Malformed(CUT))?;
            string(4, u32::from_be_bytes(*size) as usize)
        }
        INTEGER_16 => integer(2),
        INTEGER_32 => integer(4),
        INTEGER_64 => integer(8),
        INTEGER_24 => integer(3),
        INTEGER_8 => integer(1),
        SMALL_MIN..=SMALL_MAX => Ok((Element::Integer(i64::from(form - SMALL_MIN)), behind)),
        _ => Err(Malformed("an element of a ziplist has an unknown form")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(bytes: &[u8]) -> Result<Vec<Element<'_>>, Malformed> {
        Ziplist::open(bytes)?.collect()
    }

    #[test]
    fn the_bytes_are_those_of_the_format() {
        let mut writer = ZiplistWriter::new();
        for string in [&b"ab"[..], b"0", b"12", b"13", b"-300"] {
            writer.push(string);
        }
        let expected = [
            &[0, 0, 0, 0, 21, 0, 0, 0, 5, 0][..],
            &[0, 2, b'a', b'b'],
            &[4, 0xf1],
            &[2, 0xfd],
            &[2, 0xfe, 13],
            &[3, 0xc0, 0xd4, 0xfe],
        ];
        let mut expected = expected.concat();
        expected.push(0xff);
        expected[0] = expected.len() as u8;
        assert_eq!(writer.finish(), expected);
        writer.clear();
        assert_eq!(writer.finish(), [11, 0, 0, 0, 10, 0, 0, 0, 0, 0, 0xff]);
    }

    #[test]
    fn integers_and_strings_of_every_size() {
        let mut strings: Vec<Vec<u8>> = (0..64)
            .flat_map(|bits| [0, 1, -1].map(|add| (1_i64 << bits).wrapping_add(add)))
            .flat_map(|value| [value, value.wrapping_neg()])
            .map(|value| value.to_string().into_bytes())
            .collect();
        let sizes = [0, 1, 63, 64, 250, 251, 252, 253, 254, 16383, 16384, 70_000];
        strings.extend(sizes.map(|size| vec![b'x'; size]));
        let mut writer = ZiplistWriter::new();
        for string in &strings {
            writer.push(string);
        }
        let elements = read(writer.finish()).unwrap();
        let back: Vec<Vec<u8>> = elements.iter().map(Element::to_vec).collect();
        assert_eq!(back, strings);
    }

    #[test]
    fn every_cut_and_every_wrong_count_is_seen() {
        let mut writer = ZiplistWriter::new();
        for s in [&b"field"[..], b"12345", &[b'v'; 300], b"x"] {
            writer.push(s);
        }
        let bytes = writer.finish().to_vec();
        for end in 0..bytes.len() {
            let mut cut = bytes[..end].to_vec();
            assert!(read(&cut).is_err(), "{end}");
            if end > HEADER_SIZE {
                cut.push(END);
                let size = cut.len() as u32;
                cut[..4].copy_from_slice(&size.to_le_bytes());
                assert_eq!(read(&cut).is_err(), end + 1 != bytes.len(), "{end}");
            }
        }
        for count in [0, 3, 5] {
            let mut wrong = bytes.clone();
            wrong[8] = count;
            assert!(read(&wrong).is_err(), "{count}");
        }
        let mut wrong = bytes.clone();
        wrong[HEADER_SIZE + 7] ^= 1;
        assert!(read(&wrong).is_err(), "a wrong size is refused");
    }

    proptest! {
        #[test]
        fn strings_come_back(strings in proptest::collection::vec(
            prop_oneof![any::<i64>().prop_map(|value| value.to_string().into_bytes()),
                proptest::collection::vec(any::<u8>(), 0..400)], 0..40)) {
            let mut writer = ZiplistWriter::new();
            for string in &strings {
                writer.push(string);
            }
            let elements = read(writer.finish()).unwrap();
            let back: Vec<Vec<u8>> = elements.iter().map(Element::to_vec).collect();
            prop_assert_eq!(back, strings);
        }
    }
}
