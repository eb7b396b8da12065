//! The file or block device that a path (a [`Device`](crate::Device)) leads to. Paths through
//! io_uring and paths that use plain system calls share this type. A path that uses NVMe
//! passthrough does not use it.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use slimio_planted::is_planted;
use slimio_ring::{Errno, TransferError, transferred};

use crate::claim::Claim;
use crate::mapped::write_zeroes;
use crate::mapped_range::MappedRange;
use crate::sys::{self, Transfer};
use crate::{
    Buffer, DeviceError, FilledHoles, Geometry, LBA_SIZE, Lba, LbaRange, Op, PlacementId,
    WriteCache,
};

/// Longest transfer of one operation, in blocks. 2048 blocks are 8 MiB.
pub(crate) const TRANSFER_LBAS_MAX: u32 = 2048;

/// An open file or block device.
#[derive(Debug)]
pub(crate) struct Target {
    pub(crate) file: File,
    /// The claim: an open file that keeps other servers from the volume as long as an operation is
    /// in flight. For this, the ring of each path to the target registers the claim. `None` if
    /// `file` itself is the claim.
    pub(crate) claim: Option<Claim>,
    pub(crate) path: PathBuf,
    pub(crate) kind: TargetKind,
    /// Number of blocks that can be addressed. All paths to the same file share this number.
    pub(crate) lba_count: Arc<AtomicU64>,
    /// The range of the target that is mapped into memory. No operation may change this range.
    pub(crate) mapped: Arc<MappedRange>,
    pub(crate) write_cache: WriteCache,
    pub(crate) in_flight_max: u32,
    /// Number of write streams that a write may name. The first stream is number one. Without
    /// io_uring, there are no streams.
    pub(crate) write_streams: u8,
    /// Whether a write to an allocated block overwrites that block. If not, each write needs new
    /// space, so allocating the block in advance is of no use.
    pub(crate) overwrites_in_place: bool,
    /// Whether the kernel can make a single write durable. If it can't, a flush follows each
    /// durable write.
    pub(crate) has_durable_writes: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TargetKind {
    /// A file, which can grow.
    File,
    BlockDevice,
}

impl Target {
    /// A second `Target` for the same file or device. Both share the open file.
    pub(crate) fn duplicate(&self) -> io::Result<Self> {
        Ok(Self {
            file: self.file.try_clone()?,
            claim: self.claim.clone(),
            path: self.path.clone(),
            lba_count: self.lba_count.clone(),
            mapped: self.mapped.clone(),
            ..*self
        })
    }

    pub(crate) fn geometry(&self) -> Geometry {
        Geometry {
            lba_count: self.lba_count.load(Ordering::Relaxed),
            transfer_lbas_max: TRANSFER_LBAS_MAX,
            in_flight_max: self.in_flight_max,
            write_cache: self.write_cache,
        }
    }

    /// The number of the write stream for a placement; 0 if the device has no such stream.
    pub(crate) fn stream(&self, placement: PlacementId) -> u8 {
        u8::try_from(placement.0).ok().filter(|stream| *stream <= self.write_streams).unwrap_or(0)
    }

    /// Returns an error if the operation is out of range or too long, or would change mapped
    /// blocks.
    pub(crate) fn check(&self, op: &Op) -> Result<(), DeviceError> {
        check_range(op, self.lba_count.load(Ordering::Relaxed))?;
        self.mapped.check(op)
    }

    /// Runs an operation to its end on the calling thread.
    pub(crate) fn run(&mut self, op: Op) -> (Option<Buffer>, Result<(), DeviceError>) {
        if let Err(error) = self.check(&op) {
            return (buffer_of(op), Err(error));
        }
        match op {
            Op::Read { lba, mut buffer } => {
                let result = self.transfer(&mut buffer, lba, Transfer::Read);
                (Some(buffer), result)
            }
            Op::Write { lba, mut buffer, durable, .. } => {
                let result = self.write(&mut buffer, lba, durable);
                (Some(buffer), result)
            }
            Op::Flush => (None, self.flush()),
            Op::Deallocate { range } => (None, self.deallocate(range)),
        }
    }

    fn write(&mut self, buffer: &mut Buffer, lba: Lba, durable: bool) -> Result<(), DeviceError> {
        if durable && self.has_durable_writes {
            let result = self.transfer(buffer, lba, Transfer::DurableWrite);
            if !is_unsupported(&result) {
                return result;
            }
            self.has_durable_writes = false;
        }
        self.transfer(buffer, lba, Transfer::Write)?;
        if durable && !is_planted("plain-durable-unflushed") { self.flush() } else { Ok(()) }
    }

    fn transfer(&self, buffer: &mut Buffer, lba: Lba, kind: Transfer) -> Result<(), DeviceError> {
        let asked = buffer.len();
        let res = sys::transfer(&self.file, buffer, byte_offset(lba), kind);
        transferred(res, asked).map_err(DeviceError::from)
    }

    pub(crate) fn flush(&self) -> Result<(), DeviceError> {
        self.file.sync_data().map_err(|error| of_io(&error))
    }

    fn deallocate(&self, range: LbaRange) -> Result<(), DeviceError> {
        let size = (range.end.0 - range.start.0) * LBA_SIZE as u64;
        if size == 0 {
            return Ok(());
        }
        let result = sys::allocate(&self.file, DEALLOCATE, byte_offset(range.start), size);
        forgive_unsupported(result.map_err(|error| of_io(&error)))
    }

    /// See [`Device::grow`](crate::Device::grow).
    pub(crate) fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        let old = self.lba_count.load(Ordering::Relaxed);
        if lba_count <= old {
            return Ok(());
        }
        if self.kind == TargetKind::BlockDevice {
            return Err(DeviceError::NoSpace);
        }
        let size = lba_count.checked_mul(LBA_SIZE as u64).ok_or(DeviceError::NoSpace)?;
        if i64::try_from(size).is_err() {
            return Err(DeviceError::NoSpace);
        }
        let old_size = old * LBA_SIZE as u64;
        let grown = reserve(&self.file, old_size, size).and_then(|()| self.file.sync_all());
        if let Err(error) = grown {
            // The file may have grown by a part of the space, so its old length is restored. Even
            // if that fails, the caller gets the first error.
            drop(self.file.set_len(old_size));
            return Err(match error.raw_os_error() {
                // The file would be longer than the file system supports, or longer than this
                // process's limit.
                Some(libc::EFBIG) => DeviceError::NoSpace,
                _ => of_io(&error),
            });
        }
        self.lba_count.fetch_max(lba_count, Ordering::Relaxed);
        Ok(())
    }

    /// See [`Device::free_space`](crate::Device::free_space).
    pub(crate) fn free_space(&self) -> Option<u64> {
        let is_file = self.kind != TargetKind::BlockDevice;
        is_file.then(|| sys::free_space(&self.file).ok().flatten()).flatten()
    }

    /// See [`Device::shrink`](crate::Device::shrink).
    pub(crate) fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        let old = self.lba_count.load(Ordering::Relaxed);
        if lba_count >= old || self.kind == TargetKind::BlockDevice {
            return Ok(());
        }
        self.file.set_len(lba_count * LBA_SIZE as u64).map_err(|error| of_io(&error))?;
        self.lba_count.fetch_min(lba_count, Ordering::Relaxed);
        Ok(())
    }

    /// See [`Device::fill_holes`](crate::Device::fill_holes).
    pub(crate) fn fill_holes(&self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        if self.kind == TargetKind::BlockDevice || !self.overwrites_in_place {
            return Ok(FilledHoles::default());
        }
        let holes = match self.holes(range) {
            // The file system can't report holes.
            Err(error) if error.raw_os_error().is_some_and(is_unavailable) => Vec::new(),
            holes => holes.map_err(|error| of_io(&error))?,
        };
        let filled = self.reserve_holes(&holes).and_then(|()| self.zero_holes(&holes));
        let holes = FilledHoles(holes);
        if let Err(error) = filled {
            // A part of the space is of no use to the caller, so the filled part is given back. On
            // a full disk, others may need that part.
            self.empty_holes(&holes);
            return Err(of_io(&error));
        }
        Ok(holes)
    }

    /// See [`Device::empty_holes`](crate::Device::empty_holes).
    pub(crate) fn empty_holes(&self, FilledHoles(holes): &FilledHoles) {
        for hole in holes.iter().filter(|_| !is_planted("filled-holes-kept")) {
            // A failure is harmless, because the ranges read as zeros with or without space.
            drop(sys::allocate(&self.file, DEALLOCATE, hole.start, hole.end - hole.start));
        }
    }

    /// The holes of a range, in bytes.
    fn holes(&self, range: LbaRange) -> io::Result<Vec<Range<u64>>> {
        let lba_count = self.lba_count.load(Ordering::Relaxed);
        let end = byte_offset(range.end.min(Lba(lba_count)));
        let mut at = byte_offset(range.start);
        let mut holes = Vec::new();
        while at < end {
            let (data_start, data_end) = sys::next_data(&self.file, at)?.unwrap_or((end, end));
            if at < data_start.min(end) {
                holes.push(at..data_start.min(end));
            }
            at = data_end;
        }
        Ok(holes)
    }

    /// Reserves the space of all holes, before any hole is written to. A reservation is quick, and
    /// shows whether there is enough space.
    fn reserve_holes(&self, holes: &[Range<u64>]) -> io::Result<()> {
        for hole in holes {
            let size = hole.end - hole.start;
            match sys::allocate(&self.file, libc::FALLOC_FL_KEEP_SIZE, hole.start, size) {
                // The file system can't reserve space. The zeros that are written later will
                // allocate the space.
                Err(error) if error.raw_os_error().is_some_and(is_unavailable) => return Ok(()),
                reserved => reserved?,
            }
        }
        Ok(())
    }

    /// Writes zeros into holes, piece by piece, and makes each piece stable before the next.
    /// Without the flushes in between, the zeros would delay the durable writes of the log; `zero`
    /// in `keeper.rs` of the storage crate explains why.
    fn zero_holes(&self, holes: &[Range<u64>]) -> io::Result<()> {
        for hole in holes {
            let mut at = hole.start;
            while at < hole.end {
                let step = FILL_SIZE_MAX.min(hole.end - at);
                write_zeroes(&self.file, at, step)?;
                self.file.sync_data()?;
                at += step;
            }
        }
        Ok(())
    }
}

/// The largest number of bytes of a hole that are filled between two flushes.
const FILL_SIZE_MAX: u64 = 1 << 20;

/// Returns an error if the operation reaches beyond `lba_count` blocks, or is longer than a
/// transfer may be.
pub(crate) fn check_range(op: &Op, lba_count: u64) -> Result<(), DeviceError> {
    let (start, lbas) = match op {
        Op::Read { lba, buffer } | Op::Write { lba, buffer, .. } => {
            let lbas = buffer.len_lbas() as u64;
            if lbas > u64::from(TRANSFER_LBAS_MAX) {
                return Err(DeviceError::OutOfRange);
            }
            (*lba, lbas)
        }
        Op::Deallocate { range: LbaRange { start, end } } => {
            (*start, end.0.checked_sub(start.0).ok_or(DeviceError::OutOfRange)?)
        }
        Op::Flush => return Ok(()),
    };
    let end = start.0.checked_add(lbas).ok_or(DeviceError::OutOfRange)?;
    if end > lba_count { Err(DeviceError::OutOfRange) } else { Ok(()) }
}

/// The largest number of bytes by which a file grows at once if the file system can neither reserve
/// space nor report how much is free. Such a file system may be in memory, and could use up all
/// memory without this limit.
const UNRESERVED_SIZE_MAX: u64 = 1 << 30;

/// Makes a file longer, and reserves the new space.
pub(crate) fn reserve(file: &File, old_size: u64, size: u64) -> io::Result<()> {
    match sys::allocate(file, 0, old_size, size - old_size) {
        Err(error) if error.raw_os_error().is_some_and(is_unavailable) => {
            let free = sys::free_space(file)?.unwrap_or(UNRESERVED_SIZE_MAX);
            if size - old_size > free {
                return Err(io::Error::from_raw_os_error(libc::ENOSPC));
            }
            write_zeroes(file, old_size, size - old_size)
        }
        result => result,
    }
}

/// The mode of `fallocate` that gives blocks back to the file system.
pub(crate) const DEALLOCATE: i32 = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;

/// Turns "not supported" into a success. Giving blocks back is only a hint: without it, the blocks
/// just stay allocated.
pub(crate) fn forgive_unsupported(result: Result<(), DeviceError>) -> Result<(), DeviceError> {
    if is_unsupported(&result) { Ok(()) } else { result }
}

/// Whether the kernel or the file system does not support the operation.
pub(crate) fn is_unsupported(result: &Result<(), DeviceError>) -> bool {
    matches!(result, Err(DeviceError::Io { errno }) if is_unavailable(*errno))
}

/// Whether an error means that the operation is not available: the file system or the kernel lacks
/// it, or a filter refuses it. `EPERM` may also have another cause. In that case, the fallback will
/// fail, too.
fn is_unavailable(errno: i32) -> bool {
    matches!(errno, libc::EOPNOTSUPP | libc::ENOSYS | libc::EPERM)
}

/// The offset of a block, in bytes.
pub(crate) fn byte_offset(lba: Lba) -> u64 {
    lba.0 * LBA_SIZE as u64
}

/// The buffer of an operation that will not be run.
pub(crate) fn buffer_of(op: Op) -> Option<Buffer> {
    match op {
        Op::Read { buffer, .. } | Op::Write { buffer, .. } => Some(buffer),
        Op::Flush | Op::Deallocate { .. } => None,
    }
}

fn of_io(error: &io::Error) -> DeviceError {
    Errno::of(error).into()
}

impl From<Errno> for DeviceError {
    fn from(errno: Errno) -> Self {
        match errno.number() {
            libc::ENOSPC | libc::EDQUOT => Self::NoSpace,
            errno => Self::Io { errno },
        }
    }
}

impl From<TransferError> for DeviceError {
    fn from(error: TransferError) -> Self {
        match error {
            TransferError::Short { moved, asked } => Self::Short { moved, asked },
            TransferError::Os(errno) => errno.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file that accepts every write but can't be flushed. So an error shows that a flush was
    /// tried.
    const SINK: &str = "/dev/null";

    #[test]
    fn a_durable_write_is_flushed_where_the_kernel_makes_no_single_one_durable() {
        let file = File::options().write(true).open(SINK).expect("every machine has /dev/null");
        let mut target = Target {
            file,
            claim: None,
            path: SINK.into(),
            kind: TargetKind::File,
            lba_count: Arc::new(AtomicU64::new(1)),
            mapped: Arc::default(),
            write_cache: WriteCache::Unknown,
            in_flight_max: 1,
            write_streams: 0,
            overwrites_in_place: true,
            has_durable_writes: false,
        };
        let mut write = |durable| {
            let (buffer, placement) = (Buffer::zeroed(1), PlacementId::default());
            target.run(Op::Write { lba: Lba(0), buffer, placement, durable }).1
        };
        assert_eq!(write(false), Ok(()));
        assert_eq!(write(true), Err(DeviceError::Io { errno: libc::EINVAL }));
    }
}
