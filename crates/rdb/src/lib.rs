//! The RDB file format, in which Redis and Valkey keep and exchange a data set. Bytes only: no
//! file, no clock, no keys in memory.
//!
//! ```text
//! REDIS0010                                  the version, four digits (VALKEY080: three)
//! fa <name> <value>                          notes about the file
//! f5 <source>   f7 <module's data>           libraries of functions, what modules keep
//! fe <db>                                    the database of the keys that follow
//! fb <keys> <keys that expire>               a hint on how large its table should be
//! fc <8 bytes>  f8 <seconds>  f9 <1 byte>    the next key's expiry, idle time, frequency of use
//! <type> <key> <value>                       a key; what its value looks like depends on the type
//! ff <8 bytes>                               the end, and the CRC-64 of all before it; 0: none
//! ```
//!
//! * A *length* takes one to nine bytes. A *string* is a length and bytes, or an integer, or
//!   compressed by LZF: a format of literals and back references that trades size for speed.
//! * A *type* says what a value is to a user, and how it is laid out ([`ValueType`]). A large hash
//!   is a length and that many pairs of strings. A small one is packed in one string, as it lies in
//!   the server's memory: since version 10 as a listpack ([`Listpack`]), before as a ziplist
//!   ([`Ziplist`]), long ago as a zipmap. The same goes for sets, sorted sets and lists.
//! * Numbers are little-endian, save lengths and the ids of streams, which have their high bytes
//!   first. Times are Unix milliseconds (before version 3: seconds).
//! * Nothing marks the end of a value, so a file cannot be read beyond a value of an unknown type.
//!   Types were only ever added; what a version number promises is in [`Version`].
//!
//! Sources: `rdb.c` and `rdb.h` of Redis and Valkey, `listpack.c`, `ziplist.c`, `intset.c`,
//! `zipmap.c`, `quicklist.h`, `t_stream.c`, `module.c`, `crc64.c`, and LibLZF; each layout is drawn
//! at the head of the module that reads it. The tests exchange files with a stock server.
//!
//! # What to use
//!
//! * [`FileWriter`] and [`FileReader`] for whole files: memory stays bounded however large the file
//!   and its values are, and claims of a damaged file are not believed.
//! * [`Encoder`] and [`Decoder`] for pieces of it, such as the chunks of a snapshot. Large values
//!   are encoded in parts: first their size or count, then the parts.
//! * [`Compressor`] and [`decompress`] for LZF alone.
//!
//! Versions 1 to 12 of Redis (12 is Redis 7.4 and 8.0) and 80 of Valkey (9.0) are read; 9 to 12 are
//! written. Values of types that only a module understands are skipped. What cannot even be skipped
//! is refused by name: values and functions of release candidates, and types from the future.

mod checksum;
mod cursor;
mod decode;
mod element;
mod encode;
mod error;
mod integer;
mod intset;
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

pub use decode::{Decoder, Text};
pub use element::Element;
pub use encode::{Attributes, Encoder};
pub use error::{Error, Malformed};
pub use listpack::{Listpack, ListpackWriter};
pub use lzf::{Compressor, LZF_SIZE_MAX, LZF_SIZE_MIN, decompress};
pub use reader::{
    Checksum, Field, FileReader, Item, Key, Part, STRING_PIECE_SIZE, StreamEntry, StreamId,
    StreamPart, Value,
};
pub use source::WHOLE_SIZE_MAX;
pub use version::{Kind, ValueType, Version, opcode};
pub use writer::FileWriter;
pub use ziplist::{Ziplist, ZiplistWriter};
