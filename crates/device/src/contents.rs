//! Recognises what is on a device, before the device is overwritten.

use std::fmt;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use crate::{Buffer, LBA_SIZE};

/// Number of bytes that are examined at the end of a device. At the device's start, twice as many
/// bytes are examined. All known formats have their superblocks in these two parts.
const LOOK_SIZE: usize = 128 * 1024;

/// What seems to be on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Contents {
    /// The device holds only zeros at its start and its end, where every known format has its
    /// superblocks.
    Nothing,
    /// The device has a known signature. The string names the format in words: "a GPT partition
    /// table".
    Known(&'static str),
    /// The device has no known signature, but some bytes are not zero.
    Unknown,
}

impl Contents {
    /// Looks at a file or device of `size` bytes.
    ///
    /// # Errors
    /// When the file or device can't be read.
    pub fn of_file(file: &File, size: u64) -> io::Result<Self> {
        examine_by(size, |bytes, offset| file.read_exact_at(bytes, offset))
    }
}

impl fmt::Display for Contents {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Nothing => f.write_str("nothing"),
            Self::Known(what) => f.write_str(what),
            Self::Unknown => f.write_str("data of an unknown kind"),
        }
    }
}

/// Bytes at a fixed offset by which a format is recognised.
struct Signature {
    offset: usize,
    bytes: &'static [u8],
    what: &'static str,
}

/// The signatures in the order in which they are tried. The MBR partition table comes last, because
/// its signature is also in the first sector of other formats, such as FAT and GPT.
const SIGNATURES: &[Signature] = &[
    Signature { offset: 0x438, bytes: &[0x53, 0xef], what: "an ext2, ext3 or ext4 file system" },
    Signature { offset: 0, bytes: b"XFSB", what: "an XFS file system" },
    Signature { offset: 0x1_0040, bytes: b"_BHRfS_M", what: "a btrfs file system" },
    Signature { offset: 0x400, bytes: &0xf2f5_2010_u32.to_le_bytes(), what: "an F2FS file system" },
    Signature { offset: 0, bytes: b"hsqs", what: "a squashfs file system" },
    Signature { offset: 3, bytes: b"NTFS    ", what: "an NTFS file system" },
    Signature { offset: 3, bytes: b"EXFAT   ", what: "an exFAT file system" },
    Signature { offset: 82, bytes: b"FAT32   ", what: "a FAT file system" },
    Signature { offset: 54, bytes: b"FAT1", what: "a FAT file system" },
    Signature { offset: 0x8001, bytes: b"CD001", what: "an ISO 9660 file system" },
    Signature { offset: 0xff6, bytes: b"SWAPSPACE2", what: "swap space" },
    Signature { offset: 0, bytes: b"LUKS\xba\xbe", what: "an encrypted volume (LUKS)" },
    Signature { offset: 512, bytes: b"LABELONE", what: "an LVM physical volume" },
    Signature { offset: 0x1000, bytes: &RAID_MAGIC, what: "a part of a RAID array" },
    Signature { offset: 0, bytes: &RAID_MAGIC, what: "a part of a RAID array" },
    Signature { offset: 0x1018, bytes: &BCACHE_MAGIC, what: "a bcache device" },
    Signature { offset: 512, bytes: b"EFI PART", what: "a GPT partition table" },
    Signature { offset: 4096, bytes: b"EFI PART", what: "a GPT partition table" },
    Signature { offset: 510, bytes: &[0x55, 0xaa], what: "an MBR partition table" },
];

const RAID_MAGIC: [u8; 4] = 0xa92b_4efc_u32.to_le_bytes();

const BCACHE_MAGIC: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];

/// Magic number of a ZFS uberblock. A ZFS label has an array of places for uberblocks, and an
/// uberblock may be in any of them.
const ZFS_MAGIC: [u8; 8] = 0x00ba_b10c_u64.to_le_bytes();

/// Examines storage of `size` bytes. `read` fills a slice with the bytes that start at an offset.
pub(crate) fn examine_by<E>(
    size: u64,
    mut read: impl FnMut(&mut [u8], u64) -> Result<(), E>,
) -> Result<Contents, E> {
    let look = (LOOK_SIZE as u64).min(size) as usize;
    // The first 256 KiB are read, because the first ZFS label ends there. The label's uberblocks
    // begin at 128 KiB.
    let head_size = (2 * LOOK_SIZE as u64).min(size) as usize;
    // A `Buffer` is used because direct I/O requires aligned memory.
    let mut buffer = Buffer::zeroed(2 * LOOK_SIZE / LBA_SIZE);
    read(&mut buffer[..head_size], 0)?;
    let head = buffer[..head_size].to_vec();
    read(&mut buffer[..look], size - look as u64)?;
    Ok(identify(&head, &buffer[..look]))
}

fn identify(head: &[u8], tail: &[u8]) -> Contents {
    let at = |bytes: &[u8], offset: usize, wanted: &[u8]| {
        bytes.get(offset..offset + wanted.len()) == Some(wanted)
    };
    for signature in SIGNATURES {
        if at(head, signature.offset, signature.bytes) {
            return Contents::Known(signature.what);
        }
    }
    let uberblocks = head.get(LOOK_SIZE..).unwrap_or_default();
    if uberblocks.chunks(1024).any(|block| block.starts_with(&ZFS_MAGIC)) {
        return Contents::Known("a ZFS pool");
    }
    // Old RAID superblocks are near the end, at a multiple of 64 KiB.
    if tail.chunks(4096).any(|block| block.starts_with(&RAID_MAGIC)) {
        return Contents::Known("a part of a RAID array");
    }
    if tail.chunks(512).any(|sector| sector.starts_with(b"EFI PART")) {
        return Contents::Known("a GPT partition table");
    }
    if head.iter().chain(tail).all(|&byte| byte == 0) {
        Contents::Nothing
    } else {
        Contents::Unknown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_signature_is_found_at_its_place_only() {
        for signature in SIGNATURES {
            let mut head = vec![0; 2 * LOOK_SIZE];
            let place = signature.offset..signature.offset + signature.bytes.len();
            head[place.clone()].copy_from_slice(signature.bytes);
            assert_eq!(identify(&head, &[]), Contents::Known(signature.what));
            head[place].rotate_left(1);
            assert_ne!(identify(&head, &[]), Contents::Known(signature.what));
        }
    }

    #[test]
    fn a_table_of_partitions_is_not_taken_for_what_is_in_it() {
        let mut head = vec![0; 2 * LOOK_SIZE];
        head[510..512].copy_from_slice(&[0x55, 0xaa]);
        head[512..520].copy_from_slice(b"EFI PART");
        assert_eq!(identify(&head, &[]), Contents::Known("a GPT partition table"));
    }

    #[test]
    fn the_rest_is_nothing_or_unknown() {
        let mut head = vec![0; 2 * LOOK_SIZE];
        let mut tail = vec![0; LOOK_SIZE];
        assert_eq!(identify(&head, &tail), Contents::Nothing);
        tail[LOOK_SIZE - 1] = 1;
        assert_eq!(identify(&head, &tail), Contents::Unknown);
        tail[LOOK_SIZE - 1] = 0;
        tail[8192..8196].copy_from_slice(&RAID_MAGIC);
        assert_eq!(identify(&head, &tail), Contents::Known("a part of a RAID array"));
        head[LOOK_SIZE + 3072..][..8].copy_from_slice(&ZFS_MAGIC);
        assert_eq!(identify(&head, &tail), Contents::Known("a ZFS pool"));
        // A device may be too short to have the place of a signature.
        assert_eq!(identify(&[], &[]), Contents::Nothing);
        assert_eq!(identify(&[1], &[1]), Contents::Unknown);
    }
}
