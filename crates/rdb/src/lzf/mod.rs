//! LZF: the format of compressed strings in RDB.
//!
//! A run of *literals* is copied as it is. A *match* repeats earlier bytes of the output:
//!
//! ```text
//! 000nnnnn + n+1 bytes                    literals: 1 to 32
//! lllooooo oooooooo                       match of l+2 bytes (l = 1..=6), o+1 bytes back
//! 111ooooo llllllll oooooooo              match of l+9 bytes
//! ```
//!
//! So a match is 3 to 264 bytes long and at most 8192 bytes back. It may overlap its own output.
//! (`lzf_d.c` of LibLZF, as shipped with Redis, must be able to read this compressor's output.)

mod compress;
mod decompress;

pub use compress::{Compressor, LZF_SIZE_MAX, LZF_SIZE_MIN};
pub(crate) use decompress::decode;
pub use decompress::decompress;

/// Limit of the literals in one run.
pub(crate) const LITERALS_MAX: usize = 32;
/// Limit of the bytes of one match.
pub(crate) const MATCH_MAX: usize = 264;
/// How far back a match can reach, in bytes.
pub(crate) const WINDOW: usize = 8192;
/// If the three bits `lll` of a match have this value, another byte of the length follows.
const LONG: usize = 7;
