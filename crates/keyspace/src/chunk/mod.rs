//! What a snapshot consists of: chunks of keys with their values, in the encodings of RDB.
//!
//! A chunk is decoded without the others, on any thread. It is a sequence of RDB opcodes that
//! begins with a `SELECTDB`, and holds about [`CHUNK_SIZE`] bytes. These opcodes are those of an
//! RDB file of version 10:
//!
//! ```text
//! FE database | FB keys, keys that expire | FC time in ms | F8 idle seconds | F9 frequency
//! 00 key, string | 04 key, count, (field, value)... | 10 key, listpack
//! ```
//!
//! A value that is too large for a chunk comes in parts, before its key, in as many chunks as it
//! takes. Nothing else stands between the parts of one value. So a loader, which takes the chunks
//! in order, has to remember only one string, one key, one field and one hash:
//!
//! ```text
//! E0 string             the pending string grows by a piece
//! E1                    the pending string is the pending field now
//! E2 string, string     the pending hash gets a field with its value
//! E3                    the pending hash gets the pending field, with the pending string as value
//! E4                    the pending string is the pending key now
//! E5                    the next entry's key is the pending one; it names an empty one
//! E8 key, size          a key whose value is the pending string, in place of a type
//! E9 key, count         a key whose value is the pending hash, in place of a type
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

/// Size in bytes from which a chunk is complete. The last value can make it larger: by at most
/// [`WHOLE_SIZE_MAX`] bytes and its key, or by one part.
pub const CHUNK_SIZE: usize = 256 * 1024;

/// Longest value and longest key, in bytes of memory, that are not split into parts.
pub const WHOLE_SIZE_MAX: usize = 256 * 1024 + 4096;

/// Opcodes of our own. RDB uses 0 to 25 for types and 243 to 255 for opcodes.
mod opcode {
    pub(super) const PIECE: u8 = 0xe0;
    pub(super) const FIELD: u8 = 0xe1;
    pub(super) const PAIR: u8 = 0xe2;
    pub(super) const LONG_PAIR: u8 = 0xe3;
    pub(super) const KEY: u8 = 0xe4;
    pub(super) const LONG_KEY: u8 = 0xe5;
    pub(super) const LONG_STRING: u8 = 0xe8;
    pub(super) const LONG_HASH: u8 = 0xe9;
}
