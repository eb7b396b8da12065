//! Makes values from the parts that an RDB reader hands out one by one. `RESTORE` and the import of
//! files use this module.
//!
//! The reader checks that each part is well formed. This module checks that the parts make a valid
//! value: no element comes twice, and nothing is unsupported.

use std::fmt;

use slimio_rdb::{Kind as RdbKind, Part as RdbPart, ValueType as RdbType};
use slimio_resp::Blob;

use crate::chunk::{ChunkError, Decoded};
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::Builder;
use crate::table::BucketSlot;
use crate::value::Value;

/// A message shows at most this many bytes of an element.
const SHOWN_SIZE_MAX: usize = 64;

/// The part of a value that was read so far.
#[derive(Debug)]
pub struct Incoming(Target);

#[derive(Debug)]
enum Target {
    String(Blob),
    Collection(Builder),
}

/// Why a value is refused. The text of such an error is the end of a sentence that begins with the
/// key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ValueRefused {
    /// Values of this kind are not supported.
    Kind(RdbKind),
    /// The collection has this element, field or member twice.
    Twice(Vec<u8>),
    /// A field of a hash expires.
    Expires,
    /// A part does not belong in a value of this kind.
    Misplaced,
}

impl fmt::Display for ValueRefused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Kind(kind) => write!(f, "is a {kind}, a type that is not supported yet"),
            Self::Twice(element) => {
                let shown = &element[..element.len().min(SHOWN_SIZE_MAX)];
                write!(f, "is damaged: it has '{}' twice", String::from_utf8_lossy(shown))
            }
            Self::Expires => f.write_str("has fields that expire, which is not supported"),
            Self::Misplaced => f.write_str("is damaged: it has a part of another type"),
        }
    }
}

impl std::error::Error for ValueRefused {}

impl Incoming {
    /// A value of this RDB type, for this keyspace. No part of the value is read yet.
    ///
    /// # Errors
    /// [`ValueRefused::Kind`].
    pub fn new(rdb_type: RdbType, keyspace: &Keyspace) -> Result<Self, ValueRefused> {
        if rdb_type == RdbType::String {
            return Ok(Self(Target::String(Blob::new())));
        }
        let (hasher, limits) = (keyspace.hasher, keyspace.config().packed_limits);
        let builder = Builder::of_rdb_type(rdb_type, hasher, limits);
        builder.map(Target::Collection).map(Self).ok_or(ValueRefused::Kind(rdb_type.kind()))
    }

    /// Adds the next part.
    ///
    /// # Errors
    /// If the value is refused. In that case, the value is incomplete.
    pub fn add(&mut self, part: RdbPart) -> Result<(), ValueRefused> {
        match (&mut self.0, part) {
            (Target::String(blob), RdbPart::String { bytes, .. }) => {
                blob.append(&bytes);
                Ok(())
            }
            (Target::Collection(builder), part) => builder.add_part(part),
            (Target::String(_), _) => Err(ValueRefused::Misplaced),
        }
    }

    /// The value; `None` if it is a collection without elements.
    pub(crate) fn finish(self) -> Option<Value> {
        match self.0 {
            Target::String(blob) => Some(Value::from_blob(blob)),
            Target::Collection(builder) => builder.finish(),
        }
    }
}

impl Keyspace {
    /// Adds a key with the value that was read for it. Like stock servers that load a file, this
    /// leaves out a collection without elements.
    ///
    /// # Errors
    /// If the key exists, or if there is no such database. In both cases, nothing has changed.
    pub fn load_incoming(
        &mut self,
        db: DbIndex,
        key: &[u8],
        value: Incoming,
        expires_at_ms: Option<i64>,
    ) -> Result<(), ChunkError> {
        let Some(value) = value.finish() else { return Ok(()) };
        let hash = self.hash(key) as u32;
        let mut slot = BucketSlot::with_value(hash, key, value, expires_at_ms);
        slot.set_access(self.new_access(self.replay_time()));
        let mut decoded = Decoded::default();
        decoded.slot(db, slot);
        self.load(decoded)
    }
}
