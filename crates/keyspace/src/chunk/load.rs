//! Decoded chunks into the keyspace.

use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob, Piece};

use super::decode::{Part, PartEntry, PartValue};
use super::{ChunkError, DecodeContext, Decoded};
use crate::hash::HashBuilder;
use crate::keyspace::{DbIndex, Keyspace};
use crate::table::Slot;
use crate::value::Value;

/// Most keys that room is made for at once, whatever a chunk says is coming: 2.7 bytes for each.
const RESERVED_KEYS_MAX: usize = 1 << 27;

/// Puts in what chunks held, and joins values that came in parts.
#[derive(Default)]
pub struct Loader {
    string: Pending,
    field: Option<Value>,
    hash: Option<HashBuilder>,
    key: Option<Vec<u8>>,
}

/// A string of which pieces have come.
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
    /// What those have to know who decode chunks for this keyspace, at this time.
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
    /// At the beginning of a snapshot.
    pub fn new() -> Self {
        Self::default()
    }

    /// Puts in what a chunk held. Chunks come in the order in which they were made. Costs a visit to
    /// a bucket for each key; nothing is copied.
    ///
    /// On an error some of it has been put in: the keyspace is of no use any more.
    pub fn load(&mut self, keyspace: &mut Keyspace, decoded: Decoded) -> Result<(), ChunkError> {
        let Decoded { slots, runs, parts, sizes, usage: _ } = decoded;
        for (db, keys) in sizes {
            keyspace.check_chunk_db(db)?;
            keyspace.db_mut(db).reserve(keys.min(RESERVED_KEYS_MAX));
        }
        let mut slots = slots.into_iter();
        let mut start = 0;
        for (db, end) in runs {
            keyspace.check_chunk_db(db)?;
            let (db, past) = keyspace.db_and_past(db);
            let epoch = past.capture.epoch();
            db.load(&mut slots, end - start, epoch)
                .map_err(|slot| ChunkError::Twice(slot.key().to_vec()))?;
            start = end;
        }
        parts.into_iter().try_for_each(|part| self.join(keyspace, part))
    }

    /// Says whether all values that came in parts are whole.
    pub fn finish(self) -> Result<(), ChunkError> {
        let is_whole = self.string.pieces.is_empty() && self.field.is_none() && self.hash.is_none();
        if is_whole && self.key.is_none() { Ok(()) } else { Err(ChunkError::Parts) }
    }

    fn join(&mut self, keyspace: &mut Keyspace, part: Part) -> Result<(), ChunkError> {
        match part {
            Part::Piece(piece) => self.string.push(piece)?,
            Part::Key => {
                let key = self.string.take().to_vec();
                self.key.replace(key).map_or(Ok(()), |_| Err(ChunkError::Parts))?;
            }
            Part::Field => {
                let field = Value::from_blob(self.string.take());
                self.field.replace(field).map_or(Ok(()), |_| Err(ChunkError::Parts))?;
            }
            Part::LongPair => {
                let field = self.field.take().ok_or(ChunkError::Parts)?;
                let field = field.as_ref().as_string().ok_or(ChunkError::Parts)?;
                let value = Value::from_blob(self.string.take());
                let value = value.as_ref().as_string().ok_or(ChunkError::Parts)?;
                self.builder(keyspace).add(field.as_arg(), value.as_arg());
            }
            Part::Pairs(pairs) => {
                let builder = self.builder(keyspace);
                for (field, value) in pairs.iter() {
                    builder.add(Arg::Bytes(field), Arg::Bytes(value));
                }
            }
            Part::Entry(entry) => self.entry(keyspace, *entry)?,
        }
        Ok(())
    }

    fn builder(&mut self, keyspace: &Keyspace) -> &mut HashBuilder {
        let limits = keyspace.config().hash_limits;
        self.hash.get_or_insert_with(|| HashBuilder::new(keyspace.hasher, limits))
    }

    fn entry(&mut self, keyspace: &mut Keyspace, entry: PartEntry) -> Result<(), ChunkError> {
        let PartEntry { db, key, expires_at_ms, access, value } = entry;
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
        keyspace.check_chunk_db(db)?;
        let mut slot = Slot::with_value(keyspace.hash(&key) as u32, &key, value, expires_at_ms);
        slot.set_access(access);
        let (db, past) = keyspace.db_and_past(db);
        let epoch = past.capture.epoch();
        let mut one = vec![slot].into_iter();
        db.load(&mut one, 1, epoch).map_err(|_| ChunkError::Twice(key))
    }
}

impl Keyspace {
    fn check_chunk_db(&self, db: DbIndex) -> Result<(), ChunkError> {
        let is_there = usize::from(db.0) < self.db_count();
        if is_there { Ok(()) } else { Err(ChunkError::NoSuchDb(db.0.into())) }
    }
}
