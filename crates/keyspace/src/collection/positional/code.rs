//! How one string of a leaf is stored. A string that is too long for the leaf itself is *outside*:
//! in a list that belongs to the leaf. In the leaf itself, a string is stored as an integer or as a
//! *text*, which is the string's own bytes.

use slimio_resp::Arg;

use crate::collection::element::Element;

/// Size in bytes of the longest string that is stored in the leaf itself.
pub(crate) const INSIDE_SIZE_MAX: usize = 1024;

/// Size in bytes of the longest text whose code is one byte.
const NARROW_TEXT_MAX: u16 = 240;

/// Codes from this value on do not stand for texts. The narrow form of such a code is its lower
/// byte.
const NO_TEXT: u16 = 0xff00;

/// The code of an integer of `n` bytes is this value plus `n`.
const INTEGER: u16 = NO_TEXT | NARROW_TEXT_MAX;

const OUTSIDE: u16 = 0xffff;

/// Size in bytes of the largest integer.
const INTEGER_SIZE_MAX: usize = size_of::<i64>();

/// Size in bytes of the longest text that is an integer.
const DIGITS_MAX: usize = 20;

const _: () = assert!(INSIDE_SIZE_MAX < NO_TEXT as usize);

/// How a string is stored. All codes of a leaf have the same width.
///
/// ```text
/// code                the string is               the code itself takes
/// 0..=240             text of that size           one byte, or two
/// 241..=1024          text of that size           two bytes
/// 0xfff1..=0xfff8     integer of 1 to 8 bytes     one byte (the lower one), or two
/// 0xffff              outside                     one byte (the lower one), or two
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Code(u16);

impl Code {
    pub(super) fn of_narrow(byte: u8) -> Self {
        let code = u16::from(byte);
        Self(if code > NARROW_TEXT_MAX { NO_TEXT | code } else { code })
    }

    pub(super) fn of_wide(bytes: [u8; 2]) -> Self {
        Self(u16::from_le_bytes(bytes))
    }

    /// The code as one byte; `None` if it needs two.
    pub(super) fn narrow(self) -> Option<u8> {
        (self.0 <= NARROW_TEXT_MAX || self.0 > INTEGER).then_some(self.0 as u8)
    }

    pub(super) fn wide(self) -> [u8; 2] {
        self.0.to_le_bytes()
    }

    /// How many of the leaf's bytes the string takes.
    pub(super) fn size(self) -> usize {
        match self.0 {
            text @ 0..NO_TEXT => usize::from(text),
            OUTSIDE => 0,
            integer => usize::from(integer - INTEGER),
        }
    }

    pub(super) fn is_outside(self) -> bool {
        self.0 == OUTSIDE
    }

    /// Reads the string with this code from its bytes.
    pub(super) fn element(self, bytes: &[u8]) -> Element<'_> {
        if self.0 < NO_TEXT {
            return Element::Bytes(bytes);
        }
        let mut wide = [0; INTEGER_SIZE_MAX];
        wide[INTEGER_SIZE_MAX - bytes.len()..].copy_from_slice(bytes);
        Element::Integer(i64::from_le_bytes(wide) >> (64 - 8 * bytes.len()))
    }
}

/// The size of a string whose code is one byte.
pub(super) fn narrow_size(code: u8) -> usize {
    match u16::from(code) {
        text @ 0..=NARROW_TEXT_MAX => usize::from(text),
        0xff => 0,
        integer => usize::from(integer - NARROW_TEXT_MAX),
    }
}

/// The sum of the sizes of strings whose codes are one byte each.
pub(super) fn narrow_sizes(codes: &[u8]) -> usize {
    codes.iter().map(|code| narrow_size(*code) as u32).sum::<u32>() as usize
}

/// The form in which a string is stored or looked up. Equal strings have equal forms.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stored<'a> {
    pub(super) code: Code,
    /// The bytes of an integer.
    integer: [u8; INTEGER_SIZE_MAX],
    pub(super) arg: Arg<'a>,
}

impl<'a> Stored<'a> {
    pub(super) fn new(arg: Arg<'a>) -> Self {
        let size = arg.size();
        let mut stored = Self { code: Code(OUTSIDE), integer: [0; INTEGER_SIZE_MAX], arg };
        if size > INSIDE_SIZE_MAX {
            return stored;
        }
        stored.code = Code(size as u16);
        // A text of one byte is not stored as an integer, because that would save nothing: an
        // integer takes at least one byte.
        if size > 1
            && size <= DIGITS_MAX
            && let Some([b'-' | b'0'..=b'9', ..]) = arg.chunks().next()
            && let Some(value) = arg.to_i64()
        {
            let bits = 65 - (if value < 0 { !value } else { value }).leading_zeros();
            stored.code = Code(INTEGER + bits.div_ceil(8) as u16);
            stored.integer = value.to_le_bytes();
        }
        stored
    }

    /// Writes the bytes that the leaf holds for the string.
    pub(super) fn write(&self, out: &mut [u8]) {
        if self.code.0 > NO_TEXT {
            out.copy_from_slice(&self.integer[..out.len()]);
            return;
        }
        let mut at = 0;
        for chunk in self.arg.chunks() {
            out[at..at + chunk.len()].copy_from_slice(chunk);
            at += chunk.len();
        }
    }

    /// The bytes that the leaf holds for the string; `None` if the argument is in several pieces.
    pub(super) fn bytes(&self) -> Option<&[u8]> {
        match self.arg {
            _ if self.code.0 > NO_TEXT => Some(&self.integer[..self.code.size()]),
            Arg::Bytes(bytes) => Some(bytes),
            Arg::Blob(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_string_comes_back_from_its_form() {
        let mut strings: Vec<Vec<u8>> = (0..64)
            .flat_map(|bits| [0, 1, -1].map(|add| (1_i64 << bits).wrapping_add(add)))
            .flat_map(|value| [value, value.wrapping_neg(), value.wrapping_mul(3)])
            .map(|value| value.to_string().into_bytes())
            .collect();
        strings.extend([0, 1, 239, 240, 241, 1023, 1024].map(|size| vec![b'7'; size]));
        strings.extend(["-", "-0", "00", "+1", "1 ", "0x1"].map(|text| text.as_bytes().to_vec()));
        for string in strings {
            let stored = Stored::new(Arg::Bytes(&string));
            let mut bytes = vec![0; stored.code.size()];
            stored.write(&mut bytes);
            assert_eq!(stored.code.element(&bytes).to_bytes(), string);
            assert_eq!(stored.bytes(), Some(&bytes[..]));
            assert!(bytes.len() <= string.len());
            assert_eq!(Code::of_wide(stored.code.wide()), stored.code);
            match stored.code.narrow() {
                Some(byte) => {
                    assert_eq!(Code::of_narrow(byte), stored.code);
                    assert_eq!(narrow_sizes(&[byte, byte]), 2 * bytes.len());
                }
                None => assert!(string.len() > 240),
            }
        }
        let outside = Stored::new(Arg::Bytes(&[b'x'; 1025])).code;
        assert!(outside.is_outside() && outside.size() == 0);
        assert_eq!(Code::of_narrow(outside.narrow().unwrap()), outside);
    }
}
