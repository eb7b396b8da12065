//! Large entries. Each one is a box that has the key, and the value is in an allocation of its own.

use std::sync::Arc;

use super::meta::Meta;
use crate::memory::allocated;
use crate::value::Value;

/// A large entry. A clone shares the large parts with the original.
#[derive(Clone, Debug)]
pub(crate) struct Large {
    pub(super) key: Key,
    /// Valid only if the attributes in the bucket (`Meta`) say that the key has an expiry.
    pub(super) expires_at_ms: i64,
    pub(super) value: Value,
}

// The fixed memory cost of each large entry. Do not raise it, because users rely on it.
const _: () = assert!(size_of::<Large>() == 48);

impl Large {
    pub(super) fn new(key: &[u8], value: Value, expires_at_ms: Option<i64>) -> Self {
        Self { key: Key::new(key), expires_at_ms: expires_at_ms.unwrap_or(0), value }
    }

    pub(crate) fn key_size(&self) -> usize {
        self.key.as_bytes().len()
    }

    pub(crate) fn value(&self) -> &Value {
        &self.value
    }

    pub(super) fn expires_at_ms(&self, meta: Meta) -> Option<i64> {
        meta.expires().then_some(self.expires_at_ms)
    }

    /// Bytes that the entry takes in memory.
    pub(super) fn memory(&self) -> usize {
        allocated(size_of::<Large>()) + self.key.memory() + self.value.memory()
    }
}

/// A key in the box of a large entry.
#[derive(Clone, Debug)]
pub(super) enum Key {
    Inline { size: u8, bytes: [u8; Key::INLINE_SIZE_MAX] },
    Heap(Arc<[u8]>),
}

impl Key {
    const INLINE_SIZE_MAX: usize = 22;

    pub(super) fn new(key: &[u8]) -> Self {
        if key.len() > Self::INLINE_SIZE_MAX {
            return Key::Heap(key.into());
        }
        let mut bytes = [0; Self::INLINE_SIZE_MAX];
        bytes[..key.len()].copy_from_slice(key);
        Key::Inline { size: key.len() as u8, bytes }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        match self {
            Key::Inline { size, bytes } => &bytes[..usize::from(*size)],
            Key::Heap(bytes) => bytes,
        }
    }

    /// Bytes that the key takes in memory, in addition to the box.
    pub(super) fn memory(&self) -> usize {
        match self {
            Key::Inline { .. } => 0,
            // Two reference counters precede the bytes.
            Key::Heap(bytes) => allocated(2 * size_of::<usize>() + bytes.len()),
        }
    }
}
