//! A volume on an emulated SSD, which is a device like any other.

use std::path::Path;

use slimio_device::{OpenError, WholeDevice};
use slimio_ssd::{Clock, DriveOptions, EmulatedDrive, PREFIX};

/// The specification of an emulated drive, if `path` names such a drive.
pub(crate) fn spec(path: &Path) -> Option<&str> {
    path.to_str()?.strip_prefix(PREFIX)
}

/// Opens the drive that `spec` names. The drive runs in real time. If `create` is set, a missing
/// drive is made.
///
/// # Errors
/// When the drive can't be opened.
pub(crate) fn open(
    path: &Path,
    spec: &str,
    create: bool,
) -> Result<Box<dyn WholeDevice>, OpenError> {
    let options = DriveOptions::parse(spec, Clock::Real).map_err(|error| {
        OpenError::Unsuitable { path: path.to_path_buf(), why: error.to_string() }
    })?;
    if !create {
        options.check_exists()?;
    }
    Ok(Box::new(EmulatedDrive::open(options)?))
}
