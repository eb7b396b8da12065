//! One key with its value, as compact as it goes.
//!
//! A short key with a short value is one allocation without any waste:
//!
//! ```text
//! | expires at, ms: i64, only if it does | key size: 1 or 2 bytes | key ... | value ... |
//! ```
//!
//! Whatever is longer is a box with the key, and the value in memory of its own, so that a value of
//! 4096 bytes is an allocation of 4096 bytes. Flags, access time and part of the hash stand beside
//! the pointer, in the bucket.

use std::mem::replace;
use std::sync::Arc;

use slimio_resp::Arg;

use crate::value::{Value, ValueRef};

/// Longest entry, in bytes of key, value and their head, that is one allocation.
const SMALL_SIZE_MAX: usize = 1024;

/// Size in bytes of a time in a small entry.
const EXPIRY_SIZE: usize = 8;

/// A place in a bucket.
#[derive(Debug)]
pub(crate) struct Slot {
    /// The low bits of the key's hash: they say in which bucket it belongs, and tell most other
    /// keys of the bucket apart.
    pub(crate) hash: u32,
    meta: Meta,
    entry: Entry,
}

/// What is known of an entry without looking at it.
///
/// ```text
/// 31                 26       25      24       23                     0
/// |    not used      | epoch | expires |  access time or frequency     |
/// ```
///
/// `epoch` says whether a running snapshot has taken the entry. The last access is for eviction.
#[derive(Clone, Copy, Debug, Default)]
struct Meta(u32);

impl Meta {
    const EXPIRES: u32 = 1 << 24;
}

#[derive(Debug)]
enum Entry {
    Small(Box<[u8]>),
    Large(Box<Large>),
}

// What each key costs beside its bytes: a change of this is a change of a promise.
const _: () = assert!(size_of::<Entry>() == 16 && size_of::<Slot>() == 24);
const _: () = assert!(size_of::<Large>() == 48);

#[derive(Debug)]
struct Large {
    key: Key,
    /// Means nothing unless the slot says that the key expires.
    expires_at_ms: i64,
    value: Value,
}

/// A key in the box of a large entry.
#[derive(Debug)]
enum Key {
    Inline { size: u8, bytes: [u8; Key::INLINE_SIZE_MAX] },
    Heap(Box<[u8]>),
}

impl Key {
    const INLINE_SIZE_MAX: usize = 22;

    fn new(key: &[u8]) -> Self {
        if key.len() > Self::INLINE_SIZE_MAX {
            return Key::Heap(key.into());
        }
        let mut bytes = [0; Self::INLINE_SIZE_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Key::Inline { size: key.len() as u8, bytes }
    }

    fn as_bytes(&self) -> &[u8] {
        match self {
            Key::Inline { size, bytes } => &bytes[..usize::from(*size)],
            Key::Heap(bytes) => bytes,
        }
    }
}

impl Slot {
    /// A new entry.
    pub(crate) fn new(hash: u32, key: &[u8], value: Arg<'_>, expires_at_ms: Option<i64>) -> Self {
        let entry = match small(key, value, expires_at_ms) {
            Some(bytes) => Entry::Small(bytes),
            None => large(key, Value::from_arg(value), expires_at_ms),
        };
        Self::of(hash, entry, expires_at_ms)
    }

    /// A new entry of a value that exists already.
    pub(crate) fn with_value(
        hash: u32,
        key: &[u8],
        value: Value,
        expires_at_ms: Option<i64>,
    ) -> Self {
        let entry = match small(key, value.as_ref().as_arg(), expires_at_ms) {
            Some(bytes) => Entry::Small(bytes),
            None => large(key, value, expires_at_ms),
        };
        Self::of(hash, entry, expires_at_ms)
    }

    fn of(hash: u32, entry: Entry, expires_at_ms: Option<i64>) -> Self {
        let meta = Meta(if expires_at_ms.is_some() { Meta::EXPIRES } else { 0 });
        Self { hash, meta, entry }
    }

    /// Whether the key will expire.
    pub(crate) fn expires(&self) -> bool {
        self.meta.0 & Meta::EXPIRES != 0
    }

    pub(crate) fn key(&self) -> &[u8] {
        match &self.entry {
            Entry::Small(bytes) => split_small(bytes, self.expires()).0,
            Entry::Large(large) => large.key.as_bytes(),
        }
    }

    pub(crate) fn value(&self) -> ValueRef<'_> {
        match &self.entry {
            Entry::Small(bytes) => ValueRef::Bytes(split_small(bytes, self.expires()).1),
            Entry::Large(large) => large.value.as_ref(),
        }
    }

    /// Milliseconds since 1970.
    pub(crate) fn expires_at_ms(&self) -> Option<i64> {
        if !self.expires() {
            return None;
        }
        Some(match &self.entry {
            Entry::Small(bytes) => {
                i64::from_le_bytes(bytes[..EXPIRY_SIZE].try_into().expect("eight bytes"))
            }
            Entry::Large(large) => large.expires_at_ms,
        })
    }

    /// Gives the entry another time to expire, or none.
    pub(crate) fn set_expiry(&mut self, expires_at_ms: Option<i64>) {
        match (&mut self.entry, expires_at_ms) {
            (Entry::Large(large), _) => large.expires_at_ms = expires_at_ms.unwrap_or(0),
            (Entry::Small(bytes), Some(at)) if self.meta.0 & Meta::EXPIRES != 0 => {
                bytes[..EXPIRY_SIZE].copy_from_slice(&at.to_le_bytes());
            }
            (Entry::Small(_), None) if self.meta.0 & Meta::EXPIRES == 0 => {}
            (Entry::Small(_), _) => {
                let value = self.value().to_value();
                let slot = Slot::with_value(self.hash, self.key(), value, expires_at_ms);
                self.entry = slot.entry;
            }
        }
        self.meta.0 &= !Meta::EXPIRES;
        if expires_at_ms.is_some() {
            self.meta.0 |= Meta::EXPIRES;
        }
    }

    /// Replaces the value, in place where the old one has the same size and nobody shares it.
    /// Returns an old value that is worth dropping elsewhere.
    pub(crate) fn set(&mut self, value: Arg<'_>, expires_at_ms: Option<i64>) -> Option<Value> {
        let expires = self.expires();
        let stays_large = small_size(self.key(), value, expires_at_ms) > SMALL_SIZE_MAX;
        match (&mut self.entry, value) {
            (Entry::Small(bytes), Arg::Bytes(new))
                if expires == expires_at_ms.is_some()
                    && bytes.len() - value_start(bytes, expires) == new.len() =>
            {
                let start = value_start(bytes, expires);
                bytes[start..].copy_from_slice(new);
                self.set_expiry(expires_at_ms);
                None
            }
            // The box and the key stay.
            (Entry::Large(large), _) if stays_large => {
                let old = if overwrite(&mut large.value, value) {
                    None
                } else {
                    Some(replace(&mut large.value, Value::from_arg(value)))
                };
                self.set_expiry(expires_at_ms);
                old.and_then(worth_deferring)
            }
            _ => {
                let new = Slot::new(self.hash, self.key(), value, expires_at_ms);
                let old = replace(&mut self.entry, new.entry);
                self.meta.0 = self.meta.0 & !Meta::EXPIRES | new.meta.0;
                match old {
                    Entry::Small(_) => None,
                    Entry::Large(large) => worth_deferring(large.value),
                }
            }
        }
    }

    /// Changes the value by taking it out and putting another in.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut Value)) {
        let expires_at_ms = self.expires_at_ms();
        match &mut self.entry {
            Entry::Large(large) => change(&mut large.value),
            Entry::Small(_) => {
                let mut value = self.value().to_value();
                change(&mut value);
                let new = Slot::with_value(self.hash, self.key(), value, expires_at_ms);
                self.entry = new.entry;
            }
        }
    }

    /// The value alone.
    pub(crate) fn into_value(self) -> Value {
        match self.entry {
            Entry::Large(large) => large.value,
            Entry::Small(_) => self.value().to_value(),
        }
    }
}

/// Values whose freeing takes noticeable time.
pub(crate) fn worth_deferring(value: Value) -> Option<Value> {
    matches!(value, Value::Blob(_)).then_some(value)
}

fn large(key: &[u8], value: Value, expires_at_ms: Option<i64>) -> Entry {
    let expires_at_ms = expires_at_ms.unwrap_or(0);
    Entry::Large(Box::new(Large { key: Key::new(key), expires_at_ms, value }))
}

/// Writes a string over one whose memory it fits exactly, unless that is shared.
fn overwrite(value: &mut Value, new: Arg<'_>) -> bool {
    let (Value::Piece(piece), Arg::Bytes(new)) = (value, new) else { return false };
    match Arc::get_mut(piece) {
        Some(bytes) if bytes.capacity() == new.len() => {
            bytes.clear();
            bytes.extend_from_slice(new);
            true
        }
        _ => false,
    }
}

/// Size in bytes of the length of a key in a small entry.
fn head_size(key: &[u8]) -> usize {
    if key.len() < 0x80 { 1 } else { 2 }
}

/// Size in bytes of a small entry, whether it may be one or not.
fn small_size(key: &[u8], value: Arg<'_>, expires_at_ms: Option<i64>) -> usize {
    let expiry_size = if expires_at_ms.is_some() { EXPIRY_SIZE } else { 0 };
    expiry_size + head_size(key) + key.len() + value.size()
}

/// A small entry, if it is one.
fn small(key: &[u8], value: Arg<'_>, expires_at_ms: Option<i64>) -> Option<Box<[u8]>> {
    let size = small_size(key, value, expires_at_ms);
    if size > SMALL_SIZE_MAX {
        return None;
    }
    let mut bytes = Vec::with_capacity(size);
    if let Some(at) = expires_at_ms {
        bytes.extend_from_slice(&at.to_le_bytes());
    }
    if head_size(key) == 1 {
        bytes.push(key.len() as u8);
    } else {
        bytes.extend_from_slice(&[key.len() as u8 | 0x80, (key.len() >> 7) as u8]);
    }
    bytes.extend_from_slice(key);
    value.chunks().for_each(|chunk| bytes.extend_from_slice(chunk));
    Some(bytes.into_boxed_slice())
}

/// Key and value of a small entry.
fn split_small(bytes: &[u8], expires: bool) -> (&[u8], &[u8]) {
    let (start, size) = small_key(bytes, expires);
    bytes[start..].split_at(size)
}

fn value_start(bytes: &[u8], expires: bool) -> usize {
    let (start, size) = small_key(bytes, expires);
    start + size
}

/// Start and size of the key of a small entry.
fn small_key(bytes: &[u8], expires: bool) -> (usize, usize) {
    let head = if expires { EXPIRY_SIZE } else { 0 };
    let low = usize::from(bytes[head]);
    if low < 0x80 {
        return (head + 1, low);
    }
    (head + 2, low & 0x7f | usize::from(bytes[head + 1]) << 7)
}

#[cfg(test)]
mod tests {
    use slimio_resp::{BLOB_PIECE_SIZE, Blob};

    use super::*;

    /// Sizes around every limit of a form.
    const SIZES: [usize; 11] = [
        0,
        1,
        22,
        23,
        127,
        128,
        SMALL_SIZE_MAX - 30,
        SMALL_SIZE_MAX,
        4096,
        BLOB_PIECE_SIZE,
        BLOB_PIECE_SIZE + 1,
    ];

    const EXPIRIES: [Option<i64>; 3] = [None, Some(0), Some(i64::MAX)];

    fn string(size: usize, byte: u8) -> Vec<u8> {
        (0..size).map(|i| (i % 199) as u8 ^ byte).collect()
    }

    fn check(slot: &Slot, key: &[u8], value: &[u8], expires_at_ms: Option<i64>) {
        assert!(slot.key() == key, "key of {}", key.len());
        assert!(*slot.value().as_arg().to_bytes() == *value, "value of {}", value.len());
        assert_eq!(slot.expires_at_ms(), expires_at_ms);
        assert_eq!(slot.expires(), expires_at_ms.is_some());
        let arg = slot.value().as_arg();
        assert_eq!(matches!(arg, Arg::Blob(_)), value.len() > BLOB_PIECE_SIZE);
    }

    #[test]
    fn an_entry_holds_what_it_is_given() {
        for key_size in SIZES {
            let key = string(key_size, 1);
            for expiry in EXPIRIES {
                for size in SIZES {
                    let value = string(size, 2);
                    let slot = Slot::new(7, &key, Arg::Bytes(&value), expiry);
                    check(&slot, &key, &value, expiry);
                    let blob = Blob::from_bytes(&value);
                    check(&Slot::new(7, &key, Arg::Blob(&blob), expiry), &key, &value, expiry);
                    let value_again = slot.into_value();
                    check(&Slot::with_value(7, &key, value_again, expiry), &key, &value, expiry);
                }
            }
        }
    }

    #[test]
    fn an_entry_changes_from_any_form_to_any_other() {
        let key = string(20, 1);
        for (from, before) in SIZES.into_iter().flat_map(|size| EXPIRIES.map(|at| (size, at))) {
            for (to, after) in SIZES.into_iter().flat_map(|size| EXPIRIES.map(|at| (size, at))) {
                let (old, new) = (string(from, 2), string(to, 3));
                let mut slot = Slot::new(7, &key, Arg::Bytes(&old), before);
                let garbage = slot.set(Arg::Bytes(&new), after);
                assert_eq!(garbage.is_some(), from > BLOB_PIECE_SIZE);
                check(&slot, &key, &new, after);
                slot.set_expiry(before);
                check(&slot, &key, &new, before);
            }
        }
    }

    #[test]
    fn strings_grow_through_all_forms() {
        let mut slot = Slot::new(7, b"key", Arg::Bytes(b""), Some(5));
        let mut expected = Vec::new();
        for size in [1, 100, 2000, 1, 60_000, 250_000, 3, 600_000] {
            let more = string(size, 9);
            slot.update(|value| value.append(Arg::Bytes(&more)));
            expected.extend_from_slice(&more);
            check(&slot, b"key", &expected, Some(5));
            let middle = expected.len() / 2;
            slot.update(|value| value.write_at(middle, Arg::Blob(&Blob::from_bytes(b"xyz"))));
            expected.resize(expected.len().max(middle + 3), 0);
            expected[middle..middle + 3].copy_from_slice(b"xyz");
            check(&slot, b"key", &expected, Some(5));
        }
    }

    #[test]
    fn a_value_of_the_same_size_is_replaced_in_place() {
        for size in [16, SMALL_SIZE_MAX - 8, 4096] {
            let (old, new) = (string(size, 1), string(size, 2));
            for expiry in [None, Some(1)] {
                let mut slot = Slot::new(7, b"key", Arg::Bytes(&old), expiry);
                let info = allocation_counter::measure(|| {
                    slot.set(Arg::Bytes(&new), expiry);
                });
                assert_eq!(info.count_total, 0, "size {size}");
                check(&slot, b"key", &new, expiry);
            }
        }
    }

    #[test]
    fn a_value_that_somebody_reads_is_left_alone() {
        let (old, new) = (string(4096, 1), string(4096, 2));
        let mut slot = Slot::new(7, b"key", Arg::Bytes(&old), None);
        let Value::Piece(reader) = slot.value().to_value() else { panic!("a piece") };
        slot.set(Arg::Bytes(&new), None);
        assert!(*reader == old);
        check(&slot, b"key", &new, None);
        slot.update(|value| value.append(Arg::Bytes(b"!")));
        assert!(*reader == old);
    }
}
