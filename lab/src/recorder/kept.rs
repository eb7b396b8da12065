//! A recorded device that keeps all writes with their data, and all deallocations and flushes.
//! Tests turn these requests into the images that a power cut could leave.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::fs::{FallocateFlags, fallocate};
use slimio_host::power_cut::Entry;

use super::disk::LoopDisk;
use super::fuse::OneFile;
use crate::error::Result;

/// A loop device that keeps all requests except reads in memory, with their data. The device is
/// removed on drop. A loop device does not support FUA, so a durable write arrives as a write and a
/// flush.
#[derive(Debug)]
pub struct KeptDisk {
    disk: LoopDisk,
    entries: Entries,
}

#[derive(Clone, Debug, Default)]
struct Entries(Arc<Mutex<Vec<Entry>>>);

impl KeptDisk {
    /// Makes a device of `size` bytes, all zeros, whose data is in `folder` until the device is
    /// dropped. Needs root, FUSE and loop devices.
    pub fn new(folder: &Path, size: u64) -> Result<Self> {
        let entries = Entries::default();
        let kept = |file| Kept { size, file, entries: entries.clone() };
        Ok(Self { disk: LoopDisk::new(folder, size, kept)?, entries })
    }

    /// The block device: `/dev/loopN`.
    pub fn device(&self) -> &Path {
        self.disk.device()
    }

    /// How many requests are kept. All writes, deallocations and flushes that were acknowledged so
    /// far are among them.
    pub fn count(&self) -> usize {
        self.entries.lock().len()
    }

    /// Detaches the device. Nothing may use the device any more. Returns the kept requests.
    pub fn finish(self) -> Result<Vec<Entry>> {
        self.disk.finish()?;
        Ok(std::mem::take(&mut self.entries.lock()))
    }
}

impl Entries {
    fn lock(&self) -> MutexGuard<'_, Vec<Entry>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The file with the device's data, as this process serves it. All requests except reads are
/// kept.
struct Kept {
    size: u64,
    file: File,
    entries: Entries,
}

impl OneFile for Kept {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(bytes, offset)
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        self.entries.lock().push(Entry::Write { offset, data: bytes.to_vec(), durable: false });
        self.file.write_all_at(bytes, offset)
    }

    /// Keeps a write of zeros in the same way as a hole, because the loop driver also sends writes
    /// of zeros as holes. Both read as zeros.
    fn zero(&mut self, offset: u64, size: u64, _is_hole: bool) -> io::Result<()> {
        self.entries.lock().push(Entry::Deallocate { offset, size });
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, size)?)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.entries.lock().push(Entry::Flush);
        Ok(())
    }
}
