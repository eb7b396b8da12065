//! The boundary to block storage.
//!
//! A [`Device`] is one path to one linear space of logical blocks: it takes operations that own
//! their buffers, and returns them as completions, in any order. A volume opens one path per role;
//! two paths share nothing above the kernel. This crate knows nothing of logs or snapshots.
//!
//! A [`Directory`] of files or a [`WholeDevice`] (a [`BlockDevice`], an [`NvmeDevice`]) is owned by
//! one process alone and opens paths: NVMe commands or direct I/O through io_uring, or the next
//! best way available. Each reports which way that is, and why.
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

mod block;
mod buffer;
mod bulk;
mod calls;
mod claim;
mod contents;
mod directory;
mod engine;
mod error;
mod faults;
mod holders;
mod identity;
mod image;
mod layer;
mod mapped;
mod mapped_range;
mod nvme;
mod plain;
mod polling;
mod pool;
mod priority;
mod surroundings;
mod sys;
mod target;
mod uring;
mod whole;

pub use block::BlockDevice;
pub use buffer::Buffer;
pub use calls::{Purpose, RefusedCall, explain_refused_calls, refused_calls};
pub use claim::CLAIM_FILE_NAME;
pub use contents::Contents;
pub use directory::{Directory, LOCK_FILE_NAME};
pub use engine::{EngineChoice, IN_FLIGHT_DEFAULT, IN_FLIGHT_MAX, PathOptions};
pub use error::{DeviceError, OpenError};
pub use faults::{Faults, ignore_file_size_signal, ignore_hang_up_signal};
pub use image::ImageFile;
pub use layer::{Layer, Layered};
pub use mapped::MappedFile;
pub use nvme::{
    FdpAccount, FdpConfiguration, FdpEvent, FdpStatistics, NvmeDevice, PlacementHandle,
    block_device_of, is_character_device,
};
pub use polling::Polling;
pub use pool::{POOLED_COUNT, POOLED_LBAS};
pub use priority::{give_way, give_way_entirely, waited_for_core};
pub use surroundings::FileSystem;
pub use sys::is_readable;
pub use whole::{WholeDevice, open_whole};

use std::fmt;
use std::ops::Range;
use std::os::fd::BorrowedFd;
use std::time::Duration;

/// Size in bytes of one logical block, as everything above this crate counts them.
///
/// A device with smaller physical blocks is addressed in groups of them.
pub const LBA_SIZE: usize = 4096;

/// Address of a logical block, relative to the start of the device or area.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lba(pub u64);

/// Half-open range of logical blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LbaRange {
    /// First block of the range.
    pub start: Lba,
    /// First block behind the range.
    pub end: Lba,
}

/// Where the device should put a write: data that dies together carries the same id.
/// Zero is the device's default placement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct PlacementId(pub u16);

/// The caller's name for an operation in flight; comes back in its [`Completion`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(pub u64);

/// How a write reaches stable media on this device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WriteCache {
    /// A completed write is stable: there is no volatile cache, or it is protected.
    Stable,
    /// A completed write may be lost until a flush; a durable write costs no extra flush (FUA).
    VolatileWithFua,
    /// A completed write may be lost until a flush; a durable write is a write and a flush.
    Volatile,
    /// Nothing is known: treated as `Volatile`.
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

/// What a path can do.
#[derive(Clone, Copy, Debug)]
pub struct Geometry {
    /// Blocks that can be addressed now. A directory's area grows with [`Device::grow`].
    pub lba_count: u64,
    /// Longest transfer of one operation, in blocks.
    pub transfer_lbas_max: u32,
    /// Most operations that may be in flight at once on this path.
    pub in_flight_max: u32,
    /// Whether completed writes are stable.
    pub write_cache: WriteCache,
}

/// One operation. It owns its buffer until its completion is reaped.
#[derive(Debug)]
pub enum Op {
    /// Fill the whole buffer from `lba` on.
    Read {
        /// First block to read.
        lba: Lba,
        /// Filled to its whole length.
        buffer: Buffer,
    },
    /// Write the whole buffer at `lba`.
    Write {
        /// First block to write.
        lba: Lba,
        /// Written in its whole length.
        buffer: Buffer,
        /// Where the device should put it.
        placement: PlacementId,
        /// Complete only when this write (and only this one) is on stable media.
        durable: bool,
    },
    /// Make stable every write, of any path of this volume, whose completion was reaped before this
    /// was submitted.
    Flush,
    /// Tell the device that these blocks hold nothing. What a read of them returns afterwards is
    /// undefined.
    Deallocate {
        /// Blocks that are free.
        range: LbaRange,
    },
}

/// A finished operation.
#[derive(Debug)]
pub struct Completion {
    /// The caller's name for the operation.
    pub token: Token,
    /// The buffer of a read or write comes back whatever happened.
    pub buffer: Option<Buffer>,
    /// A transfer shorter than asked for is an error.
    pub result: Result<(), DeviceError>,
}

/// The ranges that [`Device::fill_holes`] has given space to, in bytes from the start of the file.
/// They hold zeros.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FilledHoles(pub(crate) Vec<Range<u64>>);

/// One path to one linear space of blocks.
///
/// Nothing is ordered: completions come in any order, and two overlapping writes in flight are a
/// bug of the caller. A write that is not durable may be lost, torn or reordered by a power cut
/// until a [`Op::Flush`] submitted after its completion was reaped has completed.
pub trait Device {
    /// What this path can do.
    fn geometry(&self) -> Geometry;

    /// A buffer of `lbas` blocks for transfers of this path, with arbitrary contents. If the path
    /// has pooled buffers to spare, it is one of those, which cost the kernel less to transfer: a
    /// [bulk path](WholeDevice::open_bulk_path) shares [`POOLED_COUNT`] of up to [`POOLED_LBAS`]
    /// blocks with the others of its device. Dropping the buffer gives it back.
    ///
    /// # Panics
    /// When `lbas` is zero.
    fn buffer(&mut self, lbas: usize) -> Buffer {
        Buffer::zeroed(lbas)
    }

    /// Queues an operation. Never blocks. Hands the operation back when `in_flight_max` is reached.
    ///
    /// The operation may stay in the queue until [`kick`](Self::kick) or [`wait`](Self::wait).
    ///
    /// # Errors
    /// The operation itself, when too many are in flight.
    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op>;

    /// Hands everything queued to the device. Never blocks; at most one system call.
    fn kick(&mut self);

    /// Moves every finished operation into `completions`. Never blocks.
    fn poll(&mut self, completions: &mut Vec<Completion>);

    /// Kicks, then sleeps until at least one operation has finished or `timeout` has passed, and
    /// moves what has finished into `completions`. With nothing in flight it returns at once.
    ///
    /// With a `timeout` it returns when that has passed, even if the device hangs. Without one, an
    /// operation that was not kicked, or that the path's worker thread has not begun, may run on
    /// the calling thread: as a system call that returns only when the device has answered. A
    /// caller with nothing else to do saves the hand-off to another thread.
    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>);

    /// Whether a [`wait`](Self::wait) without a timeout would run an operation on the calling thread,
    /// so that it costs less than one with a timeout.
    fn would_run_here(&self) -> bool {
        false
    }

    /// Whether a kicked operation is still here because the kernel had no memory for it. The next
    /// [`poll`](Self::poll) hands it over; nothing signals when it is time for that.
    fn has_unsubmitted(&mut self) -> bool {
        false
    }

    /// Operations submitted whose completion was not reaped yet.
    fn in_flight(&self) -> usize;

    /// A descriptor that is readable while [`poll`](Self::poll) has something to return; `None`
    /// where completions exist only after `poll` or `wait` (a simulated device).
    fn readiness(&self) -> Option<BorrowedFd<'_>>;

    /// Makes at least `lba_count` blocks addressable, with their space reserved. Blocks the caller:
    /// not for the command thread. New blocks have undefined contents; the growth itself is stable
    /// when this returns.
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`] when there is no room for them; then nothing has changed.
    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError>;

    /// Gives back the blocks from `lba_count` on: a file gets shorter. Blocks the caller. Where
    /// space can't be given back, nothing happens. Nothing may be in flight there.
    ///
    /// # Errors
    /// When the kernel refuses; then nothing has changed.
    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        let _ = lba_count;
        Ok(())
    }

    /// As [`grow`](Self::grow), for a space that may have holes: makes the blocks of `range`
    /// addressable, where they are not.
    ///
    /// # Errors
    /// As there.
    fn reserve(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        if self.geometry().lba_count >= range.end.0 { Ok(()) } else { self.grow(range.end.0) }
    }

    /// Gives back the space of blocks in `range`, which may reach beyond the end. Those that can be
    /// given back become a hole until they are [reserved](Self::reserve) again; others may take
    /// their space. Blocks the caller. Where a space has no holes, nothing happens. Nothing may be
    /// in flight there.
    ///
    /// # Errors
    /// As [`shrink`](Self::shrink).
    fn release(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        let _ = range;
        Ok(())
    }

    /// Allocates space for the blocks of `range` that have none: in a file, those that a sparse
    /// copy left out, or that were deallocated. Their contents do not change; a hole stays zeros.
    /// Stable when this returns. Blocks the caller. Nothing may be in flight there.
    ///
    /// Where there are no holes, or where each write takes new space anyway, nothing happens.
    ///
    /// Returns what it gave space to, so that a caller that fails for another reason can [give it
    /// back](Self::empty_holes).
    ///
    /// # Errors
    /// [`DeviceError::NoSpace`] when there is no room for all of them; then they all lose what they
    /// got, where space can be given back.
    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        let _ = range;
        Ok(FilledHoles::default())
    }

    /// Bytes that files of this kind could still get from their file system; `None` where that is unknown, or
    /// where space does not come from a file system.
    fn free_space(&self) -> Option<u64> {
        None
    }

    /// Turns what was [filled](Self::fill_holes) into holes again, where that is possible. Blocks
    /// the caller. It must not have been written to since. Nothing may be in flight there.
    fn empty_holes(&mut self, filled: &FilledHoles) {
        let _ = filled;
    }
}
