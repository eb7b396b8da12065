//! `SAVE BGSAVE BGREWRITEAOF LASTSAVE`

use slimio_resp::Args;
use slimio_storage::SnapshotKind;

use crate::clients::Client;
use crate::core::{Core, NotBegun};

pub(super) const NO_VOLUME: &str = "ERR there is no volume to save to, or its log has stopped";

pub(super) fn save(core: &mut Core, client: &mut Client, _: Args<'_>) {
    if core.snapshots.is_saving() {
        client.out.error("ERR Background save already in progress");
        return;
    }
    core.make_way_for_save();
    match core.begin_snapshot(SnapshotKind::OnDemand) {
        Ok(()) | Err(NotBegun::Busy | NotBegun::Pinned) => core.wait_for_save(client),
        Err(NotBegun::Never) => client.out.error(NO_VOLUME),
    }
}

pub(super) fn bgsave(core: &mut Core, client: &mut Client, args: Args<'_>) {
    let is_schedule = args.len() == 2 && args.get(1).is("schedule");
    if args.len() > 1 && !is_schedule {
        client.out.error("ERR syntax error");
        return;
    }
    let snapshots = &core.snapshots;
    if snapshots.runs(SnapshotKind::OnDemand) && !snapshots.is_of_flush {
        client.out.error("ERR Background save already in progress");
        return;
    }
    core.make_way_for_save();
    // Called even if the request is refused below, because the refused client then waits for the
    // running snapshot to end.
    core.snapshot_asked_for();
    let is_queued = core.is_in_transaction();
    match core.begin_snapshot(SnapshotKind::OnDemand) {
        Ok(()) => client.out.simple("Background saving started"),
        Err(NotBegun::Busy | NotBegun::Pinned)
            if is_schedule || is_queued || !core.snapshots.runs(SnapshotKind::Wal) =>
        {
            core.snapshots.saves.is_scheduled = true;
            client.out.simple("Background saving scheduled");
        }
        Err(NotBegun::Busy | NotBegun::Pinned) => client.out.error(
            "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE \
             SCHEDULE in order to schedule a BGSAVE whenever possible.",
        ),
        Err(NotBegun::Never) => client.out.error(NO_VOLUME),
    }
}

pub(super) fn bgrewriteaof(core: &mut Core, client: &mut Client, _: Args<'_>) {
    core.snapshot_asked_for();
    core.snapshots.rewrites.is_automatic = false;
    if core.snapshots.runs(SnapshotKind::Wal) {
        client.out.error("ERR Background append only file rewriting already in progress");
        return;
    }
    match core.begin_snapshot(SnapshotKind::Wal) {
        Ok(()) => client.out.simple("Background append only file rewriting started"),
        Err(NotBegun::Busy | NotBegun::Pinned) => {
            core.snapshots.rewrites.is_scheduled = true;
            client.out.simple("Background append only file rewriting scheduled");
        }
        Err(NotBegun::Never) => client.out.error(NO_VOLUME),
    }
}

pub(super) fn lastsave(core: &mut Core, client: &mut Client, _: Args<'_>) {
    client.out.integer(core.snapshots.saved_at_s);
}
