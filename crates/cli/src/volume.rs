//! What `--volume` names, opened.

use std::path::Path;

use slimio_device::{OpenError, PathOptions};
use slimio_storage::Storage;

/// Opens the volume that `spec` names, making a directory that is missing if `create`. The log's
/// area does not grow beyond `wal_size_max` bytes.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn open(
    spec: &str,
    options: PathOptions,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, String> {
    slimio_volume::open(Path::new(spec), options, create, wal_size_max)
        .map_err(|error| explain(&error, spec))
}

/// As [`open`], of a device, which is recorded at `trace`.
///
/// # Errors
/// A sentence with a remedy.
pub(crate) fn open_traced(
    spec: &str,
    options: PathOptions,
    wal_size_max: u64,
    trace: &str,
) -> Result<Storage, String> {
    slimio_volume::open_traced(Path::new(spec), options, wal_size_max, Path::new(trace))
        .map_err(|error| explain(&error, spec))
}

/// A sentence with a remedy.
pub(crate) fn explain(error: &OpenError, spec: &str) -> String {
    let remedy = match error {
        OpenError::InUse { .. } => "stop the program that has it, or choose another --volume",
        OpenError::StillInFlight { .. } => {
            "see what its device does (dmesg, /sys/block/*/inflight), and start again when it has \
             answered"
        }
        OpenError::Missing { .. } => "check --volume, or make one with slimio format",
        OpenError::NoSpace { .. } => "make room on the file system, or choose another --volume",
        OpenError::Unsuitable { .. } => "choose another --volume",
        OpenError::Incomplete { .. } => "restore it from a backup",
        OpenError::Forbidden { .. } => "docs/fdp.md has the steps",
        OpenError::Device { .. } => "check the device (nvme smart-log), or choose another --volume",
        OpenError::Io { .. } => "check its permissions and its device",
    };
    format!("cannot open the volume {spec}: {error}; {remedy}")
}
