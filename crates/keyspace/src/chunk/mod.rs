//! A snapshot consists of chunks. A chunk holds keys with their values, in the encodings of RDB.
//!
//! A chunk is decoded without the other chunks, on any thread. It is a sequence of RDB opcodes that
//! begins with a `SELECTDB`, and holds about [`CHUNK_SIZE`] bytes. The following opcodes are those
//! of an RDB file of version 11:
//!
//! ```text
//! FE database | FB count of keys, count of keys that expire
//! FC time in ms | F8 idle seconds | F9 frequency
//! 00 key, string
//! 01 key, count, element... | 12 key, 1, 2, listpack of elements
//! 02 key, count, member... | 0B key, intset | 14 key, listpack of members
//! 04 key, count, (field, value)... | 10 key, listpack of fields and values
//! ```
//!
//! A value that is too large for a chunk is written in parts before its key, in several chunks if
//! needed. Nothing else comes between the parts of one value. So a loader, which takes the chunks
//! in order, has to remember only one pending string, one pending key and one pending collection:
//!
//! ```text
//! E0 string             the pending string grows by a piece
//! E4                    the pending string becomes the pending key
//! E5                    the next entry's key is the pending key; its own key field is empty
//! E8 key, size          in place of a type: an entry whose value is the pending string
//! EA kind, string...    the pending collection, of this kind, gets an element
//! EB kind               the pending string becomes the next string of an element of the collection
//! EC key, kind, count   in place of a type: an entry whose value is the pending collection
//! ```
//!
//! A kind is the number of a type. The kind of a hash is 4, and an element of a hash is a field
//! with its value. Volumes of format 5 and before have other opcodes for hashes:
//!
//! ```text
//! E1, E3                as EB 4
//! E2 string, string     as EA 4
//! E9 key, count         as EC 4
//! ```
//!
//! Strings are encoded as in RDB: as an integer, compressed by LZF, or as they are.

mod decode;
mod encode;
mod error;
mod load;

pub use decode::{DecodeContext, Decoded, decode_chunk};
pub use encode::{Chunk, ChunkEncoder, ChunkOptions};
pub use error::ChunkError;
pub use load::Loader;

use slimio_rdb::Version;

/// The version of RDB that defines the types of the values in a chunk.
const VERSION: Version = Version::PACKED_SETS;

/// Size in bytes at which a chunk is complete. The last value can make the chunk larger than this
/// size. If that value is written whole, it adds at most its key and [`WHOLE_SIZE_MAX`] bytes. If
/// it is written in parts, it adds at most one part.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Size, in bytes of memory, of the longest value and the longest key that are not split into
/// parts.
pub const WHOLE_SIZE_MAX: usize = 256 * 1024 + 4096;

/// Our additions to the opcodes of RDB, which uses 0 to 25 for types and 243 to 255 for opcodes.
mod opcode {
    pub(super) const PIECE: u8 = 0xe0;
    pub(super) const KEY: u8 = 0xe4;
    pub(super) const LONG_KEY: u8 = 0xe5;
    pub(super) const LONG_STRING: u8 = 0xe8;
    pub(super) const ELEMENT: u8 = 0xea;
    pub(super) const LONG_ELEMENT: u8 = 0xeb;
    pub(super) const LONG_COLLECTION: u8 = 0xec;

    /// Opcodes of hashes in older volumes, which are still read but no longer written.
    pub(super) const FIELD: u8 = 0xe1;
    pub(super) const PAIR: u8 = 0xe2;
    pub(super) const LONG_PAIR: u8 = 0xe3;
    pub(super) const LONG_HASH: u8 = 0xe9;
}
