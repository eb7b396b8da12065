//! A loop device whose requests take as long as those of an emulated SSD, for servers that need a
//! block device.
//!
//! The address mapping, the garbage collector and the clocks are those of `crates/ssd/`. The bytes
//! are in a file, in which each block is at the offset of its LBA. A request is answered when the
//! NAND of a real drive would have carried it out. A loop device has no data placement, so this is
//! a conventional drive.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::fs::{FallocateFlags, fallocate};
use slimio_ssd::{Clocked, Config, FtlError};

use super::disk::{BLOCK_SIZE, LoopDisk};
use super::fuse::OneFile;
use crate::error::{BenchError, Result};

/// A block device that is an emulated SSD; removed on drop.
#[derive(Debug)]
pub struct EmulatedDisk {
    disk: LoopDisk,
    drive: DriveMeter,
}

/// Reads the counters of a drive that is in use.
#[derive(Clone, Debug)]
pub struct DriveMeter(Arc<Mutex<Clocked>>);

impl DriveMeter {
    /// Bytes that the host has written, and bytes that the drive has written to its media.
    pub fn host_and_media_bytes(&self) -> (u64, u64) {
        let drive = self.lock();
        let counters = drive.ftl().counters();
        (counters.host_bytes(), counters.media_bytes())
    }

    fn lock(&self) -> MutexGuard<'_, Clocked> {
        // A poisoned lock is no error here: if a thread panicked while it held the lock, the panic
        // was reported at that time.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EmulatedDisk {
    /// Makes a device that is an empty drive of `config`. Its bytes are in `folder`, in a sparse
    /// file that is removed at the end. Needs root, FUSE and loop devices.
    pub fn new(folder: &Path, config: Config) -> Result<Self> {
        let size = config.exported_size();
        let drive = Clocked::new(config).map_err(|error| BenchError::Usage(error.to_string()))?;
        let drive = DriveMeter(Arc::new(Mutex::new(drive)));
        let its_own = drive.clone();
        let emulated = |file| Emulated { size, file, drive: its_own, start: Instant::now() };
        Ok(Self { disk: LoopDisk::new(folder, size, emulated)?, drive })
    }

    /// The block device: `/dev/loopN`.
    pub fn device(&self) -> &Path {
        self.disk.device()
    }

    /// The meter of the emulated drive.
    pub fn meter(&self) -> DriveMeter {
        self.drive.clone()
    }

    /// Detaches the device. Nothing may use the device any more.
    pub fn finish(self) -> Result<()> {
        self.disk.finish()
    }
}

struct Emulated {
    size: u64,
    file: File,
    drive: DriveMeter,
    /// The moment at which the drive's clock is zero.
    start: Instant,
}

impl Emulated {
    fn wait(&self, due: Duration) {
        thread::sleep(due.saturating_sub(self.start.elapsed()));
    }
}

/// First block and number of blocks that a range of bytes touches.
fn blocks(offset: u64, size: u64) -> (u64, u64) {
    let first = offset / BLOCK_SIZE;
    (first, (offset + size).div_ceil(BLOCK_SIZE) - first)
}

fn refused(error: FtlError) -> io::Error {
    io::Error::other(error.to_string())
}

impl OneFile for Emulated {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&mut self, offset: u64, bytes: &mut [u8]) -> io::Result<()> {
        let (lba, count) = blocks(offset, bytes.len() as u64);
        let due = self.drive.lock().read(self.start.elapsed(), lba, count);
        self.file.read_exact_at(bytes, offset)?;
        self.wait(due);
        Ok(())
    }

    fn write(&mut self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let (lba, count) = blocks(offset, bytes.len() as u64);
        let written = self.drive.lock().write(self.start.elapsed(), lba, count, 0);
        let due = written.map_err(refused)?;
        self.file.write_all_at(bytes, offset)?;
        self.wait(due);
        Ok(())
    }

    fn zero(&mut self, offset: u64, size: u64, is_hole: bool) -> io::Result<()> {
        let (lba, count) = blocks(offset, size);
        if is_hole {
            self.drive.lock().deallocate(lba, count).map_err(refused)?;
        } else {
            let written = self.drive.lock().write(self.start.elapsed(), lba, count, 0);
            self.wait(written.map_err(refused)?);
        }
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(&self.file, flags, offset, size)?)
    }

    /// Does nothing, because every write was on the media before it was answered.
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn emulated(config: Config) -> Emulated {
        let path = std::env::temp_dir().join(format!("slimio-emulated-{}", std::process::id()));
        let file = File::options().read(true).write(true).create(true).truncate(true).open(&path);
        let file = file.unwrap();
        std::fs::remove_file(&path).unwrap();
        let size = config.exported_size();
        file.set_len(size).unwrap();
        let drive = DriveMeter(Arc::new(Mutex::new(Clocked::new(config).unwrap())));
        Emulated { size, file, drive, start: Instant::now() }
    }

    #[test]
    fn a_request_is_counted_and_answered_when_nand_is_done() {
        let mut disk = emulated(Config { handles: 1, ..Config::scaled(64 << 20) });
        let began = Instant::now();
        for byte in [1, 2] {
            disk.write(8 * BLOCK_SIZE, &[byte; 4 * BLOCK_SIZE as usize]).unwrap();
        }
        assert!(began.elapsed() >= 2 * disk.drive.lock().ftl().config().timing.program);
        assert_eq!(disk.drive.host_and_media_bytes(), (8 * BLOCK_SIZE, 8 * BLOCK_SIZE));
        let mut found = [0; BLOCK_SIZE as usize];
        disk.read(11 * BLOCK_SIZE, &mut found).unwrap();
        assert_eq!(found, [2; BLOCK_SIZE as usize]);

        disk.zero(8 * BLOCK_SIZE, 2 * BLOCK_SIZE, true).unwrap();
        assert_eq!(disk.drive.lock().ftl().mapped_count(), 2);
        disk.zero(8 * BLOCK_SIZE, BLOCK_SIZE, false).unwrap();
        assert_eq!(disk.drive.host_and_media_bytes().0, 9 * BLOCK_SIZE);
        disk.read(8 * BLOCK_SIZE, &mut found).unwrap();
        assert_eq!(found, [0; BLOCK_SIZE as usize]);
        assert!(
            disk.write(disk.size, &[1; BLOCK_SIZE as usize]).is_err(),
            "a write beyond the end of the drive must be refused"
        );
    }
}
