//! `SAVE BGSAVE BGREWRITEAOF LASTSAVE`

use slimio_resp::Args;
use slimio_storage::SnapshotKind;

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::{Engine, NotBegun};

pub(super) const NO_VOLUME: &str = "ERR there is no volume to save to, or its log has stopped";

pub(super) fn save(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    _: Args<'_>,
) {
    if engine.snapshots.is_saving() {
        client.out.error("ERR Background save already in progress");
        return;
    }
    engine.make_way_for_save();
    match engine.begin_snapshot(SnapshotKind::OnDemand) {
        Ok(()) | Err(NotBegun::Busy | NotBegun::Pinned) => {
            connections.wait_for_save(engine, client);
        }
        Err(NotBegun::Never) => client.out.error(NO_VOLUME),
    }
}

pub(super) fn bgsave(engine: &mut Engine, client: &mut Client, args: Args<'_>) {
    let is_schedule = args.len() == 2 && args.get(1).is("schedule");
    if args.len() > 1 && !is_schedule {
        client.out.error("ERR syntax error");
        return;
    }
    let snapshots = &engine.snapshots;
    if snapshots.runs(SnapshotKind::OnDemand) && !snapshots.is_of_flush {
        client.out.error("ERR Background save already in progress");
        return;
    }
    engine.make_way_for_save();
    // If a snapshot is running, this call makes the snapshot faster. The call is right even if the
    // request is refused below, because the client can try again only after the running snapshot
    // has ended.
    engine.snapshot_asked_for();
    let is_queued = engine.data.is_in_transaction();
    match engine.begin_snapshot(SnapshotKind::OnDemand) {
        Ok(()) => client.out.simple("Background saving started"),
        Err(NotBegun::Busy | NotBegun::Pinned)
            if is_schedule || is_queued || !engine.snapshots.runs(SnapshotKind::Wal) =>
        {
            engine.snapshots.saves.is_scheduled = true;
            client.out.simple("Background saving scheduled");
        }
        Err(NotBegun::Busy | NotBegun::Pinned) => client.out.error(
            "ERR Another child process is active (AOF?): can't BGSAVE right now. Use BGSAVE \
             SCHEDULE in order to schedule a BGSAVE whenever possible.",
        ),
        Err(NotBegun::Never) => client.out.error(NO_VOLUME),
    }
}

pub(super) fn bgrewriteaof(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    engine.snapshot_asked_for();
    engine.snapshots.rewrites.is_automatic = false;
    if engine.snapshots.runs(SnapshotKind::Wal) {
        client.out.error("ERR Background append only file rewriting already in progress");
        return;
    }
    match engine.begin_snapshot(SnapshotKind::Wal) {
        Ok(()) => client.out.simple("Background append only file rewriting started"),
        Err(NotBegun::Busy | NotBegun::Pinned) => {
            engine.snapshots.rewrites.is_scheduled = true;
            client.out.simple("Background append only file rewriting scheduled");
        }
        Err(NotBegun::Never) => client.out.error(NO_VOLUME),
    }
}

pub(super) fn lastsave(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    client.out.integer(engine.snapshots.saved_at_s);
}
