//! Pinned snapshots, which stay unchanged on the volume while a client reads them.

use slimio_planted::is_planted;
use slimio_storage::{SlotSummary, SnapshotKind};

use super::{Connections, Engine};
use crate::clients::{Client, State};
use crate::net::ConnId;
use crate::waiting::{Line, Reason, Then};

impl Engine {
    /// Pins the on-demand snapshot for a client, or the root (the snapshot that the next start
    /// loads) if there is no on-demand snapshot. Replies which snapshot is pinned.
    pub(crate) fn pin_last(&mut self, client: &mut Client) {
        let held = self.wal.as_ref().map(|wal| *wal.log().snapshots());
        let found = held
            .and_then(|held| held.of_kind(SnapshotKind::OnDemand).or_else(|| held.root()).copied());
        match found {
            Some(summary) => self.pin(client, &summary),
            None => client.out.error("ERR there is no snapshot yet"),
        }
    }

    fn has_just_begun(&self) -> bool {
        let running = self.snapshots.running.as_ref();
        running.is_some_and(|r| r.kind == SnapshotKind::OnDemand && r.began >= self.now)
    }

    fn pin(&mut self, client: &mut Client, summary: &SlotSummary) {
        self.unpin(client.conn);
        let Some(wal) = &mut self.wal else { return };
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
        if let Some(wal) = &mut self.wal {
            wal.log_mut().unpin(slot);
        }
    }
}

impl Connections {
    /// Makes a client wait for a snapshot that will be pinned for the client.
    pub(crate) fn wait_for_pin(&mut self, engine: &mut Engine, client: &mut Client) {
        // The running snapshot cannot be used if it began before the client's request.
        engine.snapshots.saves.is_scheduled |=
            !engine.has_just_begun() || is_planted("pin-takes-two");
        let round = engine.snapshots.saves.begun + u64::from(engine.snapshots.saves.is_scheduled);
        self.wait(engine, client, Reason::Pin(round), Then::Answer);
    }

    /// Answers the clients that wait for a snapshot to pin which began as the `BGSAVE` of the number
    /// `begun` or before. `Err` says why there is no snapshot.
    pub(crate) fn answer_pinning(
        &mut self,
        engine: &mut Engine,
        begun: u64,
        outcome: Result<&SlotSummary, &str>,
    ) {
        let conns: Vec<ConnId> = self.waiting.in_line(Line::Pin).collect();
        for conn in conns {
            let Some(mut client) = self.clients.take(conn) else { continue };
            let is_ready = matches!(&client.state, State::Waiting(waiting)
                if matches!(waiting.reason, Reason::Pin(round) if round <= begun));
            if is_ready {
                self.answer(engine, &mut client, |engine, client| match outcome {
                    Ok(summary) => engine.pin(client, summary),
                    Err(why) => client.out.error(&format!("ERR {why}")),
                });
            }
            self.put_back(engine, client);
        }
    }

    /// Releases all pins, for the reason `why`. Disconnects the clients that hold them, so that
    /// each client knows that it has not read everything. The client that waits for the shutdown
    /// stays connected.
    pub(crate) fn drop_pins(&mut self, engine: &mut Engine, why: &str) {
        let by = engine.shutdown.and_then(|shutdown| shutdown.by);
        let pins: Vec<ConnId> = engine.snapshots.pins.iter().map(|(conn, _)| *conn).collect();
        for conn in pins {
            log::warn!("a pinned snapshot is given up: {why}");
            if Some(conn) == by {
                engine.unpin(conn);
            } else {
                self.ended(engine, conn);
            }
        }
    }
}
