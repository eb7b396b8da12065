//! Submission queue entries. Source: base specification 2.1, 4.1.

/// Size in bytes of a submission queue entry.
pub const COMMAND_SIZE: usize = 64;

/// A submission queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Command {
    /// What the command does.
    pub opcode: u8,
    /// Bits 0 and 1: fused operation. Bits 6 and 7 (PSDT): whether PRPs or an SGL describe the
    /// data.
    pub flags: u8,
    /// The command identifier, which the host chooses.
    pub cid: u16,
    /// The namespace. In a Fabrics command, the lowest byte is the command's type instead.
    pub nsid: u32,
    /// Command dword 2.
    pub cdw2: u32,
    /// Command dword 3.
    pub cdw3: u32,
    /// Where the command's metadata is.
    pub metadata: u64,
    /// Where the command's data is.
    pub sgl: Sgl,
    /// Command dwords 10 to 15.
    pub cdw10_to_15: [u32; 6],
}

/// The value of PSDT in [`Command::flags`] that stands for SGLs. All fabrics use SGLs.
pub const PSDT_SGL: u8 = 0b01 << 6;

/// An SGL descriptor. Source: base specification 2.1, 4.3.2, figure 121.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sgl {
    /// A memory address, or an offset in the capsule, depending on the type.
    pub address: u64,
    /// Size of the data in bytes.
    pub length: u32,
    /// Type in the upper four bits, subtype in the lower four.
    pub identifier: u8,
}

/// What an [`Sgl`] says about the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SglKind {
    /// The data is in the capsule.
    InCapsule {
        /// Offset of the data from the start of the in-capsule data, in bytes.
        offset: u64,
    },
    /// The data travels in separate PDUs.
    Transport,
    /// A type that NVMe/TCP does not use.
    Other,
}

impl Sgl {
    const IN_CAPSULE: u8 = 0x01;
    const TRANSPORT: u8 = 0x5a;

    /// Data in the capsule. It begins at the first byte of the in-capsule data.
    pub const fn in_capsule(length: u32) -> Self {
        Self { address: 0, length, identifier: Self::IN_CAPSULE }
    }

    /// Data that travels in separate PDUs. A length of zero means no data.
    pub const fn transport(length: u32) -> Self {
        Self { address: 0, length, identifier: Self::TRANSPORT }
    }

    /// Where the data is, according to the descriptor.
    pub const fn kind(&self) -> SglKind {
        match self.identifier {
            Self::IN_CAPSULE => SglKind::InCapsule { offset: self.address },
            Self::TRANSPORT => SglKind::Transport,
            _ => SglKind::Other,
        }
    }
}

impl Command {
    /// A command without data.
    pub const fn new(opcode: u8, cid: u16) -> Self {
        Self {
            opcode,
            flags: PSDT_SGL,
            cid,
            nsid: 0,
            cdw2: 0,
            cdw3: 0,
            metadata: 0,
            sgl: Sgl::transport(0),
            cdw10_to_15: [0; 6],
        }
    }

    /// Returns the command with this namespace.
    #[must_use]
    pub const fn nsid(mut self, nsid: u32) -> Self {
        self.nsid = nsid;
        self
    }

    /// Returns the command with this data.
    #[must_use]
    pub const fn sgl(mut self, sgl: Sgl) -> Self {
        self.sgl = sgl;
        self
    }

    /// Returns the command with this value in command dword 10.
    #[must_use]
    pub const fn cdw10(self, value: u32) -> Self {
        self.cdw(10, value)
    }

    /// Returns the command with this value in one of its command dwords 10 to 15.
    ///
    /// # Panics
    /// If `number` is not 10 to 15.
    #[must_use]
    pub const fn cdw(mut self, number: usize, value: u32) -> Self {
        assert!(number >= 10 && number <= 15, "only the command dwords 10 to 15 can be set");
        self.cdw10_to_15[number - 10] = value;
        self
    }

    /// The value of one of the command dwords 10 to 15.
    ///
    /// # Panics
    /// If `number` is not 10 to 15.
    pub const fn dword(&self, number: usize) -> u32 {
        self.cdw10_to_15[number - 10]
    }

    /// The first block of a transfer: command dwords 10 and 11 as one number.
    pub const fn slba(&self) -> u64 {
        self.cdw10_to_15[0] as u64 | (self.cdw10_to_15[1] as u64) << 32
    }

    /// Returns the command with the first block and the number of blocks of a transfer.
    ///
    /// # Panics
    /// If `count` is zero or above 65,536.
    #[must_use]
    pub const fn blocks(mut self, slba: u64, count: u32) -> Self {
        assert!(count > 0 && count <= 0x1_0000, "a transfer has 1 to 65,536 blocks");
        self.cdw10_to_15[0] = slba as u32;
        self.cdw10_to_15[1] = (slba >> 32) as u32;
        self.cdw10_to_15[2] = self.cdw10_to_15[2] & 0xffff_0000 | (count - 1);
        self
    }

    /// The number of blocks of a transfer.
    pub const fn block_count(&self) -> u32 {
        (self.cdw10_to_15[2] & 0xffff) + 1
    }

    /// Encodes the command.
    pub fn encode(&self) -> [u8; COMMAND_SIZE] {
        let mut bytes = [0; COMMAND_SIZE];
        bytes[0] = self.opcode;
        bytes[1] = self.flags;
        bytes[2..4].copy_from_slice(&self.cid.to_le_bytes());
        bytes[4..8].copy_from_slice(&self.nsid.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.cdw2.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.cdw3.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.metadata.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.sgl.address.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.sgl.length.to_le_bytes());
        bytes[39] = self.sgl.identifier;
        for (dword, place) in self.cdw10_to_15.iter().zip(bytes[40..].chunks_exact_mut(4)) {
            place.copy_from_slice(&dword.to_le_bytes());
        }
        bytes
    }

    /// Decodes a command. It can't fail, because any bytes are a command. Other code decides
    /// whether the command is supported.
    pub fn decode(bytes: &[u8; COMMAND_SIZE]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let u32_at = |at: usize| u32::from(u16_at(at)) | u32::from(u16_at(at + 2)) << 16;
        let u64_at = |at: usize| u64::from(u32_at(at)) | u64::from(u32_at(at + 4)) << 32;
        Self {
            opcode: bytes[0],
            flags: bytes[1],
            cid: u16_at(2),
            nsid: u32_at(4),
            cdw2: u32_at(8),
            cdw3: u32_at(12),
            metadata: u64_at(16),
            sgl: Sgl { address: u64_at(24), length: u32_at(32), identifier: bytes[39] },
            cdw10_to_15: std::array::from_fn(|index| u32_at(40 + 4 * index)),
        }
    }
}

/// The directive type that stands for data placement. A write has its directive type in bits 20 to
/// 23 of dword 12. Source: base specification 2.1, 8.1.8.
pub const DIRECTIVE_DATA_PLACEMENT: u32 = 2;

/// What dwords 12 and 13 of a write say, apart from the number of blocks. Source: NVM command set
/// 1.1, 3.3.6.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WriteFlags {
    /// Force unit access: the write completes only when its data is on stable media.
    pub fua: bool,
    /// Only in Write Zeroes: the blocks may be deallocated.
    pub deallocate: bool,
    /// Which protection information to check or to generate (PRINFO).
    pub protection: u8,
    /// The directive type: 0 is none, 2 is data placement.
    pub directive: u32,
    /// A value for the directive. For data placement, it is the placement identifier.
    pub directive_specific: u16,
}

impl WriteFlags {
    /// Takes the flags from a command.
    pub const fn of(command: &Command) -> Self {
        let cdw12 = command.cdw10_to_15[2];
        Self {
            fua: cdw12 & 1 << 30 != 0,
            deallocate: cdw12 & 1 << 25 != 0,
            protection: (cdw12 >> 26 & 0xf) as u8,
            directive: cdw12 >> 20 & 0xf,
            directive_specific: (command.cdw10_to_15[3] >> 16) as u16,
        }
    }

    /// Adds the flags to a command. Call it after [`Command::blocks`], because the flags share
    /// dword 12 with the number of blocks.
    #[must_use]
    pub const fn on(&self, mut command: Command) -> Command {
        command.cdw10_to_15[2] = command.cdw10_to_15[2] & 0xffff
            | (self.directive & 0xf) << 20
            | (self.deallocate as u32) << 25
            | (self.protection as u32 & 0xf) << 26
            | (self.fua as u32) << 30;
        command.cdw10_to_15[3] =
            command.cdw10_to_15[3] & 0xffff | (self.directive_specific as u32) << 16;
        command
    }
}

layout! {
    /// A range of Dataset Management. Source: NVM command set 1.1, 3.3.3, figure 49.
    pub struct DsmRange [16] {
        /// Context attributes.
        cattr: u32 = 0,
        /// Length in blocks. A range of zero blocks is empty.
        nlb: u32 = 4,
        /// First block.
        slba: u64 = 8,
    }
}

/// The most ranges that one Dataset Management command may have.
pub const DSM_RANGES_MAX: usize = 256;
/// The attribute Deallocate in dword 11 of Dataset Management.
pub const DSM_DEALLOCATE: u32 = 1 << 2;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::opcode;

    #[test]
    fn a_write_with_placement_is_as_its_figures_have_it() {
        let flags = WriteFlags {
            fua: true,
            directive: DIRECTIVE_DATA_PLACEMENT,
            directive_specific: 0x0102,
            ..WriteFlags::default()
        };
        let command = Command::new(opcode::nvm::WRITE, 0x1234).nsid(1).sgl(Sgl::in_capsule(8192));
        let command = flags.on(command.blocks(0x1_0000_0002, 2));
        let mut bytes = [0; 64];
        bytes[..8].copy_from_slice(&[0x01, 0x40, 0x34, 0x12, 1, 0, 0, 0]);
        bytes[32..40].copy_from_slice(&[0, 0x20, 0, 0, 0, 0, 0, 0x01]);
        bytes[40..48].copy_from_slice(&[2, 0, 0, 0, 1, 0, 0, 0]);
        bytes[48..56].copy_from_slice(&[1, 0, 0x20, 0x40, 0, 0, 2, 1]);
        assert_eq!(command.encode(), bytes);
        assert_eq!(Command::decode(&bytes), command);
        assert_eq!(WriteFlags::of(&command), flags);
        assert_eq!((command.slba(), command.block_count()), (0x1_0000_0002, 2));
    }

    #[test]
    fn every_entry_comes_back_except_what_an_sgl_reserves() {
        let mut random = fastrand::Rng::with_seed(1);
        for _ in 0..200 {
            let mut bytes = [0; 64];
            random.fill(&mut bytes);
            bytes[36..39].fill(0);
            assert_eq!(Command::decode(&bytes).encode(), bytes);
        }
    }

    #[test]
    fn descriptors_of_other_transports_are_not_taken_for_data() {
        assert_eq!(Sgl::in_capsule(1).kind(), SglKind::InCapsule { offset: 0 });
        assert_eq!(Sgl::transport(1).kind(), SglKind::Transport);
        for identifier in [0x00, 0x10, 0x20, 0x40, 0x51, 0x5f] {
            assert_eq!(Sgl { identifier, ..Sgl::default() }.kind(), SglKind::Other);
        }
    }

    #[test]
    fn a_range_counts_its_blocks_from_one() {
        let range = DsmRange { cattr: 0, nlb: 8, slba: 0x10 };
        assert_eq!(range.encode(), [0, 0, 0, 0, 8, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0]);
    }
}
