//! Appends PDUs, with their digests.

use super::{ALIGNMENT_MAX, COMMON_SIZE, DIGEST_SIZE, DataHead, Digests, Kind, flags};
use crate::{Command, Completion, command, completion};

/// Appends a response capsule.
pub fn push_completion(out: &mut Vec<u8>, completion: &Completion, digests: Digests) {
    let mut header = [0; COMMON_SIZE + completion::COMPLETION_SIZE];
    header[COMMON_SIZE..].copy_from_slice(&completion.encode());
    push_head(out, Kind::CapsuleResp, 0, &header, digests, 4, 0);
}

/// Appends a command capsule with its in-capsule data, which may be empty. The data is aligned to
/// `alignment` bytes, as the controller has asked.
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

/// Appends an H2CData or C2HData PDU up to its data. The caller then has to append `head.datal`
/// bytes of data and, if the connection has data digests, their [digest](data_digest). The data is
/// aligned to `alignment` bytes, as the other side has asked.
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

/// Appends data and, if the connection has data digests, its digest. Empty data has no digest.
pub fn push_data(out: &mut Vec<u8>, data: &[u8], digests: Digests) {
    out.extend_from_slice(data);
    if digests.data && !data.is_empty() {
        out.extend(data_digest(data));
    }
}

/// The digest that follows `data`.
pub fn data_digest(data: &[u8]) -> [u8; DIGEST_SIZE] {
    crc32c(data).to_le_bytes()
}

/// The CRC32C of some bytes, as header and data digests use it.
pub fn crc32c(bytes: &[u8]) -> u32 {
    crc_fast::checksum(crc_fast::CrcAlgorithm::Crc32Iscsi, bytes) as u32
}

/// Two sizes, in bytes, of a PDU that has `data_size` bytes of data: the size of its header with
/// digest and padding, and the size of the whole PDU.
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

/// The common header, with which every PDU begins.
pub(super) fn common(kind: Kind, flags: u8, data_at: usize, size: usize) -> [u8; COMMON_SIZE] {
    let [a, b, c, d] = (size as u32).to_le_bytes();
    [kind as u8, flags, kind.header_size() as u8, data_at as u8, a, b, c, d]
}

/// Appends a header with its digest and its padding. The first eight bytes of `header` are ignored:
/// they are where the common header goes.
pub(super) fn push_head(
    out: &mut Vec<u8>,
    kind: Kind,
    mut flags: u8,
    header: &[u8],
    digests: Digests,
    alignment: usize,
    data_size: usize,
) {
    assert_eq!(header.len(), kind.header_size(), "the header does not have its kind's size");
    assert!(alignment <= ALIGNMENT_MAX, "the alignment is too large for the eight bits of PDO");
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
