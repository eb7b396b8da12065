//! Serves the clients that wait for snapshots, and the clients that have pinned a snapshot, so that
//! it stays on the volume while they read it.

use slimio_planted::is_planted;
use slimio_storage::SlotSummary;

use super::Connections;
use crate::clients::{Client, State};
use crate::engine::Engine;
use crate::net::ConnId;
use crate::snapshot::SnapshotEnd;
use crate::waiting::{Line, Reason, Then};

impl Connections {
    /// Does the command thread's share of the work on snapshots in one turn of the event loop,
    /// after the replies have left. `is_idle` says whether nothing else happened in this turn.
    pub(crate) fn drive_snapshots(&mut self, engine: &mut Engine, is_idle: bool) {
        engine.take_snapshot_results();
        self.tell_of_snapshots(engine);
        engine.drive_check();
        self.begin_scheduled_snapshots(engine);
        let is_awaited = self.is_snapshot_awaited();
        let has_time = is_idle || self.has_parked();
        if engine.snapshot_steps(has_time) || engine.snapshots.is_rate_due {
            engine.pace_snapshot(is_awaited);
        }
        self.begin_scheduled_snapshots(engine);
    }

    fn begin_scheduled_snapshots(&mut self, engine: &mut Engine) {
        engine.begin_scheduled(!self.waiting.is_empty(Line::Snapshot));
        self.tell_of_snapshots(engine);
    }

    /// Answers the clients that waited for snapshots which have ended.
    fn tell_of_snapshots(&mut self, engine: &mut Engine) {
        for end in std::mem::take(&mut engine.snapshots.ends) {
            match end {
                SnapshotEnd::Saved(begun, summary) => {
                    self.answer_saving(engine, None);
                    self.answer_pinning(engine, begun, Ok(&summary));
                }
                SnapshotEnd::Failed(begun, why) => {
                    self.answer_saving(engine, Some(&why));
                    self.answer_pinning(engine, begun, Err(&why));
                }
                SnapshotEnd::Unpinned(why) => self.drop_pins(engine, why),
            }
        }
    }

    /// Answers the clients whose `SAVE` has ended.
    fn answer_saving(&mut self, engine: &mut Engine, failed: Option<&str>) {
        self.answer_line(engine, Line::Snapshot, |_, client| match failed {
            None => client.out.ok(),
            Some(why) => client.out.error(&format!("ERR {why}")),
        });
    }

    /// For `SAVE`: makes a client wait until a snapshot has ended.
    pub(crate) fn wait_for_save(&mut self, engine: &mut Engine, client: &mut Client) {
        self.wait(engine, client, Reason::Snapshot, Then::Answer);
    }

    /// Makes a client wait for a snapshot that will be pinned for the client.
    pub(crate) fn wait_for_pin(&mut self, engine: &mut Engine, client: &mut Client) {
        // The running snapshot cannot be used if it began before the client's request.
        engine.snapshots.saves.is_scheduled |=
            !engine.has_just_begun() || is_planted("pin-takes-two");
        let round = engine.snapshots.saves.begun + u64::from(engine.snapshots.saves.is_scheduled);
        self.wait(engine, client, Reason::Pin(round), Then::Answer);
    }

    /// Called when the snapshot of the `BGSAVE` with the number `begun` has ended. Answers the
    /// clients that wait to pin this snapshot or an earlier one. If there is no snapshot, `outcome`
    /// says why.
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

    /// Releases all pins, for the reason `why`. Disconnects the clients that hold the pins, so that
    /// each client knows that it has not read everything. The client that waits for the shutdown
    /// stays connected.
    pub(crate) fn drop_pins(&mut self, engine: &mut Engine, why: &str) {
        let by = engine.phase.shutdown.and_then(|shutdown| shutdown.by);
        let pins: Vec<ConnId> = engine.snapshots.pins.iter().map(|(conn, _)| *conn).collect();
        for conn in pins {
            log::warn!("the server releases a snapshot that a client has pinned: {why}");
            if Some(conn) == by {
                engine.unpin(conn);
            } else {
                self.ended(engine, conn);
            }
        }
    }
}
