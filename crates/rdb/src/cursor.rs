//! A place in a listpack or a ziplist. These two formats have similar frames, but different
//! elements.
//!
//! ```text
//! | size: u32 | ... | count: u16 | element ... | 0xff |
//! ```

use crate::element::Element;
use crate::error::Malformed;

/// The last byte of a listpack and of a ziplist. No element begins with this byte.
pub(crate) const END: u8 = 0xff;
/// The count in the header if the list has more elements than the header can state.
pub(crate) const COUNT_UNKNOWN: u16 = u16::MAX;
/// The error if the bytes end within an element.
pub(crate) const CUT: &str = "an element of a listpack or ziplist is cut off";

/// Reads the elements of a listpack or of a ziplist. Between two reads, a value of this type keeps
/// what the next read must know about the last element.
pub(crate) trait Elements: Default {
    /// Size in bytes of the header, which is in front of the first element.
    const HEADER_SIZE: usize;

    /// The element at the beginning of `rest`, and its size in bytes. `rest` is not empty and does
    /// not begin with [`END`].
    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<(Element<'a>, usize), Malformed>;
}

/// A place in front of an element. The place does not borrow the bytes, so one struct can own both
/// the bytes and a place in them.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<E> {
    /// Where the next element begins.
    at: usize,
    /// How many elements must still follow; `None` if the header does not state the list's count.
    expected: Option<u16>,
    /// Whether a read has found the end or an error.
    is_done: bool,
    elements: E,
}

impl<E: Elements> Cursor<E> {
    /// Checks the frame: the header, the size and the last byte. Returns the place in front of the
    /// first element.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let header = bytes.get(..E::HEADER_SIZE);
        let size = header.and_then(<[u8]>::first_chunk);
        let count = header.and_then(<[u8]>::last_chunk);
        let (Some(size), Some(count), Some(&END)) = (size, count, bytes.last()) else {
            return Err(Malformed("a listpack or ziplist has no header or no end mark"));
        };
        if u32::from_le_bytes(*size) as usize != bytes.len() || bytes.len() == E::HEADER_SIZE {
            return Err(Malformed("a listpack or ziplist is not as long as its header says"));
        }
        let count = u16::from_le_bytes(*count);
        let expected = (count != COUNT_UNKNOWN).then_some(count);
        Ok(Self { at: E::HEADER_SIZE, expected, is_done: false, elements: E::default() })
    }

    /// How many elements must still follow according to the header; `None` if the header does not
    /// state the list's count.
    pub(crate) fn len_hint(&self) -> Option<usize> {
        self.expected.map(usize::from)
    }

    /// The next element of `bytes`, which must be the bytes that [`open`](Self::open) was given.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<Result<Element<'a>, Malformed>> {
        if self.is_done {
            return None;
        }
        let read = bytes.get(self.at..).ok_or(Malformed(CUT)).and_then(|rest| self.read(rest));
        self.is_done = !matches!(read, Ok(Some(_)));
        read.transpose()
    }

    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<Option<Element<'a>>, Malformed> {
        let (&first, behind) = rest.split_first().ok_or(Malformed(CUT))?;
        if first == END {
            if !behind.is_empty() {
                return Err(Malformed("a listpack or ziplist has its end mark too early"));
            }
            if !matches!(self.expected, None | Some(0)) {
                return Err(Malformed("the count of a listpack or ziplist is too large"));
            }
            return Ok(None);
        }
        match &mut self.expected {
            Some(0) => return Err(Malformed("the count of a listpack or ziplist is too small")),
            Some(expected) => *expected -= 1,
            None => {}
        }
        let (element, size) = self.elements.read(rest)?;
        self.at += size;
        Ok(Some(element))
    }
}
