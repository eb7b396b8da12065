//! An element to be written.

use super::{INTEGER_16, INTEGER_24, INTEGER_32, INTEGER_64, STRING_32, bits_of, tail_size};
use crate::integer::canonical_i64;

/// Size in bytes of the longest form: that of an integer of eight bytes.
const FORM_SIZE_MAX: usize = 9;

/// An element that is not in a listpack yet.
#[derive(Clone, Copy, Debug)]
pub struct NewElement<'a> {
    /// The head of a string, or a whole integer.
    form: [u8; FORM_SIZE_MAX],
    form_size: usize,
    string: &'a [u8],
}

impl<'a> NewElement<'a> {
    /// The element for a string. If the string is the decimal form of an integer, the element is
    /// that integer.
    ///
    /// # Panics
    /// If the string has 4 GiB or more.
    pub fn string(string: &'a [u8]) -> Self {
        if let Some(value) = canonical_i64(string) {
            return Self::integer(value);
        }
        let size = u32::try_from(string.len()).expect("a listpack's string has less than 4 GiB");
        match size {
            0..64 => Self::of(&[0x80 | size as u8], string),
            64..4096 => Self::of(&(size as u16 | 0xe000).to_be_bytes(), string),
            _ => {
                let [a, b, c, d] = size.to_le_bytes();
                Self::of(&[STRING_32, a, b, c, d], string)
            }
        }
    }

    /// The element for an integer.
    pub fn integer(value: i64) -> NewElement<'static> {
        match value {
            0..128 => return NewElement::of(&[value as u8], &[]),
            -4096..4096 => {
                return NewElement::of(&(value as u16 & 0x1fff | 0xc000).to_be_bytes(), &[]);
            }
            _ => {}
        }
        let (form, size) = match bits_of(value) {
            ..=16 => (INTEGER_16, 2),
            17..=24 => (INTEGER_24, 3),
            25..=32 => (INTEGER_32, 4),
            _ => (INTEGER_64, 8),
        };
        let mut bytes = [form; FORM_SIZE_MAX];
        bytes[1..].copy_from_slice(&value.to_le_bytes());
        NewElement::of(&bytes[..=size], &[])
    }

    fn of(start: &[u8], string: &'a [u8]) -> Self {
        let mut form = [0; FORM_SIZE_MAX];
        form[..start.len()].copy_from_slice(start);
        Self { form, form_size: start.len(), string }
    }

    /// Bytes that the element takes in a listpack.
    pub fn size(&self) -> usize {
        let size = self.form_size + self.string.len();
        size + tail_size(size)
    }

    /// Writes the element to the front of `out`, and then the element's size. Each byte of the size
    /// has seven bits, and the lowest bits are in the last byte. The high bit is set in every byte
    /// but the first. Returns the count of written bytes.
    pub(super) fn write(&self, out: &mut [u8]) -> usize {
        let size = self.form_size + self.string.len();
        out[..self.form_size].copy_from_slice(&self.form[..self.form_size]);
        out[self.form_size..size].copy_from_slice(self.string);
        let tail_size = tail_size(size);
        let tail = &mut out[size..size + tail_size];
        for (index, byte) in tail.iter_mut().rev().enumerate() {
            let bits = (size >> (7 * index)) as u8 & 0x7f;
            *byte = if index + 1 == tail_size { bits } else { bits | 0x80 };
        }
        size + tail_size
    }
}
