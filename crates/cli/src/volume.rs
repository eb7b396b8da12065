//! Opens what `--volume` names.

use std::path::Path;

use slimio_device::{OpenError, PathOptions};
use slimio_server::open_remedy;
use slimio_storage::Storage;

/// Opens the volume that `spec` names. If `create` is set, a missing directory is made. The log's
/// area does not grow beyond `wal_size_max` bytes.
///
/// # Errors
/// If the volume can't be opened. The error is a sentence with a remedy.
pub(crate) fn open(
    spec: &str,
    options: PathOptions,
    create: bool,
    wal_size_max: u64,
) -> Result<Storage, String> {
    slimio_volume::open(Path::new(spec), options, create, wal_size_max)
        .map_err(|error| explain(&error, spec))
}

/// Opens a volume as [`open`] does, but only on a device. The device's writes, deallocations and
/// flushes are recorded in the new file `trace`. If an emulated drive is missing, it is made.
///
/// # Errors
/// If the volume or the trace can't be opened. The error is a sentence with a remedy.
pub(crate) fn open_traced(
    spec: &str,
    options: PathOptions,
    wal_size_max: u64,
    trace: &str,
) -> Result<Storage, String> {
    slimio_volume::open_traced(Path::new(spec), options, wal_size_max, Path::new(trace))
        .map_err(|error| explain(&error, spec))
}

/// Tells the user why a volume can't be opened, with a remedy.
pub(crate) fn explain(error: &OpenError, spec: &str) -> String {
    let remedy = open_remedy(error);
    format!("cannot open the volume {spec}: {error}; {remedy}")
}
