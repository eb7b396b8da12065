//! How a volume reaches what it is stored on.

use slimio_device::{Buffer, Device, OpenError};

/// A named part of a volume. Addresses inside an area are relative to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Area {
    /// The four copies of the root of everything: two at the area's start, two at its end.
    Superblock,
    /// The segments of the log.
    Wal,
}

impl Area {
    /// Its name in messages, and its file's name in a directory.
    pub fn name(self) -> &'static str {
        match self {
            Self::Superblock => "super",
            Self::Wal => "wal",
        }
    }
}

/// What holds a volume: a directory of files, or one device cut in areas.
///
/// The owner of a medium holds its lock: two programs never have the same volume open.
pub trait Media {
    /// Opens one more path to an area. Paths share nothing above the kernel.
    ///
    /// # Errors
    /// When the area does not exist or can't be opened.
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError>;

    /// Makes the areas of a new volume: the superblock's with `super_lbas` blocks, the log's with
    /// `wal_lbas` (it grows later, where it can). Durable when this returns.
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
