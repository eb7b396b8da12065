//! Decodes RDB encodings from bytes in memory.

use crate::error::Error;
use crate::integer::Decimal;
use crate::length::{self, Input, StringHead};
use crate::lzf::decompress;

/// Reads one encoding after the other from a slice, without copying.
///
/// ```
/// use slimio_rdb::Decoder;
///
/// let mut decoder = Decoder::new(b"\x05hello\xc0\xf4");
/// assert_eq!(decoder.string()?.to_vec()?, b"hello");
/// assert_eq!(decoder.string()?.to_vec()?, b"-12");
/// assert!(decoder.is_at_end());
/// # Ok::<(), slimio_rdb::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Decoder<'a> {
    bytes: &'a [u8],
    at: usize,
}

/// A string in the form that it has in the encoding.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Text<'a> {
    /// The bytes of the string itself.
    Plain(&'a [u8]),
    /// The decimal digits of an integer.
    Integer(i32),
    /// The string compressed with LZF.
    Lzf {
        /// The compressed bytes.
        compressed: &'a [u8],
        /// Size of the string in bytes, as the encoding states it.
        size: usize,
        /// Where the string begins. If decompressing fails, the error states this offset.
        offset: u64,
    },
}

impl Text<'_> {
    /// Size of the string in bytes. If the string is compressed, this is the size that the encoding
    /// claims, which may be wrong.
    pub fn size(&self) -> usize {
        match self {
            Self::Plain(bytes) => bytes.len(),
            Self::Integer(value) => Decimal::new().format(*value).len(),
            Self::Lzf { size, .. } => *size,
        }
    }

    /// Appends the string. On an error, the contents of `out` are unchanged.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), Error> {
        match self {
            Self::Plain(bytes) => out.extend_from_slice(bytes),
            Self::Integer(value) => {
                out.extend_from_slice(Decimal::new().format(*value).as_bytes());
            }
            Self::Lzf { compressed, size, offset } => {
                decompress(compressed, *size, out).map_err(|what| what.at(*offset))?;
            }
        }
        Ok(())
    }

    /// The bytes of the string.
    pub fn to_vec(&self) -> Result<Vec<u8>, Error> {
        let mut out = Vec::new();
        self.append_to(&mut out)?;
        Ok(out)
    }
}

impl<'a> Decoder<'a> {
    /// A decoder in front of the first byte.
    pub fn new(bytes: &'a [u8]) -> Self {
        Self { bytes, at: 0 }
    }

    /// The offset of the next byte.
    pub fn offset(&self) -> u64 {
        self.at as u64
    }

    /// The bytes that were not read yet.
    pub fn rest(&self) -> &'a [u8] {
        &self.bytes[self.at..]
    }

    /// Whether all bytes were read.
    pub fn is_at_end(&self) -> bool {
        self.at == self.bytes.len()
    }

    /// The next `size` bytes.
    pub fn raw(&mut self, size: usize) -> Result<&'a [u8], Error> {
        let bytes = self.rest().get(..size).ok_or_else(|| self.truncated())?;
        self.at += size;
        Ok(bytes)
    }

    /// The next byte: a type, or an [`opcode`](crate::opcode).
    pub fn byte(&mut self) -> Result<u8, Error> {
        self.array().map(|[byte]| byte)
    }

    /// The next `SIZE` bytes, such as an integer of fixed size.
    pub fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Error> {
        let bytes = *self.rest().first_chunk().ok_or_else(|| self.truncated())?;
        self.at += SIZE;
        Ok(bytes)
    }

    /// A length.
    pub fn length(&mut self) -> Result<u64, Error> {
        length::decode(self)
    }

    /// A string. This function does not decompress a compressed string.
    pub fn string(&mut self) -> Result<Text<'a>, Error> {
        let offset = self.at as u64;
        Ok(match length::decode_string_head(self)? {
            StringHead::Plain(size) => Text::Plain(self.sized(size)?),
            StringHead::Integer(value) => Text::Integer(value),
            StringHead::Lzf { compressed_size, size } => {
                Text::Lzf { compressed: self.sized(compressed_size)?, size: size as usize, offset }
            }
        })
    }

    fn sized(&mut self, size: u64) -> Result<&'a [u8], Error> {
        self.raw(usize::try_from(size).unwrap_or(usize::MAX))
    }

    fn truncated(&self) -> Error {
        Error::Truncated { offset: self.bytes.len() as u64 }
    }
}

impl Input for Decoder<'_> {
    fn offset(&self) -> u64 {
        self.at as u64
    }

    fn array<const SIZE: usize>(&mut self) -> Result<[u8; SIZE], Error> {
        Decoder::array(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Encoder, Version};
    use proptest::prelude::*;

    #[test]
    fn strings_take_the_form_that_redis_gives_them() {
        let forms: [(&[u8], &[u8]); 13] = [
            (b"", b"\x00"),
            (b"a", b"\x01a"),
            (b"0", b"\xc0\x00"),
            (b"-128", b"\xc0\x80"),
            (b"128", b"\xc1\x80\x00"),
            (b"-32768", b"\xc1\x00\x80"),
            (b"32768", b"\xc2\x00\x80\x00\x00"),
            (b"-2147483648", b"\xc2\x00\x00\x00\x80"),
            (b"2147483648", b"\x0a2147483648"),
            (b"-2147483649", b"\x0b-2147483649"),
            (b"007", b"\x03007"),
            (&[b'x'; 20], b"\x14xxxxxxxxxxxxxxxxxxxx"),
            (&[b'x'; 30], b"\xc3\x05\x1e\x00x\xe0\x14\x00"),
        ];
        let mut encoder = Encoder::new(Version::DEFAULT);
        for (string, bytes) in forms {
            encoder.clear();
            encoder.string(string);
            assert_eq!(encoder.bytes(), bytes, "{string:?}");
            let mut decoder = Decoder::new(bytes);
            let text = decoder.string().unwrap();
            assert_eq!((text.to_vec().unwrap().as_slice(), text.size()), (string, string.len()));
            assert!(decoder.is_at_end());
        }
        encoder.clear();
        encoder.integer(-7);
        encoder.integer(1 << 40);
        assert_eq!(encoder.bytes(), b"\xc0\xf9\x0d1099511627776");
    }

    #[test]
    fn claims_are_not_believed() {
        let claims: [&[u8]; 6] = [
            b"",
            b"\x05abcd",
            b"\x81\x7f\xff\xff\xff\xff\xff\xff\xff",
            b"\xc3\x05\x81\xff\xff\xff\xff\xff\xff\xff\xff\x00x\xe0\x14\x00",
            b"\xc3\x81\xff\xff\xff\xff\xff\xff\xff\xff\x05abc",
            b"\xc4",
        ];
        for bytes in claims {
            let read = Decoder::new(bytes).string().and_then(|text| text.to_vec());
            assert!(read.is_err(), "{bytes:?}");
        }
        assert!(
            Decoder::new(b"\xc0\x01").length().is_err(),
            "an encoded integer was accepted as a length"
        );
        assert!(Decoder::new(b"\x82").length().is_err());
    }

    proptest! {
        #[test]
        fn lengths_come_back(length in any::<u64>(), shift in 0..64_u32) {
            let mut encoder = Encoder::new(Version::DEFAULT);
            encoder.length(length >> shift);
            let mut decoder = Decoder::new(encoder.bytes());
            prop_assert_eq!(decoder.length().unwrap(), length >> shift);
            prop_assert!(decoder.is_at_end());
        }

        #[test]
        fn strings_come_back(strings in proptest::collection::vec(prop_oneof![
            any::<i64>().prop_map(|value| value.to_string().into_bytes()),
            any::<i32>().prop_map(|value| value.to_string().into_bytes()),
            proptest::collection::vec(any::<u8>(), 0..300),
            ("[a-c]{1,9}", 0..99_usize).prop_map(|(text, count)| text.repeat(count).into_bytes()),
        ], 0..20)) {
            for mut encoder in [Encoder::new(Version::DEFAULT), Encoder::uncompressed(Version::DEFAULT)] {
                for string in &strings {
                    encoder.string(string);
                }
                let mut decoder = Decoder::new(encoder.bytes());
                for string in &strings {
                    prop_assert_eq!(&decoder.string().unwrap().to_vec().unwrap(), string);
                }
                prop_assert!(decoder.is_at_end());
            }
        }
    }
}
