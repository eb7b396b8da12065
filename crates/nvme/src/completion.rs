//! Completion queue entries. Source: base specification 2.1, 4.2.

use crate::Status;

/// Size in bytes of a completion queue entry.
pub const COMPLETION_SIZE: usize = 16;

/// A completion queue entry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Completion {
    /// The command's result, in dwords 0 and 1.
    pub result: u64,
    /// Head of the submission queue (SQHD): how far the controller has taken entries from the
    /// queue.
    pub sq_head: u16,
    /// The identifier of the submission queue. On fabrics the identifier is zero, because each
    /// connection has only one such queue.
    pub sq_id: u16,
    /// The identifier of the command that is complete.
    pub cid: u16,
    /// Whether the command succeeded, and if not, why.
    pub status: Status,
}

impl Completion {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; COMPLETION_SIZE] {
        let mut bytes = [0; COMPLETION_SIZE];
        bytes[..8].copy_from_slice(&self.result.to_le_bytes());
        bytes[8..10].copy_from_slice(&self.sq_head.to_le_bytes());
        bytes[10..12].copy_from_slice(&self.sq_id.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.cid.to_le_bytes());
        bytes[14..].copy_from_slice(&self.status.bits().to_le_bytes());
        bytes
    }

    /// Decodes an entry.
    pub fn decode(bytes: &[u8; COMPLETION_SIZE]) -> Self {
        let u16_at = |at: usize| u16::from_le_bytes([bytes[at], bytes[at + 1]]);
        let result = (0..4).map(|index| u64::from(u16_at(2 * index)) << (16 * index)).sum();
        let status = Status::from_bits(u16_at(14));
        Self { result, sq_head: u16_at(8), sq_id: u16_at(10), cid: u16_at(12), status }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_entry_is_as_its_figure_has_it() {
        let entry = Completion {
            result: 0x1122_3344_5566_7788,
            sq_head: 5,
            sq_id: 2,
            cid: 0xabcd,
            status: Status::INVALID_OPCODE.dnr(),
        };
        let bytes =
            [0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11, 5, 0, 2, 0, 0xcd, 0xab, 0x02, 0x80];
        assert_eq!(entry.encode(), bytes);
        assert_eq!(Completion::decode(&bytes), entry);
    }
}
