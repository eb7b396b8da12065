//! Reads an untrusted listpack, from front to end.

use slimio_planted::is_planted;

use super::{
    HEADER_SIZE, INTEGER_16, INTEGER_24, INTEGER_32, INTEGER_64, STRING_32, signed, tail_size,
};
use crate::cursor::{self, CUT, Elements};
use crate::element::Element;
use crate::error::Malformed;

/// Reads a listpack from front to end. After an error, this iterator yields nothing more.
#[derive(Clone, Debug)]
pub struct Listpack<'a> {
    bytes: &'a [u8],
    cursor: Cursor,
}

impl<'a> Listpack<'a> {
    /// Checks the listpack's size and its end mark. Each element is checked when it is read.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Cursor::open(bytes).map(|cursor| Self { bytes, cursor })
    }

    /// How many elements are still to come, according to the header; `None` if the header does not
    /// state their count.
    pub fn len_hint(&self) -> Option<usize> {
        self.cursor.len_hint()
    }
}

impl<'a> Iterator for Listpack<'a> {
    type Item = Result<Element<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.next(self.bytes)
    }
}

/// A place in a listpack.
pub(crate) type Cursor = cursor::Cursor<ListpackElements>;

/// Reads elements of a listpack. An element of a listpack does not depend on earlier elements.
#[derive(Clone, Debug, Default)]
pub(crate) struct ListpackElements;

impl Elements for ListpackElements {
    const HEADER_SIZE: usize = HEADER_SIZE;

    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<(Element<'a>, usize), Malformed> {
        let (&form, behind) = rest.split_first().ok_or(Malformed(CUT))?;
        let (element, size) = element(form, behind)?;
        let tail = tail_size(size);
        let stored = rest.get(size..size + tail).ok_or(Malformed(CUT))?;
        // Behind each element, its size is stored again, in one or more bytes. A reader that goes
        // backwards begins at the last of these bytes, and stops at the byte whose high bit is
        // clear. So the high bit must be clear in the first of these bytes, and set in the others.
        let goes_on = |index: usize, byte: u8| (byte & 0x80 != 0) == (index > 0);
        let is_closed = stored.iter().enumerate().all(|(index, byte)| goes_on(index, *byte))
            || is_planted("listpack-tail-unclosed");
        let stored = stored.iter().fold(0_usize, |bits, byte| bits << 7 | usize::from(byte & 0x7f));
        if stored != size || !is_closed {
            return Err(Malformed("an element of a listpack is not as long as it says"));
        }
        Ok((element, size + tail))
    }
}

/// The element whose first byte is `form`, and the element's size in bytes. The size excludes the
/// bytes behind the element, which repeat the size.
fn element(form: u8, behind: &[u8]) -> Result<(Element<'_>, usize), Malformed> {
    let string = |skip: usize, size: usize| {
        let bytes = behind.get(skip..).and_then(|rest| rest.get(..size)).ok_or(Malformed(CUT))?;
        Ok((Element::Bytes(bytes), 1 + skip + size))
    };
    let integer = |size: usize| {
        let bytes = behind.get(..size).ok_or(Malformed(CUT))?;
        Ok((Element::Integer(signed(bytes)), 1 + size))
    };
    let second = || behind.first().map(|byte| usize::from(*byte)).ok_or(Malformed(CUT));
    match form {
        0..=0x7f => Ok((Element::Integer(i64::from(form)), 1)),
        0x80..=0xbf => string(0, usize::from(form & 0x3f)),
        0xc0..=0xdf => {
            let bits = usize::from(form & 0x1f) << 8 | second()?;
            // The sign is the highest of 13 bits.
            Ok((Element::Integer(((bits << 51) as i64) >> 51), 2))
        }
        0xe0..=0xef => string(1, usize::from(form & 0x0f) << 8 | second()?),
        STRING_32 => {
            let size = behind.first_chunk().ok_or(Malformed(CUT))?;
            string(4, u32::from_le_bytes(*size) as usize)
        }
        INTEGER_16 => integer(2),
        INTEGER_24 => integer(3),
        INTEGER_32 => integer(4),
        INTEGER_64 => integer(8),
        _ => Err(Malformed("an element of a listpack has an unknown form")),
    }
}
