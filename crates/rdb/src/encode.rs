//! Encodes data as RDB bytes.

use crate::integer::{Decimal, canonical_i64};
use crate::length::{self, STRING_INT8, STRING_INT16, STRING_INT32, STRING_LZF};
use crate::listpack::ListpackWriter;
use crate::lzf::Compressor;
use crate::version::{ValueType, Version, opcode};
use crate::ziplist::ZiplistWriter;

/// Size in bytes of the longest decimal form of an integer of 32 bits.
const INTEGER_SIZE_MAX: usize = 11;

/// The attributes of a key, apart from its value.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attributes {
    /// When the key expires, in Unix milliseconds. `None` if the key does not expire.
    pub expire_at_ms: Option<i64>,
    /// Seconds since the key was last used. `None` if the file does not state them.
    pub idle_s: Option<u64>,
    /// How often the key is used, on a logarithmic scale. `None` if the file does not state the
    /// frequency.
    pub freq: Option<u8>,
}

/// Appends RDB encodings to a buffer, which the caller can take at any time.
///
/// The caller is responsible for the order: keys follow [`select_db`](Self::select_db), and a value
/// follows its key. Large values are written in parts: first their size or count, then the parts.
/// The caller may also take the buffer between two parts.
///
/// ```
/// use slimio_rdb::{Attributes, Encoder, ValueType, Version};
///
/// let mut encoder = Encoder::new(Version::DEFAULT);
/// encoder.select_db(0);
/// encoder.key(b"greeting", ValueType::String, Attributes::default());
/// encoder.string(b"hello");
/// assert_eq!(encoder.bytes(), b"\xfe\x00\x00\x08greeting\x05hello");
/// ```
#[derive(Debug)]
pub struct Encoder {
    out: Vec<u8>,
    version: Version,
    compressor: Option<Compressor>,
    listpack: ListpackWriter,
    ziplist: ZiplistWriter,
}

impl Encoder {
    /// An encoder for files of `version`. It compresses each string for which
    /// [`Compressor::compress`] returns a compressed form.
    pub fn new(version: Version) -> Self {
        Self {
            out: Vec::new(),
            version,
            compressor: Some(Compressor::new()),
            listpack: ListpackWriter::new(),
            ziplist: ZiplistWriter::new(),
        }
    }

    /// An encoder that compresses no strings.
    pub fn uncompressed(version: Version) -> Self {
        Self { compressor: None, ..Self::new(version) }
    }

    /// The version of the files that this encoder writes.
    pub fn version(&self) -> Version {
        self.version
    }

    /// The bytes that were written and not yet taken.
    pub fn bytes(&self) -> &[u8] {
        &self.out
    }

    /// Count of the bytes that were written and not yet taken.
    pub fn size(&self) -> usize {
        self.out.len()
    }

    /// Discards the written bytes, but keeps the buffer's capacity.
    pub fn clear(&mut self) {
        self.out.clear();
    }

    /// Takes the written bytes.
    pub fn take(&mut self) -> Vec<u8> {
        std::mem::take(&mut self.out)
    }

    /// Takes the written bytes. From now on, the encoder appends to `next`.
    pub fn replace(&mut self, next: Vec<u8>) -> Vec<u8> {
        std::mem::replace(&mut self.out, next)
    }

    /// Appends one byte as it is.
    pub fn byte(&mut self, byte: u8) {
        self.out.push(byte);
    }

    /// Appends bytes as they are.
    pub fn raw(&mut self, bytes: &[u8]) {
        self.out.extend_from_slice(bytes);
    }

    /// Appends a length: how many bytes or elements follow.
    pub fn length(&mut self, length: u64) {
        length::encode(length, &mut self.out);
    }

    /// Appends a string. If the string is the decimal form of an integer of 32 bits, writes the
    /// integer. Otherwise, compresses the string if the encoder compresses strings and this saves
    /// enough bytes.
    pub fn string(&mut self, string: &[u8]) {
        if string.len() <= INTEGER_SIZE_MAX
            && let Some(value) = canonical_i64(string).and_then(|value| i32::try_from(value).ok())
        {
            return self.int32(value);
        }
        if let Some(compressed) = self.compressor.as_mut().and_then(|it| it.compress(string)) {
            self.out.push(STRING_LZF);
            length::encode(compressed.len() as u64, &mut self.out);
            length::encode(string.len() as u64, &mut self.out);
            self.out.extend_from_slice(compressed);
            return;
        }
        self.string_start(string.len() as u64);
        self.raw(string);
    }

    /// Appends the decimal digits of `value`, as a string.
    pub fn integer(&mut self, value: i64) {
        if let Ok(value) = i32::try_from(value) {
            return self.int32(value);
        }
        let mut digits = Decimal::new();
        let digits = digits.format(value).as_bytes();
        self.string_start(digits.len() as u64);
        self.raw(digits);
    }

    /// Begins a string of `size` bytes. The caller appends these bytes with [`raw`](Self::raw), in
    /// any number of parts. The string is neither encoded as an integer nor compressed.
    pub fn string_start(&mut self, size: u64) {
        self.length(size);
    }

    fn int32(&mut self, value: i32) {
        if let Ok(value) = i8::try_from(value) {
            self.out.extend_from_slice(&[STRING_INT8, value as u8]);
        } else if let Ok(value) = i16::try_from(value) {
            self.out.push(STRING_INT16);
            self.out.extend_from_slice(&value.to_le_bytes());
        } else {
            self.out.push(STRING_INT32);
            self.out.extend_from_slice(&value.to_le_bytes());
        }
    }

    /// Appends a note about the file, which Redis calls an auxiliary field.
    pub fn aux(&mut self, name: &[u8], value: &[u8]) {
        self.out.push(opcode::AUX);
        self.string(name);
        self.string(value);
    }

    /// Appends the number of a database. The keys that follow belong to this database.
    pub fn select_db(&mut self, db: u64) {
        self.out.push(opcode::SELECT_DB);
        self.length(db);
    }

    /// Appends how many keys the database has, and how many of them expire. The two counts are a
    /// hint to the program that loads the file.
    pub fn resize_db(&mut self, key_count: u64, expiring_count: u64) {
        self.out.push(opcode::RESIZE_DB);
        self.length(key_count);
        self.length(expiring_count);
    }

    /// Appends a key with its attributes. The caller then appends the key's value.
    pub fn key(&mut self, key: &[u8], value_type: ValueType, attributes: Attributes) {
        if let Some(at_ms) = attributes.expire_at_ms {
            self.out.push(opcode::EXPIRE_AT_MS);
            self.out.extend_from_slice(&at_ms.to_le_bytes());
        }
        if let Some(idle_s) = attributes.idle_s {
            self.out.push(opcode::IDLE);
            self.length(idle_s);
        }
        if let Some(freq) = attributes.freq {
            self.out.extend_from_slice(&[opcode::FREQ, freq]);
        }
        self.out.push(value_type.code());
        self.string(key);
    }

    /// Begins a value of the type [`ValueType::Hash`]. The caller then appends `len` pairs of
    /// [`string`](Self::string)s. Each pair is a field and the field's value.
    pub fn hash_start(&mut self, len: u64) {
        self.length(len);
    }

    /// Appends the value of a small hash. The type of this value is [`Version::packed_hash`].
    pub fn packed_hash<'a>(&mut self, pairs: impl IntoIterator<Item = (&'a [u8], &'a [u8])>) {
        if self.version.packed_hash() == ValueType::HashListpack {
            let mut listpack = std::mem::take(&mut self.listpack);
            listpack.clear();
            for (field, value) in pairs {
                listpack.push(field);
                listpack.push(value);
            }
            self.string(listpack.finish());
            self.listpack = listpack;
        } else {
            self.ziplist(pairs.into_iter().flat_map(|(field, value)| [field, value]));
        }
    }

    /// Appends strings as a ziplist. Versions before 10 keep small values in this form.
    pub fn ziplist<'a>(&mut self, strings: impl IntoIterator<Item = &'a [u8]>) {
        let mut ziplist = std::mem::take(&mut self.ziplist);
        ziplist.clear();
        strings.into_iter().for_each(|string| ziplist.push(string));
        self.string(ziplist.finish());
        self.ziplist = ziplist;
    }

    /// Appends the mark of a file's end. In a file, the checksum follows the mark.
    /// [`FileWriter`](crate::FileWriter) writes the checksum.
    pub fn eof(&mut self) {
        self.out.push(opcode::EOF);
    }
}
