//! Reads a listpack that anybody may have made, from front to end.

use super::{
    COUNT_UNKNOWN, END, HEADER_SIZE, INTEGER_16, INTEGER_24, INTEGER_32, INTEGER_64, STRING_32,
    signed, tail_size,
};
use crate::element::Element;
use crate::error::Malformed;

/// Reads a listpack from front to end. After an error it yields nothing more.
#[derive(Clone, Debug)]
pub struct Listpack<'a> {
    bytes: &'a [u8],
    cursor: Cursor,
}

impl<'a> Listpack<'a> {
    /// Checks the frame; the elements are checked as they are read.
    pub fn open(bytes: &'a [u8]) -> Result<Self, Malformed> {
        Cursor::open(bytes).map(|cursor| Self { bytes, cursor })
    }

    /// How many elements are still to come, as the header says it; `None` if there are too many to
    /// say.
    pub fn len_hint(&self) -> Option<usize> {
        self.cursor.expected.map(usize::from)
    }
}

impl<'a> Iterator for Listpack<'a> {
    type Item = Result<Element<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        self.cursor.next(self.bytes)
    }
}

/// A place in a listpack. It does not hold the bytes, so that one can keep both in one place.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    /// Where the next element begins.
    at: usize,
    /// Elements that are still to come, if the header says.
    expected: Option<u16>,
    /// The end was read, or an error.
    is_done: bool,
}

impl Cursor {
    /// In front of the first element.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let (Some(header), Some((&END, _))) =
            (bytes.first_chunk::<HEADER_SIZE>(), bytes.split_last())
        else {
            return Err(Malformed("a listpack has no header or no end"));
        };
        let [a, b, c, d, count_low, count_high] = *header;
        if u32::from_le_bytes([a, b, c, d]) as usize != bytes.len() || bytes.len() == HEADER_SIZE {
            return Err(Malformed("a listpack is not as long as it says"));
        }
        let count = u16::from_le_bytes([count_low, count_high]);
        let expected = (count != COUNT_UNKNOWN).then_some(count);
        Ok(Self { at: HEADER_SIZE, expected, is_done: false })
    }

    /// The next element of `bytes`, which are those that this was opened on.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<Result<Element<'a>, Malformed>> {
        if self.is_done {
            return None;
        }
        let read = bytes.get(self.at..).ok_or(Malformed(CUT)).and_then(|rest| self.read(rest));
        self.is_done = !matches!(read, Ok(Some(_)));
        read.transpose()
    }

    fn read<'a>(&mut self, rest: &'a [u8]) -> Result<Option<Element<'a>>, Malformed> {
        let (&form, behind) = rest.split_first().ok_or(Malformed(CUT))?;
        if form == END {
            if !behind.is_empty() {
                return Err(Malformed("a listpack ends before its end"));
            }
            if !matches!(self.expected, None | Some(0)) {
                return Err(Malformed("a listpack has fewer elements than it says"));
            }
            return Ok(None);
        }
        match &mut self.expected {
            Some(0) => return Err(Malformed("a listpack has more elements than it says")),
            Some(expected) => *expected -= 1,
            None => {}
        }
        let (element, size) = element(form, behind)?;
        let tail = tail_size(size);
        let stored = rest.get(size..size + tail).ok_or(Malformed(CUT))?;
        let stored = stored.iter().fold(0_usize, |bits, byte| bits << 7 | usize::from(byte & 0x7f));
        if stored != size {
            return Err(Malformed("an element of a listpack is not as long as it says"));
        }
        self.at += size + tail;
        Ok(Some(element))
    }
}

const CUT: &str = "an element of a listpack is cut off";

/// The element whose first byte is `form`, and its size without the tail.
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
