//! Connections that open, reach their end of input, or close.

use slimio_planted::is_planted;

use super::waiting::waits_in_vain;
use super::{Connections, NetRequest};
use crate::clients::{Client, State};
use crate::engine::{Engine, Phase};
use crate::info::ClientFigures;
use crate::net::{ConnId, Peer};

const PROTECTED: &str = "DENIED Redis is running in protected mode because protected mode is \
enabled and no password is set for the default user. In this mode connections are only accepted \
from the loopback interface. If you want to connect from external computers to Redis you may adopt \
one of the following solutions: 1) Just disable protected mode sending the command 'CONFIG SET \
protected-mode no' from the loopback interface by connecting to Redis from the same host the \
server is running, however MAKE SURE Redis is not publicly accessible from internet if you do so. \
Use CONFIG REWRITE to make this change permanent. 2) Alternatively you can just disable the \
protected mode by editing the Redis configuration file, and setting the protected mode option to \
'no', and then restarting the server. 3) If you started the server manually just for testing, \
restart it with the '--protected-mode no' option. 4) Set up an authentication password for the \
default user. NOTE: You only need to do one of the above things in order for the server to start \
accepting connections from the outside.";

/// Whether a client has no request left to run. Some of its replies may still be unsent.
pub(super) fn is_done_with(phase: &Phase, client: &Client) -> bool {
    // Requests that wait because of a shutdown still run if the shutdown is given up.
    let has_run = client.inbox.is_empty() || !phase.is_ending();
    let is_over = matches!(client.state, State::Running) && has_run && !client.is_behind;
    client.is_closing() || (client.is_at_end && (is_over || waits_in_vain(phase, client)))
}

impl Connections {
    /// Called when a client has connected.
    pub(crate) fn accepted(&mut self, engine: &mut Engine, conn: ConnId, peer: Peer) {
        engine.stats.connections += 1;
        let mut client = self.clients.add(conn, peer, engine.clock.now);
        client.unix_path.clone_from(&engine.facts.unix_path);
        client.is_authenticated = engine.settings.password.is_none();
        let is_open = !engine.settings.is_protected || engine.settings.password.is_some();
        let refusal = if self.clients.len() > engine.settings.clients_max {
            engine.stats.rejected_connections += 1;
            Some("ERR max number of clients reached")
        } else if !is_open && !client.is_local() {
            engine.stats.rejected_connections += 1;
            Some(PROTECTED)
        } else {
            None
        };
        match refusal {
            Some(text) => {
                client.out.error(text);
                self.close(engine, &mut client);
            }
            None => self.net_requests.push(NetRequest::Receive(conn)),
        }
        self.put_back(engine, client);
    }

    /// Called when the client's input has ended. The requests that the client has sent still run,
    /// and their replies are still sent.
    pub(crate) fn at_end(&mut self, engine: &mut Engine, conn: ConnId) {
        if is_planted("end-unanswered") {
            return self.ended(engine, conn);
        }
        let Some(mut client) = self.clients.take(conn) else { return };
        client.is_at_end = true;
        if waits_in_vain(&engine.phase, &client) {
            self.close(engine, &mut client);
        }
        self.put_back(engine, client);
    }

    /// Called when the client's input has ended, and reading from the client is paused. Bytes that
    /// the client sent earlier may still be unread.
    pub(crate) fn hung_up(&mut self, engine: &mut Engine, conn: ConnId) {
        let Some(client) = self.clients.get_mut(conn) else { return };
        client.has_hung_up = true;
        if waits_in_vain(&engine.phase, client) {
            self.ended(engine, conn);
        }
    }

    /// Figures of all clients, of which `current` is being served.
    pub(crate) fn client_figures(&self, engine: &Engine, current: &Client) -> ClientFigures {
        let all = || self.clients.iter().chain([current]);
        ClientFigures {
            count: self.clients.len(),
            blocked: self.waiting.blocked_count(),
            timed: self.waiting.timed_count(),
            memory: self.client_bytes(engine, Some(current)),
            input_max: all().map(|client| client.inbox.len()).max().unwrap_or(0),
            output_max: all().map(Client::output_size).max().unwrap_or(0),
        }
    }

    /// Drops a client whose connection is broken or is to be closed at once.
    pub(crate) fn ended(&mut self, engine: &mut Engine, conn: ConnId) {
        if let Some(client) = self.clients.take(conn) {
            self.drop_client(engine, client);
        }
    }

    /// Forgets a client that was taken out of `clients`, and closes its connection.
    pub(crate) fn drop_client(&mut self, engine: &mut Engine, mut client: Box<Client>) {
        self.closing.push_back(client.conn);
        if !is_planted("gone-still-watches") {
            engine.data.watches.clear(&mut client);
        }
        engine.unpin(client.conn);
        engine.data.end_multi(client.multi.take());
        self.abandon(engine, &mut client);
        self.clients.remove(client);
    }

    /// Puts a served client back. If the client has replies, has reached the end of its input, or
    /// is to be closed, also adds it to `dirty`, the list of clients to look at when the turn ends.
    pub(crate) fn put_back(&mut self, engine: &mut Engine, mut client: Box<Client>) {
        let has_gone =
            client.is_at_end || (client.has_hung_up && !is_planted("gone-begins-to-wait"));
        if has_gone && waits_in_vain(&engine.phase, &client) {
            // The client hung up before its request began to wait. Its earlier replies are still
            // sent.
            self.close(engine, &mut client);
        }
        let has_reply = !client.out.is_empty() || client.out.is_cut();
        let has_news = has_reply || client.is_closing() || client.is_at_end;
        if has_news && client.needs <= engine.gate.durable() {
            engine.gate.reader_seen = Some(engine.clock.now);
        }
        if has_news && !client.is_dirty {
            client.is_dirty = true;
            self.dirty.push(client.conn);
        }
        self.clients.put(client);
    }
}
