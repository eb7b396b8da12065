//! Batches and records as bytes.
//!
//! ```text
//! | open half | closing half | record | record | ... | zeros to a whole block |
//!  0           32             80
//! ```
//!
//! The open half is written when the batch is opened in its buffer. The closing half is written
//! when the batch is submitted. If the process dies in between, a buffer that is mapped from a file
//! still holds the open half and the records. Recovery can read both, because the open half and
//! each record have checksums of their own.

use slimio_device::LBA_SIZE;
use slimio_planted::is_planted;

use crate::checksum::{Salt, chain, hash, mix};
use crate::layout::{self, batch as at, put_u32, put_u64, record, u16_at, u32_at, u64_at};
use crate::{Lsn, VolumeId};

/// How a batch is placed in the log. A tail pair is two blocks that small commits are written to
/// alternately.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Kind {
    /// The batch has whole blocks of its own.
    Plain,
    /// The batch has one block, the first of a tail pair.
    TailFirst,
    /// The batch has one block, the second of a tail pair.
    TailSecond,
}

impl Kind {
    fn to_u32(self) -> u32 {
        match self {
            Self::Plain => 0,
            Self::TailFirst => 1,
            Self::TailSecond => 2,
        }
    }

    fn from_u32(raw: u32) -> Option<Self> {
        match raw {
            0 => Some(Self::Plain),
            1 => Some(Self::TailFirst),
            2 => Some(Self::TailSecond),
            _ => None,
        }
    }
}

/// The header of a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) epoch: u64,
    pub(crate) first_lsn: Lsn,
    pub(crate) records_size: u32,
    pub(crate) kind: Kind,
    pub(crate) durable: Lsn,
    pub(crate) parent: u64,
    pub(crate) superblock_sequence: u64,
    pub(crate) checksum: u64,
}

impl Header {
    /// The LSN at which the batch's last record ends.
    pub(crate) fn end(&self) -> Lsn {
        Lsn(self.first_lsn.0 + u64::from(self.records_size))
    }

    /// Blocks of the batch.
    pub(crate) fn lbas(&self) -> u64 {
        (at::SIZE as u64 + u64::from(self.records_size)).div_ceil(LBA_SIZE as u64)
    }
}

/// Writes the open half. Once the open half is written, recovery can find the records after it.
pub(crate) fn write_open_half(bytes: &mut [u8], volume_id: VolumeId, epoch: u64, first_lsn: Lsn) {
    bytes[at::MAGIC..at::MAGIC + 4].copy_from_slice(&layout::BATCH_MAGIC);
    put_u32(bytes, at::VOLUME, volume_id.0 as u32);
    put_u64(bytes, at::EPOCH, epoch);
    put_u64(bytes, at::FIRST_LSN, first_lsn.0);
    let checksum = Salt::new(volume_id, epoch).seal(first_lsn.0, &bytes[..at::OPEN_CHECKSUM]);
    put_u64(bytes, at::OPEN_CHECKSUM, checksum);
}

/// Writes the closing half. `header` has all fields except the checksum, which this function
/// computes and returns. `records_chain` is the chain of the records' checksums.
pub(crate) fn write_closing_half(
    bytes: &mut [u8],
    salt: Salt,
    header: &Header,
    records_chain: u64,
) -> u64 {
    put_u32(bytes, at::RECORDS_SIZE, header.records_size);
    put_u32(bytes, at::KIND, header.kind.to_u32());
    put_u64(bytes, at::DURABLE_LSN, header.durable.0);
    put_u64(bytes, at::PARENT, header.parent);
    put_u64(bytes, at::SUPERBLOCK_SEQUENCE, header.superblock_sequence);
    put_u64(bytes, at::REPLICATION_OFFSET, 0);
    let checksum = header_checksum(bytes, salt, header.first_lsn, records_chain);
    put_u64(bytes, at::CHECKSUM, checksum);
    checksum
}

fn header_checksum(bytes: &[u8], salt: Salt, first_lsn: Lsn, records_chain: u64) -> u64 {
    salt.seal_hash(first_lsn.0, hash(&bytes[..at::CHECKSUM]) ^ mix(records_chain))
}

/// Returns the epoch and the first LSN in the open half at the start of `bytes`, if there is one.
pub(crate) fn read_open_half(bytes: &[u8], volume_id: VolumeId) -> Option<(u64, Lsn)> {
    if bytes[at::MAGIC..at::MAGIC + 4] != layout::BATCH_MAGIC
        || u32_at(bytes, at::VOLUME) != volume_id.0 as u32
    {
        return None;
    }
    let (epoch, first_lsn) = (u64_at(bytes, at::EPOCH), u64_at(bytes, at::FIRST_LSN));
    let checksum = Salt::new(volume_id, epoch).seal(first_lsn, &bytes[..at::OPEN_CHECKSUM]);
    let is_right = u64_at(bytes, at::OPEN_CHECKSUM) == checksum || is_planted("no-checksum");
    is_right.then_some((epoch, Lsn(first_lsn)))
}

/// Whether a batch of another volume starts here, judging by its magic and its volume number.
pub(crate) fn is_foreign(bytes: &[u8], volume_id: VolumeId) -> bool {
    bytes[at::MAGIC..at::MAGIC + 4] == layout::BATCH_MAGIC
        && u32_at(bytes, at::VOLUME) != volume_id.0 as u32
}

/// The header at the start of `bytes`, checked as far as possible without the records. The whole
/// batch must pass [`is_whole`] too. `batch_size_max` limits the batch size, in bytes, that the
/// header may state.
pub(crate) fn read_header(
    bytes: &[u8],
    volume_id: VolumeId,
    batch_size_max: usize,
) -> Option<Header> {
    let header = any_header(bytes, volume_id)?;
    let size = at::SIZE + header.records_size as usize;
    let size_max = if header.kind == Kind::Plain { batch_size_max } else { LBA_SIZE };
    let is_batch = header.records_size > 0 && size <= size_max;
    (is_batch && u64_at(bytes, at::REPLICATION_OFFSET) == 0).then_some(header)
}

fn any_header(bytes: &[u8], volume_id: VolumeId) -> Option<Header> {
    let (epoch, first_lsn) = read_open_half(bytes, volume_id)?;
    Some(Header {
        epoch,
        first_lsn,
        records_size: u32_at(bytes, at::RECORDS_SIZE),
        kind: Kind::from_u32(u32_at(bytes, at::KIND))?,
        durable: Lsn(u64_at(bytes, at::DURABLE_LSN)),
        parent: u64_at(bytes, at::PARENT),
        superblock_sequence: u64_at(bytes, at::SUPERBLOCK_SEQUENCE),
        checksum: u64_at(bytes, at::CHECKSUM),
    })
}

/// Reads a header that no records follow. The log stores such a header in a mapped buffer to note
/// how far the log is durable. The header's own checksum suffices to check the header.
pub(crate) fn read_witness(bytes: &[u8], volume_id: VolumeId) -> Option<Header> {
    let header = any_header(bytes, volume_id).filter(|header| header.records_size == 0)?;
    let salt = Salt::new(volume_id, header.epoch);
    (header_checksum(bytes, salt, header.first_lsn, 0) == header.checksum).then_some(header)
}

/// Whether the header, the records and the padding of a batch are as they were written. `bytes` has
/// all blocks of the batch.
pub(crate) fn is_whole(bytes: &[u8], volume_id: VolumeId, header: &Header) -> bool {
    let salt = Salt::new(volume_id, header.epoch);
    let end = at::SIZE + header.records_size as usize;
    let mut records_chain = 0;
    let mut walk = Records::new(&bytes[..end], salt, header.first_lsn);
    for view in walk.by_ref() {
        records_chain = chain(records_chain, view.checksum);
    }
    let is_right = header_checksum(bytes, salt, header.first_lsn, records_chain) == header.checksum
        || is_planted("no-checksum");
    walk.at == end && is_right && bytes[end..].iter().all(|&byte| byte == 0)
}

/// Puts a record, or a fragment of one, at the start of `bytes`. `fill` writes the payload. The
/// record's checksum is stored last, and is returned.
pub(crate) fn write_record(
    bytes: &mut [u8],
    salt: Salt,
    start: Lsn,
    db: u16,
    flags: u32,
    payload_size: usize,
    fill: impl FnOnce(&mut [u8]),
) -> u64 {
    fill(&mut bytes[record::SIZE..record::SIZE + payload_size]);
    let hash = write_record_head(bytes, db, flags, payload_size);
    seal_record(bytes, salt, start, hash)
}

/// Writes the head of a record whose payload is in place, and returns the hash of head and payload.
/// The record is valid once it is [sealed](seal_record).
pub(crate) fn write_record_head(bytes: &mut [u8], db: u16, flags: u32, payload_size: usize) -> u64 {
    put_u32(bytes, record::LENGTH, payload_size as u32 | flags);
    bytes[record::DB..record::DB + 2].copy_from_slice(&db.to_le_bytes());
    hash(&bytes[record::LENGTH..record::SIZE + payload_size])
}

/// Computes the checksum of a record that starts at `start` and whose head and payload have this
/// hash. Writes the checksum, and returns it.
pub(crate) fn seal_record(bytes: &mut [u8], salt: Salt, start: Lsn, hash: u64) -> u64 {
    let checksum = salt.seal_hash(start.0, hash);
    put_u64(bytes, record::CHECKSUM, checksum);
    checksum
}

/// A record, or a fragment of one, as it lies in a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RecordView<'a> {
    pub(crate) start: Lsn,
    pub(crate) end: Lsn,
    pub(crate) db: u16,
    pub(crate) is_first: bool,
    pub(crate) is_last: bool,
    pub(crate) checksum: u64,
    pub(crate) payload: &'a [u8],
}

/// The records of a batch, up to the first record that is not whole.
pub(crate) struct Records<'a> {
    bytes: &'a [u8],
    /// Offset in `bytes` of the next record.
    pub(crate) at: usize,
    salt: Salt,
    lsn: Lsn,
    is_checked: bool,
}

impl<'a> Records<'a> {
    /// The records of a batch whose header is at the start of `bytes`.
    pub(crate) fn new(bytes: &'a [u8], salt: Salt, first_lsn: Lsn) -> Self {
        let is_checked = !is_planted("no-checksum");
        Self { bytes, at: at::SIZE, salt, lsn: first_lsn, is_checked }
    }

    /// The records of a batch that has passed [`is_whole`]. Their checksums are not computed again.
    pub(crate) fn of_whole(bytes: &'a [u8], salt: Salt, header: &Header) -> Self {
        let bytes = &bytes[..at::SIZE + header.records_size as usize];
        Self { bytes, at: at::SIZE, salt, lsn: header.first_lsn, is_checked: false }
    }
}

impl<'a> Iterator for Records<'a> {
    type Item = RecordView<'a>;

    fn next(&mut self) -> Option<RecordView<'a>> {
        let bytes = self.bytes.get(self.at..)?;
        if bytes.len() < record::SIZE {
            return None;
        }
        let length = u32_at(bytes, record::LENGTH);
        let size = record::SIZE + (length & record::LENGTH_MASK) as usize;
        if length & !(record::LENGTH_MASK | record::FIRST | record::LAST) != 0
            || bytes.len() < size
            || length == 0
        {
            return None;
        }
        let checksum = u64_at(bytes, record::CHECKSUM);
        if self.is_checked && checksum != self.salt.seal(self.lsn.0, &bytes[record::LENGTH..size]) {
            return None;
        }
        let start = self.lsn;
        self.lsn = Lsn(start.0 + size as u64);
        self.at += size;
        Some(RecordView {
            start,
            end: self.lsn,
            db: u16_at(bytes, record::DB),
            is_first: length & record::FIRST != 0,
            is_last: length & record::LAST != 0,
            checksum,
            payload: &bytes[record::SIZE..size],
        })
    }
}
