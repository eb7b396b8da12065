//! Makes the encoding and the decoding of a structure from one table of its fields.

use std::fmt;

/// The error for bytes that are too few to hold the structure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TooShort {
    /// Name of the structure.
    pub structure: &'static str,
    /// How many bytes the structure has.
    pub needed: usize,
    /// How many bytes there are.
    pub found: usize,
}

impl fmt::Display for TooShort {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { structure, needed, found } = self;
        write!(f, "{structure} has {needed} bytes, but there are only {found}")
    }
}

impl std::error::Error for TooShort {}

/// A type that a structure may have as a field.
pub(crate) trait Field: Sized {
    /// Size of the field in bytes.
    const SIZE: usize;
    /// Decodes the field from exactly [`SIZE`](Self::SIZE) bytes.
    fn get(bytes: &[u8]) -> Self;
    /// Encodes the field into exactly [`SIZE`](Self::SIZE) bytes.
    fn put(&self, bytes: &mut [u8]);
}

macro_rules! integer_fields {
    ($($integer:ty)*) => {
        $(impl Field for $integer {
            const SIZE: usize = size_of::<$integer>();

            #[inline]
            fn get(bytes: &[u8]) -> Self {
                Self::from_le_bytes(bytes.try_into().expect("the table gives a field its bytes"))
            }

            #[inline]
            fn put(&self, bytes: &mut [u8]) {
                bytes.copy_from_slice(&self.to_le_bytes());
            }
        })*
    };
}

integer_fields!(u8 u16 u32 u64 u128);

impl<const N: usize> Field for [u8; N] {
    const SIZE: usize = N;

    fn get(bytes: &[u8]) -> Self {
        bytes.try_into().expect("the table gives a field its bytes")
    }

    fn put(&self, bytes: &mut [u8]) {
        bytes.copy_from_slice(self);
    }
}

/// Text of a fixed size, padded with spaces. Examples are the serial number, the model and the
/// firmware revision.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Ascii<const N: usize>([u8; N]);

impl<const N: usize> Ascii<N> {
    /// Pads the text, or cuts it to the field's size. Each character that is not printable ASCII
    /// becomes a question mark.
    pub fn new(text: &str) -> Self {
        let mut bytes = [b' '; N];
        for (byte, c) in bytes.iter_mut().zip(text.chars()) {
            *byte = if matches!(c, ' '..='~') { c as u8 } else { b'?' };
        }
        Self(bytes)
    }

    /// The text without its padding. It is empty if the bytes are not UTF-8.
    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.0).unwrap_or_default().trim_end_matches([' ', '\0'])
    }
}

impl<const N: usize> Default for Ascii<N> {
    fn default() -> Self {
        Self([b' '; N])
    }
}

impl<const N: usize> fmt::Debug for Ascii<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl<const N: usize> Field for Ascii<N> {
    const SIZE: usize = N;

    fn get(bytes: &[u8]) -> Self {
        Self(Field::get(bytes))
    }

    fn put(&self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

/// Text of a fixed size that ends with a zero byte: the names of hosts and subsystems.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Name<const N: usize>([u8; N]);

impl<const N: usize> Name<N> {
    /// Makes a name. `None` if the text contains a zero byte, or is too long to fit with a zero
    /// byte after it.
    pub fn new(text: &str) -> Option<Self> {
        let mut bytes = [0; N];
        if text.len() >= N || text.contains('\0') {
            return None;
        }
        bytes[..text.len()].copy_from_slice(text.as_bytes());
        Some(Self(bytes))
    }

    /// The text before the first zero byte. `None` if there is no zero byte, or if the text is not
    /// UTF-8.
    pub fn text(&self) -> Option<&str> {
        let end = self.0.iter().position(|&byte| byte == 0)?;
        std::str::from_utf8(&self.0[..end]).ok()
    }
}

impl<const N: usize> Default for Name<N> {
    fn default() -> Self {
        Self([0; N])
    }
}

impl<const N: usize> fmt::Debug for Name<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.text())
    }
}

impl<const N: usize> Field for Name<N> {
    const SIZE: usize = N;

    fn get(bytes: &[u8]) -> Self {
        Self(Field::get(bytes))
    }

    fn put(&self, bytes: &mut [u8]) {
        self.0.put(bytes);
    }
}

/// Whether fields are in the order of their offsets, do not overlap, and fit into the structure.
pub(crate) const fn fits(fields: &[(usize, usize)], size: usize) -> bool {
    let (mut end, mut index) = (0, 0);
    while index < fields.len() {
        if fields[index].0 < end {
            return false;
        }
        end = fields[index].0 + fields[index].1;
        index += 1;
    }
    end <= size
}

/// Declares a structure and its size in bytes. Each field has its type and the offset of its first
/// byte.
macro_rules! layout {
    (
        $(#[$about:meta])*
        pub struct $name:ident [$size:literal] {
            $($(#[$about_field:meta])* $field:ident: $type:ty = $at:literal,)*
        }
    ) => {
        $(#[$about])*
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct $name {
            $($(#[$about_field])* pub $field: $type,)*
        }

        const _: () = assert!(
            $crate::layout::fits(
                &[$(($at, <$type as $crate::layout::Field>::SIZE)),*],
                $size,
            ),
            "the fields must be in order and inside the structure",
        );

        impl $name {
            /// Size in bytes.
            pub const SIZE: usize = $size;

            /// Encodes the structure. Reserved bytes are zero.
            pub fn encode(&self) -> [u8; $size] {
                let mut bytes = [0; $size];
                $($crate::layout::Field::put(
                    &self.$field,
                    &mut bytes[$at..$at + <$type as $crate::layout::Field>::SIZE],
                );)*
                bytes
            }

            /// Decodes the structure from the start of `bytes`. Reserved bytes, and bytes after the
            /// structure, are ignored.
            ///
            /// # Errors
            /// If there are fewer than [`SIZE`](Self::SIZE) bytes.
            pub fn decode(bytes: &[u8]) -> Result<Self, $crate::TooShort> {
                let Some(bytes) = bytes.first_chunk::<$size>() else {
                    let structure = stringify!($name);
                    return Err($crate::TooShort { structure, needed: $size, found: bytes.len() });
                };
                Ok(Self {
                    $($field: <$type as $crate::layout::Field>::get(
                        &bytes[$at..$at + <$type as $crate::layout::Field>::SIZE],
                    ),)*
                })
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_at_its_offset_and_a_hole_is_zero() {
        use crate::log::FirmwareSlot;

        let slot = FirmwareSlot { afi: 1, frs1: Ascii::new("1.0") };
        let mut bytes = [0; 512];
        bytes[0] = 1;
        bytes[8..16].copy_from_slice(b"1.0     ");
        assert_eq!(slot.encode(), bytes);
        bytes[1..8].fill(0xff);
        assert_eq!(FirmwareSlot::decode(&bytes), Ok(slot));
        let short = TooShort { structure: "FirmwareSlot", needed: 512, found: 511 };
        assert_eq!(FirmwareSlot::decode(&bytes[..511]), Err(short));
    }

    #[test]
    fn overlapping_and_overlong_fields_are_seen() {
        assert!(fits(&[(0, 4), (4, 4)], 8));
        assert!(!fits(&[(0, 4), (3, 4)], 8));
        assert!(!fits(&[(0, 4), (5, 4)], 8));
    }

    #[test]
    fn a_name_ends_with_a_zero_byte() {
        assert_eq!(
            Name::<4>::new("abc").and_then(|name| name.text().map(str::to_owned)),
            Some("abc".into())
        );
        assert_eq!(Name::<4>::new("abcd"), None);
        assert_eq!(Name::<4>::new("a\0"), None);
        assert_eq!(Name::<2>(*b"ab").text(), None);
        assert_eq!(Ascii::<4>::new("é long").text(), "? lo");
    }
}
