//! The boundary to block storage.
//!
//! A [`Device`] is one path to one linear space of logical blocks. Each operation owns its buffer,
//! and ends with a completion that returns the buffer. Completions come in any order. A volume
//! opens several paths for its different tasks. Each path has a queue of its own. This crate knows
//! nothing of logs or snapshots.
//!
//! Paths are opened by a [`Directory`] of files or by a [`WholeDevice`], which is a [`BlockDevice`]
//! or an [`NvmeDevice`]. Only one process at a time can own a directory or device. A path uses NVMe
//! commands or direct I/O, both through io_uring. If neither is possible, the path uses the next
//! best way. Each directory or device reports which way its paths use, and why.
//!
//! ```
//! use slimio_device::{Buffer, Directory, Lba, Op, PathOptions, PlacementId, Token};
//!
//! # let place = tempfile::tempdir().unwrap();
//! let mut directory = Directory::open_or_create(place.path(), PathOptions::default())?;
//! directory.create_file("wal", 1024)?;
//! let mut path = directory.open_path("wal")?;
//! println!("{}", directory.describe());
//!
//! let mut buffer = Buffer::zeroed(1);
//! buffer[..5].copy_from_slice(b"hello");
//! let write = Op::Write { lba: Lba(7), buffer, placement: PlacementId(0), durable: true };
//! path.submit(Token(1), write).expect("nothing else is in flight");
//! let mut completions = Vec::new();
//! path.wait(None, &mut completions);
//! assert_eq!(completions[0].result, Ok(()));
//! # Ok::<(), slimio_device::OpenError>(())
//! ```

mod attributes;
mod block;
mod buffer;
mod bulk;
mod cached;
mod calls;
mod claim;
mod contents;
mod counters;
mod directory;
mod engine;
mod error;
mod extents;
mod faults;
mod holders;
mod identity;
mod image;
mod layer;
mod lease;
mod mapped;
mod mapped_range;
mod nvme;
mod plain;
mod polling;
mod pool;
mod priority;
mod shared;
mod surroundings;
mod sys;
mod target;
mod uring;
mod whole;

pub use attributes::{Alignment, Attributes};
pub use block::BlockDevice;
pub use buffer::Buffer;
pub use cached::cached_pages;
pub use calls::{Purpose, RefusedCall, explain_refused_calls, refused_calls};
pub use claim::CLAIM_FILE_NAME;
pub use contents::Contents;
pub use counters::SharedCounters;
pub use directory::{Directory, LOCK_FILE_NAME};
pub use engine::{EngineChoice, IN_FLIGHT_DEFAULT, IN_FLIGHT_MAX, PathOptions};
pub use error::{DeviceError, OpenError};
pub use extents::{Extent, Extents};
pub use faults::{Faults, ignore_file_size_signal, ignore_hang_up_signal};
pub use image::ImageFile;
pub use layer::{Layer, Layered};
pub use lease::{WriteLease, end_lease};
pub use mapped::MappedFile;
pub use nvme::{
    FdpAccount, FdpConfiguration, FdpEvent, FdpStatistics, NvmeDevice, PlacementHandle,
    block_device_of, is_character_device,
};
pub use polling::Polling;
pub use pool::{POOLED_COUNT, POOLED_LBAS};
pub use priority::{give_way, give_way_entirely, waited_for_core};
pub use shared::{Part, SharedMemory};
pub use surroundings::FileSystem;
pub use sys::is_readable;
pub use whole::{WholeDevice, open_whole};

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Size in bytes of one logical block. Everything above this crate counts in such blocks.
///
/// If the device's own blocks are smaller, each logical block is a group of them.
pub const LBA_SIZE: usize = 4096;

/// Address of a logical block, relative to the start of the device or area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);

/// Half-open range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LbaRange {
    /// First block of the range.
    pub start: Lba,
    /// First block after the range.
    pub end: Lba,
}

/// Where the device should put the data of a write. Data that will be deleted or overwritten
/// together should get the same id. Zero is the device's default placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PlacementId(pub u16);

/// The caller's name for an operation in flight. The operation's [`Completion`] contains it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// When a write to this device is on stable media.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// A completed write is stable, because there is no volatile cache or because the cache is
    /// protected.
    Stable,
    /// A completed write may be lost until a flush. A durable write needs no extra flush, because
    /// the device supports FUA (force unit access).
    VolatileWithFua,
    /// A completed write may be lost until a flush. A durable write is performed as a write
    /// followed by a flush.
    Volatile,
    /// It is unknown whether there is a volatile cache. The device is treated as if it were
    /// `Volatile`.
    Unknown,
}

impl fmt::Display for WriteCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Stable => "no volatile write cache",
            Self::VolatileWithFua => "volatile write cache, FUA",
            Self::Volatile => "volatile write cache, no FUA",
            Self::Unknown => "write cache unknown",
        })
    }
}

/// Size and limits of a path.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Blocks that can be addressed now. [`Device::grow`] may add more.
    pub lba_count: u64,
    /// Longest transfer of one operation, in blocks.
    pub transfer_lbas_max: u32,
    /// The largest number of operations in flight on this path.
    pub in_flight_max: u32,
    /// Whether a completed write is on stable media.
    pub write_cache: WriteCache,
}

/// One operation. It owns its buffer until the completion is reaped.
#[derive(Debug)]
pub enum Op {
    /// Fill the whole buffer with the blocks from `lba` on.
    Read {
        /// First block to read.
        lba: Lba,
        /// The buffer, which is filled to its whole length.
        buffer: Buffer,
    },
    /// Write the whole buffer at `lba`.
    Write {
        /// First block to write.
        lba: Lba,
        /// The buffer, which is written in its whole length.
        buffer: Buffer,
        /// Where the device should put the data.
        placement: PlacementId,
        /// Whether the operation completes only once this write is on stable media. The completion
        /// says nothing about other writes.
        durable: bool,
    },
    /// Make earlier writes stable: all writes, on any path of this volume, whose completions were
    /// reaped before this flush was submitted.
    Flush,
    /// Tell the device that the data in these blocks is no longer needed. A later read of the
    /// blocks returns undefined bytes.
    Deallocate {
        /// Blocks whose data is no longer needed.
        range: LbaRange,
    },
}

/// A finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The caller's name for the operation.
    pub token: Token,
    /// The buffer of a read or write, returned on success and on failure.
    pub buffer: Option<Buffer>,
    /// Success or failure. A transfer that is shorter than asked for is an error.
    pub result: Result<(), DeviceError>,
}

/// The ranges for which [`Device::fill_holes`] has allocated space, in bytes from the start of the
/// file. The ranges hold zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilledHoles(pub(crate) Vec<Range<u64>>);

/// One path to one linear space of blocks.
///
/// Nothing is ordered: completions come in any order, and two overlapping writes in flight are a
/// bug of the caller. A power cut may lose, tear or reorder a write that was not submitted as
/// durable. Such a write is safe only after a flush: first its completion is reaped, then an
/// [`Op::Flush`] is submitted, and then this flush completes.
pub trait Device {
    /// Size and limits of this path.
    fn geometry(&self) -> Geometry;

    /// A buffer of `lbas` blocks for transfers of this path, with arbitrary contents.
    ///
    /// If possible, the buffer comes from a pool, because the kernel transfers pooled buffers at
    /// lower cost. The [bulk paths](WholeDevice::open_bulk_path) of a device share [`POOLED_COUNT`]
    /// pooled buffers of up to [`POOLED_LBAS`] blocks each. Dropping a pooled buffer returns it to
    /// the pool.
    ///
    /// # Panics
    /// When `lbas` is zero.
    fn buffer(&mut self, lbas: usize) -> Buffer {
        Buffer::zeroed(lbas)
    }

    /// Queues an operation. Never blocks. Hands the operation back if `in_flight_max` operations
    /// are in flight.
    ///
    /// The operation may stay in the queue until [`kick`](Self::kick) or [`wait`](Self::wait) is
    /// called.
    ///
    /// # Errors
    /// The operation itself, if too many operations are in flight.
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op>;

    /// Hands all queued operations to the device. Never blocks, and makes at most one system call.
    fn kick(&mut self);

    /// Moves every finished operation into `completions`. Never blocks.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Kicks, then sleeps until at least one operation has finished or `timeout` has passed. Then
    /// moves every finished operation into `completions`. If nothing is in flight, `wait` returns
    /// at once.
    ///
    /// With a `timeout`, `wait` returns once the timeout has passed, even if the device hangs.
    /// Without a timeout, the calling thread may run an operation itself, which saves the hand-off
    /// to another thread. The calling thread can do so if the operation was not kicked, or if the
    /// path's worker thread has not begun it. The operation is then a system call that returns only
    /// when the device has answered.
    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>);

    /// Whether a [`wait`](Self::wait) without a timeout would run an operation on the calling
    /// thread. If so, such a `wait` costs less than a `wait` with a timeout.
    fn would_run_here(&self) -> bool {
        false
    }

    /// Whether a kicked operation still waits in the path, because the kernel had no memory for it.
    /// Each [`poll`](Self::poll) tries to hand such operations to the kernel. The caller must call
    /// `poll` again after a while, because nothing signals that the kernel has memory.
    fn has_unsubmitted(&mut self) -> bool {
        false
    }

    /// Number of submitted operations whose completion was not reaped yet.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable while [`poll`](Self::poll) would return a completion. `None`
    /// if operations complete only inside `poll` or `wait`, as on a simulated device.
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Makes at least `lba_count` blocks addressable, and reserves their space. The caller may have
    /// to wait long, so the thread that runs the clients' commands must not call this. New blocks
    /// have undefined contents; the growth itself is stable when the call returns.
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`] if there is no room for the new blocks; then nothing has changed.
    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError>;

    /// Gives back the blocks from `lba_count` on: a file gets shorter. If the space can't be given
    /// back, nothing happens. The caller may have to wait long. No operation on these blocks may be
    /// in flight.
    ///
    /// # Errors
    /// When the kernel refuses; then nothing has changed.
    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        let _ = lba_count;
        Ok(())
    }

    /// Like [`grow`](Self::grow), for a space that may have holes. Makes all blocks of `range`
    /// addressable.
    ///
    /// # Errors
    /// The same as those of [`grow`](Self::grow).
    fn reserve(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        if self.geometry().lba_count >= range.end.0 { Ok(()) } else { self.grow(range.end.0) }
    }

    /// Gives back the space of the blocks in `range`, which may reach beyond the last addressable
    /// block. The blocks are then a hole until they are [reserved](Self::reserve) again, and others
    /// may use their space. If the space of this path can't have holes, nothing happens. The caller
    /// may have to wait long. No operation on these blocks may be in flight.
    ///
    /// # Errors
    /// The same as those of [`shrink`](Self::shrink).
    fn release(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        let _ = range;
        Ok(())
    }

    /// Allocates space for the holes in `range`. In a file, holes are blocks that a sparse copy
    /// left out, and blocks that were deallocated. The contents of the blocks do not change: a
    /// block that was a hole still reads as zeros. The allocation is stable when the call returns.
    /// The caller may have to wait long. No operation on these blocks may be in flight.
    ///
    /// Nothing happens if there are no holes, or if the file system allocates new space for each
    /// write anyway.
    ///
    /// Returns the ranges that were filled, so that a caller that fails later can [undo the
    /// filling](Self::empty_holes).
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`] when there is no room for all the blocks; then the space that this
    /// call allocated is given back, if possible.
    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        let _ = range;
        Ok(FilledHoles::default())
    }

    /// Number of free bytes in the file system of this path's file. `None` if the number is
    /// unknown, or if there is no file system.
    fn free_space(&self) -> Option<u64> {
        None
    }

    /// Turns the ranges that were [filled](Self::fill_holes) into holes again, if possible. The
    /// caller may have to wait long. The ranges must not have been written to since they were
    /// filled, and no operation on these ranges may be in flight.
    fn empty_holes(&mut self, filled: &FilledHoles) {
        let _ = filled;
    }
}
