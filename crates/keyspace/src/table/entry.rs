//! One key with its value, as compact as possible.
//!
//! A short key with a short value is one allocation without any waste. It holds the expiry, the key
//! and the value, one after the other.
//!
//! A longer entry is a box with the key, and a separate allocation for the value, so that a value
//! of 4096 bytes is an allocation of 4096 bytes. Flags, access time and part of the hash are in the
//! bucket, next to the pointer.

use std::mem::replace;
use std::sync::Arc;

use slimio_resp::Arg;

use super::large::Large;
use super::meta::{Epoch, Meta, Written};
use super::small::{self, EXPIRY_SIZE, SMALL_SIZE_MAX};
use crate::access::Access;
use crate::collection::EditForm;
use crate::kinds::{AnyTree, Packing};
use crate::memory::allocated;
use crate::value::{Value, ValueRef};

/// A place in a bucket.
#[derive(Debug)]
pub(crate) struct BucketSlot {
    /// The low 32 bits of the key's hash. Some of these bits select the bucket. Most keys of one
    /// bucket differ in the other bits.
    pub(crate) hash: u32,
    meta: Meta,
    entry: Entry,
}

#[derive(Debug)]
enum Entry {
    Small(Box<[u8]>),
    Large(Box<Large>),
}

// The fixed memory cost of each key. Do not raise it, because users rely on it.
const _: () = assert!(size_of::<Entry>() == 16 && size_of::<BucketSlot>() == 24);

impl BucketSlot {
    /// A new entry.
    pub(crate) fn new(hash: u32, key: &[u8], value: Arg<'_>, expires_at_ms: Option<i64>) -> Self {
        let entry = match small::make(key, value, expires_at_ms) {
            Some(bytes) => Entry::Small(bytes),
            None => large(key, Value::from_arg(value), expires_at_ms),
        };
        Self::of(hash, entry, None, expires_at_ms)
    }

    /// A new entry for a value that exists already.
    pub(crate) fn with_value(
        hash: u32,
        key: &[u8],
        value: Value,
        expires_at_ms: Option<i64>,
    ) -> Self {
        let (packing, bytes) = match value.as_ref() {
            ValueRef::String(string) => (None, Some(string.as_arg())),
            ValueRef::Collection(collection) => match collection.packed() {
                Some((packing, bytes)) => (Some(packing), Some(Arg::Bytes(bytes))),
                None => (None, None),
            },
        };
        let entry = match bytes.and_then(|bytes| small::make(key, bytes, expires_at_ms)) {
            Some(bytes) => Entry::Small(bytes),
            None => large(key, value, expires_at_ms),
        };
        Self::of(hash, entry, packing, expires_at_ms)
    }

    /// A new entry of a collection without elements.
    pub(crate) fn of_empty(hash: u32, key: &[u8], packing: Packing) -> Self {
        let bytes = packing.empty();
        match small::make(key, Arg::Bytes(bytes), None) {
            Some(entry) => Self::of(hash, Entry::Small(entry), Some(packing), None),
            None => {
                Self::with_value(hash, key, Value::Packed(packing, Arc::new(bytes.to_vec())), None)
            }
        }
    }

    fn of(hash: u32, entry: Entry, packing: Option<Packing>, expires_at_ms: Option<i64>) -> Self {
        Self { hash, meta: Meta::new(packing, expires_at_ms.is_some()), entry }
    }

    /// Whether the key has an expiry.
    pub(crate) fn expires(&self) -> bool {
        self.meta.expires()
    }

    /// The epoch, which says whether a running capture has taken the entry. (A capture takes every
    /// entry as it was at one point in time, for a snapshot.)
    pub(crate) fn epoch(&self) -> Epoch {
        self.meta.epoch()
    }

    pub(crate) fn set_epoch(&mut self, epoch: Epoch) {
        self.meta.set_epoch(epoch);
    }

    pub(crate) fn set_written(&mut self, written: Written) {
        self.meta.set_written(written);
    }

    /// The attributes of the entry. They are in the slot, so the entry's own memory is not read.
    pub(crate) fn meta(&self) -> Meta {
        self.meta
    }

    /// The contents of the entry, in its small or its large form.
    pub(crate) fn form(&self) -> Form<'_> {
        match &self.entry {
            Entry::Small(bytes) => Form::Small(bytes),
            Entry::Large(large) => Form::Large(large),
        }
    }

    pub(crate) fn access(&self) -> Access {
        self.meta.access()
    }

    pub(crate) fn set_access(&mut self, access: Access) {
        self.meta.set_access(access);
    }

    pub(crate) fn key(&self) -> &[u8] {
        match &self.entry {
            Entry::Small(bytes) => small::split(bytes, self.expires()).0,
            Entry::Large(large) => large.key.as_bytes(),
        }
    }

    pub(crate) fn value(&self) -> ValueRef<'_> {
        match &self.entry {
            Entry::Small(bytes) => self.meta.view(small::split(bytes, self.expires()).1),
            Entry::Large(large) => large.value.as_ref(),
        }
    }

    /// The tree of a large collection.
    pub(crate) fn tree(&self) -> Option<&AnyTree> {
        match &self.entry {
            Entry::Large(large) => match &large.value {
                Value::Tree(tree) => Some(tree),
                _ => None,
            },
            Entry::Small(_) => None,
        }
    }

    /// Bytes that the entry takes in memory, without its slot.
    pub(crate) fn memory(&self) -> usize {
        match &self.entry {
            Entry::Small(bytes) => allocated(bytes.len()),
            Entry::Large(large) => large.memory(),
        }
    }

    /// The expiry, in milliseconds since 1970.
    pub(crate) fn expires_at_ms(&self) -> Option<i64> {
        match &self.entry {
            Entry::Small(bytes) => small::expiry(bytes, self.meta),
            Entry::Large(large) => large.expires_at_ms(self.meta),
        }
    }

    /// Changes or removes the expiry.
    pub(crate) fn set_expiry(&mut self, expires_at_ms: Option<i64>) {
        match (&mut self.entry, expires_at_ms) {
            (Entry::Large(large), _) => large.expires_at_ms = expires_at_ms.unwrap_or(0),
            (Entry::Small(bytes), Some(at)) if self.meta.expires() => {
                bytes[..EXPIRY_SIZE].copy_from_slice(&at.to_le_bytes());
            }
            (Entry::Small(_), None) if !self.meta.expires() => {}
            (Entry::Small(_), _) => {
                let value = self.value().to_value();
                let slot = BucketSlot::with_value(self.hash, self.key(), value, expires_at_ms);
                self.entry = slot.entry;
            }
        }
        self.meta.set_expires(expires_at_ms.is_some());
    }

    /// Replaces the value with a string. If the old value has the same size and is not shared, it
    /// is overwritten in place. Returns the old value if another thread should free it.
    pub(crate) fn set(&mut self, value: Arg<'_>, expires_at_ms: Option<i64>) -> Option<Value> {
        self.meta.set_written(Written::Whole);
        let stays_large = self.stays_large(value, expires_at_ms);
        let fits = match (&mut self.entry, value) {
            (Entry::Small(bytes), Arg::Bytes(new)) => {
                let (expires, expired) = (expires_at_ms.is_some(), self.meta.expires());
                let start = small::value_start(bytes, expired);
                let fits = expires == expired && bytes.len() - start == new.len();
                if fits {
                    bytes[start..].copy_from_slice(new);
                    self.meta.set_packing(None);
                }
                fits
            }
            (Entry::Large(large), _) if stays_large => overwrite(&mut large.value, value),
            _ => false,
        };
        if fits {
            self.set_expiry(expires_at_ms);
            return None;
        }
        self.exchange(value, expires_at_ms).and_then(|large| worth_deferring(large.value))
    }

    /// Replaces the value without writing to the memory of the old value. Returns the old entry if
    /// it was large.
    pub(crate) fn exchange(&mut self, value: Arg<'_>, expires_at_ms: Option<i64>) -> Option<Large> {
        self.meta.set_written(Written::Whole);
        let stays_large = self.stays_large(value, expires_at_ms);
        if let Entry::Large(large) = &mut self.entry
            && stays_large
        {
            // The box and the key are kept; only the value is replaced.
            let old = replace(&mut large.value, Value::from_arg(value));
            let was = Large { key: large.key.clone(), value: old, ..**large };
            self.set_expiry(expires_at_ms);
            return Some(was);
        }
        let new = BucketSlot::new(self.hash, self.key(), value, expires_at_ms);
        let old = replace(&mut self.entry, new.entry);
        self.meta.set_expires(new.meta.expires());
        self.meta.set_packing(new.meta.packing());
        match old {
            Entry::Small(_) => None,
            Entry::Large(large) => Some(*large),
        }
    }

    fn stays_large(&self, value: Arg<'_>, expires_at_ms: Option<i64>) -> bool {
        matches!(self.entry, Entry::Large(_))
            && small::size(self.key(), value, expires_at_ms) > SMALL_SIZE_MAX
    }

    /// Changes a part of the value. The value of a large entry is changed in place. The value of a
    /// small entry is copied first.
    pub(crate) fn update(&mut self, change: impl FnOnce(&mut Value)) {
        self.meta.set_written(Written::InParts);
        let expires_at_ms = self.expires_at_ms();
        match &mut self.entry {
            Entry::Large(large) => change(&mut large.value),
            Entry::Small(_) => {
                let mut value = self.value().to_value();
                change(&mut value);
                let new = BucketSlot::with_value(self.hash, self.key(), value, expires_at_ms);
                self.meta.set_packing(new.meta.packing());
                self.entry = new.entry;
            }
        }
    }

    /// Changes a collection in place, or converts it to another form.
    ///
    /// Panics if the value is a string.
    pub(crate) fn update_collection<R>(
        &mut self,
        change: impl FnOnce(&mut EditForm<'_>) -> R,
    ) -> R {
        let (expires, expires_at_ms) = (self.expires(), self.expires_at_ms());
        match &mut self.entry {
            Entry::Small(entry) => {
                let packing = self.meta.packing().expect("the value is a collection");
                let base = small::value_start(entry, expires);
                let bytes = std::mem::take(entry).into_vec();
                let mut form = EditForm::Packed { packing, bytes, base };
                let result = change(&mut form);
                let (bytes, value) = match form {
                    EditForm::Packed { packing, bytes, .. } if bytes.len() <= SMALL_SIZE_MAX => {
                        *entry = bytes.into_boxed_slice();
                        self.meta.set_packing(Some(packing));
                        return result;
                    }
                    EditForm::Packed { packing, bytes, base } => {
                        let value = Value::Packed(packing, Arc::new(bytes[base..].to_vec()));
                        (bytes, value)
                    }
                    EditForm::Grown { bytes, tree } => (bytes, Value::Tree(tree)),
                    EditForm::Tree(_) => unreachable!("a small entry holds no tree"),
                };
                self.entry = large(small::split(&bytes, expires).0, value, expires_at_ms);
                result
            }
            Entry::Large(large) => match &mut large.value {
                Value::Packed(packing, piece) => {
                    let bytes = std::mem::take(Arc::make_mut(piece));
                    let mut form = EditForm::Packed { packing: *packing, bytes, base: 0 };
                    let result = change(&mut form);
                    match form {
                        EditForm::Packed { packing: now, bytes, .. } => {
                            *packing = now;
                            *Arc::make_mut(piece) = bytes;
                        }
                        EditForm::Grown { tree, .. } => large.value = Value::Tree(tree),
                        EditForm::Tree(_) => unreachable!("packed bytes are no tree"),
                    }
                    result
                }
                Value::Tree(tree) => {
                    let mut form = EditForm::Tree(tree);
                    let result = change(&mut form);
                    if let EditForm::Packed { packing, bytes, .. } = form {
                        self.pack(packing, bytes, expires_at_ms);
                    }
                    result
                }
                Value::Piece(_) | Value::Blob(_) => panic!("the value is a string"),
            },
        }
    }

    /// Puts the packed bytes of a tree's elements in place of the tree, which has become small.
    fn pack(&mut self, packing: Packing, bytes: Vec<u8>, expires_at_ms: Option<i64>) {
        let value = Value::Packed(packing, Arc::new(bytes));
        let new = BucketSlot::with_value(self.hash, self.key(), value, expires_at_ms);
        self.meta.set_packing(new.meta.packing());
        self.entry = new.entry;
    }

    /// The entry, if it is large.
    pub(crate) fn into_large(self) -> Option<Large> {
        match self.entry {
            Entry::Small(_) => None,
            Entry::Large(large) => Some(*large),
        }
    }

    pub(crate) fn into_value(self) -> Value {
        match self.entry {
            Entry::Large(large) => large.value,
            Entry::Small(_) => self.value().to_value(),
        }
    }
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Form<'a> {
    Small(&'a [u8]),
    Large(&'a Large),
}

impl<'a> Form<'a> {
    /// Key, value and expiry of the entry with this `meta`.
    pub(crate) fn view(self, meta: Meta) -> (&'a [u8], ValueRef<'a>, Option<i64>) {
        match self {
            Form::Small(bytes) => {
                let (key, value) = small::split(bytes, meta.expires());
                (key, meta.view(value), small::expiry(bytes, meta))
            }
            Form::Large(large) => {
                (large.key.as_bytes(), large.value.as_ref(), large.expires_at_ms(meta))
            }
        }
    }
}

/// The value if freeing it takes noticeable time; otherwise frees the value and returns `None`.
pub(crate) fn worth_deferring(value: Value) -> Option<Value> {
    value.as_ref().is_large().then_some(value)
}

fn large(key: &[u8], value: Value, expires_at_ms: Option<i64>) -> Entry {
    Entry::Large(Box::new(Large::new(key, value, expires_at_ms)))
}

/// Overwrites a string in place, if it is not shared and its memory has exactly the size of the new
/// string. Returns whether the string was overwritten.
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

#[cfg(test)]
mod tests {
    use slimio_resp::{BLOB_PIECE_SIZE, Blob};

    use super::*;

    /// Sizes near every limit at which the form of an entry changes.
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

    fn string(slot: &BucketSlot) -> Arg<'_> {
        slot.value().as_string().expect("a string").as_arg()
    }

    fn pattern(size: usize, byte: u8) -> Vec<u8> {
        (0..size).map(|i| (i % 199) as u8 ^ byte).collect()
    }

    fn check(slot: &BucketSlot, key: &[u8], value: &[u8], expires_at_ms: Option<i64>) {
        assert!(slot.key() == key, "key of {}", key.len());
        assert!(*string(slot).to_bytes() == *value, "value of {}", value.len());
        assert_eq!(slot.expires_at_ms(), expires_at_ms);
        assert_eq!(slot.expires(), expires_at_ms.is_some());
        let arg = string(slot);
        assert_eq!(matches!(arg, Arg::Blob(_)), value.len() > BLOB_PIECE_SIZE);
    }

    #[test]
    fn an_entry_holds_what_it_is_given() {
        for key_size in SIZES {
            let key = pattern(key_size, 1);
            for expiry in EXPIRIES {
                for size in SIZES {
                    let value = pattern(size, 2);
                    let slot = BucketSlot::new(7, &key, Arg::Bytes(&value), expiry);
                    check(&slot, &key, &value, expiry);
                    let blob = Blob::from_bytes(&value);
                    check(
                        &BucketSlot::new(7, &key, Arg::Blob(&blob), expiry),
                        &key,
                        &value,
                        expiry,
                    );
                    let value_again = slot.into_value();
                    check(
                        &BucketSlot::with_value(7, &key, value_again, expiry),
                        &key,
                        &value,
                        expiry,
                    );
                }
            }
        }
    }

    #[test]
    fn an_entry_changes_from_any_form_to_any_other() {
        let key = pattern(20, 1);
        for (from, before) in SIZES.into_iter().flat_map(|size| EXPIRIES.map(|at| (size, at))) {
            for (to, after) in SIZES.into_iter().flat_map(|size| EXPIRIES.map(|at| (size, at))) {
                let (old, new) = (pattern(from, 2), pattern(to, 3));
                let mut slot = BucketSlot::new(7, &key, Arg::Bytes(&old), before);
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
        let mut slot = BucketSlot::new(7, b"key", Arg::Bytes(b""), Some(5));
        let mut expected = Vec::new();
        for size in [1, 100, 2000, 1, 60_000, 250_000, 3, 600_000] {
            let more = pattern(size, 9);
            slot.update(|value| value.write_at(expected.len(), Arg::Bytes(&more)));
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
            let (old, new) = (pattern(size, 1), pattern(size, 2));
            for expiry in [None, Some(1)] {
                let mut slot = BucketSlot::new(7, b"key", Arg::Bytes(&old), expiry);
                let info = allocation_counter::measure(|| {
                    slot.set(Arg::Bytes(&new), expiry);
                });
                assert_eq!(info.count_total, 0, "size {size}");
                check(&slot, b"key", &new, expiry);
            }
        }
    }

    #[test]
    fn an_exchanged_string_is_written_as_a_whole() {
        for size in SIZES {
            let mut slot = BucketSlot::new(7, &pattern(4096, 1), Arg::Bytes(b""), None);
            slot.update(|value| value.write_at(0, Arg::Bytes(b"part")));
            assert_eq!(slot.meta().written(), Written::InParts);
            slot.exchange(Arg::Bytes(&pattern(size, 2)), None);
            assert_eq!(slot.meta().written(), Written::Whole);
        }
    }

    #[test]
    fn a_value_that_somebody_reads_is_left_alone() {
        let (old, new) = (pattern(4096, 1), pattern(4096, 2));
        let mut slot = BucketSlot::new(7, b"key", Arg::Bytes(&old), None);
        let Value::Piece(reader) = slot.value().to_value() else { panic!("a piece") };
        slot.set(Arg::Bytes(&new), None);
        assert!(*reader == old);
        check(&slot, b"key", &new, None);
        slot.update(|value| value.write_at(old.len(), Arg::Bytes(b"!")));
        assert!(*reader == old);
    }
}
