//! Decodes chunks to entries that are ready to be inserted, on any thread.

use std::sync::Arc;

use slimio_rdb::{Decoder, Listpack, Malformed, Text, ValueType, Version, opcode as rdb};
use slimio_resp::{Arg, DecimalBuffer, Piece};

use super::{ChunkError, opcode};
use crate::access::Access;
use crate::evict::{EvictionConfig, Usage};
use crate::hash::{HashBuilder, HashLimits, PACKED_FIELDS_MAX, PACKED_SIZE_MAX};
use crate::hasher::KeyHasher;
use crate::keyspace::DbIndex;
use crate::table::BucketSlot;
use crate::value::Value;

/// The settings of the keyspace that a chunk is decoded for.
#[derive(Clone, Copy, Debug)]
pub struct DecodeContext {
    pub(crate) hasher: KeyHasher,
    pub(crate) hash_limits: HashLimits,
    pub(crate) eviction: EvictionConfig,
    /// Milliseconds since 1970.
    pub(crate) now_ms: i64,
}

/// The contents of a chunk.
#[derive(Debug, Default)]
pub struct Decoded {
    pub(super) slots: Vec<BucketSlot>,
    /// Runs of slots of one database: the database, and the index where its run ends.
    pub(super) runs: Vec<(DbIndex, usize)>,
    pub(super) parts: Vec<Fragment>,
    /// Counts of keys that databases will have.
    pub(super) sizes: Vec<(DbIndex, usize)>,
    /// The usage that the last entry with one states.
    pub(super) usage: Option<Usage>,
}

/// A part of a large value or key, to be joined with the others.
#[derive(Debug)]
pub(super) enum Fragment {
    Piece(Piece),
    Field,
    Pairs(Pairs),
    LongPair,
    Key,
    Entry(Box<FragmentEntry>),
}

/// An entry that waits for parts: for its value, or its key.
#[derive(Debug)]
pub(super) struct FragmentEntry {
    pub(super) db: DbIndex,
    /// `None`: the pending key.
    pub(super) key: Option<Vec<u8>>,
    pub(super) expires_at_ms: Option<i64>,
    pub(super) access: Access,
    pub(super) value: PartValue,
}

#[derive(Debug)]
pub(super) enum PartValue {
    /// The pending string, and its size in bytes.
    String(u64),
    /// The pending hash, and its count of fields.
    Hash(u64),
    Whole(Value),
}

/// Fields and values, one behind the other.
#[derive(Debug, Default)]
pub(super) struct Pairs {
    bytes: Vec<u8>,
    /// Where each field and each value ends.
    ends: Vec<u32>,
}

impl Pairs {
    fn push(&mut self, text: Text<'_>) -> Result<(), ChunkError> {
        text.append_to(&mut self.bytes)?;
        self.ends.push(u32::try_from(self.bytes.len()).map_err(|_| ChunkError::Parts)?);
        Ok(())
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        let mut start = 0;
        self.ends.chunks_exact(2).map(move |ends| {
            let (field_end, end) = (ends[0] as usize, ends[1] as usize);
            let pair = (&self.bytes[start..field_end], &self.bytes[field_end..end]);
            start = end;
            pair
        })
    }
}

impl Decoded {
    /// Count of keys whose entries end in the chunk.
    pub fn keys(&self) -> usize {
        let entries = self.parts.iter().filter(|part| matches!(part, Fragment::Entry(_)));
        self.slots.len() + entries.count()
    }

    /// The usage that entries of the chunk state, whether or not the policy decoded for looks at
    /// it. All entries of a snapshot state the same kind of usage, or none.
    pub fn usage(&self) -> Option<Usage> {
        self.usage
    }

    pub(super) fn slot(&mut self, db: DbIndex, slot: BucketSlot) {
        self.slots.push(slot);
        let end = self.slots.len();
        match self.runs.last_mut() {
            Some((last, at)) if *last == db => *at = end,
            _ => self.runs.push((db, end)),
        }
    }
}

/// Decodes a chunk whose bytes were found to be those that were written.
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
            opcode::FIELD => self.decoded.parts.push(Fragment::Field),
            opcode::LONG_PAIR => self.decoded.parts.push(Fragment::LongPair),
            opcode::PAIR => self.pair()?,
            opcode::KEY => self.decoded.parts.push(Fragment::Key),
            opcode::LONG_KEY => self.head.has_long_key = true,
            _ => self.entry(code)?,
        }
        Ok(())
    }

    fn pair(&mut self) -> Result<(), ChunkError> {
        let (field, value) = (self.decoder.string()?, self.decoder.string()?);
        if !matches!(self.decoded.parts.last(), Some(Fragment::Pairs(_))) {
            self.decoded.parts.push(Fragment::Pairs(Pairs::default()));
        }
        if let Some(Fragment::Pairs(pairs)) = self.decoded.parts.last_mut() {
            pairs.push(field)?;
            pairs.push(value)?;
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
        let value = match (ValueType::from_code(code, Version::DEFAULT), code) {
            (Some(ValueType::String), _) if !self.head.has_long_key => return self.string(key),
            (Some(ValueType::String), _) => {
                let text = self.decoder.string()?;
                let bytes = plain(text, &mut self.value)?;
                PartValue::Whole(Value::from_arg(Arg::Bytes(bytes)))
            }
            (Some(ValueType::Hash), _) => PartValue::Whole(self.hash()?),
            (Some(ValueType::HashListpack), _) => PartValue::Whole(self.packed_hash()?),
            (_, opcode::LONG_STRING) => PartValue::String(self.decoder.length()?),
            (_, opcode::LONG_HASH) => PartValue::Hash(self.decoder.length()?),
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

    /// Decodes a string that is not in parts, which most entries are.
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

    fn hash(&mut self) -> Result<Value, ChunkError> {
        let len = self.decoder.length()?;
        let mut builder = HashBuilder::new(self.context.hasher, self.context.hash_limits);
        let (mut field, mut value) = (Vec::new(), Vec::new());
        for _ in 0..len {
            let field = plain(self.decoder.string()?, &mut field)?;
            let value = plain(self.decoder.string()?, &mut value)?;
            builder.add(Arg::Bytes(field), Arg::Bytes(value));
        }
        builder.finish().ok_or(ChunkError::Parts)
    }

    fn packed_hash(&mut self) -> Result<Value, ChunkError> {
        let offset = self.decoder.offset();
        let text = self.decoder.string()?;
        let bytes = plain(text, &mut self.value)?;
        // Later reads of a listpack do not check its bounds, so all of it is checked now.
        let mut elements = Listpack::open(bytes).map_err(|what| what.at(offset))?;
        let fields = elements.len_hint().map_or(usize::MAX, |len| len / 2);
        let is_even = elements.len_hint().is_none_or(|len| len.is_multiple_of(2));
        let malformed = |what: Malformed| ChunkError::from(what.at(offset));
        if !is_even || fields == 0 {
            return Err(malformed(Malformed("a hash has a field without a value, or none")));
        }
        let HashLimits { fields: fields_max, .. } = self.context.hash_limits;
        if fields <= fields_max.min(PACKED_FIELDS_MAX) && bytes.len() <= PACKED_SIZE_MAX {
            elements.try_for_each(|element| element.map(drop)).map_err(malformed)?;
            return Ok(Value::PackedHash(Arc::new(bytes.to_vec())));
        }
        let mut builder = HashBuilder::new(self.context.hasher, self.context.hash_limits);
        while let Some(field) = elements.next() {
            let value = elements.next().ok_or(ChunkError::Parts)?.map_err(malformed)?;
            let (field, value) = (field.map_err(malformed)?.to_vec(), value.to_vec());
            builder.add(Arg::Bytes(&field), Arg::Bytes(&value));
        }
        builder.finish().ok_or(ChunkError::Parts)
    }
}

/// The string as contiguous bytes, in `scratch` if it has to be decoded.
fn plain<'a>(text: Text<'a>, scratch: &'a mut Vec<u8>) -> Result<&'a [u8], ChunkError> {
    if let Text::Plain(bytes) = text {
        return Ok(bytes);
    }
    scratch.clear();
    text.append_to(scratch)?;
    Ok(scratch)
}
