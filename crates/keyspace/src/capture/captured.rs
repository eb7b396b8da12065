//! Batches of entries that a capture has taken. A capture takes every entry as it was at one point
//! in time.
//!
//! A small entry is copied. The copy adds little to the cost of fetching the entry's bytes from
//! memory. Commands can then change the entry in the keyspace, without regard to the capture. If a
//! command replaced or deleted a large entry, the old entry is moved into the batch. Otherwise the
//! batch and the keyspace share the large entry's value. The keyspace copies a shared piece of the
//! value before it changes that piece.
//!
//! ```text
//! small: | meta: u32 | database: u16 | size: u16 | bytes of the entry ... | and so on
//! ```

use crate::access::Access;
use crate::keyspace::{DbIndex, EntryView};
use crate::memory::allocated;
use crate::table::{BucketSlot, Form, Large, Meta, SMALL_SIZE_MAX};
use crate::value::ValueRef;

/// Size in bytes of the memory for small entries.
const SMALL_SIZE: usize = 64 * 1024;

/// The largest number of large entries in a batch.
const LARGE_LEN: usize = 256;

/// Size in bytes of the head of a small entry.
const HEAD_SIZE: usize = Meta::SIZE + 2 * size_of::<u16>();

const _: () = assert!(SMALL_SIZE_MAX <= u16::MAX as usize, "a small entry's size is a u16");

/// A batch of entries as they were at a capture's point in time. Once the batch is handed out, it
/// never changes. The batch can be sent to another thread and dropped there.
#[derive(Debug, Default)]
pub struct Captured {
    small: Vec<u8>,
    large: Vec<(DbIndex, Meta, Large)>,
    len: usize,
    size: usize,
    owned_size: usize,
    shared_size: usize,
}

/// An entry of the batch.
#[derive(Clone, Copy, Debug)]
pub(crate) struct CapturedEntry<'a> {
    pub(crate) db: DbIndex,
    pub(crate) key: &'a [u8],
    pub(crate) value: ValueRef<'a>,
    pub(crate) expires_at_ms: Option<i64>,
    pub(crate) access: Access,
}

/// Whether the capture alone owns a value, or shares it with the keyspace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    Owned,
    Shared,
}

impl Captured {
    /// Count of entries in the batch.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the batch has no entry.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Bytes of the keys and values, whether owned or shared. When the entries are encoded, they
    /// have roughly this size.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Bytes of memory that only this batch holds, and that dropping the batch frees.
    pub fn owned_size(&self) -> usize {
        self.owned_size
    }

    /// Bytes of memory that were shared with the keyspace when this batch was made. Once a command
    /// changes a shared value, only this batch holds the old bytes.
    pub fn shared_size(&self) -> usize {
        self.shared_size
    }

    /// Every entry, with the number that its database had at the capture's point in time.
    pub fn entries(&self) -> impl Iterator<Item = (DbIndex, EntryView<'_>)> {
        self.taken().map(|CapturedEntry { db, key, value, expires_at_ms, access }| {
            (db, EntryView { key, value, expires_at_ms, access })
        })
    }

    /// Every entry with its attributes.
    pub(crate) fn taken(&self) -> impl Iterator<Item = CapturedEntry<'_>> {
        let mut rest = &self.small[..];
        let small = std::iter::from_fn(move || {
            let (head, bytes) = rest.split_first_chunk::<HEAD_SIZE>()?;
            let [m0, m1, m2, m3, d0, d1, s0, s1] = *head;
            let meta = Meta::from_bytes([m0, m1, m2, m3]);
            let (entry, after) = bytes.split_at(usize::from(u16::from_le_bytes([s0, s1])));
            rest = after;
            Some((DbIndex(u16::from_le_bytes([d0, d1])), meta, Form::Small(entry)))
        });
        let large = self.large.iter().map(|(db, meta, large)| (*db, *meta, Form::Large(large)));
        small.chain(large).map(|(db, meta, form)| {
            let (key, value, expires_at_ms) = form.view(meta);
            CapturedEntry { db, key, value, expires_at_ms, access: meta.access() }
        })
    }

    /// Whether there is room for one more small entry and one more large entry.
    pub(super) fn has_room(&self) -> bool {
        self.small.len() + HEAD_SIZE + SMALL_SIZE_MAX <= SMALL_SIZE && self.large.len() < LARGE_LEN
    }

    /// Takes an entry that stays in the keyspace.
    pub(super) fn push(&mut self, db: DbIndex, slot: &BucketSlot) {
        match slot.form() {
            Form::Small(bytes) => self.push_small(db, slot.meta(), bytes),
            Form::Large(large) => self.push_large(db, slot.meta(), large.clone(), Hold::Shared),
        }
    }

    /// Takes an entry that was removed from the keyspace.
    pub(super) fn push_removed(&mut self, db: DbIndex, slot: BucketSlot) {
        match slot.form() {
            Form::Small(bytes) => self.push_small(db, slot.meta(), bytes),
            Form::Large(_) => {
                let meta = slot.meta();
                if let Some(large) = slot.into_large() {
                    self.push_large(db, meta, large, Hold::Owned);
                }
            }
        }
    }

    pub(super) fn push_small(&mut self, db: DbIndex, meta: Meta, bytes: &[u8]) {
        let size = HEAD_SIZE + bytes.len();
        self.reserve_small(size);
        self.small.extend_from_slice(&meta.to_bytes());
        self.small.extend_from_slice(&db.0.to_le_bytes());
        self.small.extend_from_slice(&(bytes.len() as u16).to_le_bytes());
        self.small.extend_from_slice(bytes);
        self.len += 1;
        self.size += size;
    }

    /// Makes room for small entries. Memory is allocated once for the whole batch, unless the
    /// entries of one bucket need more.
    fn reserve_small(&mut self, size: usize) {
        let before = self.small.capacity();
        if self.small.len() + size > before {
            self.small.reserve_exact(size.max(SMALL_SIZE));
            self.owned_size += allocated(self.small.capacity()) - allocated(before);
        }
    }

    pub(super) fn push_large(&mut self, db: DbIndex, meta: Meta, large: Large, hold: Hold) {
        let before = self.large.capacity();
        if self.large.len() == before {
            self.large.reserve_exact(LARGE_LEN);
            let bytes = |len| allocated(len * size_of::<(DbIndex, Meta, Large)>());
            self.owned_size += bytes(self.large.capacity()) - bytes(before);
        }
        let size = large.value().memory();
        match hold {
            Hold::Owned => self.owned_size += size,
            Hold::Shared => self.shared_size += size,
        }
        self.size += large.key_size() + size;
        self.len += 1;
        self.large.push((db, meta, large));
    }
}
