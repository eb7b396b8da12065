//! The end of the server: it takes a last snapshot, makes the log durable and sends the last
//! replies.

use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use slimio_planted::is_planted;

use super::{LOG_WAIT_MAX, Server};
use crate::clients::Client;
use crate::connections::Connections;
use crate::engine::{Engine, Shutdown};
use crate::net::{ConnId, Event};

/// Longest time that the server, at its end, waits for the last replies to leave.
const GOODBYE_MAX: Duration = Duration::from_secs(1);
/// How often the state of the last snapshot is checked while there is nothing else to do.
const SAVE_LOOK_EVERY: Timespec = Timespec { tv_sec: 0, tv_nsec: 5_000_000 };

impl Server {
    /// Takes a last snapshot if the shutdown asks for one. Returns whether the server may end. If
    /// the server may not end, it continues to serve.
    pub(super) fn may_end(&mut self) -> bool {
        let Some(shutdown) = self.engine.phase.shutdown else { return false };
        // A long request runs in steps. Such a request is finished first. Otherwise the effects of
        // only some of its steps would be saved, or would become the final state.
        if !is_planted("long-unfinished") {
            self.connections.finish_long(&mut self.engine);
        }
        if !self.engine.saves_at_shutdown(shutdown) {
            return true;
        }
        log::info!("Taking the last snapshot before the server ends");
        self.engine.cancel_snapshot("the server ends");
        // A complete snapshot that is already being entered in the superblock is not cancelled. But
        // it lacks the writes that came after its beginning, so only a snapshot that begins from
        // here on counts.
        let before = self.engine.snapshots.saves.begun;
        self.engine.snapshots.saves.is_scheduled = true;
        loop {
            self.engine.clock.tick();
            self.engine.reap_log();
            self.make_place();
            self.connections.drive_snapshots(&mut self.engine, true);
            if !is_planted("end-at-rate") {
                self.engine.pace_snapshot(self.connections.is_snapshot_awaited());
            }
            if let Some(wal) = &mut self.engine.gate.wal {
                wal.drive(self.engine.clock.now);
                wal.kick();
            }
            let snapshots = &self.engine.snapshots;
            if snapshots.running.is_none() && !snapshots.saves.is_scheduled {
                let has_begun = snapshots.saves.begun > before || is_planted("end-unsaved");
                let is_saved = has_begun && snapshots.saves.failed.is_none();
                return is_saved || self.may_end_unsaved(shutdown);
            }
            let Some(thread) = &snapshots.thread else { return true };
            if !self.engine.wants_snapshot_step() {
                let mut fds = [PollFd::from_borrowed_fd(thread.readiness(), PollFlags::IN)];
                // If the poll fails, the loop checks again at once.
                let _ = rustix::event::poll(&mut fds, Some(&SAVE_LOOK_EVERY));
            }
        }
    }

    /// Releases all pins, including new ones. With a pin, a client keeps a snapshot's slot from
    /// being overwritten, but the last snapshot may need this slot. The clients with pins, except
    /// the client that asked for the shutdown, are disconnected before anything is written to these
    /// slots.
    fn make_place(&mut self) {
        let pins = &self.engine.snapshots.pins;
        if pins.is_empty() || is_planted("end-keeps-pins") {
            return;
        }
        let by = self.engine.phase.shutdown.and_then(|shutdown| shutdown.by);
        let is_other = |conn| Some(conn) != by || is_planted("end-closes-who-asks");
        for (conn, _) in pins.iter().filter(|(conn, _)| is_other(*conn)) {
            if let Some(socket) = self.net.socket(*conn) {
                // Closing a socket may have to wait for operations in flight, but shutting it down
                // does not. The call fails if the client has disconnected.
                let _ = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
            }
        }
        self.connections.drop_pins(&mut self.engine, "the server ends");
        self.connections.grant(&mut *self.net);
    }

    fn may_end_unsaved(&mut self, shutdown: Shutdown) -> bool {
        if shutdown.is_forced {
            return true;
        }
        log::error!("The last snapshot has failed, so the server does not end");
        self.engine.phase.shutdown = None;
        self.connections.run_held_up(&mut self.engine, shutdown.by);
        if let Some(mut client) = shutdown.by.and_then(|conn| self.connections.clients.take(conn)) {
            let why = "ERR Errors trying to SHUTDOWN. Check logs.";
            self.connections
                .answer(&mut self.engine, &mut client, |_, client| client.out.error(why));
            self.connections.put_back(&mut self.engine, client);
        }
        // Another shutdown may already be requested. The replies written here must leave before
        // that shutdown begins.
        self.engine.gate.forget_durable();
        self.connections.flush(&mut self.engine, &mut *self.net);
        false
    }

    /// Makes the log durable and lets the last replies leave.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        let mut result = Ok(());
        if let Some(wal) = &mut self.engine.gate.wal {
            wal.request_durable();
            loop {
                let now = Instant::now();
                wal.reap(now);
                if let Some(latch) = wal.log().latched() {
                    result = Err(format!("the log could not be made durable: {latch}"));
                    break;
                }
                if wal.log().durable() >= wal.log().appended() {
                    break;
                }
                wal.drive(now);
                wal.kick();
                if wal.is_in_flight() {
                    wal.wait(Some(LOG_WAIT_MAX), now);
                } else {
                    // No operation of the log's path is in flight: the log waits for its keeper,
                    // the thread that makes room for the log.
                    std::thread::sleep(LOG_WAIT_MAX);
                }
            }
        }
        let deadline = Instant::now() + GOODBYE_MAX;
        self.engine.clock.tick();
        self.engine.gate.forget_durable();
        self.connections.flush(&mut self.engine, &mut *self.net);
        while self.connections.has_output()
            && self.net.broken().is_none()
            && Instant::now() < deadline
        {
            self.net.wait(Some(deadline.saturating_duration_since(Instant::now())));
            self.engine.clock.tick();
            while let Some(event) = self.net.next() {
                match event {
                    Event::Sent(conn, outgoing) => self.connections.sent(conn, outgoing),
                    Event::Ended(conn) => self.connections.at_end(&mut self.engine, conn),
                    Event::HungUp(conn) => self.connections.hung_up(&mut self.engine, conn),
                    Event::Broken(conn) => self.connections.ended(&mut self.engine, conn),
                    _ => {}
                }
            }
            self.connections.flush(&mut self.engine, &mut *self.net);
        }
        result
    }
}

impl Connections {
    /// Resumes clients whose requests came during a shutdown, except the client that asked for the
    /// shutdown.
    fn run_held_up(&mut self, engine: &mut Engine, by: Option<ConnId>) {
        let is_held_up = |client: &&Client| client.is_running() && !client.inbox.is_empty();
        let held_up: Vec<ConnId> = self
            .clients
            .iter()
            .filter(is_held_up)
            .map(|client| client.conn)
            .filter(|&conn| Some(conn) != by)
            .collect();
        for conn in held_up {
            let Some(mut client) = self.clients.take(conn) else { continue };
            self.resume(&mut client);
            self.put_back(engine, client);
        }
    }
}
