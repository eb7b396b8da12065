//! Intset: a set of integers, ascending.
//!
//! ```text
//! | size of an integer: u32 | count: u32 | integer ... |
//! ```
//!
//! An integer has 2, 4 or 8 bytes. All numbers are little-endian. (`intset.c` in Redis.)

use std::ops::Range;

use crate::element::Element;
use crate::error::Malformed;
use crate::listpack::signed;

const HEADER_SIZE: usize = 8;

/// An intset without integers.
pub const EMPTY: [u8; HEADER_SIZE] = [2, 0, 0, 0, 0, 0, 0, 0];

/// A place in an intset, in front of an integer.
#[derive(Clone, Debug)]
pub(crate) struct Cursor {
    at: usize,
    element_size: usize,
}

impl Cursor {
    /// Checks the header and the size. Returns the place in front of the first integer.
    pub(crate) fn open(bytes: &[u8]) -> Result<Self, Malformed> {
        let Some((element_size, behind)) = bytes.split_first_chunk() else {
            return Err(Malformed("an intset has no header"));
        };
        let Some((len, integers)) = behind.split_first_chunk() else {
            return Err(Malformed("an intset has no header"));
        };
        let element_size = u32::from_le_bytes(*element_size) as usize;
        let len = u32::from_le_bytes(*len) as usize;
        if !matches!(element_size, 2 | 4 | 8) || integers.len() != element_size * len {
            return Err(Malformed("the sizes in an intset's header are wrong"));
        }
        Ok(Self { at: HEADER_SIZE, element_size })
    }

    /// The next integer of `bytes`, which must be the bytes that [`open`](Self::open) was given.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<Result<Element<'a>, Malformed>> {
        let integer = bytes.get(self.at..self.at + self.element_size)?;
        self.at += self.element_size;
        Some(Ok(Element::Integer(signed(integer))))
    }
}

/// Checks whether untrusted bytes are a valid intset. The functions below need a valid intset.
pub fn check(bytes: &[u8]) -> Result<(), Malformed> {
    Cursor::open(bytes)?;
    let is_ascending = integers(bytes).is_sorted_by(|a, b| a < b);
    if is_ascending { Ok(()) } else { Err(Malformed("an intset is not in ascending order")) }
}

/// Count of integers in the intset.
pub fn len(intset: &[u8]) -> usize {
    (intset.len() - HEADER_SIZE) / element_size(intset)
}

/// All integers, ascending.
pub fn integers(intset: &[u8]) -> impl Iterator<Item = i64> + Clone {
    intset[HEADER_SIZE..].chunks_exact(element_size(intset)).map(signed)
}

/// The integer at an index.
///
/// # Panics
/// If the intset has no integer at `index`.
pub fn get(intset: &[u8], index: usize) -> i64 {
    signed(&intset[place(element_size(intset), index)])
}

/// Whether the intset has the integer `value`.
pub fn contains(intset: &[u8], value: i64) -> bool {
    search(intset, value).is_ok()
}

/// Adds an integer to the intset that begins at `base` of `bytes`. Returns whether the integer is
/// new. If the integer needs more bytes than the others, all integers become wider.
pub fn insert(bytes: &mut Vec<u8>, base: usize, value: i64) -> bool {
    let intset = &bytes[base..];
    let size = element_size(intset);
    let Err(index) = search(intset, value) else { return false };
    let len = len(intset) + 1;
    if size_of_integer(value) > size {
        // An integer that needs more bytes than all others is either less than all of them or
        // greater than all of them.
        let mut wider: Vec<i64> = integers(intset).collect();
        wider.insert(index, value);
        let size = size_of_integer(value);
        bytes.truncate(base);
        bytes.reserve_exact(HEADER_SIZE + len * size);
        bytes.extend_from_slice(&(size as u32).to_le_bytes());
        bytes.extend_from_slice(&(len as u32).to_le_bytes());
        for integer in wider {
            bytes.extend_from_slice(&integer.to_le_bytes()[..size]);
        }
        return true;
    }
    let at = base + HEADER_SIZE + index * size;
    let before = bytes.len();
    bytes.resize(before + size, 0);
    bytes.copy_within(at..before, at + size);
    bytes[at..at + size].copy_from_slice(&value.to_le_bytes()[..size]);
    set_len(bytes, base, len);
    true
}

/// Removes an integer from the intset that begins at `base` of `bytes`. Returns whether the intset
/// had this integer.
pub fn remove(bytes: &mut Vec<u8>, base: usize, value: i64) -> bool {
    let intset = &bytes[base..];
    let Ok(index) = search(intset, value) else { return false };
    let (size, len) = (element_size(intset), len(intset) - 1);
    let at = base + HEADER_SIZE + index * size;
    bytes.copy_within(at + size.., at);
    bytes.truncate(bytes.len() - size);
    set_len(bytes, base, len);
    true
}

fn set_len(bytes: &mut [u8], base: usize, len: usize) {
    let len = u32::try_from(len).expect("an intset has fewer than 2^32 integers");
    bytes[base + 4..base + HEADER_SIZE].copy_from_slice(&len.to_le_bytes());
}

fn element_size(intset: &[u8]) -> usize {
    usize::from(intset[0])
}

fn place(element_size: usize, index: usize) -> Range<usize> {
    let start = HEADER_SIZE + index * element_size;
    start..start + element_size
}

/// Count of bytes that an integer needs.
fn size_of_integer(value: i64) -> usize {
    match value {
        _ if i16::try_from(value).is_ok() => 2,
        _ if i32::try_from(value).is_ok() => 4,
        _ => 8,
    }
}

/// The index of an integer. If the intset does not have the integer, the error is the index that
/// the integer would get.
fn search(intset: &[u8], value: i64) -> Result<usize, usize> {
    let size = element_size(intset);
    let (mut low, mut high) = (0, len(intset));
    while low < high {
        let middle = usize::midpoint(low, high);
        match signed(&intset[place(size, middle)]).cmp(&value) {
            std::cmp::Ordering::Less => low = middle + 1,
            std::cmp::Ordering::Equal => return Ok(middle),
            std::cmp::Ordering::Greater => high = middle,
        }
    }
    Err(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(bytes: &[u8]) -> Result<Vec<Element<'_>>, Malformed> {
        let mut cursor = Cursor::open(bytes)?;
        std::iter::from_fn(|| cursor.next(bytes)).collect()
    }

    #[test]
    fn each_size_is_read_and_wrong_ones_are_refused() {
        let two = b"\x02\0\0\0\x02\0\0\0\xff\xff\x05\0";
        assert_eq!(read(two), Ok(vec![Element::Integer(-1), Element::Integer(5)]));
        let four = b"\x04\0\0\0\x01\0\0\0\0\0\0\x80";
        assert_eq!(read(four), Ok(vec![Element::Integer(i32::MIN.into())]));
        let eight = b"\x08\0\0\0\x01\0\0\0\xff\xff\xff\xff\xff\xff\xff\x7f";
        assert_eq!(read(eight), Ok(vec![Element::Integer(i64::MAX)]));
        assert_eq!(read(b"\x02\0\0\0\0\0\0\0"), Ok(vec![]));
        for end in 0..two.len() {
            assert!(read(&two[..end]).is_err(), "{end}");
        }
        assert!(read(b"\x03\0\0\0\x01\0\0\0abc").is_err());
    }

    #[test]
    fn integers_are_added_and_removed_as_in_a_set() {
        let mut rng = fastrand::Rng::with_seed(1);
        for (base, bits) in [(0, 4), (3, 15), (0, 17), (7, 31), (0, 40), (1, 63)] {
            let mut bytes = vec![0xaa; base];
            bytes.extend_from_slice(&EMPTY);
            let mut model = std::collections::BTreeSet::new();
            for step in 0..3_000 {
                let value = rng.i64(..) >> rng.u32(63 - bits..=63);
                if rng.usize(..3) > 0 {
                    assert_eq!(insert(&mut bytes, base, value), model.insert(value));
                } else {
                    assert_eq!(remove(&mut bytes, base, value), model.remove(&value));
                }
                let intset = &bytes[base..];
                assert_eq!(len(intset), model.len());
                assert_eq!(contains(intset, value), model.contains(&value));
                if step % 100 == 0 {
                    assert_eq!(check(intset), Ok(()));
                    assert!(integers(intset).eq(model.iter().copied()));
                    assert!((0..len(intset)).map(|at| get(intset, at)).eq(model.iter().copied()));
                }
            }
            assert_eq!(bytes[..base], vec![0xaa; base]);
        }
    }

    #[test]
    fn an_intset_out_of_order_is_refused() {
        assert!(check(b"\x02\0\0\0\x02\0\0\0\x05\0\xff\xff").is_err());
        assert!(check(b"\x02\0\0\0\x02\0\0\0\x05\0\x05\0").is_err());
        assert_eq!(check(b"\x02\0\0\0\x02\0\0\0\x05\0\x06\0"), Ok(()));
    }
}
