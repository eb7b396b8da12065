//! The concrete volumes: a directory of files, or a block device, made into what storage works on.
//!
//! Everything else takes what holds a volume as a `&mut dyn Media`, and a path as a
//! `&mut dyn Device`: only a binary, or a test in its place, comes here.

mod beside;
mod block;
mod directory;
mod placement;

pub use beside::open_beside;
pub use placement::{placements_of_lifetimes, sharing};

use std::path::Path;

use slimio_device::{OpenError, PathOptions};
use slimio_storage::Storage;

/// Opens the volume at `path`, which is this process's alone until the result is dropped. A
/// directory that is missing is made if `create`. What is there and is no volume is refused.
///
/// The log's area does not grow beyond `wal_size_max` bytes.
///
/// # Errors
/// Why it can't be taken.
pub fn open(
    path: &Path,
    options: PathOptions,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    if block::is_device(path) {
        block::open(path, options, wal_size_max)
    } else {
        directory::open(path, options, create, wal_size_max)
    }
}
