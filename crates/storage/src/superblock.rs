//! The superblock. It has four copies, and each update writes two of them.
//!
//! Two copies are at the head of the area and two at its end. An update with an even sequence
//! writes copies 0 and 2, and an update with an odd sequence writes copies 1 and 3. The first copy
//! is durable before the second is written. An interrupted update may leave its own two copies in
//! any state, but both copies of the previous superblock stay intact.

use slimio_device::{Buffer, Device, DeviceError, LBA_SIZE, Lba, Op};
use slimio_planted::is_planted;

use crate::checksum::{hash, mix};
use crate::layout::{
    self, SUPERBLOCK_COPIES, SUPERBLOCK_COPY_LBAS, put_u32, put_u64, superblock as at, u32_at,
    u64_at,
};
use crate::unfinished::is_mark;
use crate::{Error, ExtentMap, Lifetime, Lsn, Snapshots, identity, io};

/// Random name of a volume, chosen when the volume is formatted. All checksums on the volume cover
/// this name, so data of another volume is never mistaken for data of this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct VolumeId(pub u128);

/// Where the log starts. Nothing before this place is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct LogStart {
    /// Sequence of the segment that the first batch is in.
    pub segment: u64,
    /// Block of the segment where the first batch starts.
    pub lba: u64,
    /// First LSN of the first batch.
    pub batch_lsn: Lsn,
    /// Records up to this LSN are not needed.
    pub lsn: Lsn,
    /// Checksum of the batch before the first batch.
    pub parent: u64,
}

/// Where the last recovery cut the log. Batches of older epochs after the cut are ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Cut {
    /// Sequence of the segment in which the log continued.
    pub segment: u64,
    /// Block of the segment at which the log continued.
    pub lba: u64,
    /// LSN with which the log continued.
    pub lsn: Lsn,
    /// Checksum of the last batch before the cut.
    pub parent: u64,
}

/// The geometry of a volume; it can't be changed after formatting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct VolumeGeometry {
    /// Blocks of the superblock's area.
    pub super_lbas: u64,
    /// Blocks of a segment of the log.
    pub segment_lbas: u64,
    /// Blocks of the largest batch, and of each of the log's buffers.
    pub batch_lbas_max: u32,
    /// The largest number of slots that the log's area may have.
    pub wal_slots_max: u32,
}

/// The contents of a copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// Number of this update of the superblock.
    pub sequence: u64,
    /// Checksum of the superblock before this one.
    pub parent: u64,
    /// Name of the volume.
    pub volume_id: VolumeId,
    /// The volume's geometry.
    pub geometry: VolumeGeometry,
    /// Number of the last recovery.
    pub epoch: u64,
    /// The epoch whose mapped buffers may hold records that the log lacks. It stays lower than
    /// `epoch` until a recovery has appended these records to the log.
    pub buffers_epoch: u64,
    /// Where the log starts.
    pub start: LogStart,
    /// Where the last recovery cut the log.
    pub cut: Cut,
    /// Which snapshots the volume holds, which of them is the root, and whether the log has ended.
    pub snapshots: Snapshots,
    /// For each slot of the log's area, the sequence of the segment that it holds.
    pub wal_slots: Vec<Option<u64>>,
    /// The extents of a device, each with its area; `None` if each area is a file.
    pub extents: Option<ExtentMap>,
    /// Identity of the device that the volume was last written on. It does not depend on the
    /// device's name. It is empty if areas are files or if the identity is unknown.
    pub identity: String,
    /// Whether chunks and records may hold values of any type. A program that reads format versions
    /// only up to 5 knows no types but strings and hashes, so it must refuse such a volume.
    pub has_types: bool,
}

/// What was read from the place of a copy of the superblock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SuperblockCopy {
    /// A superblock, with its checksum.
    Valid(Box<Superblock>, u64),
    /// All bytes are zero, as in blocks that were never written.
    Empty,
    /// The mark of a volume that is being made.
    Unfinished,
    /// A format version that this program does not read, or damage that looks like such a version.
    OtherVersion(u32),
    /// Anything else that is not a valid superblock.
    Damaged {
        /// What is wrong with the bytes.
        why: String,
        /// Whether the bytes start with a superblock's magic.
        has_magic: bool,
    },
}

impl SuperblockCopy {
    /// Whether this is, or was, a superblock of some version.
    pub fn has_magic(&self) -> bool {
        match self {
            Self::Valid(..) | Self::OtherVersion(_) => true,
            Self::Empty | Self::Unfinished => false,
            Self::Damaged { has_magic, .. } => *has_magic,
        }
    }

    fn damaged(why: impl Into<String>, has_magic: bool) -> Self {
        Self::Damaged { why: why.into(), has_magic }
    }
}

impl Superblock {
    /// Encodes a copy, and returns its bytes and their checksum.
    pub(crate) fn encode(&self) -> (Vec<u8>, u64) {
        assert!(
            self.wal_slots.len() <= layout::WAL_SLOTS_MAX as usize,
            "the map must have at most `WAL_SLOTS_MAX` slots"
        );
        let mut bytes = vec![0; at::SIZE];
        bytes[at::MAGIC..at::MAGIC + 8].copy_from_slice(&layout::SUPERBLOCK_MAGIC);
        put_u32(&mut bytes, at::VERSION, self.version());
        put_u32(&mut bytes, at::COPY_SIZE, at::SIZE as u32);
        put_u64(&mut bytes, at::PARENT, self.parent);
        put_u64(&mut bytes, at::SEQUENCE, self.sequence);
        bytes[at::VOLUME_ID..at::VOLUME_ID + 16].copy_from_slice(&self.volume_id.0.to_le_bytes());
        put_u64(&mut bytes, at::SUPER_LBAS, self.geometry.super_lbas);
        put_u64(&mut bytes, at::SEGMENT_LBAS, self.geometry.segment_lbas);
        put_u32(&mut bytes, at::BATCH_LBAS_MAX, self.geometry.batch_lbas_max);
        put_u32(&mut bytes, at::WAL_SLOTS_MAX, self.geometry.wal_slots_max);
        put_u64(&mut bytes, at::EPOCH, self.epoch);
        put_u64(&mut bytes, at::BUFFERS_EPOCH, self.buffers_epoch);
        put_u64(&mut bytes, at::START_SEGMENT, self.start.segment);
        put_u64(&mut bytes, at::START_LBA, self.start.lba);
        put_u64(&mut bytes, at::START_BATCH_LSN, self.start.batch_lsn.0);
        put_u64(&mut bytes, at::START_LSN, self.start.lsn.0);
        put_u64(&mut bytes, at::START_PARENT, self.start.parent);
        put_u64(&mut bytes, at::CUT_SEGMENT, self.cut.segment);
        put_u64(&mut bytes, at::CUT_LBA, self.cut.lba);
        put_u64(&mut bytes, at::CUT_LSN, self.cut.lsn.0);
        put_u64(&mut bytes, at::CUT_PARENT, self.cut.parent);
        self.snapshots.encode(&mut bytes);
        put_u32(&mut bytes, at::WAL_SLOT_COUNT, self.wal_slots.len() as u32);
        for (index, slot) in self.wal_slots.iter().enumerate() {
            let entry = slot.map_or(0, |segment| at::MAP_WAL << at::MAP_KIND_SHIFT | segment);
            put_u64(&mut bytes, at::MAP + 8 * index, entry);
        }
        if let Some(extents) = &self.extents {
            extents.encode(&mut bytes);
        }
        bytes[at::IDENTITY..][..self.identity.len()].copy_from_slice(self.identity.as_bytes());
        let checksum = checksum_of(&bytes);
        put_u64(&mut bytes, at::CHECKSUM, checksum);
        (bytes, checksum)
    }

    /// Decodes a copy.
    pub(crate) fn decode(bytes: &[u8]) -> SuperblockCopy {
        if bytes.iter().all(|&byte| byte == 0) {
            return SuperblockCopy::Empty;
        }
        if is_mark(bytes) {
            return SuperblockCopy::Unfinished;
        }
        if bytes[at::MAGIC..at::MAGIC + 8] != layout::SUPERBLOCK_MAGIC {
            return SuperblockCopy::damaged("it does not start like a superblock", false);
        }
        let version = u32_at(bytes, at::VERSION);
        if !(layout::FORMAT_VERSION..=layout::FORMAT_VERSION_TYPES).contains(&version) {
            return SuperblockCopy::OtherVersion(version);
        }
        let checksum = u64_at(bytes, at::CHECKSUM);
        if checksum != checksum_of(bytes) {
            return SuperblockCopy::damaged("its checksum is wrong", true);
        }
        match Self::decode_checked(bytes) {
            Ok(superblock) => SuperblockCopy::Valid(Box::new(superblock), checksum),
            Err(why) => SuperblockCopy::damaged(why, true),
        }
    }

    fn decode_checked(bytes: &[u8]) -> Result<Self, String> {
        let mut volume_id = [0; 16];
        volume_id.copy_from_slice(&bytes[at::VOLUME_ID..at::VOLUME_ID + 16]);
        let slot_count = u32_at(bytes, at::WAL_SLOT_COUNT);
        if slot_count > layout::WAL_SLOTS_MAX {
            return Err(format!("it maps {slot_count} slots of the log, which is too many"));
        }
        let mut wal_slots = Vec::with_capacity(slot_count as usize);
        for index in 0..slot_count as usize {
            let entry = u64_at(bytes, at::MAP + 8 * index);
            let segment = entry & ((1 << at::MAP_KIND_SHIFT) - 1);
            wal_slots.push(match entry >> at::MAP_KIND_SHIFT {
                0 if segment == 0 => None,
                at::MAP_WAL if segment > 0 => Some(segment),
                _ => return Err(format!("slot {index} of the log holds something unknown")),
            });
        }
        let superblock = Self {
            sequence: u64_at(bytes, at::SEQUENCE),
            parent: u64_at(bytes, at::PARENT),
            volume_id: VolumeId(u128::from_le_bytes(volume_id)),
            geometry: VolumeGeometry {
                super_lbas: u64_at(bytes, at::SUPER_LBAS),
                segment_lbas: u64_at(bytes, at::SEGMENT_LBAS),
                batch_lbas_max: u32_at(bytes, at::BATCH_LBAS_MAX),
                wal_slots_max: u32_at(bytes, at::WAL_SLOTS_MAX),
            },
            epoch: u64_at(bytes, at::EPOCH),
            buffers_epoch: u64_at(bytes, at::BUFFERS_EPOCH),
            start: LogStart {
                segment: u64_at(bytes, at::START_SEGMENT),
                lba: u64_at(bytes, at::START_LBA),
                batch_lsn: Lsn(u64_at(bytes, at::START_BATCH_LSN)),
                lsn: Lsn(u64_at(bytes, at::START_LSN)),
                parent: u64_at(bytes, at::START_PARENT),
            },
            cut: Cut {
                segment: u64_at(bytes, at::CUT_SEGMENT),
                lba: u64_at(bytes, at::CUT_LBA),
                lsn: Lsn(u64_at(bytes, at::CUT_LSN)),
                parent: u64_at(bytes, at::CUT_PARENT),
            },
            snapshots: Snapshots::decode(bytes)?,
            wal_slots,
            extents: match u32_at(bytes, at::VERSION) {
                layout::FORMAT_VERSION => None,
                layout::FORMAT_VERSION_FUZZY | layout::FORMAT_VERSION_TYPES
                    if u64_at(bytes, at::DEVICE_LBAS) == 0 =>
                {
                    None
                }
                _ => Some(ExtentMap::decode(bytes)?),
            },
            identity: identity::decode(bytes)?,
            has_types: u32_at(bytes, at::VERSION) == layout::FORMAT_VERSION_TYPES,
        };
        superblock.geometry.check()?;
        if superblock.sequence == u64::MAX {
            return Err("its sequence is the highest possible".into());
        }
        // Bytes that this version does not know must be zero. If any of them is not zero, encoding
        // the superblock again gives other bytes.
        if superblock.encode().0 != bytes {
            return Err("it holds something that this version does not know".into());
        }
        Ok(superblock)
    }

    /// The format version in which this superblock is written.
    pub fn version(&self) -> u32 {
        match self.extents {
            _ if self.has_types => layout::FORMAT_VERSION_TYPES,
            _ if self.snapshots.is_any_fuzzy() => layout::FORMAT_VERSION_FUZZY,
            Some(_) if self.identity.is_empty() => layout::FORMAT_VERSION_EXTENTS,
            Some(_) => layout::FORMAT_VERSION_IDENTITY,
            None => layout::FORMAT_VERSION,
        }
    }

    /// The segments of the log in the order of their sequences, each with its slot.
    pub(crate) fn segments(&self) -> Vec<(u64, u32)> {
        let mut segments: Vec<(u64, u32)> = (0..)
            .zip(&self.wal_slots)
            .filter_map(|(wal_slot, segment)| segment.map(|segment| (segment, wal_slot)))
            .collect();
        segments.sort_unstable();
        segments
    }

    /// Makes the log start at `start`, and applies `change` to the snapshots. The segments before
    /// `start` become free.
    pub(crate) fn start_log_at(&mut self, start: LogStart, change: impl FnOnce(&mut Snapshots)) {
        self.start = start;
        for wal_slot in &mut self.wal_slots {
            wal_slot.take_if(|segment| *segment < start.segment);
        }
        change(&mut self.snapshots);
    }

    /// Writes this superblock into both of its copies, one after the other. Each copy is durable
    /// before the next is written.
    pub(crate) fn write(&self, device: &mut dyn Device) -> Result<(), DeviceError> {
        self.write_copies(device, self.copies())
    }

    /// The two copies that this superblock is written to.
    pub(crate) fn copies(&self) -> [usize; 2] {
        if self.sequence.is_multiple_of(2) { [0, 2] } else { [1, 3] }
    }

    /// Writes this superblock into the given copies, one after the other. Each copy is durable
    /// before the next is written.
    pub(crate) fn write_copies(
        &self,
        device: &mut dyn Device,
        copies: impl IntoIterator<Item = usize>,
    ) -> Result<(), DeviceError> {
        let (bytes, checksum) = self.encode();
        assert_eq!(
            Self::decode(&bytes),
            SuperblockCopy::Valid(Box::new(self.clone()), checksum),
            "an encoded superblock must be decoded to the same superblock"
        );
        for copy in copies {
            let mut buffer = Buffer::zeroed(SUPERBLOCK_COPY_LBAS as usize);
            buffer.copy_from_slice(&bytes);
            let lba = copy_lba(copy, self.geometry.super_lbas);
            let placement = Lifetime::Superblock.placement();
            let durable = self.identity.is_empty() || !is_planted("identity-unstable");
            io::run(device, Op::Write { lba, buffer, placement, durable })?;
        }
        Ok(())
    }
}

impl VolumeGeometry {
    pub(crate) fn check(&self) -> Result<(), String> {
        let batch_lbas = u64::from(self.batch_lbas_max);
        if self.super_lbas < layout::SUPERBLOCK_AREA_LBAS_MIN {
            return Err(format!("a superblock area of {} blocks is too short", self.super_lbas));
        }
        if batch_lbas < 2 || self.batch_lbas_max > layout::BATCH_LBAS_MAX {
            return Err(format!("batches of {batch_lbas} blocks are not possible"));
        }
        if self.segment_lbas < 2 * batch_lbas || self.segment_lbas > 1 << 40 {
            return Err(format!("segments of {} blocks are not possible", self.segment_lbas));
        }
        if self.wal_slots_max < 2 || self.wal_slots_max > layout::WAL_SLOTS_MAX {
            return Err(format!("a log of {} segments is not possible", self.wal_slots_max));
        }
        Ok(())
    }

    pub(crate) fn segment_size(&self) -> u64 {
        self.segment_lbas * LBA_SIZE as u64
    }

    pub(crate) fn batch_size(&self) -> usize {
        self.batch_lbas_max as usize * LBA_SIZE
    }
}

/// Where a copy is, in an area of `super_lbas` blocks.
pub(crate) fn copy_lba(copy: usize, super_lbas: u64) -> Lba {
    let from_end = (SUPERBLOCK_COPIES - copy) as u64;
    match copy {
        0 | 1 => Lba(copy as u64 * SUPERBLOCK_COPY_LBAS),
        _ => Lba(super_lbas - from_end * SUPERBLOCK_COPY_LBAS),
    }
}

/// Reads all four copies.
///
/// # Errors
/// If the area is too short to hold the copies.
pub(crate) fn read_copies(device: &mut dyn Device) -> Result<Vec<SuperblockCopy>, Error> {
    let super_lbas = device.geometry().lba_count;
    if super_lbas < layout::SUPERBLOCK_AREA_LBAS_MIN {
        return Err(Error::Truncated {
            area: crate::Area::Superblock.name(),
            found_lbas: super_lbas,
            expected_lbas: layout::SUPERBLOCK_AREA_LBAS_MIN,
        });
    }
    let copies = (0..SUPERBLOCK_COPIES).map(|copy| {
        let buffer = Buffer::zeroed(SUPERBLOCK_COPY_LBAS as usize);
        match io::run(device, Op::Read { lba: copy_lba(copy, super_lbas), buffer }) {
            Ok(Some(buffer)) => Superblock::decode(&buffer),
            Ok(None) => SuperblockCopy::damaged("the device did not return the buffer", false),
            Err(error) => SuperblockCopy::damaged(format!("it can't be read: {error}"), true),
        }
    });
    Ok(copies.collect())
}

fn checksum_of(bytes: &[u8]) -> u64 {
    hash(&bytes[at::CHECKED..]) ^ mix(hash(&bytes[..at::CHECKSUM]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_that_no_other_can_follow_is_none() {
        let geometry = VolumeGeometry {
            super_lbas: layout::SUPERBLOCK_AREA_LBAS_MIN,
            segment_lbas: 4,
            batch_lbas_max: 2,
            wal_slots_max: 2,
        };
        let of = |sequence| Superblock {
            sequence,
            parent: 0,
            volume_id: VolumeId(1),
            geometry,
            epoch: 1,
            buffers_epoch: 1,
            start: LogStart::default(),
            cut: Cut::default(),
            snapshots: Snapshots::default(),
            wal_slots: vec![Some(1)],
            extents: None,
            identity: String::new(),
            has_types: true,
        };
        for (sequence, is_one) in [(1, true), (u64::MAX - 1, true), (u64::MAX, false)] {
            let copy = Superblock::decode(&of(sequence).encode().0);
            assert_eq!(matches!(copy, SuperblockCopy::Valid(..)), is_one, "{copy:?}");
            assert!(copy.has_magic());
        }
    }
}
