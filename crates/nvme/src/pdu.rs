//! Protocol data units (PDUs) of NVMe/TCP, with their digests. Source: NVM Express TCP transport
//! specification 1.1, 3.6.
//!
//! ```text
//! | common header, 8 B | of this kind | header digest | padding | data | data digest |
//! |<------------ HLEN ------------->|       4 B      |         |      |     4 B     |
//! |<----------------------- PDO ------------------------------>|      |             |
//! |<----------------------------------- PLEN -------------------------------------->|
//! ```
//!
//! [`Head`] decodes and checks the common header, and says where each part of the PDU is. The rest
//! of the header ("of this kind" in the drawing) depends on the kind of PDU: [`IcReq`], [`IcResp`],
//! [`Command`], [`Completion`], [`DataHead`], [`R2t`] or [`TermReq`] decodes it. The `push`
//! functions append a whole PDU, or all of a PDU up to its data.
//!
//! [`Command`]: crate::Command
//! [`Completion`]: crate::Completion

mod error;
mod fields;
mod head;
mod push;

pub use error::{Fes, PduError};
pub use fields::{DataHead, IcReq, IcResp, R2t, TermReq};
pub use head::Head;
pub use push::{crc32c, data_digest, push_command, push_completion, push_data, push_data_head};

use crate::{command, completion};

/// Size in bytes of the common header.
pub const COMMON_SIZE: usize = 8;
/// Size in bytes of the longest header.
pub const HEADER_SIZE_MAX: usize = 128;
/// Size in bytes of a digest.
pub const DIGEST_SIZE: usize = 4;
/// The most bytes of a wrong PDU that a termination request repeats.
pub const TERM_DATA_SIZE_MAX: usize = 128;
/// The lowest value that MAXH2CDATA may have, in bytes.
pub const MAXH2CDATA_MIN: u32 = 4096;
/// The highest alignment of data that either side may ask for, in bytes. A side asks with a field
/// of ICReq (HPDA) or ICResp (CPDA). The field is at most 31, and stands for (value + 1) dwords.
pub const ALIGNMENT_MAX: usize = 128;

/// The kind of a PDU. Source: TCP transport 1.1, figure 14.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// Initialize Connection Request.
    IcReq = 0x00,
    /// Initialize Connection Response.
    IcResp = 0x01,
    /// Host to Controller Terminate Connection Request.
    H2cTermReq = 0x02,
    /// Controller to Host Terminate Connection Request.
    C2hTermReq = 0x03,
    /// Command Capsule.
    CapsuleCmd = 0x04,
    /// Response Capsule.
    CapsuleResp = 0x05,
    /// Host to Controller Data.
    H2cData = 0x06,
    /// Controller to Host Data.
    C2hData = 0x07,
    /// Ready to Transfer.
    R2t = 0x09,
}

impl Kind {
    /// The kind with this number, if there is one.
    pub const fn of(number: u8) -> Option<Self> {
        Some(match number {
            0x00 => Self::IcReq,
            0x01 => Self::IcResp,
            0x02 => Self::H2cTermReq,
            0x03 => Self::C2hTermReq,
            0x04 => Self::CapsuleCmd,
            0x05 => Self::CapsuleResp,
            0x06 => Self::H2cData,
            0x07 => Self::C2hData,
            0x09 => Self::R2t,
            _ => return None,
        })
    }

    /// Size of the header in bytes (HLEN), without its digest.
    pub const fn header_size(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => COMMON_SIZE + command::COMMAND_SIZE,
            Self::CapsuleResp => COMMON_SIZE + completion::COMPLETION_SIZE,
            _ => 24,
        }
    }

    /// Whether PDUs of this kind come from the host.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData)
    }

    /// Whether PDUs of this kind have digests, if the connection uses digests.
    const fn may_have_digests(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether PDUs of this kind may have data.
    const fn may_have_data(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::CapsuleResp | Self::R2t)
    }
}

/// Bits of the flags of a PDU.
pub mod flags {
    /// The PDU has a header digest.
    pub const HDGSTF: u8 = 1 << 0;
    /// The PDU has a data digest.
    pub const DDGSTF: u8 = 1 << 1;
    /// The PDU has the last data of its transfer.
    pub const LAST_PDU: u8 = 1 << 2;
    /// The command was successful, and no response capsule follows.
    pub const SUCCESS: u8 = 1 << 3;
}

/// The digests that both sides of a connection have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Headers have digests.
    pub header: bool,
    /// Data has digests.
    pub data: bool,
}

impl Digests {
    /// The bits that name these digests in an ICReq or ICResp.
    pub const fn bits(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    /// The digests that the bits of an ICReq or ICResp name. `None` if a reserved bit is set.
    pub const fn of_bits(bits: u8) -> Option<Self> {
        if bits & !3 == 0 {
            Some(Self { header: bits & 1 != 0, data: bits & 2 != 0 })
        } else {
            None
        }
    }
}

#[cfg(test)]
mod tests;
