//! Lengths: how many bytes or elements follow. A length has one to nine bytes, big-endian.
//!
//! ```text
//! 00nnnnnn                      6 bits
//! 01nnnnnn nnnnnnnn             14 bits
//! 10000000 + 4 bytes            32 bits
//! 10000001 + 8 bytes            64 bits (since version 8 of the RDB format)
//! 11eeeeee                      not a length: a string in the special encoding e
//! ```
//!
//! A string is a length and that many bytes, unless it has a special encoding. If e is 0, 1 or 2,
//! the string is an integer of 8, 16 or 32 bits. If e is 3, the string is compressed by LZF: the
//! length of the compressed bytes follows, then the length of the string, then the compressed
//! bytes.
//!
//! Source: `rdbSaveLen`, `rdbLoadLenByRef` and `rdbGenericLoadStringObject` in Redis's `rdb.c`.

use crate::error::Error;

/// First byte of a length in 32 bits.
const BITS_32: u8 = 0x80;
/// First byte of a length in 64 bits.
const BITS_64: u8 = 0x81;

/// The two bits that are set in the first byte of a string with a special encoding.
const SPECIAL: u8 = 0xc0;
/// First byte of a string that is an integer of 8 bits.
pub(crate) const STRING_INT8: u8 = SPECIAL;
/// First byte of a string that is a little-endian integer of 16 bits.
pub(crate) const STRING_INT16: u8 = SPECIAL | 1;
/// First byte of a string that is a little-endian integer of 32 bits.
pub(crate) const STRING_INT32: u8 = SPECIAL | 2;
/// First byte of a compressed string. The size of the compressed bytes, the size of the string, and
/// the compressed bytes follow.
pub(crate) const STRING_LZF: u8 = SPECIAL | 3;

/// Appends `length` in its shortest form.
pub(crate) fn encode(length: u64, out: &mut Vec<u8>) {
    if length < 1 << 6 {
        out.push(length as u8);
    } else if length < 1 << 14 {
        out.extend_from_slice(&(length as u16 | 0x4000).to_be_bytes());
    } else if let Ok(length) = u32::try_from(length) {
        let [a, b, c, d] = length.to_be_bytes();
        out.extend_from_slice(&[BITS_32, a, b, c, d]);
    } else {
        out.push(BITS_64);
        out.extend_from_slice(&length.to_be_bytes());
    }
}

/// A source of bytes, from which lengths are read.
pub(crate) trait Input {
    /// The offset of the next byte.
    fn offset(&self) -> u64;

    /// The next `SIZE` bytes.
    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Error>;
}

/// The head of a string, in front of its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StringHead {
    /// The string's bytes follow; the number is their count.
    Plain(u64),
    /// The string is the decimal form of this integer. No bytes follow.
    Integer(i32),
    /// The compressed bytes of the string follow.
    Lzf { compressed_size: u64, size: u64 },
}

/// Reads a length.
pub(crate) fn decode(input: &mut impl Input) -> Result<u64, Error> {
    let offset = input.offset();
    let [first] = input.array()?;
    decode_behind(first, input)?
        .ok_or(Error::Corrupt { offset, what: "no length begins with this byte" })
}

/// Reads the head of a string.
pub(crate) fn decode_string_head(input: &mut impl Input) -> Result<StringHead, Error> {
    let offset = input.offset();
    let [first] = input.array()?;
    Ok(match first {
        STRING_INT8 => StringHead::Integer(i8::from_le_bytes(input.array()?).into()),
        STRING_INT16 => StringHead::Integer(i16::from_le_bytes(input.array()?).into()),
        STRING_INT32 => StringHead::Integer(i32::from_le_bytes(input.array()?)),
        STRING_LZF => StringHead::Lzf { compressed_size: decode(input)?, size: decode(input)? },
        _ => match decode_behind(first, input)? {
            Some(size) => StringHead::Plain(size),
            None => return Err(Error::Corrupt { offset, what: "no string begins with this byte" }),
        },
    })
}

/// The length whose first byte is `first`; `None` if no length begins with that byte.
fn decode_behind(first: u8, input: &mut impl Input) -> Result<Option<u64>, Error> {
    Ok(Some(match first {
        0..=0x3f => u64::from(first),
        0x40..=0x7f => {
            let [second] = input.array()?;
            u64::from(first & 0x3f) << 8 | u64::from(second)
        }
        BITS_32 => u32::from_be_bytes(input.array()?).into(),
        BITS_64 => u64::from_be_bytes(input.array()?),
        _ => return Ok(None),
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_length_has_its_shortest_form() {
        let forms: [(u64, &[u8]); 9] = [
            (0, &[0]),
            (63, &[0x3f]),
            (64, &[0x40, 0x40]),
            (16383, &[0x7f, 0xff]),
            (16384, &[0x80, 0, 0, 0x40, 0]),
            (0x0102_0304, &[0x80, 1, 2, 3, 4]),
            (u64::from(u32::MAX), &[0x80, 0xff, 0xff, 0xff, 0xff]),
            (1 << 32, &[0x81, 0, 0, 0, 1, 0, 0, 0, 0]),
            (u64::MAX, &[0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]),
        ];
        for (length, bytes) in forms {
            let mut out = Vec::new();
            encode(length, &mut out);
            assert_eq!(out, bytes, "{length}");
        }
    }
}
