//! Rolls a volume back to the point in time that `BGSAVE` kept.
//!
//! A rollback is a separate command rather than an option of the server's start. With an option, a
//! service manager that restarts the server would roll back at each restart, and lose everything
//! written since the previous restart.

use std::time::Instant;

use slimio_storage::{
    Error, Policy, RecoverOptions, Report, RootChoice, Storage, recover, superblock,
};

use super::OnProgress;
use super::source::SnapshotLoad;
use crate::config::Config;
use crate::explain::explain;

/// Turns a volume's on-demand snapshot into the root (the snapshot that the next start loads), with
/// an empty log after it. Everything that was written since the snapshot was taken is lost. The
/// WAL-snapshot (the snapshot that the log went on from) is lost, too. The on-demand snapshot is
/// read, checked and decoded as a whole before anything is changed. Then one update of the
/// superblock makes the change, which is durable when this function returns. The setting of
/// `appendonly` on the volume does not change.
///
/// If the volume was last written on another device, the volume is refused unless `accept_device`
/// is set. With `accept_device`, the volume becomes this device's volume. Rolling back takes as
/// much memory as the data set.
///
/// # Errors
/// If the volume cannot be read or written, or has no on-demand snapshot. The error is a sentence
/// with a remedy. After a failed write to the volume, the volume may have changed. After any other
/// error, the volume is unchanged.
pub fn roll_back(
    storage: &mut Storage,
    accept_device: bool,
    on_progress: OnProgress<'_>,
) -> Result<Report, String> {
    let name = storage.name.clone();
    let failed = |error: Error| format!("cannot roll back the volume {name}: {}", explain(&error));
    let found = superblock(&mut *storage.media).map_err(failed)?;
    let has_log = found.snapshots.log_end().is_none();
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
