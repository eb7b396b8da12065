//! Intset: a set of integers, ascending.
//!
//! ```text
//! | size of each: u32 | count: u32 | integer ... |
//! ```
//!
//! Each is 2, 4 or 8 bytes; all is little-endian. (`intset.c` in Redis.)

use crate::element::Element;
use crate::error::Malformed;
use crate::listpack::signed;

const HEADER_SIZE: usize = 8;

/// A place in an intset.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    at: usize,
    element_size: usize,
}

impl Cursor {
    /// In front of the first integer.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some((element_size, behind)) = bytes.split_first_chunk() else {
            return Err(Malformed("an intset has no header"));
        };
        let Some((len, integers)) = behind.split_first_chunk() else {
            return Err(Malformed("an intset has no header"));
        };
        let element_size = u32::from_le_bytes(*element_size) as usize;
        let len = u32::from_le_bytes(*len) as usize;
        if !matches!(element_size, 2 | 4 | 8) || integers.len() != element_size * len {
            return Err(Malformed("an intset is not as long as it says"));
        }
        Ok(Self { at: HEADER_SIZE, element_size })
    }

    /// The next integer of `bytes`, which must be those that this was opened on.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<Result<Element<'a>, Malformed>> {
        let integer = bytes.get(self.at..self.at + self.element_size)?;
        self.at += self.element_size;
        Some(Ok(Element::Integer(signed(integer))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Element<'_>>, Malformed> {
        let mut cursor = Cursor::open(bytes)?;
        std::iter::from_fn(|| cursor.next(bytes)).collect()
    }

    #[test]
    fn each_size_is_read_and_wrong_ones_are_refused() {
        let two = b"\x02\0\0\0\x02\0\0\0\xff\xff\x05\0";
        assert_eq!(read(two), Ok(vec![Element::Integer(-1), Element::Integer(5)]));
        let four = b"\x04\0\0\0\x01\0\0\0\0\0\0\x80";
        assert_eq!(read(four), Ok(vec![Element::Integer(i32::MIN.into())]));
        let eight = b"\x08\0\0\0\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f";
        assert_eq!(read(eight), Ok(vec![Element::Integer(i64::MAX)]));
        assert_eq!(read(b"\x02\0\0\0\0\0\0\0"), Ok(vec![]));
        for end in 0..two.len() {
            assert!(read(&two[..end]).is_err(), "{end}");
        }
        assert!(read(b"\x03\0\0\0\x01\0\0\0abc").is_err());
    }
}
