//! The common header of a PDU.

use super::{
    COMMON_SIZE, DIGEST_SIZE, Digests, Fes, Kind, PduError, TERM_DATA_SIZE_MAX, crc32c, flags,
};
use crate::{Command, Completion, command, completion};

/// A common header that was checked. It says where each part of its PDU is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The kind.
    pub kind: Kind,
    /// The flags.
    pub flags: u8,
    /// Size of the header with its digest, in bytes.
    pub header_size: usize,
    /// Offset of the data in the PDU. If there is no data, the offset is the size of the PDU.
    pub data_at: usize,
    /// Size of the data without its digest, in bytes.
    pub data_size: usize,
    /// Size of the whole PDU, in bytes (PLEN).
    pub size: usize,
}

/// Offsets of the fields of the common header.
const FLAGS_AT: u32 = 1;
const HLEN_AT: u32 = 2;
const PDO_AT: u32 = 3;
const PLEN_AT: u32 = 4;

impl Head {
    /// Decodes and checks the common header. `data_size_max` is the most data, in bytes, that this
    /// side accepts in one PDU. This side has asked its peer to align data to `alignment` bytes. A
    /// value below 4 counts as 4.
    ///
    /// # Errors
    /// If a field is wrong. The error says which field.
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
        // A termination request has no PDO. Its data, which repeats the start of the wrong PDU,
        // comes right after its header.
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
    /// If the digest does not match the header.
    ///
    /// # Panics
    /// If `header` is shorter than [`header_size`](Self::header_size).
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

    /// Decodes the submission queue entry, which follows the common header in a command capsule.
    pub fn command(header: &[u8; COMMON_SIZE + command::COMMAND_SIZE]) -> Command {
        let (_, entry) = header.split_last_chunk().expect("the header contains the entry");
        Command::decode(entry)
    }

    /// Decodes the completion queue entry, which follows the common header in a response capsule.
    pub fn completion(header: &[u8; COMMON_SIZE + completion::COMPLETION_SIZE]) -> Completion {
        let (_, entry) = header.split_last_chunk().expect("the header contains the entry");
        Completion::decode(entry)
    }
}
