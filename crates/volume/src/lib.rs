//! The concrete volumes: a directory of files, a device, or an emulated SSD, opened as a
//! [`Storage`].
//!
//! All other crates take a volume's medium as a `&mut dyn Media`. They take a path to the medium (a
//! way to one of its areas, with a queue of its own) as a `&mut dyn Device`. This crate is used only
//! by binaries, and by tests that do the work of a binary.

mod beside;
mod block;
mod directory;
mod emulated;
mod placement;
mod traced;
mod unfinished;
mod units;

pub use beside::open_beside;
pub use placement::{placements_of_lifetimes, sharing};
pub use units::{OWNERS, Unit, open_watched, summary, units};

use std::path::Path;

use slimio_device::{OpenError, PathOptions, WholeDevice, open_whole};
use slimio_storage::Storage;

/// Opens the volume at `path`. No other process can open the volume until the result is dropped. If
/// `create` is set, a missing directory, or the missing file of an emulated SSD (`emulated:…`), is
/// made. A directory or device that holds anything other than a volume is refused.
///
/// The log's area does not grow beyond `wal_size_max` bytes.
///
/// # Errors
/// When the volume can't be opened.
pub fn open(
    path: &Path,
    options: PathOptions,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    if let Some(spec) = emulated::spec(path) {
        open_on(path, emulated::open(path, spec, create)?, wal_size_max)
    } else if block::is_device(path) {
        open_on(path, open_whole(path, options)?, wal_size_max)
    } else {
        check_no_device(path)?;
        directory::open(path, options, create, wal_size_max)
    }
}

/// Refuses the name of a missing device in `/dev`. A directory made under this name would be in
/// memory, and lost when the machine stops.
fn check_no_device(path: &Path) -> Result<(), OpenError> {
    let full = std::path::absolute(path).unwrap_or_default();
    let mut above = full.ancestors().skip(1);
    let place = above.find_map(|above| above.canonicalize().ok()).unwrap_or_default();
    if !path.exists() && place.starts_with("/dev") && !place.starts_with("/dev/shm") {
        return Err(OpenError::Missing { path: path.to_path_buf() });
    }
    Ok(())
}

/// Opens the volume on any device that only this process has open. A device that holds something
/// other than a volume is refused. `path` is the device's name.
///
/// # Errors
/// When the volume can't be opened.
pub fn open_on(
    path: &Path,
    device: Box<dyn WholeDevice>,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    block::make_volume(path, device, wal_size_max, None)
}

/// Like [`open`], but only for a device. The device's writes, deallocations and flushes are
/// recorded in a new file at `trace`. Each recorded write has a stream number, which tells the
/// lifetime of the write. A lifetime is a kind of data that is deleted together (such as the log).
///
/// # Errors
/// When `path` names no device, or when the device can't be opened or recorded.
pub fn open_traced(
    path: &Path,
    options: PathOptions,
    wal_size_max: u64,
    trace: &Path,
) -> Result<Storage, OpenError> {
    let device = if let Some(spec) = emulated::spec(path) {
        emulated::open(path, spec, true)?
    } else if block::is_device(path) {
        open_whole(path, options)?
    } else {
        let why =
            "only the I/O of a block device, an NVMe namespace or an emulated SSD is recorded"
                .into();
        return Err(OpenError::Unsuitable { path: path.to_path_buf(), why });
    };
    block::make_volume(path, device, wal_size_max, Some(trace))
}
