//! Loads decoded chunks into the keyspace.

use slimio_resp::{BLOB_PIECE_SIZE, Blob, Piece};

use super::decode::{Fragment, FragmentEntry, PartValue};
use super::{ChunkError, DecodeContext, Decoded};
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::{Builder, ValueType};
use crate::table::BucketSlot;
use crate::value::{StringRef, Value};

/// For each database, memory is reserved in advance for at most this many keys, even if a chunk
/// states a larger count of keys. 2.7 bytes are reserved for each key.
const RESERVED_KEYS_MAX: usize = 1 << 27;

/// Joins the parts of large values and keys.
#[derive(Default)]
pub struct Loader {
    string: Pending,
    collection: Option<Gathering>,
    key: Option<Vec<u8>>,
}

/// A collection that is not complete.
struct Gathering {
    builder: Builder,
    /// Strings of an element that is not complete.
    strings: Vec<Value>,
}

impl Gathering {
    fn add(&mut self, string: Value) -> Result<(), ChunkError> {
        self.strings.push(string);
        if self.strings.len() == self.builder.value_type().strings() {
            let strings: Option<Vec<_>> = self
                .strings
                .iter()
                .map(|string| string.as_ref().as_string().map(StringRef::as_arg))
                .collect();
            self.builder.add(&strings.ok_or(ChunkError::Parts)?);
            self.strings.clear();
        }
        Ok(())
    }
}

/// A string of which more pieces may follow.
#[derive(Default)]
struct Pending {
    pieces: Vec<Piece>,
    size: u64,
}

impl Pending {
    fn push(&mut self, piece: Piece) -> Result<(), ChunkError> {
        let is_full = self.pieces.last().is_none_or(|last| last.len() == BLOB_PIECE_SIZE);
        if !is_full || piece.is_empty() || piece.len() > BLOB_PIECE_SIZE {
            return Err(ChunkError::Parts);
        }
        self.size += piece.len() as u64;
        self.pieces.push(piece);
        Ok(())
    }

    fn take(&mut self) -> Blob {
        self.size = 0;
        Blob::from_pieces(std::mem::take(&mut self.pieces))
    }
}

impl Keyspace {
    /// The settings for decoding chunks for this keyspace, at this time.
    pub fn decode_context(&self, now_ms: i64) -> DecodeContext {
        DecodeContext {
            hasher: self.hasher,
            packed_limits: self.config().packed_limits,
            eviction: *self.eviction(),
            now_ms,
        }
    }
}

impl Loader {
    /// A loader at the beginning of a snapshot.
    pub fn new() -> Self {
        Self::default()
    }

    /// Joins parts into entries. The parts of an incomplete entry are kept for the next call.
    /// Chunks must come in the order in which they were made. The time of a call is proportional to
    /// the size of the parts, so only a thread that serves no clients should call this.
    pub fn join(
        &mut self,
        mut decoded: Decoded,
        context: &DecodeContext,
    ) -> Result<Decoded, ChunkError> {
        for part in std::mem::take(&mut decoded.parts) {
            self.part(part, &mut decoded, context)?;
        }
        Ok(decoded)
    }

    /// Checks that all values that came in parts are complete.
    pub fn finish(self) -> Result<(), ChunkError> {
        let is_whole = self.string.pieces.is_empty() && self.collection.is_none();
        if is_whole && self.key.is_none() { Ok(()) } else { Err(ChunkError::Parts) }
    }

    fn part(
        &mut self,
        part: Fragment,
        decoded: &mut Decoded,
        context: &DecodeContext,
    ) -> Result<(), ChunkError> {
        match part {
            Fragment::Piece(piece) => self.string.push(piece)?,
            Fragment::Key => {
                let key = self.string.take().to_vec();
                self.key.replace(key).map_or(Ok(()), |_| Err(ChunkError::Parts))?;
            }
            Fragment::Text(kind) => {
                let string = Value::from_blob(self.string.take());
                self.gathering(kind, context)?.add(string)?;
            }
            Fragment::Elements(elements) => {
                let gathering = self.gathering(elements.kind, context)?;
                if !gathering.strings.is_empty() {
                    return Err(ChunkError::Parts);
                }
                gathering.builder.add_all(elements.strings());
            }
            Fragment::Entry(entry) => self.entry(*entry, decoded, context)?,
        }
        Ok(())
    }

    /// The pending collection. If none is pending, one of the type `kind` begins. If a collection
    /// of another type is pending, that is an error.
    fn gathering(
        &mut self,
        kind: ValueType,
        context: &DecodeContext,
    ) -> Result<&mut Gathering, ChunkError> {
        if self.collection.is_none() {
            let builder = context.builder(kind).ok_or(ChunkError::Parts)?;
            self.collection = Some(Gathering { builder, strings: Vec::new() });
        }
        let gathering = self.collection.as_mut();
        gathering.filter(|some| some.builder.value_type() == kind).ok_or(ChunkError::Parts)
    }

    fn entry(
        &mut self,
        entry: FragmentEntry,
        decoded: &mut Decoded,
        context: &DecodeContext,
    ) -> Result<(), ChunkError> {
        let FragmentEntry { db, key, expires_at_ms, access, value } = entry;
        let key = key.or_else(|| self.key.take()).ok_or(ChunkError::Parts)?;
        let value = match value {
            PartValue::Whole(value) => value,
            PartValue::String(size) if self.string.size == size => {
                Value::from_blob(self.string.take())
            }
            PartValue::String(_) => return Err(ChunkError::Parts),
            PartValue::Collection(kind, len) => {
                let gathering = self.collection.take().ok_or(ChunkError::Parts)?;
                if gathering.builder.value_type() != kind || !gathering.strings.is_empty() {
                    return Err(ChunkError::Parts);
                }
                let value = gathering.builder.finish().ok_or(ChunkError::Parts)?;
                let found = value.as_ref().as_collection().map(|found| found.len() as u64);
                if found != Some(len) {
                    return Err(ChunkError::Parts);
                }
                value
            }
        };
        let hash = context.hasher.hash(&key) as u32;
        let mut slot = BucketSlot::with_value(hash, &key, value, expires_at_ms);
        slot.set_access(access);
        decoded.slot(db, slot);
        Ok(())
    }
}

impl Keyspace {
    /// Inserts the entries of a chunk whose parts are [joined](Loader::join). Each key costs a
    /// visit to its bucket; no key or value is copied.
    ///
    /// If there is an error, the keyspace must be discarded, because some entries have been
    /// inserted.
    pub fn load(&mut self, decoded: Decoded) -> Result<(), ChunkError> {
        let Decoded { slots, runs, parts, sizes, usage: _ } = decoded;
        assert!(parts.is_empty(), "the parts of a chunk are joined before the chunk is loaded");
        for (db, keys) in sizes {
            self.check_chunk_db(db)?;
            self.db_mut(db).reserve(keys.min(RESERVED_KEYS_MAX));
        }
        let mut slots = slots.into_iter();
        let mut start = 0;
        for (db, end) in runs {
            self.check_chunk_db(db)?;
            let (db, displaced) = self.db_and_displaced(db);
            let epoch = displaced.capture.epoch();
            db.load(&mut slots, end - start, epoch)
                .map_err(|slot| ChunkError::Twice(slot.key().to_vec()))?;
            start = end;
        }
        Ok(())
    }

    fn check_chunk_db(&self, db: DbIndex) -> Result<(), ChunkError> {
        let is_there = usize::from(db.0) < self.db_count();
        if is_there { Ok(()) } else { Err(ChunkError::NoSuchDb(db.0.into())) }
    }
}
