//! Zipmap: the layout of small hashes before version 4 of the RDB format.
//!
//! ```text
//! | count | size | field | size | free | value | free bytes | ... | 0xff |
//! ```
//!
//! A size is one byte, or 0xfe and a little-endian `u32`. A `count` of 254 or more means "unknown".
//! (`zipmap.c` in Redis.)

use crate::element::Element;
use crate::error::Malformed;

const END: u8 = 0xff;
/// This byte means that the size is in the next four bytes.
const LARGE: u8 = 0xfe;
const CUT: &str = "a zipmap is cut off";

/// A place in a zipmap. Fields and values alternate.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    at: usize,
    /// Number of pairs that are still to come, if the header states how many pairs there are.
    expected: Option<u8>,
    is_value_next: bool,
    is_done: bool,
}

impl Cursor {
    /// The place in front of the first field.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let (&count, _) = bytes.split_first().ok_or(Malformed("a zipmap is empty"))?;
        let expected = (count < LARGE).then_some(count);
        Ok(Self { at: 1, expected, is_value_next: false, is_done: false })
    }

    /// The next field or value of `bytes`, which must be the bytes that [`open`](Self::open) was
    /// given.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<Result<Element<'a>, Malformed>> {
        if self.is_done {
            return None;
        }
        let read = bytes.get(self.at..).ok_or(Malformed(CUT)).and_then(|rest| self.read(rest));
        self.is_done = !matches!(read, Ok(Some(_)));
        read.transpose()
    }

    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<Option<Element<'a>>, Malformed> {
        let (&first, mut behind) = rest.split_first().ok_or(Malformed(CUT))?;
        if first == END {
            if !behind.is_empty() || self.is_value_next {
                return Err(Malformed("a zipmap has its end mark too early"));
            }
            if !matches!(self.expected, None | Some(0)) {
                return Err(Malformed("a zipmap has fewer fields than it says"));
            }
            return Ok(None);
        }
        let mut size = usize::from(first);
        if first == LARGE {
            let (large, after) = behind.split_first_chunk().ok_or(Malformed(CUT))?;
            size = u32::from_le_bytes(*large) as usize;
            behind = after;
        }
        let mut free = 0;
        if self.is_value_next {
            let (&count, after) = behind.split_first().ok_or(Malformed(CUT))?;
            free = usize::from(count);
            behind = after;
        } else {
            match &mut self.expected {
                Some(0) => return Err(Malformed("a zipmap has more fields than it says")),
                Some(expected) => *expected -= 1,
                None => {}
            }
        }
        let (string, after) = behind.split_at_checked(size).ok_or(Malformed(CUT))?;
        let after = after.get(free..).ok_or(Malformed(CUT))?;
        self.at += rest.len() - after.len();
        self.is_value_next = !self.is_value_next;
        Ok(Some(Element::Bytes(string)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Vec<u8>>, Malformed> {
        let mut cursor = Cursor::open(bytes)?;
        std::iter::from_fn(|| cursor.next(bytes)).map(|read| Ok(read?.to_vec())).collect()
    }

    #[test]
    fn fields_and_values_are_read_and_free_bytes_are_not() {
        let bytes = b"\x02\x03foo\x03\x00bar\x05hello\x05\x02world--\xff";
        let expected: [&[u8]; 4] = [b"foo", b"bar", b"hello", b"world"];
        assert_eq!(read(bytes).unwrap(), expected);
        for end in 0..bytes.len() {
            assert!(read(&bytes[..end]).is_err(), "{end}");
        }
        let mut longer = bytes.to_vec();
        longer.push(0xff);
        assert!(read(&longer).is_err());
    }

    #[test]
    fn counts_and_large_sizes() {
        let mut bytes = b"\xfe\xfe\x2c\x01\0\0".to_vec();
        bytes.extend_from_slice(&[b'f'; 300]);
        bytes.extend_from_slice(b"\x01\x00v\xff");
        assert_eq!(read(&bytes).unwrap(), [vec![b'f'; 300], b"v".to_vec()]);
        assert!(read(b"\x02\x01f\x01\x00v\xff").is_err(), "a missing pair is an error");
        assert!(read(b"\x00\x01f\x01\x00v\xff").is_err(), "a surplus pair is an error");
        assert!(read(b"\x01\x01f\xff").is_err(), "a missing value is an error");
    }
}
