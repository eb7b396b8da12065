//! How a volume reaches what it is stored on.

use slimio_device::{Buffer, Device, OpenError};

use crate::layout::SLOT_COUNT;

/// A named part of a volume. Addresses inside an area are relative to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// The four copies of the root of everything: two at the area's start, two at its end.
    Superblock,
    /// The segments of the log.
    Wal,
    /// A place for a snapshot.
    Snapshot(SlotName),
}

/// One of the three places where a snapshot may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum SlotName {
    /// The first.
    A,
    /// The second.
    B,
    /// The third.
    C,
}

impl SlotName {
    /// All of them, in order.
    pub const ALL: [Self; SLOT_COUNT] = [Self::A, Self::B, Self::C];

    /// Counted from zero.
    pub fn index(self) -> usize {
        self as usize
    }
}

impl Area {
    /// Its name in messages, and its file's name in a directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "super",
            Self::Wal => "wal",
            Self::Snapshot(SlotName::A) => "snapshot-a",
            Self::Snapshot(SlotName::B) => "snapshot-b",
            Self::Snapshot(SlotName::C) => "snapshot-c",
        }
    }
}

/// What holds a volume: a directory of files, or one device cut in areas.
///
/// The owner of a medium holds its lock: two programs never have the same volume open.
pub trait Media {
    /// Opens one more path to an area. Paths share nothing above the kernel. Nothing is written.
    ///
    /// # Errors
    /// [`OpenError::Missing`] when the area does not exist; otherwise when it can't be opened.
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError>;

    /// Makes a snapshot slot that is missing, empty. Durable when this returns.
    ///
    /// # Errors
    /// When there is no room, or nothing may be written.
    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError>;

    /// Makes the areas of a new volume: the superblock's with `super_lbas` blocks, the log's with
    /// `wal_lbas` (it grows later, where it can), and the snapshot slots, which may be empty.
    /// Durable when this returns.
    ///
    /// # Errors
    /// When there is no room, or something is there that is not to be overwritten.
    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError>;

    /// The log's buffers as the last process left them, each of `size` bytes, in order. Empty where
    /// there are none, or where nothing can be mapped.
    ///
    /// # Errors
    /// When they exist but can't be read: what is in them may have been acknowledged.
    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError>;

    /// Makes `count` empty buffers of `size` bytes for the log; what the old ones held is gone.
    /// Private memory where nothing can be mapped.
    ///
    /// # Errors
    /// When there is no room for them.
    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError>;

    /// Whether what is stored in these buffers outlives the process, once it is stored.
    fn buffers_outlive_process(&self) -> bool;

    /// Whether blocks that were never written must be before the log uses them: in a file, the
    /// first write to a block costs a commit of the file system's journal.
    fn fresh_blocks_need_zeroing(&self) -> bool;
}

/// What holds a volume, and how it is reached.
pub struct Storage {
    /// Where the data are.
    pub media: Box<dyn Media>,
    /// Whether there is a volume; if not, one is to be made.
    pub exists: bool,
    /// Where it is, for people.
    pub name: String,
    /// Whether it is reached in the best way that was asked for.
    pub is_best: bool,
    /// How it is reached, for people.
    pub io_path: String,
    /// Why not in a better way; empty when there is none.
    pub why_not_better: String,
}
