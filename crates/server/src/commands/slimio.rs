//! `SLIMIO`: commands that only this server has.

use slimio_resp::Args;
use slimio_storage::SnapshotKind;

use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::{Engine, NotBegun, NotChecked};

/// `SLIMIO PIN`: takes a snapshot, keeps it unchanged on the volume until the connection ends, and
/// replies with the snapshot's area, number and epoch. `SLIMIO PIN LAST` uses the last snapshot
/// instead of a new one.
pub(super) fn pin(
    connections: &mut Connections,
    engine: &mut Engine,
    client: &mut Client,
    args: Args<'_>,
) {
    let wants_last = args.len() == 3 && args.get(2).is("last");
    if args.len() > 2 && !wants_last {
        client.out.error("ERR syntax error");
        return;
    }
    if wants_last {
        engine.pin_last(client);
        return;
    }
    match engine.begin_snapshot(SnapshotKind::OnDemand) {
        Ok(()) | Err(NotBegun::Busy | NotBegun::Pinned) => connections.wait_for_pin(engine, client),
        Err(NotBegun::Never) => client.out.error(super::persistence::NO_VOLUME),
    }
}

/// `SLIMIO CHECK`: begins a pass of the snapshot check now. `INFO slimio` shows what it finds.
pub(super) fn check(engine: &mut Engine, client: &mut Client, _: Args<'_>) {
    match engine.begin_check() {
        Ok(()) => client.out.simple("Background check of the snapshots started"),
        Err(NotChecked::NoVolume) => client.out.error("ERR there is no volume to check"),
        Err(NotChecked::NoSnapshot) => client.out.error("ERR there is no snapshot yet"),
        Err(NotChecked::Off) => {
            client.out.error("ERR snapshot-check-rate is 0, so nothing is read; set it first");
        }
        Err(NotChecked::Running) => {
            client.out.error("ERR Background check of the snapshots already in progress");
        }
    }
}

pub(super) fn help(_: &mut Engine, client: &mut Client, _: Args<'_>) {
    super::help(
        client,
        &[
            "SLIMIO <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
            "CHECK",
            "    Check the snapshots on the volume now, in the background.",
            "    INFO slimio shows what it finds.",
            "PIN [LAST]",
            "    Take a snapshot (with LAST: use the last one), and keep it unchanged on the volume",
            "    until this connection ends. slimio export reads it there.",
        ],
    );
}
