//! A place in a listpack or in a ziplist, which differ only in their elements.
//!
//! ```text
//! | size: u32 | ... | count: u16 | element ... | 0xff |
//! ```

use crate::element::Element;
use crate::error::Malformed;

/// The last byte of both; no element begins with it.
pub(crate) const END: u8 = 0xff;
/// The count that is written when there are more elements than it can state.
pub(crate) const COUNT_UNKNOWN: u16 = u16::MAX;
/// The error when the bytes end within an element.
pub(crate) const CUT: &str = "an element of a packed list is cut off";

/// Reads elements. Holds what must be known of those before.
pub(crate) trait Elements: Default {
    /// Bytes in front of the first element.
    const HEADER_SIZE: usize;

    /// The element that `rest` begins with, and how many bytes it takes in all. `rest` is not empty
    /// and does not begin with the [`END`].
    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<(Element<'a>, usize), Malformed>;
}

/// A place in front of an element. It does not hold the bytes, so that both can be kept in one
/// place.
#[derive(Clone, Debug)]
pub(crate) struct Cursor<E> {
    /// Where the next element begins.
    at: usize,
    /// Elements that are still to come, if the header says.
    expected: Option<u16>,
    /// The end was read, or an error.
    is_done: bool,
    elements: E,
}

impl<E: Elements> Cursor<E> {
    /// In front of the first element.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let header = bytes.get(..E::HEADER_SIZE);
        let size = header.and_then(<[u8]>::first_chunk);
        let count = header.and_then(<[u8]>::last_chunk);
        let (Some(size), Some(count), Some(&END)) = (size, count, bytes.last()) else {
            return Err(Malformed("a packed list has no header or no end"));
        };
        if u32::from_le_bytes(*size) as usize != bytes.len() || bytes.len() == E::HEADER_SIZE {
            return Err(Malformed("a packed list is not as long as it says"));
        }
        let count = u16::from_le_bytes(*count);
        let expected = (count != COUNT_UNKNOWN).then_some(count);
        Ok(Self { at: E::HEADER_SIZE, expected, is_done: false, elements: E::default() })
    }

    /// How many elements are still to come, by the header; `None` if there are too many for it to
    /// state.
    pub(crate) fn len_hint(&self) -> Option<usize> {
        self.expected.map(usize::from)
    }

    /// The next element of `bytes`, which must be those that this was opened on.
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
                return Err(Malformed("a packed list ends before its end"));
            }
            if !matches!(self.expected, None | Some(0)) {
                return Err(Malformed("a packed list has fewer elements than it says"));
            }
            return Ok(None);
        }
        match &mut self.expected {
            Some(0) => return Err(Malformed("a packed list has more elements than it says")),
            Some(expected) => *expected -= 1,
            None => {}
        }
        let (element, size) = self.elements.read(rest)?;
        self.at += size;
        Ok(Some(element))
    }
}
