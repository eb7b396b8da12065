//! Where each field of a volume lies. Each offset is stated once, in this module; `docs/format.md`
//! is rendered from these offsets.
//!
//! All integers are little-endian. Bytes that no field covers are written as zero and must read as
//! zero.

/// Format version of a volume in files that needs none of the later versions below. In volumes up
/// to version 5, the header of each snapshot slot states version 2. The mark of a volume that is
/// being made states version 2 in any case.
pub const FORMAT_VERSION: u32 = 2;

/// Format version of a volume on a device that is cut into extents. Up to version 2, each area was a
/// fixed share of the device.
pub const FORMAT_VERSION_EXTENTS: u32 = 3;

/// Format version of a volume on a device whose identity, and not only its name, is known.
pub const FORMAT_VERSION_IDENTITY: u32 = 4;

/// Format version of a volume that holds a fuzzy snapshot, which is complete only with some of the
/// log after the snapshot's LSN.
pub const FORMAT_VERSION_FUZZY: u32 = 5;

/// Format version of a volume whose chunks and records may hold values of any type. In chunks, each
/// type has a number.
pub const FORMAT_VERSION_TYPES: u32 = 6;

/// The largest number of extents of a device. The superblock's map has no room for more.
pub const EXTENTS_MAX: usize = 1024;

/// Blocks of one copy of the superblock.
pub const SUPERBLOCK_COPY_LBAS: u64 = 4;

/// Copies of the superblock: two at the head of its area, two at the end.
pub const SUPERBLOCK_COPIES: usize = 4;

/// The smallest number of blocks that the superblock's area may have.
pub const SUPERBLOCK_AREA_LBAS_MIN: u64 = SUPERBLOCK_COPY_LBAS * SUPERBLOCK_COPIES as u64;

/// The largest number of slots of the log's area. The superblock's map has no room for more.
pub const WAL_SLOTS_MAX: u32 = 1536;

/// The largest number of blocks of a batch. A batch is never split over two segments, so almost
/// this number of blocks may stay unused at a segment's end.
pub const BATCH_LBAS_MAX: u32 = 256;

/// The segment that a new volume's log starts in.
pub const FIRST_SEGMENT: u64 = 1;

/// The largest number of batches in flight at once.
pub const WAL_IN_FLIGHT_MAX: usize = 32;

/// Snapshot slots of a volume.
pub const SLOT_COUNT: usize = 3;

/// The largest number of blocks of a snapshot's chunk, with the chunk's header. One read fetches a
/// chunk.
pub const CHUNK_LBAS_MAX: u64 = 256;

/// Bytes of the largest payload of a chunk.
pub const CHUNK_PAYLOAD_SIZE_MAX: usize =
    CHUNK_LBAS_MAX as usize * slimio_device::LBA_SIZE - chunk::SIZE;

/// First bytes of every copy of the superblock.
pub const SUPERBLOCK_MAGIC: [u8; 8] = *b"SlimIO\r\n";

/// First bytes of the mark of a volume that is being made.
pub const UNFINISHED_MAGIC: [u8; 8] = *b"SlimMk\r\n";

/// First bytes of every batch.
pub const BATCH_MAGIC: [u8; 4] = *b"SlWB";

/// First bytes of every snapshot slot that was written to.
pub const SLOT_MAGIC: [u8; 8] = *b"SlimSn\r\n";

/// First bytes of the last block of a complete snapshot.
pub const TRAILER_MAGIC: [u8; 8] = *b"SlimSnEn";

/// First bytes of every chunk of a snapshot.
pub const CHUNK_MAGIC: [u8; 4] = *b"SlSC";

/// One field of a structure on the volume.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Name of the field.
    pub name: &'static str,
    /// Where the field starts, in bytes from the structure's start.
    pub offset: usize,
    /// Size of the field, in bytes.
    pub size: usize,
    /// What the field holds.
    pub meaning: &'static str,
}

const fn field(name: &'static str, offset: usize, size: usize, meaning: &'static str) -> Field {
    Field { name, offset, size, meaning }
}

/// A copy of the superblock.
pub mod superblock {
    use super::{Field, field};

    /// Length of a copy, in bytes.
    pub const SIZE: usize = super::SUPERBLOCK_COPY_LBAS as usize * slimio_device::LBA_SIZE;
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const COPY_SIZE: usize = 12;
    pub(crate) const CHECKSUM: usize = 16;
    /// The checksum covers the bytes before the checksum itself, and all bytes from this offset on.
    pub(crate) const CHECKED: usize = 24;
    pub(crate) const PARENT: usize = 24;
    pub(crate) const SEQUENCE: usize = 32;
    pub(crate) const VOLUME_ID: usize = 40;
    pub(crate) const SUPER_LBAS: usize = 56;
    pub(crate) const SEGMENT_LBAS: usize = 64;
    pub(crate) const BATCH_LBAS_MAX: usize = 72;
    pub(crate) const WAL_SLOTS_MAX: usize = 76;
    pub(crate) const EPOCH: usize = 80;
    pub(crate) const BUFFERS_EPOCH: usize = 88;
    pub(crate) const START_SEGMENT: usize = 96;
    pub(crate) const START_LBA: usize = 104;
    pub(crate) const START_BATCH_LSN: usize = 112;
    pub(crate) const START_LSN: usize = 120;
    pub(crate) const START_PARENT: usize = 128;
    pub(crate) const CUT_SEGMENT: usize = 136;
    pub(crate) const CUT_LBA: usize = 144;
    pub(crate) const CUT_LSN: usize = 152;
    pub(crate) const CUT_PARENT: usize = 160;
    pub(crate) const WAL_SLOT_COUNT: usize = 168;
    pub(crate) const PLACEMENT: usize = 176;
    pub(crate) const ROOT_SLOT: usize = 192;
    pub(crate) const LOG_STATE: usize = 196;
    pub(crate) const LOG_END: usize = 200;
    pub(crate) const REPLICATION: usize = 256;
    pub(crate) const SLOTS: usize = 320;
    pub(crate) const CONSISTENT: usize = 560;
    pub(crate) const DEVICE_LBAS: usize = 640;
    pub(crate) const FIRST_EXTENT: usize = 648;
    pub(crate) const EXTENT_LBAS: usize = 656;
    pub(crate) const EXTENT_COUNT: usize = 664;
    pub(crate) const IDENTITY: usize = 1024;
    pub(crate) const IDENTITY_SIZE: usize = 256;
    pub(crate) const EXTENTS: usize = 2048;
    /// In an extent's entry, this bit and the bits above it hold the extent's area. The bits below
    /// hold the extent's place in that area.
    pub(crate) const EXTENT_AREA_SHIFT: u32 = 13;
    pub(crate) const MAP: usize = 4096;
    /// The top byte of a map entry if the log uses the slot. The other bytes then hold the
    /// segment's sequence.
    pub(crate) const MAP_WAL: u64 = 1;
    pub(crate) const MAP_KIND_SHIFT: u32 = 56;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("magic", MAGIC, 8, "`SlimIO\\r\\n`"),
        field(
            "version",
            VERSION,
            4,
            "format version: 2, 5 or 6 in files, 3 to 6 on a device; this program writes 6",
        ),
        field("copy_size", COPY_SIZE, 4, "length of a copy in bytes"),
        field("checksum", CHECKSUM, 8, "checksum of all other bytes of the copy"),
        field("parent", PARENT, 8, "checksum of the previous superblock"),
        field("sequence", SEQUENCE, 8, "counts updates; the highest valid one is in force"),
        field("volume_id", VOLUME_ID, 16, "random name of the volume"),
        field("super_lbas", SUPER_LBAS, 8, "blocks of the superblock's area"),
        field("segment_lbas", SEGMENT_LBAS, 8, "blocks of a segment of the log"),
        field("batch_lbas_max", BATCH_LBAS_MAX, 4, "blocks of the largest batch"),
        field("wal_slots_max", WAL_SLOTS_MAX, 4, "largest number of slots of the log's area"),
        field("epoch", EPOCH, 8, "counts recoveries; each batch carries its epoch"),
        field("buffers_epoch", BUFFERS_EPOCH, 8, "recovery uses only mapped buffers of this epoch"),
        field("start_segment", START_SEGMENT, 8, "where the log starts: segment"),
        field("start_lba", START_LBA, 8, "... block in the segment"),
        field("start_batch_lsn", START_BATCH_LSN, 8, "... first LSN of the batch at this place"),
        field("start_lsn", START_LSN, 8, "... LSN up to which records are not needed"),
        field("start_parent", START_PARENT, 8, "... checksum of the previous batch"),
        field("cut_segment", CUT_SEGMENT, 8, "where the last recovery cut the log: segment"),
        field("cut_lba", CUT_LBA, 8, "... block in the segment"),
        field("cut_lsn", CUT_LSN, 8, "... first LSN of the epoch"),
        field("cut_parent", CUT_PARENT, 8, "... checksum of the previous batch"),
        field("wal_slot_count", WAL_SLOT_COUNT, 4, "number of slots of the log's area"),
        field("placement", PLACEMENT, 16, "zero; reserved for placement ids of the areas"),
        field("root_slot", ROOT_SLOT, 4, "the root: 0 none; 1, 2, 3 the snapshot in slot a, b, c"),
        field("log_state", LOG_STATE, 4, "0 the log goes on; 1 the log has ended"),
        field(
            "log_end",
            LOG_END,
            8,
            "if the log has ended, the LSN of its end, after which records are ignored; else 0",
        ),
        field("replication", REPLICATION, 64, "zero; reserved for replication id and offsets"),
        field(
            "slots",
            SLOTS,
            super::SLOT_COUNT * super::slot_record::SIZE,
            "for each snapshot slot, a record: see below",
        ),
        field(
            "consistent",
            CONSISTENT,
            8 * super::SLOT_COUNT,
            "for each snapshot slot, the LSN up to which its snapshot needs the log; 0 if the \
             snapshot needs no log; from version 5 on",
        ),
        field(
            "device_lbas",
            DEVICE_LBAS,
            8,
            "blocks of the device; in files, this field and those up to `extents` are zero",
        ),
        field("first_extent", FIRST_EXTENT, 8, "block of the device where the first extent starts"),
        field("extent_lbas", EXTENT_LBAS, 8, "blocks of an extent"),
        field("extent_count", EXTENT_COUNT, 4, "number of extents"),
        field(
            "identity",
            IDENTITY,
            IDENTITY_SIZE,
            "identity of the device, in ASCII, then zeros; from version 4 on",
        ),
        field("extents", EXTENTS, 2 * super::EXTENTS_MAX, "for each extent, its area: see below"),
        field(
            "map",
            MAP,
            8 * super::WAL_SLOTS_MAX as usize,
            "for each slot of the log: 0 if free, else 1 in the top byte and the segment's sequence",
        ),
    ];
}

/// The mark of a volume that is being made, at the place of the superblock's copy 0.
pub mod unfinished {
    use super::{Field, field};

    /// Length of the mark, in bytes. Every device writes at least this many bytes atomically.
    pub const SIZE: usize = 24;
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const CHECKSUM: usize = 16;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("magic", MAGIC, 8, "`SlimMk\\r\\n`"),
        field("version", VERSION, 4, "2"),
        field("checksum", CHECKSUM, 8, "checksum of the fields above"),
    ];
}

/// The superblock's record of a snapshot slot. If the record is all zero, the slot holds no
/// snapshot.
pub mod slot_record {
    use super::{Field, field};

    /// Length of the record, in bytes.
    pub const SIZE: usize = 80;
    pub(crate) const ROLE: usize = 0;
    pub(crate) const EPOCH: usize = 8;
    pub(crate) const NUMBER: usize = 16;
    pub(crate) const LSN: usize = 24;
    pub(crate) const LEN_LBAS: usize = 32;
    pub(crate) const CHECKSUM: usize = 40;
    pub(crate) const CHUNK_COUNT: usize = 48;
    pub(crate) const ENTRY_COUNT: usize = 56;
    pub(crate) const PAYLOAD_SIZE: usize = 64;
    pub(crate) const CREATED_MS: usize = 72;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("role", ROLE, 4, "0 reserve; 1 WAL-snapshot; 2 on-demand snapshot"),
        field("epoch", EPOCH, 8, "epoch in which the snapshot was written"),
        field("number", NUMBER, 8, "the snapshot's number; every begun snapshot is counted"),
        field("lsn", LSN, 8, "the snapshot has the effects of records up to this LSN"),
        field("len_lbas", LEN_LBAS, 8, "blocks of the snapshot, from header to trailer"),
        field("checksum", CHECKSUM, 8, "checksum of the snapshot's trailer"),
        field("chunk_count", CHUNK_COUNT, 8, "number of chunks"),
        field("entry_count", ENTRY_COUNT, 8, "number of entries in the chunks"),
        field("payload_size", PAYLOAD_SIZE, 8, "bytes of the chunks' payloads"),
        field("created_ms", CREATED_MS, 8, "time when the snapshot was begun, in ms since 1970"),
    ];
}

/// The first block of a snapshot slot.
pub mod slot_header {
    use super::{Field, field};

    /// Length of the header, in bytes.
    pub const SIZE: usize = 88;
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VERSION: usize = 8;
    pub(crate) const SLOT: usize = 12;
    pub(crate) const VOLUME_ID: usize = 16;
    pub(crate) const EPOCH: usize = 32;
    pub(crate) const NUMBER: usize = 40;
    pub(crate) const LSN: usize = 48;
    pub(crate) const CREATED_MS: usize = 56;
    pub(crate) const SUPERBLOCK_SEQUENCE: usize = 64;
    pub(crate) const KIND: usize = 72;
    pub(crate) const CHECKSUM: usize = 80;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("magic", MAGIC, 8, "`SlimSn\\r\\n`"),
        field("version", VERSION, 4, "the snapshot's format: 2 up to volume version 5, then 6"),
        field("slot", SLOT, 4, "1, 2, 3 for slot a, b, c"),
        field("volume_id", VOLUME_ID, 16, "random name of the volume"),
        field("epoch", EPOCH, 8, "epoch in which the snapshot was written"),
        field("number", NUMBER, 8, "the snapshot's number; every begun snapshot is counted"),
        field("lsn", LSN, 8, "the snapshot has the effects of records up to this LSN"),
        field("created_ms", CREATED_MS, 8, "time when the snapshot was begun, in ms since 1970"),
        field(
            "superblock_sequence",
            SUPERBLOCK_SEQUENCE,
            8,
            "sequence of the superblock in force when the snapshot was begun",
        ),
        field("kind", KIND, 4, "intended role: 1 WAL-snapshot; 2 on-demand snapshot"),
        field("checksum", CHECKSUM, 8, "checksum of the fields above"),
    ];
}

/// The header of a chunk. A chunk is a header, a payload, and zeros up to a whole block.
pub mod chunk {
    use super::{Field, field};

    /// Length of the header, in bytes.
    pub const SIZE: usize = 48;
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VOLUME: usize = 4;
    pub(crate) const EPOCH: usize = 8;
    pub(crate) const NUMBER: usize = 16;
    pub(crate) const INDEX: usize = 24;
    pub(crate) const PAYLOAD_SIZE: usize = 32;
    pub(crate) const ENTRY_COUNT: usize = 36;
    pub(crate) const CHECKSUM: usize = 40;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("magic", MAGIC, 4, "`SlSC`"),
        field("volume", VOLUME, 4, "lowest 32 bits of the volume id"),
        field("epoch", EPOCH, 8, "epoch in which the chunk was written"),
        field("number", NUMBER, 8, "number of the snapshot"),
        field("index", INDEX, 8, "number of the chunk in the snapshot, counted from 0"),
        field("payload_size", PAYLOAD_SIZE, 4, "bytes of the payload"),
        field("entry_count", ENTRY_COUNT, 4, "number of entries in the chunk"),
        field("checksum", CHECKSUM, 8, "checksum of the fields above and the payload"),
    ];
}

/// The entry for a chunk in the snapshot's index. The index has one such entry for each chunk, and
/// zeros up to a whole block.
pub mod index_entry {
    use super::{Field, field};

    /// Length of an entry, in bytes.
    pub const SIZE: usize = 24;
    pub(crate) const LBA: usize = 0;
    pub(crate) const PAYLOAD_SIZE: usize = 8;
    pub(crate) const ENTRY_COUNT: usize = 12;
    pub(crate) const CHECKSUM: usize = 16;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("lba", LBA, 8, "block of the slot where the chunk starts"),
        field("payload_size", PAYLOAD_SIZE, 4, "bytes of the chunk's payload"),
        field("entry_count", ENTRY_COUNT, 4, "number of entries in the chunk"),
        field("checksum", CHECKSUM, 8, "checksum of the chunk"),
    ];
}

/// The last block of a snapshot.
pub mod trailer {
    use super::{Field, field};

    /// Length of the trailer, in bytes.
    pub const SIZE: usize = 96;
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const EPOCH: usize = 8;
    pub(crate) const NUMBER: usize = 16;
    pub(crate) const LSN: usize = 24;
    pub(crate) const LEN_LBAS: usize = 32;
    pub(crate) const CHUNK_COUNT: usize = 40;
    pub(crate) const ENTRY_COUNT: usize = 48;
    pub(crate) const PAYLOAD_SIZE: usize = 56;
    pub(crate) const INDEX_LBA: usize = 64;
    pub(crate) const INDEX_CHECKSUM: usize = 72;
    pub(crate) const HEADER_CHECKSUM: usize = 80;
    pub(crate) const CHECKSUM: usize = 88;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("magic", MAGIC, 8, "`SlimSnEn`"),
        field("epoch", EPOCH, 8, "epoch in which the snapshot was written"),
        field("number", NUMBER, 8, "number of the snapshot"),
        field("lsn", LSN, 8, "the snapshot has the effects of records up to this LSN"),
        field("len_lbas", LEN_LBAS, 8, "blocks of the snapshot, from header to trailer"),
        field("chunk_count", CHUNK_COUNT, 8, "number of chunks"),
        field("entry_count", ENTRY_COUNT, 8, "number of entries in the chunks"),
        field("payload_size", PAYLOAD_SIZE, 8, "bytes of the chunks' payloads"),
        field("index_lba", INDEX_LBA, 8, "block of the slot where the index starts"),
        field("index_checksum", INDEX_CHECKSUM, 8, "checksum of the index"),
        field("header_checksum", HEADER_CHECKSUM, 8, "checksum of the slot's header"),
        field("checksum", CHECKSUM, 8, "checksum of the fields above"),
    ];
}

/// The header of a batch. A batch is a header, records, and zeros up to a whole block.
///
/// The fields up to `open_checksum` are the open half. They are written when the batch is opened in
/// its buffer, and the other fields when the batch is submitted. A tail pair is two blocks. The
/// same growing batch is written to them alternately.
pub mod batch {
    use super::{Field, field};

    /// Length of the header, in bytes.
    pub const SIZE: usize = 80;
    pub(crate) const MAGIC: usize = 0;
    pub(crate) const VOLUME: usize = 4;
    pub(crate) const EPOCH: usize = 8;
    pub(crate) const FIRST_LSN: usize = 16;
    pub(crate) const OPEN_CHECKSUM: usize = 24;
    pub(crate) const RECORDS_SIZE: usize = 32;
    pub(crate) const KIND: usize = 36;
    pub(crate) const DURABLE_LSN: usize = 40;
    pub(crate) const PARENT: usize = 48;
    pub(crate) const SUPERBLOCK_SEQUENCE: usize = 56;
    pub(crate) const REPLICATION_OFFSET: usize = 64;
    pub(crate) const CHECKSUM: usize = 72;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("magic", MAGIC, 4, "`SlWB`"),
        field("volume", VOLUME, 4, "lowest 32 bits of the volume id"),
        field("epoch", EPOCH, 8, "epoch in which the batch was written"),
        field("first_lsn", FIRST_LSN, 8, "LSN where the batch's first record starts"),
        field("open_checksum", OPEN_CHECKSUM, 8, "checksum of the fields above: the open half"),
        field(
            "records_size",
            RECORDS_SIZE,
            4,
            "bytes of the records; 0 in a mapped buffer that only notes the durable LSN",
        ),
        field("kind", KIND, 4, "0 plain; 1, 2 first and second block of a tail pair"),
        field("durable_lsn", DURABLE_LSN, 8, "durable LSN when the batch was submitted"),
        field("parent", PARENT, 8, "checksum of the previous batch"),
        field("superblock_sequence", SUPERBLOCK_SEQUENCE, 8, "sequence of the superblock in force"),
        field("replication_offset", REPLICATION_OFFSET, 8, "zero; reserved for replication"),
        field("checksum", CHECKSUM, 8, "checksum of the fields above and the records' checksums"),
    ];
}

/// The header of a record, or of a fragment of one.
pub mod record {
    use super::{Field, field};

    /// Length of the header, in bytes.
    pub const SIZE: usize = 14;
    pub(crate) const CHECKSUM: usize = 0;
    pub(crate) const LENGTH: usize = 8;
    pub(crate) const DB: usize = 12;
    /// The bit of `length` that marks a record's first fragment.
    pub(crate) const FIRST: u32 = 1 << 31;
    /// The bit of `length` that marks a record's last fragment.
    pub(crate) const LAST: u32 = 1 << 30;
    /// The bits of `length` that hold the payload's size.
    pub(crate) const LENGTH_MASK: u32 = (1 << 28) - 1;

    /// Every field, in order.
    pub const FIELDS: &[Field] = &[
        field("checksum", CHECKSUM, 8, "checksum of the fields below and the payload"),
        field(
            "length",
            LENGTH,
            4,
            "bits 0-27: bytes of payload; bit 31: first fragment; bit 30: last fragment; others zero",
        ),
        field("db", DB, 2, "database"),
    ];
}

const _: () = assert!(superblock::SLOTS + SLOT_COUNT * slot_record::SIZE <= superblock::CONSISTENT);
const _: () = assert!(superblock::CONSISTENT + 8 * SLOT_COUNT <= superblock::DEVICE_LBAS);
const _: () = assert!(superblock::IDENTITY + superblock::IDENTITY_SIZE <= superblock::EXTENTS);
const _: () = assert!(superblock::EXTENTS + 2 * EXTENTS_MAX <= superblock::MAP);
const _: () = assert!(EXTENTS_MAX <= 1 << superblock::EXTENT_AREA_SHIFT);
const _: () = assert!(superblock::MAP + 8 * WAL_SLOTS_MAX as usize == superblock::SIZE);
const _: () =
    assert!(BATCH_LBAS_MAX as usize * slimio_device::LBA_SIZE <= record::LENGTH_MASK as usize);

pub(crate) fn u16_at(bytes: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([bytes[at], bytes[at + 1]])
}

pub(crate) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    let mut raw = [0; 4];
    raw.copy_from_slice(&bytes[at..at + 4]);
    u32::from_le_bytes(raw)
}

pub(crate) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    let mut raw = [0; 8];
    raw.copy_from_slice(&bytes[at..at + 8]);
    u64::from_le_bytes(raw)
}

pub(crate) fn put_u16(bytes: &mut [u8], at: usize, value: u16) {
    bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u32(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

pub(crate) fn put_u64(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Fields follow each other without overlap; gaps are allowed, and are zero on the volume.
    #[test]
    fn fields_do_not_overlap() {
        for (fields, size) in [
            (superblock::FIELDS, superblock::SIZE),
            (batch::FIELDS, batch::SIZE),
            (record::FIELDS, record::SIZE),
            (slot_record::FIELDS, slot_record::SIZE),
            (slot_header::FIELDS, slot_header::SIZE),
            (chunk::FIELDS, chunk::SIZE),
            (index_entry::FIELDS, index_entry::SIZE),
            (trailer::FIELDS, trailer::SIZE),
            (unfinished::FIELDS, unfinished::SIZE),
        ] {
            let mut end = 0;
            for field in fields {
                assert!(field.offset >= end, "{} overlaps the field before it", field.name);
                end = field.offset + field.size;
            }
            assert_eq!(end, size);
        }
    }
}
