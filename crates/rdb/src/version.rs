//! RDB versions, and the types and opcodes that a version has.

use std::fmt;

/// The newest RDB version of Redis that can be read. Redis 7.4 and 8.0 write it.
const REDIS_MAX: u16 = 12;
/// The version of Valkey 9, whose files begin with `VALKEY` instead of `REDIS`.
const VALKEY: u16 = 80;

/// The version of an RDB file. Versions 1 to 12 are those of Redis, version 80 is that of Valkey.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(u16);

impl Version {
    /// The version that is written by default: Redis 7.0 and everything later reads it.
    pub const DEFAULT: Self = Self(10);
    /// The first version in which small sets of strings are packed: Redis 7.2 and everything later
    /// reads it.
    pub const PACKED_SETS: Self = Self(11);
    /// The oldest version that can be written: Redis 5 reads it.
    pub const WRITE_MIN: Self = Self(9);
    /// The newest version that can be written.
    pub const WRITE_MAX: Self = Self(REDIS_MAX);

    /// The version with this number, if it can be written.
    pub fn to_write(number: u16) -> Option<Self> {
        (Self::WRITE_MIN.0..=Self::WRITE_MAX.0).contains(&number).then_some(Self(number))
    }

    /// The version with this number, if it can be read.
    pub fn to_read(number: u16) -> Option<Self> {
        matches!(number, 1..=REDIS_MAX | VALKEY).then_some(Self(number))
    }

    /// The number.
    pub fn number(self) -> u16 {
        self.0
    }

    /// Whether this is a version of Valkey, which has its own numbers.
    pub fn is_valkey(self) -> bool {
        self.0 >= VALKEY
    }

    /// Whether the last eight bytes of a file of this version are a checksum.
    pub fn has_checksum(self) -> bool {
        self.0 >= 5
    }

    /// The type of a small set of strings. In versions without a packed type for such sets, the
    /// members are written one by one.
    pub fn packed_set(self) -> ValueType {
        if self.0 >= 11 { ValueType::SetListpack } else { ValueType::Set }
    }

    /// The type of a small list. From version 10 on, it is a list of one node, which is a listpack.
    pub fn packed_list(self) -> ValueType {
        if self.0 >= 10 { ValueType::ListQuicklist2 } else { ValueType::ListZiplist }
    }

    /// The type of a small hash that [`Encoder::packed_hash`](crate::Encoder::packed_hash) writes.
    pub fn packed_hash(self) -> ValueType {
        if self.0 >= 10 { ValueType::HashListpack } else { ValueType::HashZiplist }
    }
}

/// The nine bytes at the beginning of a file.
impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_valkey() {
            write!(f, "VALKEY{:03}", self.0)
        } else {
            write!(f, "REDIS{:04}", self.0)
        }
    }
}

/// The kind of a value, as in the reply to `TYPE`. It does not depend on the value's layout.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// A string.
    String,
    /// A list.
    List,
    /// A set.
    Set,
    /// A sorted set.
    SortedSet,
    /// A hash.
    Hash,
    /// A stream.
    Stream,
    /// A value that only its module understands.
    Module,
}

/// The kind's name, as in the reply to `TYPE`.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::String => "string",
            Self::List => "list",
            Self::Set => "set",
            Self::SortedSet => "zset",
            Self::Hash => "hash",
            Self::Stream => "stream",
            Self::Module => "module",
        })
    }
}

/// How a value is laid out: the byte in front of its key. (`RDB_TYPE_` in Redis's and Valkey's
/// `rdb.h`.)
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ValueType {
    /// 0: one string.
    String,
    /// 1: a length, and that many strings.
    List,
    /// 2: a length, and that many strings.
    Set,
    /// 3: a length, and that many members, each with a score in decimal digits.
    SortedSet,
    /// 4: a length, and that many pairs of field and value.
    Hash,
    /// 5: as type 3, but each score is eight bytes.
    SortedSet2,
    /// 6: a module's value, in a form that only release candidates wrote. The end of the value
    /// can't be found.
    ModulePreGa,
    /// 7: a module's value, in marked pieces that can be skipped.
    Module2,
    /// 9: a zipmap.
    HashZipmap,
    /// 10: a ziplist.
    ListZiplist,
    /// 11: an intset.
    SetIntset,
    /// 12: a ziplist of members and scores in turn.
    SortedSetZiplist,
    /// 13: a ziplist of fields and values in turn.
    HashZiplist,
    /// 14: a length, and that many ziplists.
    ListQuicklist,
    /// 15: a stream.
    Stream,
    /// 16: a listpack of fields and values in turn.
    HashListpack,
    /// 17: a listpack of members and scores in turn.
    SortedSetListpack,
    /// 18: a length, and that many nodes, each a listpack or a single element.
    ListQuicklist2,
    /// 19: a stream that states its first entry and its largest deleted entry.
    Stream2,
    /// 20: a listpack of members.
    SetListpack,
    /// 21: a stream that states when each consumer was last active.
    Stream3,
    /// 22 in Redis: a hash whose fields expire, in a form that only release candidates wrote.
    HashExpiryPreGa,
    /// 23: like type 22 of Redis, but packed in a listpack.
    HashListpackExpiryPreGa,
    /// 24: a hash whose fields expire.
    HashExpiry,
    /// 25: like type 24, but packed in a listpack of fields, values and times in turn.
    HashListpackExpiry,
    /// 22 in Valkey: a hash whose fields expire.
    ValkeyHashExpiry,
}

impl ValueType {
    /// The type with this code in a file of `version`.
    ///
    /// The version does not restrict the types, because release candidates wrote new types under
    /// the old version number. The version matters only for codes that mean different types in
    /// Redis and Valkey.
    pub fn from_code(code: u8, version: Version) -> Option<Self> {
        Some(match code {
            0 => Self::String,
            1 => Self::List,
            2 => Self::Set,
            3 => Self::SortedSet,
            4 => Self::Hash,
            5 => Self::SortedSet2,
            6 => Self::ModulePreGa,
            7 => Self::Module2,
            9 => Self::HashZipmap,
            10 => Self::ListZiplist,
            11 => Self::SetIntset,
            12 => Self::SortedSetZiplist,
            13 => Self::HashZiplist,
            14 => Self::ListQuicklist,
            15 => Self::Stream,
            16 => Self::HashListpack,
            17 => Self::SortedSetListpack,
            18 => Self::ListQuicklist2,
            19 => Self::Stream2,
            20 => Self::SetListpack,
            21 => Self::Stream3,
            22 if version.is_valkey() => Self::ValkeyHashExpiry,
            22 => Self::HashExpiryPreGa,
            23 if !version.is_valkey() => Self::HashListpackExpiryPreGa,
            24 if !version.is_valkey() => Self::HashExpiry,
            25 if !version.is_valkey() => Self::HashListpackExpiry,
            _ => return None,
        })
    }

    /// The byte in front of a key.
    pub fn code(self) -> u8 {
        match self {
            Self::String => 0,
            Self::List => 1,
            Self::Set => 2,
            Self::SortedSet => 3,
            Self::Hash => 4,
            Self::SortedSet2 => 5,
            Self::ModulePreGa => 6,
            Self::Module2 => 7,
            Self::HashZipmap => 9,
            Self::ListZiplist => 10,
            Self::SetIntset => 11,
            Self::SortedSetZiplist => 12,
            Self::HashZiplist => 13,
            Self::ListQuicklist => 14,
            Self::Stream => 15,
            Self::HashListpack => 16,
            Self::SortedSetListpack => 17,
            Self::ListQuicklist2 => 18,
            Self::Stream2 => 19,
            Self::SetListpack => 20,
            Self::Stream3 => 21,
            Self::HashExpiryPreGa | Self::ValkeyHashExpiry => 22,
            Self::HashListpackExpiryPreGa => 23,
            Self::HashExpiry => 24,
            Self::HashListpackExpiry => 25,
        }
    }

    /// The kind of a value of this type.
    pub fn kind(self) -> Kind {
        match self {
            Self::String => Kind::String,
            Self::List | Self::ListZiplist | Self::ListQuicklist | Self::ListQuicklist2 => {
                Kind::List
            }
            Self::Set | Self::SetIntset | Self::SetListpack => Kind::Set,
            Self::SortedSet
            | Self::SortedSet2
            | Self::SortedSetZiplist
            | Self::SortedSetListpack => Kind::SortedSet,
            Self::Hash
            | Self::HashZipmap
            | Self::HashZiplist
            | Self::HashListpack
            | Self::HashExpiryPreGa
            | Self::HashListpackExpiryPreGa
            | Self::HashExpiry
            | Self::HashListpackExpiry
            | Self::ValkeyHashExpiry => Kind::Hash,
            Self::Stream | Self::Stream2 | Self::Stream3 => Kind::Stream,
            Self::ModulePreGa | Self::Module2 => Kind::Module,
        }
    }
}

/// Bytes that come in the place of a type and mean something else. (`RDB_OPCODE_` in `rdb.h`.)
pub mod opcode {
    /// Valkey: hash slots of a cluster that are being imported. A name and ranges of slots follow.
    pub const SLOT_IMPORT: u8 = 243;
    /// Sizes of a cluster's hash slot: the slot's number, the count of its keys, and the count of
    /// its keys that expire.
    pub const SLOT_INFO: u8 = 244;
    /// The source of a library of functions, as a string.
    pub const FUNCTION: u8 = 245;
    /// A library of functions, in a form that only release candidates wrote. No server reads this
    /// form any more.
    pub const FUNCTION_PRE_GA: u8 = 246;
    /// A module's data that is not the value of a key.
    pub const MODULE_AUX: u8 = 247;
    /// Seconds since the next key was last used, as a length.
    pub const IDLE: u8 = 248;
    /// How often the next key is used: one byte, logarithmic.
    pub const FREQ: u8 = 249;
    /// A note about the file (an auxiliary field): two strings.
    pub const AUX: u8 = 250;
    /// How many keys the selected database has, and how many of them expire: two lengths.
    pub const RESIZE_DB: u8 = 251;
    /// When the next key expires: Unix milliseconds in eight bytes, little-endian.
    pub const EXPIRE_AT_MS: u8 = 252;
    /// When the next key expires: Unix seconds in four bytes, little-endian.
    pub const EXPIRE_AT_S: u8 = 253;
    /// The database of the following keys, as a length.
    pub const SELECT_DB: u8 = 254;
    /// The end of the file; its checksum follows.
    pub const EOF: u8 = 255;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_lead_to_types_and_back() {
        for number in [1, 12, 80] {
            let version = Version::to_read(number).unwrap();
            let known: Vec<u8> =
                (0..=255).filter(|code| ValueType::from_code(*code, version).is_some()).collect();
            for &code in &known {
                assert_eq!(ValueType::from_code(code, version).unwrap().code(), code);
            }
            let expected = if number == 80 { 22 } else { 25 };
            assert_eq!(known, (0..=expected).filter(|code| *code != 8).collect::<Vec<u8>>());
        }
    }

    #[test]
    fn versions_know_what_they_are() {
        let readable: Vec<u16> = (0..100).filter(|n| Version::to_read(*n).is_some()).collect();
        assert_eq!(readable, (1..=12).chain([80]).collect::<Vec<u16>>());
        let writable: Vec<u16> = (0..100).filter(|n| Version::to_write(*n).is_some()).collect();
        assert_eq!(writable, [9, 10, 11, 12]);
        assert_eq!(Version::DEFAULT.to_string(), "REDIS0010");
        assert_eq!(Version::to_read(80).unwrap().to_string(), "VALKEY080");
    }
}
