//! The RDB file format, in which Redis and Valkey keep and exchange a data set. This crate only
//! converts bytes: it opens no file, reads no clock and keeps no keys in memory.
//!
//! ```text
//! REDIS0010                                  the version, four digits (VALKEY080: three)
//! fa <name> <value>                          notes about the file
//! f5 <source>   f7 <module's data>           libraries of functions, data of modules
//! fe <db>                                    the database of the keys that follow
//! fb <keys> <keys that expire>               a hint for the size of the database's hash table
//! fc <8 bytes>  f8 <seconds>  f9 <1 byte>    the next key's expiry, idle time, frequency of use
//! <type> <key> <value>                       a key; what its value looks like depends on the type
//! ff <8 bytes>                               the end, and the CRC-64 of all bytes before it, or 0
//! ```
//!
//! * A *length* takes one to nine bytes. A *string* is a length and bytes, or an integer, or bytes
//!   that are compressed by LZF. LZF is a format of literals and back references. It is made for
//!   speed rather than for a small size.
//! * A *type* says what kind of value the user sees, such as a hash, and how the value is laid out
//!   ([`ValueType`]). A large hash is a length and that many pairs of strings. A small hash is
//!   packed in one string, in the form that the hash has in the server's memory: a listpack
//!   ([`Listpack`]) since version 10, a ziplist ([`Ziplist`]) in versions 4 to 9, and a zipmap
//!   before version 4. Sets, sorted sets and lists have similar forms.
//! * Numbers are little-endian, except lengths and the ids of streams, which are big-endian. Times
//!   are Unix milliseconds (before version 3: seconds).
//! * Nothing marks the end of a value, so a file cannot be read beyond a value of an unknown type.
//!   A new version of the format only adds types ([`Version`]).
//!
//! Sources: `rdb.c` and `rdb.h` of Redis and Valkey, `listpack.c`, `ziplist.c`, `intset.c`,
//! `zipmap.c`, `quicklist.h`, `t_stream.c`, `module.c`, `crc64.c`, and LibLZF. The documentation of
//! each module shows the layout that the module reads. The tests exchange files with a stock
//! server.
//!
//! # What to use
//!
//! * [`FileWriter`] and [`FileReader`] for whole files: the memory that they take stays bounded,
//!   however large the file and its values are. The reader does not trust the sizes that a file
//!   states.
//! * [`Encoder`] and [`Decoder`] for pieces of a file, such as the chunks of a snapshot. Large
//!   values are encoded in parts: first their size or count, then the parts.
//! * [`Compressor`] and [`decompress`] for LZF alone.
//!
//! This crate reads Redis's versions 1 to 12 of the format (Redis 7.4 and 8.0 write version 12),
//! and Valkey's version 80 (Valkey 9.0 writes it). This crate writes versions 9 to 12. The reader
//! can skip a value that only a module understands. The reader can't skip three things: a module's
//! value in the layout of a release candidate of Redis, a function in such a layout, and a value of
//! an unknown type. The reader's error names the thing.

mod checksum;
mod cursor;
mod decode;
mod element;
mod encode;
mod error;
mod integer;
pub mod intset;
mod length;
pub mod listpack;
mod lzf;
mod packed;
mod reader;
mod source;
mod version;
mod writer;
mod ziplist;
mod zipmap;

pub use checksum::Crc64;
pub use decode::{Decoder, Text};
pub use element::Element;
pub use encode::{Attributes, Encoder};
pub use error::{Error, Malformed};
pub use listpack::{Listpack, ListpackWriter};
pub use lzf::{Compressor, LZF_SIZE_MAX, LZF_SIZE_MIN, decompress};
pub use reader::{
    Checksum, Field, FileReader, Item, Key, Part, QUICKLIST_NODE_PACKED, STRING_PIECE_SIZE,
    StreamEntry, StreamId, StreamPart, Value,
};
pub use source::WHOLE_SIZE_MAX;
pub use version::{Kind, ValueType, Version, opcode};
pub use writer::FileWriter;
pub use ziplist::{Ziplist, ZiplistWriter};
