//! The mark of a volume that is being made.
//!
//! The mark is written where the superblock's first copy will be, before any old data is
//! overwritten. It stays until the new superblock is in all its copies. So if making a volume is
//! interrupted, the mark says that the volume holds no valid data. While a copy of a superblock is
//! valid beside the mark, the mark does not count: the old volume is still there, or the new volume
//! is complete. Making the volume anew loses no acknowledged write, because no server has opened
//! the new volume yet.

use slimio_device::{Buffer, Device, DeviceError, Lba, Op};

use crate::checksum::hash;
use crate::layout::{self, put_u32, put_u64, u32_at, u64_at, unfinished as at};
use crate::superblock::{SuperblockCopy, read_copies};
use crate::{Error, Lifetime, io};

/// Writes the mark, which is durable when this returns. A torn mark is ignored.
pub(crate) fn mark(superblock_path: &mut dyn Device) -> Result<(), DeviceError> {
    let mut buffer = Buffer::zeroed(1);
    buffer[at::MAGIC..at::MAGIC + 8].copy_from_slice(&layout::UNFINISHED_MAGIC);
    put_u32(&mut buffer, at::VERSION, layout::FORMAT_VERSION);
    let checksum = hash(&buffer[..at::CHECKSUM]);
    put_u64(&mut buffer, at::CHECKSUM, checksum);
    assert!(is_mark(&buffer), "the new mark is not whole");
    let placement = Lifetime::Superblock.placement();
    io::run(superblock_path, Op::Write { lba: Lba(0), buffer, placement, durable: true }).map(drop)
}

/// Whether `bytes` starts with a whole mark.
pub(crate) fn is_mark(bytes: &[u8]) -> bool {
    bytes[at::MAGIC..at::MAGIC + 8] == layout::UNFINISHED_MAGIC
        && u32_at(bytes, at::VERSION) == layout::FORMAT_VERSION
        && u64_at(bytes, at::CHECKSUM) == hash(&bytes[..at::CHECKSUM])
}

/// Whether the volume was begun but never finished. Such a volume holds no data, so it may be made
/// anew. This function writes nothing.
///
/// # Errors
/// If the area is too short to hold a superblock.
pub fn is_unfinished(superblock_path: &mut dyn Device) -> Result<bool, Error> {
    Ok(is_unfinished_by(&read_copies(superblock_path)?))
}

/// Like [`is_unfinished`], but looks at copies that were read already.
pub(crate) fn is_unfinished_by(copies: &[SuperblockCopy]) -> bool {
    // If a new volume is replacing an old one, the old volume is still there as long as one copy of
    // its superblock is valid or has another format version.
    let counts = |copy: &SuperblockCopy| {
        matches!(copy, SuperblockCopy::Valid(..) | SuperblockCopy::OtherVersion(_))
    };
    copies.contains(&SuperblockCopy::Unfinished) && !copies.iter().any(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn damaged() -> SuperblockCopy {
        SuperblockCopy::Damaged { why: "torn".into(), has_magic: true }
    }

    #[test]
    fn a_mark_beside_a_volume_of_any_version_does_not_give_it_up() {
        let marked = |other| [SuperblockCopy::Unfinished, SuperblockCopy::Empty, other];
        for nothing in [SuperblockCopy::Empty, damaged()] {
            assert!(is_unfinished_by(&marked(nothing)));
        }
        assert!(!is_unfinished_by(&marked(SuperblockCopy::OtherVersion(99))));
        assert!(!is_unfinished_by(&[SuperblockCopy::Empty, damaged()]), "there is no mark");
    }

    #[test]
    fn a_mark_that_is_not_whole_is_none() {
        let mut mark = vec![0; at::SIZE];
        mark[at::MAGIC..at::MAGIC + 8].copy_from_slice(&layout::UNFINISHED_MAGIC);
        put_u32(&mut mark, at::VERSION, layout::FORMAT_VERSION);
        assert!(!is_mark(&mark), "the mark's checksum is missing");
        let checksum = hash(&mark[..at::CHECKSUM]);
        put_u64(&mut mark, at::CHECKSUM, checksum);
        assert!(is_mark(&mark));
        for bit in 0..8 * at::SIZE {
            mark[bit / 8] ^= 1 << (bit % 8);
            assert!(!is_mark(&mark), "bit {bit}");
            mark[bit / 8] ^= 1 << (bit % 8);
        }
    }
}
