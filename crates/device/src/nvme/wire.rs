//! NVMe commands and structures, laid out as two specifications define them: NVM Express Base 2.1
//! and the NVM Command Set.

use slimio_planted::is_planted;
use slimio_ring::NvmeCommand;

/// Opcodes of the NVM command set.
pub(crate) mod opcode {
    pub(crate) const FLUSH: u8 = 0x00;
    pub(crate) const WRITE: u8 = 0x01;
    pub(crate) const READ: u8 = 0x02;
    pub(crate) const DATASET_MANAGEMENT: u8 = 0x09;
    pub(crate) const IO_MANAGEMENT_RECEIVE: u8 = 0x12;
    pub(crate) const IO_MANAGEMENT_SEND: u8 = 0x1d;
}

/// The largest number of ranges in one Dataset Management command.
pub(crate) const RANGES_MAX: usize = 256;

/// The largest number of blocks of one Read or Write. The command's field for this number has 16
/// bits, and zero in the field means one block.
pub(crate) const BLOCKS_MAX: u32 = 1 << 16;

/// Force Unit Access, in command dword 12.
const FUA: u32 = 1 << 30;

/// Directive type "data placement", in command dword 12.
const DATA_PLACEMENT: u32 = 2 << 20;

/// A Read of `blocks` blocks from block `slba` on. Both numbers count the device's own blocks.
pub(crate) fn read(nsid: u32, slba: u64, blocks: u32) -> NvmeCommand {
    transfer(opcode::READ, nsid, slba, blocks)
}

/// A Write of `blocks` blocks from block `slba` on, counted as in [`read`]. `placement` names the
/// reclaim unit handle to use. With `is_durable`, the write is on stable media when it completes
/// (Force Unit Access).
pub(crate) fn write(
    nsid: u32,
    slba: u64,
    blocks: u32,
    placement: Option<u16>,
    is_durable: bool,
) -> NvmeCommand {
    let mut command = transfer(opcode::WRITE, nsid, slba, blocks);
    if is_durable {
        command.cdw10_to_15[2] |= FUA;
    }
    if let Some(id) = placement {
        command.cdw10_to_15[2] |= DATA_PLACEMENT;
        command.cdw10_to_15[3] = u32::from(id) << 16;
    }
    command
}

fn transfer(opcode: u8, nsid: u32, slba: u64, blocks: u32) -> NvmeCommand {
    assert!((1..=BLOCKS_MAX).contains(&blocks), "one command can't transfer {blocks} blocks");
    let cdw10_to_15 = [slba as u32, (slba >> 32) as u32, blocks - 1, 0, 0, 0];
    NvmeCommand { opcode, nsid, cdw10_to_15 }
}

/// A Flush of the whole namespace.
pub(crate) fn flush(nsid: u32) -> NvmeCommand {
    NvmeCommand { opcode: opcode::FLUSH, nsid, cdw10_to_15: [0; 6] }
}

/// A Dataset Management command that deallocates. The command's data is the ranges.
pub(crate) fn deallocate(nsid: u32, range_count: usize) -> NvmeCommand {
    assert!((1..=RANGES_MAX).contains(&range_count), "one command can't have {range_count} ranges");
    let last = if is_planted("nvme-range-count") { range_count } else { range_count - 1 };
    let cdw10_to_15 = [last as u32, 1 << 2, 0, 0, 0, 0];
    NvmeCommand { opcode: opcode::DATASET_MANAGEMENT, nsid, cdw10_to_15 }
}

/// One range of a Dataset Management command. The range's length field holds the number of blocks.
/// The length field of a Read or Write holds this number minus one.
pub(crate) fn range(slba: u64, blocks: u32) -> [u8; 16] {
    let mut bytes = [0; 16];
    bytes[4..8].copy_from_slice(&blocks.to_le_bytes());
    bytes[8..].copy_from_slice(&slba.to_le_bytes());
    bytes
}

/// The fields of Identify Namespace (CNS 00h) that this crate uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IdentifyNamespace {
    /// Number of blocks of the namespace.
    pub(crate) block_count: u64,
    /// A block has 2^n bytes. This is the exponent n.
    pub(crate) block_shift: u8,
    /// Bytes of metadata with each block.
    pub(crate) metadata_size: u16,
    /// The endurance group that the namespace is in; zero if the namespace is in no group.
    pub(crate) endurance_group: u16,
}

impl IdentifyNamespace {
    pub(crate) fn parse(data: &[u8; 4096]) -> Self {
        let flbas = data[26];
        let format = usize::from(flbas & 0xf) | usize::from(flbas >> 5 & 3) << 4;
        let format = &data[128 + 4 * format..][..4];
        Self {
            block_count: le64(data, 0),
            block_shift: format[2],
            metadata_size: le16(format, 0),
            endurance_group: le16(data, 102),
        }
    }
}

/// The fields of Identify Controller (CNS 01h) that this crate uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct IdentifyController {
    pub(crate) serial: String,
    pub(crate) model: String,
    /// The longest transfer has 2^n pages of the controller. This is the exponent n; zero means
    /// that there is no limit.
    pub(crate) mdts: u8,
    /// One less than the largest number of blocks of an atomic write. If power fails, such a write
    /// is on the device as a whole or not at all.
    pub(crate) atomic_write_power_fail: u16,
    pub(crate) has_volatile_cache: bool,
    pub(crate) has_deallocate: bool,
    pub(crate) has_fdp: bool,
}

impl IdentifyController {
    pub(crate) fn parse(data: &[u8; 4096]) -> Self {
        let text = |range: std::ops::Range<usize>| {
            String::from_utf8_lossy(&data[range]).trim_matches([' ', '\0']).to_owned()
        };
        Self {
            serial: text(4..24),
            model: text(24..64),
            mdts: data[77],
            atomic_write_power_fail: le16(data, 528),
            has_volatile_cache: data[525] & 1 != 0,
            has_deallocate: le16(data, 520) & 1 << 2 != 0,
            has_fdp: le32(data, 96) & 1 << 19 != 0,
        }
    }
}

pub(crate) fn le16(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes(bytes[at..at + 2].try_into().expect("2 bytes"))
}

pub(crate) fn le32(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("4 bytes"))
}

pub(crate) fn le64(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("8 bytes"))
}

pub(crate) fn le128(bytes: &[u8], at: usize) -> u128 {
    u128::from_le_bytes(bytes[at..at + 16].try_into().expect("16 bytes"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_writes_count_from_zero() {
        let command = read(3, 0x1_2345_6789, 8);
        assert_eq!((command.opcode, command.nsid), (0x02, 3));
        assert_eq!(command.cdw10_to_15, [0x2345_6789, 1, 7, 0, 0, 0]);
        let command = write(3, 16, BLOCKS_MAX, None, false);
        assert_eq!(command.opcode, 0x01);
        assert_eq!(command.cdw10_to_15, [16, 0, 0xffff, 0, 0, 0]);
    }

    #[test]
    fn a_placement_goes_as_it_is() {
        let command = write(1, 0, 1, Some(0x4003), true);
        assert_eq!(command.cdw10_to_15, [0, 0, 0x4020_0000, 0x4003_0000, 0, 0]);
        let command = write(1, 0, 1, Some(0), false);
        assert_eq!(command.cdw10_to_15, [0, 0, 0x0020_0000, 0, 0, 0]);
    }

    #[test]
    fn a_flush_has_only_a_namespace() {
        assert_eq!(flush(7), NvmeCommand { opcode: 0, nsid: 7, cdw10_to_15: [0; 6] });
    }

    #[test]
    fn ranges_count_from_zero_and_their_blocks_from_one() {
        let command = deallocate(1, 256);
        assert_eq!(command.opcode, 0x09);
        assert_eq!(command.cdw10_to_15, [255, 4, 0, 0, 0, 0]);
        let expected = [0, 0, 0, 0, 8, 0, 0, 0, 0x10, 0, 0, 0, 1, 0, 0, 0];
        assert_eq!(range(0x1_0000_0010, 8), expected);
    }

    #[test]
    fn a_namespace_names_its_format() {
        let mut data = [0; 4096];
        data[..8].copy_from_slice(&1000_u64.to_le_bytes());
        data[25] = 20;
        data[26] = 0x21; // Format 17: bits 0 to 3 and bits 5 and 6 hold the number.
        data[128 + 4 * 17..][..4].copy_from_slice(&[8, 0, 12, 0]);
        data[102..104].copy_from_slice(&[5, 0]);
        let found = IdentifyNamespace::parse(&data);
        assert_eq!((found.block_count, found.block_shift, found.metadata_size), (1000, 12, 8));
        assert_eq!(found.endurance_group, 5);
    }

    #[test]
    fn a_controller_says_what_it_has() {
        let mut data = [0; 4096];
        data[4..24].copy_from_slice(b"S1234               ");
        data[24..64].fill(b' ');
        data[24..29].copy_from_slice(b"A SSD");
        data[77] = 7;
        data[98] = 8;
        data[520] = 4;
        data[525] = 7;
        data[528..530].copy_from_slice(&[3, 0]);
        let found = IdentifyController::parse(&data);
        assert_eq!((&*found.serial, &*found.model), ("S1234", "A SSD"));
        assert_eq!((found.mdts, found.atomic_write_power_fail), (7, 3));
        assert!(found.has_volatile_cache && found.has_deallocate && found.has_fdp);
        let none = IdentifyController::parse(&[0; 4096]);
        assert!(!none.has_volatile_cache && !none.has_deallocate && !none.has_fdp);
    }
}
