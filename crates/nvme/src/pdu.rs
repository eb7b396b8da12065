//! PDUs of NVMe/TCP, with their digests. Source: NVM Express TCP transport specification 1.1, 3.6.
//!
//! ```text
//! | common header, 8 B | of this kind | header digest | padding | data | data digest |
//! |<------------ HLEN ------------->|       4 B      |         |      |     4 B     |
//! |<----------------------- PDO ------------------------------>|      |             |
//! |<----------------------------------- PLEN -------------------------------------->|
//! ```
//!
//! [`Head`] decodes and checks the common header, and so tells where everything is. Then the bytes
//! of this kind are decoded by [`IcReq`], [`Command`](crate::Command), [`Completion`](crate::Completion), [`DataHead`], [`R2t`] or
//! [`TermReq`]. The `push` functions append whole PDUs, or all of one up to its data.

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
/// Most bytes of a wrong PDU that a termination request repeats.
pub const TERM_DATA_SIZE_MAX: usize = 128;
/// Least value of MAXH2CDATA.
pub const MAXH2CDATA_MIN: u32 = 4096;
/// Highest alignment of data that a side may ask for, in bytes: HPDA and CPDA are below 32.
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
    /// From its number.
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

    /// Size in bytes of its header (HLEN), without digest.
    pub const fn header_size(self) -> usize {
        match self {
            Self::IcReq | Self::IcResp => 128,
            Self::CapsuleCmd => COMMON_SIZE + command::COMMAND_SIZE,
            Self::CapsuleResp => COMMON_SIZE + completion::COMPLETION_SIZE,
            _ => 24,
        }
    }

    /// Whether the host sends it.
    pub const fn is_of_host(self) -> bool {
        matches!(self, Self::IcReq | Self::H2cTermReq | Self::CapsuleCmd | Self::H2cData)
    }

    /// Whether it has digests if the connection has.
    const fn may_have_digests(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::H2cTermReq | Self::C2hTermReq)
    }

    /// Whether it may have data.
    const fn may_have_data(self) -> bool {
        !matches!(self, Self::IcReq | Self::IcResp | Self::CapsuleResp | Self::R2t)
    }
}

/// Bits of the flags of a PDU.
pub mod flags {
    /// It has a header digest.
    pub const HDGSTF: u8 = 1 << 0;
    /// It has a data digest.
    pub const DDGSTF: u8 = 1 << 1;
    /// Its data is the last of the transfer.
    pub const LAST_PDU: u8 = 1 << 2;
    /// No response capsule follows: the command was successful.
    pub const SUCCESS: u8 = 1 << 3;
}

/// The digests of a connection, which both sides have agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Digests {
    /// Headers have digests.
    pub header: bool,
    /// Data has digests.
    pub data: bool,
}

impl Digests {
    /// As ICReq and ICResp have it.
    pub const fn bits(self) -> u8 {
        self.header as u8 | (self.data as u8) << 1
    }

    /// From ICReq and ICResp; `None` if a reserved bit is set.
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
