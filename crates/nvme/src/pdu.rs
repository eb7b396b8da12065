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
//! of this kind are decoded by [`IcReq`], [`Command`], [`Completion`], [`DataHead`], [`R2t`] or
//! [`TermReq`]. The `push` functions append whole PDUs, or all of one up to its data.

use std::fmt;

use crate::{Command, Completion, command, completion};

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

/// Why a connection is terminated (FES). Source: TCP transport 1.1, figures 17 and 19.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u16)]
pub enum Fes {
    /// A field of the header is wrong; FEI is the field's offset.
    InvalidHeader = 1,
    /// The PDU came when it may not.
    SequenceError = 2,
    /// The header digest is wrong; FEI is the digest that was received.
    HeaderDigestError = 3,
    /// The data is beyond its transfer.
    DataOutOfRange = 4,
    /// From a controller: more data than its limit. From a host: more R2Ts than its limit.
    LimitExceeded = 5,
    /// A parameter is not supported; FEI is its offset.
    UnsupportedParameter = 6,
}

impl Fes {
    /// From its number.
    pub const fn of(number: u16) -> Option<Self> {
        Some(match number {
            1 => Self::InvalidHeader,
            2 => Self::SequenceError,
            3 => Self::HeaderDigestError,
            4 => Self::DataOutOfRange,
            5 => Self::LimitExceeded,
            6 => Self::UnsupportedParameter,
            _ => return None,
        })
    }
}

/// What is wrong with a PDU: all that a termination request says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PduError {
    /// The kind of the error.
    pub fes: Fes,
    /// More about it: the offset of a field, or a digest.
    pub fei: u32,
    /// The field, as the specification calls it, or what is wrong, for people.
    pub what: &'static str,
}

impl PduError {
    /// A field of the header is wrong.
    pub const fn field(what: &'static str, offset: u32) -> Self {
        Self { fes: Fes::InvalidHeader, fei: offset, what }
    }

    /// The PDU came when it may not.
    pub const fn sequence(what: &'static str) -> Self {
        Self { fes: Fes::SequenceError, fei: 0, what }
    }
}

impl fmt::Display for PduError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { fes, fei, what } = self;
        match fes {
            Fes::InvalidHeader => write!(f, "wrong field {what}, at byte {fei} of the header"),
            Fes::SequenceError => write!(f, "unexpected PDU: {what}"),
            Fes::HeaderDigestError => write!(f, "wrong header digest {fei:08x}"),
            Fes::DataOutOfRange => write!(f, "data beyond its transfer: {what}"),
            Fes::LimitExceeded => write!(f, "beyond a limit: {what}"),
            Fes::UnsupportedParameter => write!(f, "{what} is not supported"),
        }
    }
}

impl std::error::Error for PduError {}

/// A common header that was checked: where everything of its PDU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind.
    pub kind: Kind,
    /// The flags.
    pub flags: u8,
    /// Size of the header with its digest, in bytes.
    pub header_size: usize,
    /// Offset of the data; if there is none, the size of the PDU.
    pub data_at: usize,
    /// Size of the data without its digest, in bytes.
    pub data_size: usize,
    /// Size of the whole PDU, in bytes (PLEN).
    pub size: usize,
}

/// Fields of the common header, by their offsets.
const FLAGS_AT: u32 = 1;
const HLEN_AT: u32 = 2;
const PDO_AT: u32 = 3;
const PLEN_AT: u32 = 4;

impl Head {
    /// From the common header. `data_size_max` is the most data that this side takes in a PDU of
    /// the other side; `alignment` is what this side has asked data to be aligned to, in bytes (at
    /// least 4).
    ///
    /// # Errors
    /// Which field is wrong.
    pub fn decode(
        bytes: &[u8; COMMON_SIZE],
        digests: Digests,
        alignment: usize,
        data_size_max: usize,
    ) -> Result<Self, PduError> {
        let [kind, flags, hlen, pdo, plen @ ..] = *bytes;
        let kind = Kind::of(kind).ok_or(PduError::field("PDU-Type", 0))?;
        if usize::from(hlen) != kind.header_size() {
            return Err(PduError::field("HLEN", HLEN_AT));
        }
        let has_header_digest = flags & flags::HDGSTF != 0;
        if has_header_digest != (digests.header && kind.may_have_digests()) {
            return Err(PduError::field("FLAGS.HDGSTF", FLAGS_AT));
        }
        let header_size = kind.header_size() + usize::from(has_header_digest) * DIGEST_SIZE;
        let size = u32::from_le_bytes(plen) as usize;
        let has_data = size > header_size;
        if size < header_size || (has_data && !kind.may_have_data()) {
            return Err(PduError::field("PLEN", PLEN_AT));
        }
        let has_data_digest = flags & flags::DDGSTF != 0;
        if has_data_digest != (digests.data && kind.may_have_digests() && has_data) {
            return Err(PduError::field("FLAGS.DDGSTF", FLAGS_AT));
        }
        if !has_data {
            return Ok(Self { kind, flags, header_size, data_at: size, data_size: 0, size });
        }
        // A termination request has no PDO: what it repeats follows its header.
        let data_at = if kind.may_have_digests() { usize::from(pdo) } else { header_size };
        if data_at < header_size
            || (kind.may_have_digests() && !data_at.is_multiple_of(alignment.max(4)))
        {
            return Err(PduError::field("PDO", PDO_AT));
        }
        let end = size - usize::from(has_data_digest) * DIGEST_SIZE;
        let data_size = end.checked_sub(data_at).ok_or(PduError::field("PDO", PDO_AT))?;
        let data_size_max =
            if kind.may_have_digests() { data_size_max } else { TERM_DATA_SIZE_MAX };
        if data_size > data_size_max && kind == Kind::H2cData {
            let what = "data of an H2CData";
            return Err(PduError { fes: Fes::LimitExceeded, fei: 0, what });
        }
        if data_size == 0 || data_size > data_size_max {
            return Err(PduError::field("PLEN", PLEN_AT));
        }
        Ok(Self { kind, flags, header_size, data_at, data_size, size })
    }

    /// Whether a flag is set.
    pub const fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Checks the header digest, if there is one. `header` is the whole header with its digest.
    ///
    /// # Errors
    /// When the digest is another.
    ///
    /// # Panics
    /// When `header` is shorter than [`header_size`](Self::header_size).
    pub fn check_header(&self, header: &[u8]) -> Result<(), PduError> {
        if !self.has(flags::HDGSTF) {
            return Ok(());
        }
        let (covered, digest) = header[..self.header_size].split_at(self.kind.header_size());
        let found = u32::from_le_bytes(digest.try_into().expect("a digest has four bytes"));
        if crc32c(covered) == found {
            Ok(())
        } else {
            let what = "header digest";
            Err(PduError { fes: Fes::HeaderDigestError, fei: found, what })
        }
    }

    /// The header's own part, behind the common header, of a PDU with a submission queue entry.
    pub fn command(header: &[u8; COMMON_SIZE + command::COMMAND_SIZE]) -> Command {
        let (_, entry) = header.split_last_chunk().expect("a header has its entry");
        Command::decode(entry)
    }

    /// The header's own part, behind the common header, of a PDU with a completion queue entry.
    pub fn completion(header: &[u8; COMMON_SIZE + completion::COMPLETION_SIZE]) -> Completion {
        let (_, entry) = header.split_last_chunk().expect("a header has its entry");
        Completion::decode(entry)
    }
}

layout! {
    /// Initialize Connection Request. Source: TCP transport 1.1, figure 15.
    pub struct IcReq [128] {
        /// Version of the PDUs; zero.
        pfv: u16 = 8,
        /// Alignment of data for the host: in dwords, less one.
        hpda: u8 = 10,
        /// The digests that the host wants.
        dgst: u8 = 11,
        /// Most R2Ts of a command at once, less one.
        maxr2t: u32 = 12,
    }
}

impl IcReq {
    /// Checks its fields, and returns the digests that it asks for.
    ///
    /// # Errors
    /// Which field is wrong.
    pub fn check(&self) -> Result<Digests, PduError> {
        if self.pfv != 0 {
            return Err(PduError { fes: Fes::UnsupportedParameter, fei: 8, what: "PFV" });
        }
        if self.hpda > 31 {
            return Err(PduError::field("HPDA", 10));
        }
        Digests::of_bits(self.dgst).ok_or(PduError::field("DGST", 11))
    }

    /// Appends the PDU.
    pub fn push(&self, out: &mut Vec<u8>) {
        push_head(out, Kind::IcReq, 0, &self.encode(), Digests::default(), 4, 0);
    }
}

layout! {
    /// Initialize Connection Response. Source: TCP transport 1.1, figure 16.
    pub struct IcResp [128] {
        /// Version of the PDUs; zero.
        pfv: u16 = 8,
        /// Alignment of data for the controller: in dwords, less one.
        cpda: u8 = 10,
        /// The digests that the connection has.
        dgst: u8 = 11,
        /// Most bytes of an H2CData PDU.
        maxh2cdata: u32 = 12,
    }
}

impl IcResp {
    /// Checks its fields, and returns the digests that the connection has.
    ///
    /// # Errors
    /// Which field is wrong.
    pub fn check(&self) -> Result<Digests, PduError> {
        if self.pfv != 0 {
            return Err(PduError { fes: Fes::UnsupportedParameter, fei: 8, what: "PFV" });
        }
        if self.cpda > 31 {
            return Err(PduError::field("CPDA", 10));
        }
        if self.maxh2cdata < MAXH2CDATA_MIN || !self.maxh2cdata.is_multiple_of(4) {
            return Err(PduError::field("MAXH2CDATA", 12));
        }
        Digests::of_bits(self.dgst).ok_or(PduError::field("DGST", 11))
    }

    /// Appends the PDU.
    pub fn push(&self, out: &mut Vec<u8>) {
        push_head(out, Kind::IcResp, 0, &self.encode(), Digests::default(), 4, 0);
    }
}

layout! {
    /// Terminate Connection Request. Source: TCP transport 1.1, figures 17 and 18.
    pub struct TermReq [24] {
        /// Fatal error status; [`Fes`] has those that this crate knows.
        fes: u16 = 8,
        /// Fatal error information.
        fei: u32 = 10,
    }
}

impl TermReq {
    /// Appends the PDU: from a host or a controller, with the first bytes of the PDU that was
    /// wrong.
    pub fn push(out: &mut Vec<u8>, kind: Kind, error: PduError, wrong: &[u8]) {
        let wrong = &wrong[..wrong.len().min(TERM_DATA_SIZE_MAX)];
        let term = Self { fes: error.fes as u16, fei: error.fei };
        let mut header = term.encode();
        header[..COMMON_SIZE].copy_from_slice(&common(kind, 0, 0, 24 + wrong.len()));
        out.extend(header);
        out.extend(wrong);
    }
}

layout! {
    /// Header of data in either direction. Source: TCP transport 1.1, figures 21 and 22.
    pub struct DataHead [24] {
        /// The command (CCCID).
        cccid: u16 = 8,
        /// The transfer, as its R2T named it (TTAG); zero to the host.
        ttag: u16 = 10,
        /// Offset in the command's data, in bytes (DATAO).
        datao: u32 = 12,
        /// Size of the data, in bytes (DATAL).
        datal: u32 = 16,
    }
}

layout! {
    /// Ready to Transfer. Source: TCP transport 1.1, figure 23.
    pub struct R2t [24] {
        /// The command (CCCID).
        cccid: u16 = 8,
        /// The controller's name for the transfer (TTAG).
        ttag: u16 = 10,
        /// Offset in the command's data, in bytes (R2TO).
        r2to: u32 = 12,
        /// Bytes to transfer (R2TL).
        r2tl: u32 = 16,
    }
}

impl R2t {
    /// Appends the PDU.
    pub fn push(&self, out: &mut Vec<u8>, digests: Digests) {
        push_head(out, Kind::R2t, 0, &self.encode(), digests, 4, 0);
    }
}

/// Appends a response capsule.
pub fn push_completion(out: &mut Vec<u8>, completion: &Completion, digests: Digests) {
    let mut header = [0; COMMON_SIZE + completion::COMPLETION_SIZE];
    header[COMMON_SIZE..].copy_from_slice(&completion.encode());
    push_head(out, Kind::CapsuleResp, 0, &header, digests, 4, 0);
}

/// Appends a command capsule with its in-capsule data, which may be empty. `alignment` is what the
/// controller asked for, in bytes.
pub fn push_command(
    out: &mut Vec<u8>,
    command: &Command,
    data: &[u8],
    digests: Digests,
    alignment: usize,
) {
    let mut header = [0; COMMON_SIZE + command::COMMAND_SIZE];
    header[COMMON_SIZE..].copy_from_slice(&command.encode());
    push_head(out, Kind::CapsuleCmd, 0, &header, digests, alignment, data.len());
    push_data(out, data, digests);
}

/// Appends an H2CData or C2HData up to its data, which is `head.datal` bytes and must follow, then
/// its [digest](data_digest) if the connection has data digests. `alignment` is what the other side
/// asked for, in bytes.
pub fn push_data_head(
    out: &mut Vec<u8>,
    kind: Kind,
    flags: u8,
    head: &DataHead,
    digests: Digests,
    alignment: usize,
) {
    push_head(out, kind, flags, &head.encode(), digests, alignment, head.datal as usize);
}

/// Appends data and, if the connection has data digests, its digest. Nothing if there is no data.
pub fn push_data(out: &mut Vec<u8>, data: &[u8], digests: Digests) {
    out.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        out.extend(data_digest(data));
    }
}

/// The digest behind data.
pub fn data_digest(data: &[u8]) -> [u8; DIGEST_SIZE] {
    crc32c(data).to_le_bytes()
}

/// CRC32C, as digests have it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Bytes of a PDU with so much data: of its header with digest and padding, and of all.
fn sizes(kind: Kind, digests: Digests, alignment: usize, data_size: usize) -> (usize, usize) {
    let has_digests = kind.may_have_digests();
    let header_size = kind.header_size() + usize::from(has_digests && digests.header) * DIGEST_SIZE;
    if data_size == 0 {
        return (header_size, header_size);
    }
    let data_at = header_size.next_multiple_of(alignment.max(4));
    let digest_size = usize::from(has_digests && digests.data) * DIGEST_SIZE;
    (data_at, data_at + data_size + digest_size)
}

/// A common header.
fn common(kind: Kind, flags: u8, data_at: usize, size: usize) -> [u8; COMMON_SIZE] {
    let [a, b, c, d] = (size as u32).to_le_bytes();
    [kind as u8, flags, kind.header_size() as u8, data_at as u8, a, b, c, d]
}

/// Appends a header with its digest and its padding. The first eight bytes of `header` are
/// replaced.
fn push_head(
    out: &mut Vec<u8>,
    kind: Kind,
    mut flags: u8,
    header: &[u8],
    digests: Digests,
    alignment: usize,
    data_size: usize,
) {
    assert_eq!(header.len(), kind.header_size(), "a header has its kind's size");
    assert!(alignment <= ALIGNMENT_MAX, "PDO has eight bits");
    let has_digests = kind.may_have_digests();
    let (data_at, size) = sizes(kind, digests, alignment, data_size);
    if has_digests && digests.header {
        flags |= flags::HDGSTF;
    }
    if has_digests && digests.data && data_size > 0 {
        flags |= flags::DDGSTF;
    }
    let start = out.len();
    out.extend(common(kind, flags, if data_size > 0 { data_at } else { 0 }, size));
    out.extend_from_slice(&header[COMMON_SIZE..]);
    if has_digests && digests.header {
        let digest = crc32c(&out[start..]);
        out.extend(digest.to_le_bytes());
    }
    out.resize(start + data_at, 0);
}

#[cfg(test)]
mod tests;
