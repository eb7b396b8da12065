//! The parts of a snapshot as bytes.

use slimio_device::LBA_SIZE;
use slimio_planted::is_planted;

use super::{SlotSummary, SnapshotPlan};
use crate::checksum::{Salt, hash, mix};
use crate::layout::{
    self, chunk, index_entry, put_u32, put_u64, slot_header, trailer, u32_at, u64_at,
};
use crate::{SlotName, VolumeId};

/// Identifies the bytes of one snapshot. The stamp is mixed into each of the snapshot's checksums.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Stamp {
    volume_id: VolumeId,
    slot: SlotName,
    epoch: u64,
    number: u64,
    salt: Salt,
}

/// A chunk's index is mixed into the chunk's checksum. In the checksums of a snapshot's other
/// parts, these values take the place of the index. So no part can be mistaken for another part.
const HEADER: u64 = u64::MAX;
const TRAILER: u64 = u64::MAX - 1;
const INDEX: u64 = u64::MAX - 2;

impl Stamp {
    pub(crate) fn of_plan(plan: &SnapshotPlan) -> Self {
        Self::new(plan.volume_id, plan.slot, plan.epoch, plan.number)
    }

    pub(crate) fn of_summary(volume_id: VolumeId, summary: &SlotSummary) -> Self {
        Self::new(volume_id, summary.slot, summary.epoch, summary.number)
    }

    fn new(volume_id: VolumeId, slot: SlotName, epoch: u64, number: u64) -> Self {
        // With the planted bug, old contents of a slot can't be distinguished from new contents.
        let (epoch, number) = if is_planted("slot-unstamped") { (0, 0) } else { (epoch, number) };
        Self { volume_id, slot, epoch, number, salt: Salt::new(volume_id, epoch) }
    }

    fn seal(self, part: u64, hash: u64) -> u64 {
        let place = mix(self.number).wrapping_add(self.slot.index() as u64);
        self.salt.seal_hash(mix(place) ^ part, hash)
    }

    /// Writes the header of the slot at the start of `bytes`, and returns its checksum.
    pub(super) fn write_header(self, bytes: &mut [u8], plan: &SnapshotPlan) -> u64 {
        use slot_header as at;
        bytes[at::MAGIC..at::MAGIC + 8].copy_from_slice(&layout::SLOT_MAGIC);
        put_u32(bytes, at::VERSION, layout::FORMAT_VERSION_TYPES);
        put_u32(bytes, at::SLOT, self.slot.index() as u32 + 1);
        bytes[at::VOLUME_ID..at::VOLUME_ID + 16].copy_from_slice(&self.volume_id.0.to_le_bytes());
        put_u64(bytes, at::EPOCH, self.epoch);
        put_u64(bytes, at::NUMBER, self.number);
        put_u64(bytes, at::LSN, plan.lsn.0);
        put_u64(bytes, at::CREATED_MS, plan.created_ms);
        put_u64(bytes, at::SUPERBLOCK_SEQUENCE, plan.superblock_sequence);
        put_u32(bytes, at::KIND, plan.kind.to_u32());
        let checksum = self.seal(HEADER, hash(&bytes[..at::CHECKSUM]));
        put_u64(bytes, at::CHECKSUM, checksum);
        checksum
    }

    /// Whether a block is the slot's header and has the checksum `expected`.
    pub(super) fn is_header(self, block: &[u8], expected: u64) -> bool {
        let checksum = self.seal(HEADER, hash(&block[..slot_header::CHECKSUM]));
        checksum == expected
            && u64_at(block, slot_header::CHECKSUM) == expected
            && is_zero(&block[slot_header::SIZE..])
    }

    /// Writes the header of a chunk, and returns the chunk's checksum.
    pub(super) fn write_chunk_header(
        self,
        bytes: &mut [u8; chunk::SIZE],
        index: u64,
        entry_count: u32,
        payload: &[u8],
    ) -> u64 {
        bytes[chunk::MAGIC..chunk::MAGIC + 4].copy_from_slice(&layout::CHUNK_MAGIC);
        put_u32(bytes, chunk::VOLUME, self.volume_id.0 as u32);
        put_u64(bytes, chunk::EPOCH, self.epoch);
        put_u64(bytes, chunk::NUMBER, self.number);
        put_u64(bytes, chunk::INDEX, index);
        put_u32(bytes, chunk::PAYLOAD_SIZE, payload.len() as u32);
        put_u32(bytes, chunk::ENTRY_COUNT, entry_count);
        let checksum = self.chunk_checksum(bytes, index, payload);
        put_u64(bytes, chunk::CHECKSUM, checksum);
        checksum
    }

    fn chunk_checksum(self, header: &[u8], index: u64, payload: &[u8]) -> u64 {
        let checked = hash(&header[..chunk::CHECKSUM]) ^ mix(hash(payload));
        self.seal(index, checked)
    }

    /// The payload of the chunk in `blocks`, if it is the chunk that `entry` describes.
    pub(super) fn read_chunk<'a>(
        self,
        blocks: &'a [u8],
        index: u64,
        entry: &IndexEntry,
    ) -> Result<&'a [u8], &'static str> {
        let end = chunk::SIZE + entry.payload_size as usize;
        let payload = &blocks[chunk::SIZE..end];
        let found = u64_at(blocks, chunk::CHECKSUM);
        if blocks[chunk::MAGIC..chunk::MAGIC + 4] != layout::CHUNK_MAGIC
            || u64_at(blocks, chunk::INDEX) != index
            || u64_at(blocks, chunk::NUMBER) != self.number
            || u64_at(blocks, chunk::EPOCH) != self.epoch
        {
            return Err("the blocks hold other data");
        }
        let is_right =
            found == entry.checksum && found == self.chunk_checksum(blocks, index, payload);
        if !is_right && !is_planted("chunk-unchecked") {
            return Err("its checksum is wrong");
        }
        if !is_zero(&blocks[end..]) {
            return Err("the rest of its last block is not zero");
        }
        Ok(payload)
    }

    /// Checksum of the bytes of an index.
    pub(super) fn seal_index(self, bytes: &[u8]) -> u64 {
        self.seal(INDEX, hash(bytes))
    }

    /// Writes the trailer at the start of `bytes`, and returns its checksum.
    pub(super) fn write_trailer(self, bytes: &mut [u8], end: &Trailer) -> u64 {
        use trailer as at;
        bytes[at::MAGIC..at::MAGIC + 8].copy_from_slice(&layout::TRAILER_MAGIC);
        put_u64(bytes, at::EPOCH, self.epoch);
        put_u64(bytes, at::NUMBER, self.number);
        put_u64(bytes, at::LSN, end.lsn);
        put_u64(bytes, at::LEN_LBAS, end.len_lbas);
        put_u64(bytes, at::CHUNK_COUNT, end.chunk_count);
        put_u64(bytes, at::ENTRY_COUNT, end.entry_count);
        put_u64(bytes, at::PAYLOAD_SIZE, end.payload_size);
        put_u64(bytes, at::INDEX_LBA, end.index_lba);
        put_u64(bytes, at::INDEX_CHECKSUM, end.index_checksum);
        put_u64(bytes, at::HEADER_CHECKSUM, end.header_checksum);
        let checksum = self.seal(TRAILER, hash(&bytes[..at::CHECKSUM]));
        put_u64(bytes, at::CHECKSUM, checksum);
        checksum
    }

    /// Reads the trailer from its block. `expected` is the checksum that the trailer must have.
    pub(super) fn read_trailer(self, block: &[u8], expected: u64) -> Result<Trailer, &'static str> {
        use trailer as at;
        let found = u64_at(block, at::CHECKSUM);
        if block[at::MAGIC..at::MAGIC + 8] != layout::TRAILER_MAGIC {
            return Err("the trailer is missing");
        }
        let is_expected = found == expected || is_planted("slot-unstamped");
        if !is_expected || found != self.seal(TRAILER, hash(&block[..at::CHECKSUM])) {
            return Err("its checksum is wrong, or it is another snapshot's");
        }
        if !is_zero(&block[at::SIZE..]) {
            return Err("the rest of its last block is not zero");
        }
        Ok(Trailer {
            lsn: u64_at(block, at::LSN),
            len_lbas: u64_at(block, at::LEN_LBAS),
            chunk_count: u64_at(block, at::CHUNK_COUNT),
            entry_count: u64_at(block, at::ENTRY_COUNT),
            payload_size: u64_at(block, at::PAYLOAD_SIZE),
            index_lba: u64_at(block, at::INDEX_LBA),
            index_checksum: u64_at(block, at::INDEX_CHECKSUM),
            header_checksum: u64_at(block, at::HEADER_CHECKSUM),
        })
    }
}

/// The fields of a trailer, without the stamp.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Trailer {
    pub(super) lsn: u64,
    pub(super) len_lbas: u64,
    pub(super) chunk_count: u64,
    pub(super) entry_count: u64,
    pub(super) payload_size: u64,
    pub(super) index_lba: u64,
    pub(super) index_checksum: u64,
    pub(super) header_checksum: u64,
}

/// The index's entry for a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct IndexEntry {
    pub(crate) lba: u64,
    pub(crate) payload_size: u32,
    pub(crate) entry_count: u32,
    pub(crate) checksum: u64,
}

impl IndexEntry {
    pub(super) fn encode(&self) -> [u8; index_entry::SIZE] {
        let mut bytes = [0; index_entry::SIZE];
        put_u64(&mut bytes, index_entry::LBA, self.lba);
        put_u32(&mut bytes, index_entry::PAYLOAD_SIZE, self.payload_size);
        put_u32(&mut bytes, index_entry::ENTRY_COUNT, self.entry_count);
        put_u64(&mut bytes, index_entry::CHECKSUM, self.checksum);
        bytes
    }

    pub(super) fn decode(bytes: &[u8]) -> Self {
        Self {
            lba: u64_at(bytes, index_entry::LBA),
            payload_size: u32_at(bytes, index_entry::PAYLOAD_SIZE),
            entry_count: u32_at(bytes, index_entry::ENTRY_COUNT),
            checksum: u64_at(bytes, index_entry::CHECKSUM),
        }
    }

    /// Number of blocks that the chunk takes.
    pub(super) fn lbas(&self) -> u64 {
        (chunk::SIZE as u64 + u64::from(self.payload_size)).div_ceil(LBA_SIZE as u64)
    }
}

/// The superblock sequence in the header of a slot, if the slot has a header of this volume.
pub(crate) fn header_sequence(block: &[u8], volume_id: VolumeId, slot: SlotName) -> Option<u64> {
    let (epoch, number) = (u64_at(block, slot_header::EPOCH), u64_at(block, slot_header::NUMBER));
    let stamp = Stamp::new(volume_id, slot, epoch, number);
    let is_ours = block[slot_header::MAGIC..slot_header::MAGIC + 8] == layout::SLOT_MAGIC
        && stamp.is_header(block, u64_at(block, slot_header::CHECKSUM));
    is_ours.then(|| u64_at(block, slot_header::SUPERBLOCK_SEQUENCE))
}

fn is_zero(bytes: &[u8]) -> bool {
    bytes.iter().all(|&byte| byte == 0)
}
