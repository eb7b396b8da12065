//! The block device below a directory: its counters, cache and name.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::{Doing, Result};

/// Unit of the kernel's counters in bytes, whatever the block size of the device is.
const SECTOR_SIZE: u64 = 512;

/// A block device or partition that a file system lies on.
#[derive(Clone, Debug)]
pub struct BlockDevice {
    directory: PathBuf,
}

/// Traffic of a device since the machine started, including the traffic of other processes.
#[derive(Clone, Copy, Debug, Default)]
pub struct DeviceCounters {
    /// Bytes read.
    pub read_bytes: u64,
    /// Bytes written.
    pub written_bytes: u64,
    /// Write requests.
    pub write_count: u64,
    /// Flush requests.
    pub flush_count: u64,
}

impl DeviceCounters {
    /// The traffic between `earlier` and `self`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            read_bytes: self.read_bytes.saturating_sub(earlier.read_bytes),
            written_bytes: self.written_bytes.saturating_sub(earlier.written_bytes),
            write_count: self.write_count.saturating_sub(earlier.write_count),
            flush_count: self.flush_count.saturating_sub(earlier.flush_count),
        }
    }
}

impl BlockDevice {
    /// The device below `path`; `None` if the file system has no single device (tmpfs, btrfs, …).
    pub fn below(path: &Path) -> Result<Option<Self>> {
        let device = path.metadata().doing(format!("looking at {}", path.display()))?.dev();
        let number = format!("{}:{}", rustix::fs::major(device), rustix::fs::minor(device));
        let directory = Path::new("/sys/dev/block").join(number);
        Ok(directory.exists().then_some(Self { directory }))
    }

    /// The kernel's name of the device, `vda1` for example.
    pub fn name(&self) -> String {
        let real = fs::canonicalize(&self.directory).unwrap_or_default();
        real.file_name().unwrap_or_default().to_string_lossy().into_owned()
    }

    /// The counters now; `None` if the kernel keeps none.
    pub fn counters(&self) -> Option<DeviceCounters> {
        let text = fs::read_to_string(self.directory.join("stat")).ok()?;
        let fields: Vec<u64> =
            text.split_whitespace().map(|field| field.parse().unwrap_or(0)).collect();
        Some(DeviceCounters {
            read_bytes: *fields.get(2)? * SECTOR_SIZE,
            write_count: *fields.get(4)?,
            written_bytes: *fields.get(6)? * SECTOR_SIZE,
            flush_count: fields.get(15).copied().unwrap_or(0),
        })
    }

    /// A setting of the device's queue (`write_cache`, `fua`, …). A partition has no queue of its
    /// own, so the setting of the whole disk is returned.
    pub fn queue(&self, name: &str) -> Option<String> {
        let real = fs::canonicalize(&self.directory).ok()?;
        [real.join("queue"), real.parent()?.join("queue")]
            .iter()
            .find_map(|queue| fs::read_to_string(queue.join(name)).ok())
            .map(|text| text.trim().to_owned())
    }
}

/// Writes all cached data of a file system to its device. `path` is any path on that file system.
pub fn sync_file_system(path: &Path) -> Result<()> {
    let what = || format!("syncing the file system of {}", path.display());
    let directory = fs::File::open(path).doing(what())?;
    rustix::fs::syncfs(&directory).doing(what())
}
