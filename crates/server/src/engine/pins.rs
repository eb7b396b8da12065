//! Pinned snapshots, which stay unchanged on the volume while a client reads them.

use slimio_storage::{SlotSummary, SnapshotKind};

use super::Engine;
use crate::clients::Client;
use crate::net::ConnId;

impl Engine {
    /// Pins the on-demand snapshot for a client, or the root (the snapshot that the next start
    /// loads) if there is no on-demand snapshot. The reply says which snapshot is pinned.
    pub(crate) fn pin_last(&mut self, client: &mut Client) {
        let held = self.gate.wal.as_ref().map(|wal| *wal.log().snapshots());
        let found = held
            .and_then(|held| held.of_kind(SnapshotKind::OnDemand).or_else(|| held.root()).copied());
        match found {
            Some(summary) => self.pin(client, &summary),
            None => client.out.error("ERR there is no snapshot yet"),
        }
    }

    pub(crate) fn has_just_begun(&self) -> bool {
        let running = self.snapshots.running.as_ref();
        running.is_some_and(|r| r.kind == SnapshotKind::OnDemand && r.began >= self.clock.now)
    }

    pub(crate) fn pin(&mut self, client: &mut Client, summary: &SlotSummary) {
        self.unpin(client.conn);
        let Some(wal) = &mut self.gate.wal else { return };
        wal.log_mut().pin(summary.slot);
        self.snapshots.pins.push((client.conn, summary.slot));
        let area = slimio_storage::Area::Snapshot(summary.slot).name();
        let text = format!("{area} {} {}", summary.number, summary.epoch);
        client.out.bulk(text.as_bytes());
    }

    /// Releases the pin of a connection, if the connection has a pin.
    pub(crate) fn unpin(&mut self, conn: ConnId) {
        let pins = &mut self.snapshots.pins;
        let Some(index) = pins.iter().position(|(of, _)| *of == conn) else { return };
        let (_, slot) = pins.swap_remove(index);
        if let Some(wal) = &mut self.gate.wal {
            wal.log_mut().unpin(slot);
        }
    }
}
