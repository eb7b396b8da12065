//! A volume on an emulated SSD, which is a device like any other.

use std::path::Path;

use slimio_device::OpenError;
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive, PREFIX};
use slimio_storage::Storage;

use crate::block;

/// What names the drive, if `path` names one.
pub(crate) fn spec(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(PREFIX)
}

/// Takes the drive that `spec` names as a volume, in real time.
///
/// # Errors
/// Why it can't be taken.
pub(crate) fn open(
    path: &Path,
    spec: &str,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, OpenError> {
    let options = DriveOptions::parse(spec, Clock::Real).map_err(|error| {
        OpenError::Unsuitable { path: path.to_path_buf(), why: error.to_string() }
    })?;
    if !create {
        options.check_exists()?;
    }
    block::make_volume(path, Box::new(EmulatedDrive::open(options)?), wal_size_max)
}
