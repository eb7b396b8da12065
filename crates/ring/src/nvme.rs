//! Commands for the NVMe driver, which passes them to the device unchanged (`linux/nvme_ioctl.h`).

use std::fmt;

/// `NVME_URING_CMD_IO`: `_IOWR('N', 0x80, struct nvme_uring_cmd)`. The structure has 72 bytes.
pub(crate) const NVME_URING_CMD_IO: u32 = 0xc048_4e80;

/// An I/O command of a namespace, without its data.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NvmeCommand {
    /// Opcode of the NVM command set.
    pub opcode: u8,
    /// The namespace id. It must be the id of the descriptor's namespace, or the driver refuses
    /// the command.
    pub nsid: u32,
    /// Command dwords 10 to 15.
    pub cdw10_to_15: [u32; 6],
}

impl NvmeCommand {
    /// The command as a `struct nvme_uring_cmd`, followed by zeros. They fill the 80 bytes that a
    /// submission queue entry has for a driver's command.
    pub(crate) fn encode(&self, address: u64, size: u32) -> [u8; 80] {
        let mut bytes = [0; 80];
        bytes[0] = self.opcode;
        bytes[4..8].copy_from_slice(&self.nsid.to_ne_bytes());
        bytes[24..32].copy_from_slice(&address.to_ne_bytes());
        bytes[36..40].copy_from_slice(&size.to_ne_bytes());
        for (place, dword) in bytes[40..64].chunks_exact_mut(4).zip(self.cdw10_to_15) {
            place.copy_from_slice(&dword.to_ne_bytes());
        }
        bytes
    }
}

/// A status of the device other than success: the 15 bits after the phase tag.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct NvmeStatus(u16);

impl NvmeStatus {
    /// The status in a word that the driver has returned; `None` if the word means success.
    pub fn new(word: u16) -> Option<Self> {
        (word & 0x7ff != 0).then_some(Self(word & 0x7fff))
    }

    /// Status code type, from 0 to 7.
    pub fn kind(self) -> u8 {
        (self.0 >> 8 & 7) as u8
    }

    /// Status code, whose meaning depends on the type.
    pub fn code(self) -> u8 {
        self.0 as u8
    }

    /// Whether the device expects the same command to fail again.
    pub fn do_not_retry(self) -> bool {
        self.0 & 0x4000 != 0
    }
}

impl fmt::Debug for NvmeStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "NvmeStatus({}:{:02x}h)", self.kind(), self.code())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_laid_out_as_the_driver_reads_it() {
        let command =
            NvmeCommand { opcode: 0x01, nsid: 0x0102_0304, cdw10_to_15: [10, 11, 12, 13, 14, 15] };
        let bytes = command.encode(0x1122_3344_5566_7788, 0x2000);
        let mut expected = [0_u8; 80];
        expected[0] = 0x01;
        expected[4..8].copy_from_slice(&[4, 3, 2, 1]);
        expected[24..32].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        expected[36..40].copy_from_slice(&[0, 0x20, 0, 0]);
        for dword in 0..6 {
            expected[40 + 4 * dword] = 10 + dword as u8;
        }
        if cfg!(target_endian = "little") {
            assert_eq!(bytes, expected);
        }
        assert_eq!(NVME_URING_CMD_IO, 3 << 30 | 72 << 16 | u32::from(b'N') << 8 | 0x80);
    }

    #[test]
    fn a_status_is_a_type_and_a_code() {
        assert_eq!(NvmeStatus::new(0), None);
        // The other bits of the word ("more" and the retry delay) do not make it a failure.
        assert_eq!(NvmeStatus::new(0x2000), None);
        let status = NvmeStatus::new(0x4281).expect("the word is a failure");
        assert_eq!((status.kind(), status.code(), status.do_not_retry()), (2, 0x81, true));
        let status = NvmeStatus::new(0x0002).expect("the word is a failure");
        assert_eq!((status.kind(), status.code(), status.do_not_retry()), (0, 2, false));
        assert_eq!(format!("{status:?}"), "NvmeStatus(0:02h)");
    }
}
