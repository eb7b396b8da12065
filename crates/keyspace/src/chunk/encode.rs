//! Encodes captured entries as chunks.

use slimio_rdb::{Encoder, opcode as rdb};
use slimio_resp::Blob;

use super::{CHUNK_SIZE, VERSION, WHOLE_SIZE_MAX, opcode};
use crate::access::Access;
use crate::capture::{Captured, CapturedEntry};
use crate::collection::{CollectionRef, Element, PACKED_SIZE_MAX};
use crate::encode::{encode_string, encode_value, rdb_type};
use crate::evict::EvictionConfig;
use crate::keyspace::DbIndex;
use crate::value::{StringRef, ValueRef};

/// The elements of a collection that is written in parts are written one by one. If no string of an
/// element has more bytes than this, the element is written whole. If a string has more, each
/// string of the element is written in pieces.
const ELEMENT_SIZE_MAX: usize = 64 * 1024;

const _: () = assert!(PACKED_SIZE_MAX <= WHOLE_SIZE_MAX, "a packed collection is written whole");

/// Size in bytes of the pieces of a key that is too long to be written whole.
const KEY_PIECE_SIZE: usize = 256 * 1024;

/// A chunk that is complete.
#[derive(Clone, Copy, Debug)]
pub struct Chunk<'a> {
    /// The bytes of the chunk.
    pub payload: &'a [u8],
    /// Count of keys whose entries end in this chunk.
    pub keys: usize,
}

/// How chunks are made.
#[derive(Clone, Copy, Debug)]
pub struct ChunkOptions {
    /// Whether strings are compressed if that makes them shorter (`rdbcompression`).
    pub compresses: bool,
    /// The eviction policy. The policy decides which usage of keys the chunks keep: none, the idle
    /// time, or the frequency.
    pub eviction: EvictionConfig,
    /// The time at which idle times end, and frequencies are computed, in milliseconds since 1970.
    pub now_ms: i64,
}

/// Whether a collection is so large that it is written in parts. A packed collection is never
/// written in parts.
fn is_in_parts(collection: CollectionRef<'_>) -> bool {
    collection.size() > WHOLE_SIZE_MAX
}

/// Makes chunks out of entries. The encoder reuses its memory from one chunk to the next.
#[derive(Debug)]
pub struct ChunkEncoder {
    encoder: Encoder,
    options: ChunkOptions,
    /// The database of the last entry in this chunk.
    db: Option<DbIndex>,
    keys: usize,
}

/// An entry without its value.
#[derive(Clone, Copy)]
struct Head<'a> {
    db: DbIndex,
    key: &'a [u8],
    expires_at_ms: Option<i64>,
    access: Access,
    /// Whether the key has been written in parts.
    is_long_key: bool,
}

impl ChunkEncoder {
    /// An encoder at the beginning of a snapshot.
    pub fn new(options: ChunkOptions) -> Self {
        let encoder = if options.compresses { Encoder::new } else { Encoder::uncompressed };
        Self { encoder: encoder(VERSION), options, db: None, keys: 0 }
    }

    /// Writes how many keys a database has, and how many of them expire, so that the loader can
    /// make room for all of them in advance. This should be called before any entry is encoded.
    pub fn resize_db(&mut self, db: DbIndex, keys: usize, expiring: usize) {
        self.select(db);
        self.encoder.resize_db(keys as u64, expiring as u64);
    }

    /// Encodes entries. Passes every complete chunk to `emit`.
    ///
    /// Fails only if `emit` fails. The snapshot cannot be continued then, because some of the
    /// entries are encoded and others are not.
    pub fn encode<E>(
        &mut self,
        captured: &Captured,
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        for CapturedEntry { db, key, value, expires_at_ms, access } in captured.taken() {
            let head = Head { db, key, expires_at_ms, access, is_long_key: false };
            self.entry(head, value, emit)?;
            self.keys += 1;
            self.cut(emit)?;
        }
        Ok(())
    }

    /// Ends the snapshot. If the last chunk is not complete, but has some bytes, passes this chunk
    /// to `emit`.
    pub fn finish<E>(
        &mut self,
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if self.encoder.size() == 0 {
            return Ok(());
        }
        let chunk = Chunk { payload: self.encoder.bytes(), keys: self.keys };
        (self.db, self.keys) = (None, 0);
        let result = emit(chunk);
        self.encoder.clear();
        result
    }

    fn cut<E>(&mut self, emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>) -> Result<(), E> {
        if self.encoder.size() >= CHUNK_SIZE { self.finish(emit) } else { Ok(()) }
    }

    fn select(&mut self, db: DbIndex) {
        if self.db != Some(db) {
            self.encoder.select_db(db.0.into());
            self.db = Some(db);
        }
    }

    fn entry<E>(
        &mut self,
        mut head: Head<'_>,
        value: ValueRef<'_>,
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if head.key.len() > WHOLE_SIZE_MAX {
            for piece in head.key.chunks(KEY_PIECE_SIZE) {
                self.piece(head.db, piece, emit)?;
            }
            self.opcode(head.db, opcode::KEY);
            head.is_long_key = true;
        }
        match value {
            ValueRef::String(StringRef::Blob(blob)) => {
                self.blob(head.db, blob, emit)?;
                self.head(head, opcode::LONG_STRING);
                self.encoder.length(blob.size() as u64);
            }
            ValueRef::Collection(collection) if is_in_parts(collection) => {
                self.parts(head.db, collection, emit)?;
                self.head(head, opcode::LONG_COLLECTION);
                self.encoder.byte(collection.value_type().number());
                self.encoder.length(collection.len() as u64);
            }
            whole => {
                self.head(head, rdb_type(whole, VERSION).code());
                match encode_value(&mut self.encoder, whole) {
                    Ok(()) => {}
                }
            }
        }
        Ok(())
    }

    /// Writes the elements of a collection, in as many chunks as they need.
    fn parts<E>(
        &mut self,
        db: DbIndex,
        collection: CollectionRef<'_>,
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        let kind = collection.value_type().number();
        let mut strings = collection.strings();
        let mut element = Vec::new();
        loop {
            element.clear();
            element.extend(strings.by_ref().take(collection.value_type().strings()));
            if element.is_empty() {
                return Ok(());
            }
            if element.iter().all(|string| string.size() <= ELEMENT_SIZE_MAX) {
                self.opcode(db, opcode::ELEMENT);
                self.encoder.byte(kind);
                for string in &element {
                    encode_string(&mut self.encoder, *string);
                }
            } else {
                for &string in &element {
                    self.long_element(db, string, emit)?;
                    self.opcode(db, opcode::LONG_ELEMENT);
                    self.encoder.byte(kind);
                }
            }
            self.cut(emit)?;
        }
    }

    /// Writes a string of an element in pieces. The loader collects the pieces. The caller then
    /// writes the opcode `LONG_ELEMENT`, which makes the collected pieces a string of the element.
    fn long_element<E>(
        &mut self,
        db: DbIndex,
        element: Element<'_>,
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        match element {
            Element::Blob(blob) => self.blob(db, blob, emit),
            other => self.piece(db, &other.to_bytes(), emit),
        }
    }

    fn blob<E>(
        &mut self,
        db: DbIndex,
        blob: &Blob,
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        blob.pieces().iter().try_for_each(|piece| self.piece(db, piece, emit))
    }

    fn piece<E>(
        &mut self,
        db: DbIndex,
        piece: &[u8],
        emit: &mut impl FnMut(Chunk<'_>) -> Result<(), E>,
    ) -> Result<(), E> {
        if piece.is_empty() {
            return Ok(());
        }
        self.opcode(db, opcode::PIECE);
        self.encoder.string(piece);
        self.cut(emit)
    }

    /// Writes, between two entries, an opcode that RDB does not have.
    fn opcode(&mut self, db: DbIndex, opcode: u8) {
        self.select(db);
        self.encoder.byte(opcode);
    }

    fn head(&mut self, head: Head<'_>, value_type: u8) {
        self.select(head.db);
        if head.is_long_key {
            self.encoder.byte(opcode::LONG_KEY);
        }
        if let Some(at_ms) = head.expires_at_ms {
            self.encoder.byte(rdb::EXPIRE_AT_MS);
            self.encoder.raw(&at_ms.to_le_bytes());
        }
        let ChunkOptions { eviction, now_ms, .. } = self.options;
        if eviction.policy.is_lfu() {
            self.encoder.byte(rdb::FREQ);
            self.encoder.byte(head.access.count(now_ms, eviction.rules()));
        } else if eviction.policy.is_lru() {
            self.encoder.byte(rdb::IDLE);
            self.encoder.length(head.access.idle_seconds(now_ms).into());
        }
        self.encoder.byte(value_type);
        self.encoder.string(if head.is_long_key { b"" } else { head.key });
    }
}
