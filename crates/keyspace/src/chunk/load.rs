//! Loads decoded chunks into the keyspace.

use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob, Piece};

use super::decode::{Fragment, FragmentEntry, PartValue};
use super::{ChunkError, DecodeContext, Decoded};
use crate::hash::HashBuilder;
use crate::keyspace::{DbIndex, Keyspace};
use crate::table::BucketSlot;
use crate::value::Value;

/// Most keys for which memory is reserved at once, whatever count a chunk states: 2.7 bytes for
/// each.
const RESERVED_KEYS_MAX: usize = 1 << 27;

/// Joins values that came in parts.
#[derive(Default)]
pub struct Loader {
    string: Pending,
    field: Option<Value>,
    hash: Option<HashBuilder>,
    key: Option<Vec<u8>>,
}

/// A string whose pieces are still coming in.
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
            hash_limits: self.config().hash_limits,
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

    /// Joins parts into entries, as far as these are complete. Chunks must come in the order in
    /// which they were made. Takes time in proportion to the size of the parts: best not on the
    /// thread that serves.
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
        let is_whole = self.string.pieces.is_empty() && self.field.is_none() && self.hash.is_none();
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
            Fragment::Field => {
                let field = Value::from_blob(self.string.take());
                self.field.replace(field).map_or(Ok(()), |_| Err(ChunkError::Parts))?;
            }
            Fragment::LongPair => {
                let field = self.field.take().ok_or(ChunkError::Parts)?;
                let field = field.as_ref().as_string().ok_or(ChunkError::Parts)?;
                let value = Value::from_blob(self.string.take());
                let value = value.as_ref().as_string().ok_or(ChunkError::Parts)?;
                self.builder(context).add(field.as_arg(), value.as_arg());
            }
            Fragment::Pairs(pairs) => {
                let builder = self.builder(context);
                for (field, value) in pairs.iter() {
                    builder.add(Arg::Bytes(field), Arg::Bytes(value));
                }
            }
            Fragment::Entry(entry) => self.entry(*entry, decoded, context)?,
        }
        Ok(())
    }

    fn builder(&mut self, context: &DecodeContext) -> &mut HashBuilder {
        let DecodeContext { hasher, hash_limits, .. } = *context;
        self.hash.get_or_insert_with(|| HashBuilder::new(hasher, hash_limits))
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
            PartValue::Hash(len) => {
                let value = self.hash.take().and_then(HashBuilder::finish);
                let value = value.ok_or(ChunkError::Parts)?;
                let found = value.as_ref().as_hash().map(|hash| hash.len() as u64);
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
    /// Inserts the entries of a chunk whose parts are [joined](Loader::join). Costs a visit to a
    /// bucket for each key; nothing is copied.
    ///
    /// On an error some of them have been inserted: the keyspace must be discarded.
    pub fn load(&mut self, decoded: Decoded) -> Result<(), ChunkError> {
        let Decoded { slots, runs, parts, sizes, usage: _ } = decoded;
        assert!(parts.is_empty(), "parts are joined before they are loaded");
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
