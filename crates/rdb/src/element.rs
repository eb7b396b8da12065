//! One element of a packed value.

use crate::integer::Decimal;

/// An element of a listpack, ziplist, intset or zipmap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Element<'a> {
    /// The bytes of a string, not copied.
    Bytes(&'a [u8]),
    /// An integer, which stands for the string of its decimal digits.
    Integer(i64),
}

impl Element<'_> {
    /// Appends the element as a string.
    pub fn append_to(&self, out: &mut Vec<u8>) {
        match self {
            Self::Bytes(bytes) => out.extend_from_slice(bytes),
            Self::Integer(value) => {
                out.extend_from_slice(Decimal::new().format(*value).as_bytes());
            }
        }
    }

    /// The element as a string.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.append_to(&mut out);
        out
    }
}
