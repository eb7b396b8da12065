//! Decodes chunks into entries that are ready to be inserted. Any thread can do this.

use std::sync::Arc;

use slimio_rdb::{Decoder, Text, ValueType, opcode as rdb};
use slimio_resp::{Arg, DecimalBuffer, Piece};

use super::{ChunkError, VERSION, opcode};
use crate::access::Access;
use crate::collection::Element;
use crate::evict::{EvictionConfig, Usage};
use crate::hasher::KeyHasher;
use crate::keyspace::DbIndex;
use crate::kinds::{Builder, PackedLimits, Packing, ValueType as Kind};
use crate::table::BucketSlot;
use crate::value::Value;

/// The settings of the keyspace that a chunk is decoded for.
#[derive(Clone, Copy, Debug)]
pub struct DecodeContext {
    pub(crate) hasher: KeyHasher,
    pub(crate) packed_limits: PackedLimits,
    pub(crate) eviction: EvictionConfig,
    /// Milliseconds since 1970.
    pub(crate) now_ms: i64,
}

impl DecodeContext {
    /// A builder of a collection; `None` if values of this type are not collections.
    pub(super) fn builder(&self, kind: Kind) -> Option<Builder> {
        Builder::new(kind, self.hasher, self.packed_limits)
    }
}

/// The contents of a chunk.
#[derive(Debug, Default)]
pub struct Decoded {
    pub(super) slots: Vec<BucketSlot>,
    /// A run is a series of slots of one database. For each run: the database, and the index at
    /// which the run ends.
    pub(super) runs: Vec<(DbIndex, usize)>,
    pub(super) parts: Vec<Fragment>,
    /// How many keys each database will have.
    pub(super) sizes: Vec<(DbIndex, usize)>,
    /// The usage (idle time or frequency) of the last entry that states its usage.
    pub(super) usage: Option<Usage>,
}

/// A part of a large value or key, to be joined with the other parts. The string, key or collection
/// that the parts so far have made is called *pending*.
#[derive(Debug)]
pub(super) enum Fragment {
    /// The next piece of the pending string.
    Piece(Piece),
    /// The pending string is complete, and is the next string of an element of the pending
    /// collection. The collection is of this kind.
    Text(Kind),
    /// Elements of the pending collection.
    Elements(Elements),
    /// The pending string is complete, and is the key of an entry that follows.
    Key,
    Entry(Box<FragmentEntry>),
}

/// An entry whose value or key comes in parts.
#[derive(Debug)]
pub(super) struct FragmentEntry {
    pub(super) db: DbIndex,
    /// `None` stands for the pending key.
    pub(super) key: Option<Vec<u8>>,
    pub(super) expires_at_ms: Option<i64>,
    pub(super) access: Access,
    pub(super) value: PartValue,
}

#[derive(Debug)]
pub(super) enum PartValue {
    /// The pending string, and its size in bytes.
    String(u64),
    /// The pending collection, and its count of elements.
    Collection(Kind, u64),
    Whole(Value),
}

/// Elements of one collection, one after another.
#[derive(Debug)]
pub(super) struct Elements {
    pub(super) kind: Kind,
    bytes: Vec<u8>,
    /// Where each string ends.
    ends: Vec<u32>,
}

impl Elements {
    fn push(&mut self, text: Text<'_>) -> Result<(), ChunkError> {
        text.append_to(&mut self.bytes)?;
        self.ends.push(u32::try_from(self.bytes.len()).map_err(|_| ChunkError::Parts)?);
        Ok(())
    }

    /// The strings of all elements.
    pub(super) fn strings(&self) -> impl Iterator<Item = Element<'_>> {
        let mut start = 0;
        self.ends.iter().map(move |&end| {
            let string = &self.bytes[start..end as usize];
            start = end as usize;
            Element::Bytes(string)
        })
    }
}

impl Decoded {
    /// Count of keys whose entries end in the chunk.
    pub fn keys(&self) -> usize {
        let entries = self.parts.iter().filter(|part| matches!(part, Fragment::Entry(_)));
        self.slots.len() + entries.count()
    }

    /// The usage (idle time or frequency) of the last entry that states its usage, even if the
    /// eviction policy does not need it. Either all entries of a snapshot state the same kind of
    /// usage, or none states any.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    /// Adds an entry.
    pub(crate) fn slot(&mut self, db: DbIndex, slot: BucketSlot) {
        self.slots.push(slot);
        let end = self.slots.len();
        match self.runs.last_mut() {
            Some((last, at)) if *last == db => *at = end,
            _ => self.runs.push((db, end)),
        }
    }
}

/// Decodes a chunk. The caller must have verified the chunk's checksum.
pub fn decode_chunk(payload: &[u8], context: &DecodeContext) -> Result<Decoded, ChunkError> {
    let mut reading = Reading {
        decoder: Decoder::new(payload),
        context,
        decoded: Decoded::default(),
        head: Head::new(context),
        db: DbIndex(0),
        key: Vec::new(),
        value: Vec::new(),
    };
    while !reading.decoder.is_at_end() {
        reading.opcode()?;
    }
    Ok(reading.decoded)
}

/// A chunk that is being decoded.
struct Reading<'a> {
    decoder: Decoder<'a>,
    context: &'a DecodeContext,
    decoded: Decoded,
    head: Head,
    db: DbIndex,
    /// Memory for a key and a value that have to be decompressed.
    key: Vec<u8>,
    value: Vec<u8>,
}

/// The attributes in front of an entry's type.
struct Head {
    expires_at_ms: Option<i64>,
    access: Access,
    has_long_key: bool,
}

impl Head {
    fn new(context: &DecodeContext) -> Self {
        let access = Access::new(context.now_ms, context.eviction.rules());
        Self { expires_at_ms: None, access, has_long_key: false }
    }
}

impl Reading<'_> {
    fn opcode(&mut self) -> Result<(), ChunkError> {
        let code = self.decoder.byte()?;
        match code {
            rdb::SELECT_DB => {
                let db = self.decoder.length()?;
                self.db = DbIndex(u16::try_from(db).map_err(|_| ChunkError::NoSuchDb(db))?);
            }
            rdb::RESIZE_DB => {
                let keys = self.decoder.length()?;
                self.decoder.length()?;
                self.decoded.sizes.push((self.db, keys as usize));
            }
            rdb::EXPIRE_AT_MS => {
                let at_ms = i64::from_le_bytes(self.decoder.array()?);
                self.head.expires_at_ms = Some(at_ms);
            }
            rdb::IDLE => {
                let idle_s = self.decoder.length()?;
                self.decoded.usage = Some(Usage::IdleSeconds(idle_s));
                if !self.context.eviction.policy.is_lfu() {
                    self.head.access = Access::idle(self.context.now_ms, idle_s);
                }
            }
            rdb::FREQ => {
                let count = self.decoder.byte()?;
                self.decoded.usage = Some(Usage::Freq(count));
                if self.context.eviction.policy.is_lfu() {
                    self.head.access = Access::counted(self.context.now_ms, count);
                }
            }
            opcode::PIECE => {
                let mut piece = Vec::new();
                self.decoder.string()?.append_to(&mut piece)?;
                self.decoded.parts.push(Fragment::Piece(Arc::new(piece)));
            }
            opcode::ELEMENT => {
                let kind = self.kind()?;
                self.element(kind)?;
            }
            opcode::LONG_ELEMENT => {
                let kind = self.kind()?;
                self.decoded.parts.push(Fragment::Text(kind));
            }
            opcode::PAIR => self.element(Kind::Hash)?,
            opcode::FIELD | opcode::LONG_PAIR => {
                self.decoded.parts.push(Fragment::Text(Kind::Hash));
            }
            opcode::KEY => self.decoded.parts.push(Fragment::Key),
            opcode::LONG_KEY => self.head.has_long_key = true,
            _ => self.entry(code)?,
        }
        Ok(())
    }

    /// The type of a collection, by its number.
    fn kind(&mut self) -> Result<Kind, ChunkError> {
        let number = self.decoder.byte()?;
        Kind::of_number(number).ok_or(ChunkError::UnknownKind(number))
    }

    fn element(&mut self, kind: Kind) -> Result<(), ChunkError> {
        let goes_on =
            |part: &Fragment| matches!(part, Fragment::Elements(some) if some.kind == kind);
        if !self.decoded.parts.last().is_some_and(goes_on) {
            let elements = Elements { kind, bytes: Vec::new(), ends: Vec::new() };
            self.decoded.parts.push(Fragment::Elements(elements));
        }
        for _ in 0..kind.strings() {
            let string = self.decoder.string()?;
            if let Some(Fragment::Elements(elements)) = self.decoded.parts.last_mut() {
                elements.push(string)?;
            }
        }
        Ok(())
    }

    fn entry(&mut self, code: u8) -> Result<(), ChunkError> {
        let mut key = std::mem::take(&mut self.key);
        let text = self.decoder.string()?;
        let result = self.keyed_entry(code, plain(text, &mut key)?);
        self.key = key;
        self.head = Head::new(self.context);
        result
    }

    fn keyed_entry(&mut self, code: u8, key: &[u8]) -> Result<(), ChunkError> {
        let rdb_type = ValueType::from_code(code, VERSION);
        let value = match (rdb_type, code) {
            (Some(ValueType::String), _) if !self.head.has_long_key => return self.string(key),
            (Some(ValueType::String), _) => {
                let text = self.decoder.string()?;
                let bytes = plain(text, &mut self.value)?;
                PartValue::Whole(Value::from_arg(Arg::Bytes(bytes)))
            }
            (Some(rdb_type), _) => PartValue::Whole(self.collection(code, rdb_type)?),
            (_, opcode::LONG_STRING) => PartValue::String(self.decoder.length()?),
            (_, opcode::LONG_HASH) => PartValue::Collection(Kind::Hash, self.decoder.length()?),
            (_, opcode::LONG_COLLECTION) => {
                let kind = self.kind()?;
                PartValue::Collection(kind, self.decoder.length()?)
            }
            _ => return Err(ChunkError::Unknown(code)),
        };
        let Head { expires_at_ms, access, has_long_key } = self.head;
        match value {
            PartValue::Whole(value) if !has_long_key => {
                let hash = self.context.hasher.hash(key) as u32;
                let mut slot = BucketSlot::with_value(hash, key, value, expires_at_ms);
                slot.set_access(access);
                self.decoded.slot(self.db, slot);
            }
            value => {
                let key = (!has_long_key).then(|| key.to_vec());
                let entry = FragmentEntry { db: self.db, key, expires_at_ms, access, value };
                self.decoded.parts.push(Fragment::Entry(Box::new(entry)));
            }
        }
        Ok(())
    }

    /// Decodes a string that is written whole, as most values are.
    fn string(&mut self, key: &[u8]) -> Result<(), ChunkError> {
        let text = self.decoder.string()?;
        let hash = self.context.hasher.hash(key) as u32;
        let mut digits = DecimalBuffer::new();
        let value = match text {
            Text::Integer(value) => digits.format(value).as_bytes(),
            text => plain(text, &mut self.value)?,
        };
        let mut slot = BucketSlot::new(hash, key, Arg::Bytes(value), self.head.expires_at_ms);
        slot.set_access(self.head.access);
        self.decoded.slot(self.db, slot);
        Ok(())
    }

    /// Decodes a collection that is written whole.
    fn collection(&mut self, code: u8, rdb_type: ValueType) -> Result<Value, ChunkError> {
        if let Some(packing) = Packing::of_rdb_type(rdb_type) {
            return self.packed(packing);
        }
        let mut builder = Kind::of_rdb_type(rdb_type)
            .and_then(|kind| self.context.builder(kind))
            .ok_or(ChunkError::Unknown(code))?;
        let len = self.decoder.length()?;
        let mut strings = vec![Vec::new(); builder.value_type().strings()];
        for _ in 0..len {
            for string in &mut strings {
                string.clear();
                self.decoder.string()?.append_to(string)?;
            }
            builder.add(&strings.iter().map(|string| Arg::Bytes(string)).collect::<Vec<_>>());
        }
        builder.finish().ok_or(ChunkError::Parts)
    }

    fn packed(&mut self, packing: Packing) -> Result<Value, ChunkError> {
        for length in packing.rdb_head() {
            if self.decoder.length()? != *length {
                return Err(ChunkError::Parts);
            }
        }
        let offset = self.decoder.offset();
        let text = self.decoder.string()?;
        let bytes = plain(text, &mut self.value)?;
        let is_within = packing
            .check(bytes, &self.context.packed_limits)
            .map_err(|what| ChunkError::from(what.at(offset)))?;
        if is_within {
            return Ok(Value::Packed(packing, Arc::new(bytes.to_vec())));
        }
        let mut builder =
            self.context.builder(packing.value_type()).expect("a packed value is a collection");
        builder.add_all(packing.strings(bytes));
        builder.finish().ok_or(ChunkError::Parts)
    }
}

/// The string as contiguous bytes. If the string has to be decoded, the bytes are in `scratch`.
fn plain<'a>(text: Text<'a>, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], ChunkError> {
    if let Text::Plain(bytes) = text {
        return Ok(bytes);
    }
    scratch.clear();
    text.append_to(scratch)?;
    Ok(scratch)
}
