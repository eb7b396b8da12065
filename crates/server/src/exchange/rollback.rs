//! Going back to the point in time that `BGSAVE` kept.
//!
//! A command of its own rather than an option of the server's start: a service manager that
//! restarts the server would roll back each time, and lose what was written since.

use std::time::Instant;

use slimio_storage::{
    Error, Policy, RecoverOptions, Report, RootChoice, Storage, recover, superblock,
};

use super::OnProgress;
use super::source::SnapshotLoad;
use crate::config::Config;
use crate::explain::explain;

/// Makes the on-demand snapshot of a volume the root, with an empty log behind it: what was written
/// since it was taken is lost, with the WAL-snapshot. The snapshot is read, checked and decoded as a
/// whole before anything is changed; one update of the superblock then does it, durable when this
/// returns. Whether there is a log (`appendonly`) stays as it was.
///
/// A volume that was last written on another device belongs to this one from then on if
/// `accept_device` is set, and is refused otherwise. Takes as much memory as the data set.
///
/// # Errors
/// A sentence with a remedy. The volume is as it was, unless it could not be written.
pub fn roll_back(
    storage: &mut Storage,
    accept_device: bool,
    on_progress: OnProgress<'_>,
) -> Result<Report, String> {
    let name = storage.name.clone();
    let failed = |error: Error| format!("cannot roll back the volume {name}: {}", explain(&error));
    let found = superblock(&mut *storage.media).map_err(failed)?;
    let has_log = found.is_none_or(|found| found.snapshots.log_end().is_none());
    let buffer_count = Config::default().int("log-buffers") as usize;
    let options = RecoverOptions {
        root: RootChoice::OnDemand,
        accept_device,
        is_log_on: has_log,
        ..RecoverOptions::new(Policy::Always, buffer_count, Instant::now())
    };
    let volume = recover(&mut *storage.media, &options, &mut SnapshotLoad::new(on_progress))
        .map_err(failed)?;
    Ok(volume.report)
}
