//! The previous format of the state file. A file of this format is read and then replaced. No such
//! file is written any more.
//!
//! ```text
//! | magic | checksum | configuration, zeros | mapping, if the drive was closed |
//! 0       8          16                     256
//! ```

use std::path::Path;

use twox_hash::XxHash3_64;

use super::made::SavedConfig;
use super::state_file::Lost;
use crate::Ftl;

const MAGIC: [u8; 8] = *b"SLIMSSD2";

const HEAD_SIZE: usize = 256;

/// The checksum covers the part of the head from this offset on.
const CHECKED_FROM: usize = 16;

/// The configuration in a head, if the head is valid.
pub(super) fn decode_head(bytes: &[u8]) -> Option<SavedConfig> {
    let bytes = bytes.get(..HEAD_SIZE)?;
    let checksum = XxHash3_64::oneshot(&bytes[CHECKED_FROM..]).to_le_bytes();
    if bytes[..8] != MAGIC || bytes[8..CHECKED_FROM] != checksum {
        return None;
    }
    let numbers = bytes[CHECKED_FROM..].as_chunks::<8>().0.iter();
    SavedConfig::from_numbers(numbers.map(|number| u64::from_le_bytes(*number)))
}

/// The configuration and the mapping in the file at `path`, as far as they are valid.
pub(super) fn read(path: &Path) -> (Option<SavedConfig>, Result<Ftl, Lost>) {
    let bytes = std::fs::read(path).unwrap_or_default();
    let Some(made) = decode_head(&bytes) else { return (None, Err(Lost::All)) };
    let ftl = Ftl::decode_old(made.config.clone(), &bytes[HEAD_SIZE..]);
    (Some(made), ftl.ok_or(Lost::Mapping))
}
