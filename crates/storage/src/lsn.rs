//! Positions in the log.

use std::fmt;

/// Position in the logical stream of records, in bytes since the volume was formatted.
///
/// A record's LSN is the position right after its last byte. If the durable LSN is at least a
/// record's LSN, the record and everything before it are durable. The log of a new volume is empty
/// and ends at LSN zero.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

impl Lsn {
    /// Bytes from `earlier` to this position. Zero if `earlier` is the same position or a later
    /// one.
    pub fn bytes_since(self, earlier: Self) -> u64 {
        self.0.saturating_sub(earlier.0)
    }
}

impl fmt::Display for Lsn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}
