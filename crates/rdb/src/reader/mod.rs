//! Reads a whole RDB file from front to back, with bounded memory.

mod large;
mod stream;
mod value;

use std::io::Read;

use slimio_planted::is_planted;

use crate::encode::Attributes;
use crate::error::Error;
use crate::length::Input;
use crate::source::Source;
use crate::version::{Kind, ValueType, Version, opcode};

pub use stream::{StreamEntry, StreamId, StreamPart};
pub use value::{Field, NODE_PACKED as QUICKLIST_NODE_PACKED, Part, Value};

use value::Open;

/// Size in bytes of each piece of a large string except the last.
pub const STRING_PIECE_SIZE: usize = 256 * 1024;

/// Size in bytes of the header: the name `REDIS` or `VALKEY`, and the version.
const HEADER_SIZE: usize = 9;

/// An item of a file. Items come in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// A note about the file: which server wrote it, when, and so on. Redis calls this an auxiliary
    /// field.
    Aux {
        /// The note's name, such as `redis-ver`.
        name: Vec<u8>,
        /// The note's text.
        value: Vec<u8>,
    },
    /// How many keys a database holds, as a hint.
    ResizeDb {
        /// The database.
        db: u64,
        /// How many keys the database has.
        key_count: u64,
        /// How many of these keys expire.
        expiring_count: u64,
    },
    /// A key. Its value can be read now; parts of the value that are not read are skipped.
    Key(Key),
    /// A library of functions, as its source.
    Function(Vec<u8>),
    /// Data of a module outside of any key. The reader has skipped this data.
    ModuleAux {
        /// The name of the module's type.
        module: String,
    },
    /// Hash slots that were being imported from another node of the cluster. The reader has skipped
    /// them.
    SlotImport {
        /// The import's name.
        name: Vec<u8>,
    },
}

/// A key, and the facts about its value that the file states before the value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Key {
    /// Its database.
    pub db: u64,
    /// Its name.
    pub name: Vec<u8>,
    /// How the value is laid out.
    pub value_type: ValueType,
    /// When it expires, and how much it is used.
    pub attributes: Attributes,
    /// The name of the module's type, if the value belongs to a module.
    pub module: Option<String>,
    /// Offset in bytes of the value's type in the file. The type comes just before the key.
    pub offset: u64,
}

impl Key {
    /// The kind of the key's value.
    pub fn kind(&self) -> Kind {
        self.value_type.kind()
    }
}

/// The result of checking the checksum at the end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Checksum {
    /// The checksum matches the bytes that were read.
    Matches,
    /// The file has no checksum, because the server that wrote it left the checksum out or is older
    /// than checksums.
    Absent,
}

/// Reads a file of any version that [`Version::to_read`] knows.
///
/// The reader does not allocate for sizes that the file only claims: memory grows with the bytes
/// that were really read. The reader holds no single string of more than
/// [`WHOLE_SIZE_MAX`](crate::WHOLE_SIZE_MAX) bytes. Only the value of a string key may be longer;
/// it comes in pieces.
///
/// The reader checks that each value is well formed. The caller has to check that the value makes
/// sense, because a collection may be empty, and a field or member may come twice.
///
/// After an error, all calls return errors.
#[derive(Debug)]
pub struct FileReader<R> {
    source: Source<R>,
    version: Version,
    db: u64,
    /// The unread rest of the last key's value.
    open: Open,
    checksum: Option<Checksum>,
    has_failed: bool,
}

impl<R: Read> FileReader<R> {
    /// Reads the header.
    pub fn open(reader: R) -> Result<Self, Error> {
        let mut source = Source::new(reader);
        let header: [u8; HEADER_SIZE] = match source.array() {
            Err(Error::Truncated { .. }) => return Err(Error::NotRdb),
            header => header?,
        };
        let version = version_of(&header)?;
        let open = Open::Nothing;
        Ok(Self { source, version, db: 0, open, checksum: None, has_failed: false })
    }

    /// Reads one value without a file around it: the value's type, and then the value itself.
    /// `size` is the count of bytes that `reader` has. Read the value with
    /// [`next_part`](Self::next_part).
    pub fn open_value(
        reader: R,
        size: usize,
        version: Version,
    ) -> Result<(Self, ValueType), Error> {
        let mut source = Source::sized(reader, size);
        let code = source.byte()?;
        let known = ValueType::from_code(code, version);
        let value_type = known.filter(|value_type| value_type.kind() != Kind::Module);
        let Some(value_type) = value_type else {
            let what = format!("a value of type {code}");
            return Err(Error::Unsupported { offset: 0, what });
        };
        let open = Open::Unread(value_type);
        let (checksum, has_failed) = (None, false);
        Ok((Self { source, version, db: 0, open, checksum, has_failed }, value_type))
    }

    /// The file's version.
    pub fn version(&self) -> Version {
        self.version
    }

    /// Offset of the next unread byte in the file.
    pub fn offset(&self) -> u64 {
        self.source.offset()
    }

    /// The result of checking the checksum; `None` before the end of the file.
    pub fn checksum(&self) -> Option<Checksum> {
        self.checksum
    }

    /// The next item; `None` at the end of the file, if its checksum matches or is absent. As in
    /// Redis, bytes after the end are not read.
    pub fn next_item(&mut self) -> Result<Option<Item>, Error> {
        self.guarded(|reader| {
            while reader.read_part()?.is_some() {}
            reader.read_item()
        })
    }

    /// The next part of the last key's value; `None` if the value has no more parts.
    pub fn next_part(&mut self) -> Result<Option<Part>, Error> {
        self.guarded(Self::read_part)
    }

    /// The whole value of the last key, however large it is. If some parts were read already,
    /// returns the rest of the value. If all parts were read already, returns [`Value::Module`],
    /// because the reader no longer knows the kind of the value.
    pub fn value(&mut self) -> Result<Value, Error> {
        let mut value = Value::empty(self.open.kind());
        while let Some(part) = self.next_part()? {
            value.push(part);
        }
        Ok(value)
    }

    fn guarded<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T, Error>) -> Result<T, Error> {
        if self.has_failed {
            let offset = self.offset();
            return Err(Error::Corrupt { offset, what: "an earlier read has failed" });
        }
        let result = read(self);
        self.has_failed = result.is_err();
        result
    }

    fn read_item(&mut self) -> Result<Option<Item>, Error> {
        if self.checksum.is_some() {
            return Ok(None);
        }
        let mut attributes = Attributes::default();
        loop {
            let offset = self.offset();
            match self.source.byte()? {
                opcode::EXPIRE_AT_MS => {
                    attributes.expire_at_ms = Some(i64::from_le_bytes(self.source.array()?));
                }
                opcode::EXPIRE_AT_S => {
                    let at_s = i32::from_le_bytes(self.source.array()?);
                    attributes.expire_at_ms = Some(i64::from(at_s) * 1000);
                }
                opcode::IDLE => attributes.idle_s = Some(self.source.length()?),
                opcode::FREQ => attributes.freq = Some(self.source.byte()?),
                opcode::SELECT_DB => self.db = self.source.length()?,
                opcode::RESIZE_DB => {
                    let key_count = self.source.length()?;
                    let expiring_count = self.source.length()?;
                    return Ok(Some(Item::ResizeDb { db: self.db, key_count, expiring_count }));
                }
                opcode::AUX => {
                    let (name, value) = (self.source.string()?, self.source.string()?);
                    return Ok(Some(Item::Aux { name, value }));
                }
                opcode::FUNCTION => return self.source.string().map(Item::Function).map(Some),
                opcode::FUNCTION_PRE_GA => {
                    let what = "functions of a release candidate of Redis 7.0".to_owned();
                    return Err(Error::Unsupported { offset, what });
                }
                opcode::MODULE_AUX => return self.module_aux().map(Some),
                // Sizes of a cluster's hash slot: a hint that this reader does not need.
                opcode::SLOT_INFO => {
                    for _ in 0..3 {
                        self.source.length()?;
                    }
                }
                opcode::SLOT_IMPORT if self.version.is_valkey() => {
                    return self.slot_import().map(Some);
                }
                opcode::EOF => {
                    self.checksum = Some(self.end()?);
                    return Ok(None);
                }
                code => return self.key(code, attributes, offset).map(Item::Key).map(Some),
            }
        }
    }

    fn key(&mut self, code: u8, attributes: Attributes, offset: u64) -> Result<Key, Error> {
        let Some(value_type) = ValueType::from_code(code, self.version) else {
            let what = format!("values of the unknown type {code}");
            return Err(Error::Unsupported { offset, what });
        };
        let name = self.source.string()?;
        let mut module = None;
        if value_type.kind() == Kind::Module {
            module = Some(module_name(self.source.length()?));
        }
        if let (ValueType::ModulePreGa, Some(module)) = (value_type, &module) {
            let name = name.escape_ascii();
            let what = format!("the value of {name}, in the first layout of the module {module}");
            return Err(Error::Unsupported { offset, what });
        }
        self.open = Open::Unread(value_type);
        Ok(Key { db: self.db, name, value_type, attributes, module, offset })
    }

    fn module_aux(&mut self) -> Result<Item, Error> {
        let module = module_name(self.source.length()?);
        let offset = self.offset();
        // The data begins with an integer that says when to load the data. The mark in front of the
        // integer says that an integer follows.
        let mark = self.source.length()?;
        if mark != value::MODULE_UNSIGNED {
            return Err(Error::Corrupt { offset, what: "a module's data lacks its load time" });
        }
        self.source.length()?;
        value::skip_module(&mut self.source)?;
        Ok(Item::ModuleAux { module })
    }

    fn slot_import(&mut self) -> Result<Item, Error> {
        let name = self.source.string()?;
        for _ in 0..self.source.length()? {
            self.source.length()?;
            self.source.length()?;
        }
        Ok(Item::SlotImport { name })
    }

    fn end(&mut self) -> Result<Checksum, Error> {
        if !self.version.has_checksum() {
            return Ok(Checksum::Absent);
        }
        let computed = self.source.checksum();
        match u64::from_le_bytes(self.source.array()?) {
            0 => Ok(Checksum::Absent),
            stored if stored == computed || is_planted("rdb-no-checksum") => Ok(Checksum::Matches),
            stored => Err(Error::Checksum { stored, computed }),
        }
    }
}

/// The version in a header.
fn version_of(header: &[u8; HEADER_SIZE]) -> Result<Version, Error> {
    let digits = header
        .strip_prefix(b"REDIS")
        .or_else(|| header.strip_prefix(b"VALKEY"))
        .ok_or(Error::NotRdb)?;
    let number = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse().ok());
    number
        .and_then(Version::to_read)
        .filter(|version| version.to_string().as_bytes() == header)
        .ok_or_else(|| Error::UnknownVersion { found: header.escape_ascii().to_string() })
}

/// The name in a module's id. The lowest ten bits of the id are the module's version. Above them,
/// the name has nine characters of six bits each. (`moduleTypeNameByID` in Redis's `module.c`.)
fn module_name(id: u64) -> String {
    const CHARACTERS: &[u8; 64] =
        b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
    (0..9).rev().map(|i| CHARACTERS[(id >> (10 + 6 * i)) as usize & 63] as char).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_are_told_apart() {
        for (header, number) in [(b"REDIS0001", 1), (b"REDIS0012", 12), (b"VALKEY080", 80)] {
            assert_eq!(FileReader::open(&header[..]).unwrap().version().number(), number);
        }
        for header in ["", "REDIS", "REDIS001", "redis0010", "PNG\r\n\x1a\n00"] {
            let error = FileReader::open(header.as_bytes()).unwrap_err();
            assert!(matches!(error, Error::NotRdb), "{header}: {error}");
        }
        for header in [
            "REDIS0000",
            "REDIS0013",
            "REDIS0080",
            "VALKEY012",
            "VALKEY081",
            "REDIS+010",
            "REDISabcd",
        ] {
            let error = FileReader::open(header.as_bytes()).unwrap_err();
            assert!(error.to_string().starts_with(header), "{error}");
        }
    }

    #[test]
    fn modules_have_names() {
        // The number with which RedisJSON registers its type.
        let id = b"ReJSON-RL".iter().fold(0_u64, |id, byte| {
            let all = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
            id << 6 | all.iter().position(|it| it == byte).unwrap() as u64
        });
        assert_eq!(module_name(id << 10 | 3), "ReJSON-RL");
    }
}
