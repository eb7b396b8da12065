//! `slimio rollback`: back to the point in time that `BGSAVE` kept.

use std::time::{SystemTime, UNIX_EPOCH};

use clap::Args;
use slimio_server::exchange::roll_back;
use slimio_server::explain;
use slimio_storage::{Area, Error, Inspection, SlotSummary, SnapshotKind, inspect};

use crate::exchange::Progress;
use crate::tools::{VolumeArg, announce, say};

/// `slimio rollback`
#[derive(Debug, Args)]
pub(crate) struct Rollback {
    #[command(flatten)]
    volume: VolumeArg,
    /// Roll back; without this option, only show what would be lost
    #[arg(long)]
    force: bool,
    /// For a volume that was last written on another device: check refuses the volume, accept lets
    /// it belong to this device from now on
    #[arg(long, value_name = "check|accept", value_parser = ["check", "accept"], default_value = "check")]
    volume_identity: String,
}

impl Rollback {
    /// Shows what would be lost, and with `--force` rolls back.
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut storage = self.volume.open_existing()?;
        let found = inspect(&mut *storage.media).map_err(|e| explain(&e))?;
        let superblock = match (&found.superblock, &found.log) {
            (Some(superblock), _) => superblock,
            (None, log) => {
                let error = log.as_ref().err().unwrap_or(&Error::NoVolume);
                let name = &storage.name;
                return Err(format!("cannot roll back the volume {name}: {}", explain(error)));
            }
        };
        let back_to = superblock.snapshots.of_kind(SnapshotKind::OnDemand).copied();
        let back_to = back_to.ok_or_else(|| explain(&Error::NoOnDemandSnapshot))?;
        let is_root = superblock.snapshots.root() == Some(&back_to);
        let has_newer = !matches!(&found.log, Ok(report) if report.records == 0);
        if is_root && !has_newer {
            say(&format!(
                "nothing to do: {} is the root, and the log after it is empty",
                name(&back_to)
            ));
            return Ok(());
        }
        announce(&format!("back to: {}", name(&back_to)));
        for what in lost(&found, &back_to) {
            announce(&format!("lost: {what}"));
        }
        if !self.force {
            return Err("nothing was changed; to go back, add --force; slimio export can save \
                        the present state first"
                .into());
        }
        let accept_device = self.volume_identity == "accept";
        let mut heard = Progress::new("reading").heard();
        let report = roll_back(&mut storage, accept_device, &mut heard)?;
        say(&report.to_string());
        say("the on-demand snapshot is now the root; start the server as usual");
        Ok(())
    }
}

/// Describes a snapshot in words.
fn name(summary: &SlotSummary) -> String {
    let SlotSummary { slot, kind, lsn, entry_count, created_ms, .. } = summary;
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let age_s = (now.as_millis() as u64).saturating_sub(*created_ms) / 1000;
    let (kind, area) = (kind.name(), Area::Snapshot(*slot).name());
    format!("the {kind} in {area}, {entry_count} entries, {age_s} s old, LSN {lsn}")
}

/// Lists the data that a rollback loses: a line for each lost snapshot, and a line for the log.
fn lost(found: &Inspection, back_to: &SlotSummary) -> Vec<String> {
    let held = found.slots.iter().map(|(held, _)| held);
    let mut lines: Vec<String> =
        held.filter(|held| held.kind == SnapshotKind::Wal).map(name).collect();
    lines.push(match &found.log {
        Ok(report) => format!(
            "the log from LSN {} to {}, {} records; {} bytes of log are newer than that point in time",
            report.start,
            report.end,
            report.records,
            report.end.bytes_since(back_to.lsn.min(report.end)),
        ),
        Err(error) => format!("the log, which can't be read: {error}"),
    });
    lines
}
