//! The checksum of everything on the volume: XXH3.
//!
//! The checksum of a record or batch also covers the volume's id, the epoch (the log between two
//! recoveries) and the LSN. So if bytes are intact but stale, or belong to another volume or
//! another place, they fail the check. Id, epoch and LSN are mixed into the finished hash. They are
//! not the seed of the hash, because with a seed XXH3 has to derive a secret for every input above
//! 240 bytes.

use twox_hash::XxHash3_64;

use crate::VolumeId;

/// XXH3 of some bytes.
pub(crate) fn hash(bytes: &[u8]) -> u64 {
    XxHash3_64::oneshot(bytes)
}

/// Spreads every bit over all bits. This is reversible, so two different inputs never give the same
/// output.
pub(crate) fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 32)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    x = (x ^ (x >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    x ^ (x >> 32)
}

/// A value that is mixed into checksums. Each volume has one salt per epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Salt(u64);

impl Salt {
    pub(crate) fn new(volume_id: VolumeId, epoch: u64) -> Self {
        let volume = mix(volume_id.0 as u64) ^ (volume_id.0 >> 64) as u64;
        Self(mix(mix(volume).wrapping_add(epoch)))
    }

    /// Checksum of bytes that belong at `lsn`.
    pub(crate) fn seal(self, lsn: u64, bytes: &[u8]) -> u64 {
        self.seal_hash(lsn, hash(bytes))
    }

    /// Like [`seal`](Self::seal), for bytes whose hash is known.
    pub(crate) fn seal_hash(self, lsn: u64, hash: u64) -> u64 {
        mix(hash ^ mix(self.0.wrapping_add(lsn)))
    }
}

/// Adds a record's checksum to the chain of checksums of the records before it in the batch.
pub(crate) fn chain(so_far: u64, record: u64) -> u64 {
    mix(so_far.rotate_left(17) ^ record)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn depends_on_volume_epoch_lsn_and_bytes() {
        let volume_id = VolumeId(1 << 64 | 2);
        let base = Salt::new(volume_id, 3).seal(4, b"bytes");
        assert_eq!(base, Salt::new(volume_id, 3).seal(4, b"bytes"));
        assert_ne!(base, Salt::new(VolumeId(2 << 64 | 2), 3).seal(4, b"bytes"));
        assert_ne!(base, Salt::new(VolumeId(1 << 64 | 3), 3).seal(4, b"bytes"));
        assert_ne!(base, Salt::new(volume_id, 4).seal(4, b"bytes"));
        assert_ne!(base, Salt::new(volume_id, 3).seal(5, b"bytes"));
        assert_ne!(base, Salt::new(volume_id, 3).seal(4, b"bytez"));
    }

    #[test]
    fn the_order_of_records_counts() {
        assert_ne!(chain(chain(0, 1), 2), chain(chain(0, 2), 1));
    }
}
