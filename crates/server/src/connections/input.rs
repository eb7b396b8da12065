//! Decides when a client's requests run. A turn is one round of the event loop.

use std::time::Instant;

use slimio_planted::is_planted;
use slimio_resp::{Limits, ReplyBuf};

use super::{Connections, NetRequest};
use crate::clients::{Client, Replies, State};
use crate::engine::Engine;
use crate::inbox::{Next, Reading};
use crate::net::{ConnId, ReceiveBuffer};

/// Reading pauses when more than this many bytes wait behind a request that can't be run yet.
const WAITING_INPUT_SIZE_MAX: usize = 1 << 20;

/// Reading pauses when more than this many bytes wait for the next turn. This limit is lower than
/// [`WAITING_INPUT_SIZE_MAX`], because one turn does not read more than this anyway.
const BEHIND_INPUT_SIZE_MAX: usize = 256 << 10;

/// Reading resumes when at most this many bytes wait for the next turn.
const BEHIND_INPUT_SIZE_LOW: usize = 128 << 10;

/// In one turn, at most this many requests of one client run before other clients are served. If
/// the requests are small, they take about a quarter of a millisecond together. The limit is a
/// count, not a time, so that the order in which requests run hardly depends on how busy the
/// machine is. [`TURN_TIME`](super::TURN_TIME) limits requests that take longer.
const SLICE: usize = 256;

/// The size of a request together with its reply is divided by this number. For the limit
/// [`SLICE`], the request counts as one request plus the quotient.
const BYTES_PER_REQUEST: usize = 4096;

impl Connections {
    /// Handles bytes that were received from a client.
    pub(crate) fn received(&mut self, engine: &mut Engine, conn: ConnId, bytes: &[u8]) {
        engine.stats.reads += 1;
        engine.stats.input_bytes += bytes.len() as u64;
        let Some(mut client) = self.clients.take(conn) else { return };
        client.last_active = engine.clock.now;
        if client.is_closing() {
            self.clients.put(client);
            return;
        }
        if client.is_running() && !client.is_behind {
            self.requests(engine, &mut client, bytes);
        } else {
            client.inbox.push(bytes);
            let is_behind = client.is_running();
            let size_max = if is_behind { BEHIND_INPUT_SIZE_MAX } else { WAITING_INPUT_SIZE_MAX };
            if client.inbox.len() > size_max && !must_be_read(&client) {
                self.net_requests.push(NetRequest::Pause(conn));
            }
        }
        self.check_query_size(engine, &mut client);
        self.put_back(engine, client);
    }

    /// Called when the network returns the memory into which it received a large argument.
    pub(crate) fn filled(&mut self, engine: &mut Engine, conn: ConnId, filling: ReceiveBuffer) {
        let Some(mut client) = self.clients.take(conn) else { return };
        client.last_active = engine.clock.now;
        let Some((size, next)) = client.inbox.filled(filling) else {
            self.clients.put(client);
            return;
        };
        engine.stats.reads += 1;
        engine.stats.input_bytes += size as u64;
        match next {
            Some(buffer) => self.net_requests.push(NetRequest::Fill(conn, buffer)),
            None => self.requests(engine, &mut client, &[]),
        }
        self.check_query_size(engine, &mut client);
        self.put_back(engine, client);
    }

    /// Runs the requests that a client sent while it had to wait.
    pub(super) fn go_on(&mut self, engine: &mut Engine, client: &mut Box<Client>) {
        client.state = State::Running;
        self.waiting_requests(engine, client);
    }

    /// Runs requests that were received earlier, and resumes reading if few are left.
    fn waiting_requests(&mut self, engine: &mut Engine, client: &mut Box<Client>) {
        let first = self.net_requests.len();
        self.requests(engine, client, &[]);
        let has_many = match (client.is_behind, client.is_running()) {
            (true, _) => client.inbox.len() > BEHIND_INPUT_SIZE_LOW,
            (false, false) => client.inbox.len() > WAITING_INPUT_SIZE_MAX && !must_be_read(client),
            (false, true) => false,
        };
        if !has_many || is_planted("received-without-end") {
            // Reading must resume before the network gets the tasks that the requests have added,
            // because it cannot receive a large argument while reading is paused.
            self.net_requests.insert(first, NetRequest::Receive(client.conn));
        }
    }

    /// Resumes reading from a client that begins to wait for keys, if reading was paused while the
    /// client waited for something else. If the wait begins while the client's requests are being
    /// read, `client.inbox` is an empty stand-in, so this function does nothing. The function that
    /// reads the requests then decides whether reading resumes.
    pub(super) fn read_on(&mut self, client: &Client) {
        let has_many = client.inbox.len() > WAITING_INPUT_SIZE_MAX;
        if has_many && must_be_read(client) && !is_planted("blocked-later-unread") {
            self.net_requests.push(NetRequest::Receive(client.conn));
        }
    }

    /// Runs the complete requests in the client's unread bytes and in `received`. The bytes of
    /// `received` follow the unread bytes.
    fn requests(&mut self, engine: &mut Engine, client: &mut Box<Client>, received: &[u8]) {
        debug_assert!(
            engine.data.transaction.is_none(),
            "no transaction runs while the server reads requests"
        );
        if client.out.memory() == 0 {
            let protocol = client.out.protocol();
            client.out = ReplyBuf::with_memory(self.spare_memory(), protocol);
        }
        if client.served.0 != engine.clock.turn {
            client.served = (engine.clock.turn, 0);
        }
        let mut reading = client.inbox.read(received);
        while client.is_running() && !engine.phase.is_ending() {
            if client.served.1 >= SLICE || engine.clock.is_turn_over() {
                self.fall_behind(client);
                break;
            }
            let limits = Limits {
                arg_size_max: engine.settings.arg_size_max,
                unauthenticated: engine.settings.password.is_some() && !client.is_authenticated,
            };
            match reading.next(&limits) {
                Next::Request(size) => {
                    self.run_next(engine, client, &mut reading, size);
                    // `client` is taken out of `self.clients`, so it cannot be served here, even if
                    // it has just begun to wait for keys. This loses nothing, because none of the
                    // keys that it waits for can be ready now. The client's request does not run as
                    // long as one of the request's keys is ready for other clients, or could become
                    // ready while they are served.
                    self.serve_waiting_for_keys(engine);
                }
                Next::Incomplete => break,
                Next::Fill(buffer) => {
                    self.net_requests.push(NetRequest::Fill(client.conn, buffer));
                    break;
                }
                Next::Broken(error) => {
                    log::debug!("client {}: {error}", client.id);
                    let before = client.out.len();
                    error.write(&mut client.out);
                    engine.stats.error(error.reply().as_bytes());
                    self.close(engine, client);
                    client.leave_out(before);
                }
            }
        }
        if !client.is_closing() {
            client.inbox = reading.end();
        }
    }

    /// Runs a request of `size` bytes that was just read.
    fn run_next(
        &mut self,
        engine: &mut Engine,
        client: &mut Client,
        reading: &mut Reading<'_>,
        size: usize,
    ) {
        if let Some(bytes) = reading.unseen() {
            let seen = engine.data.bring_in_pipeline(client.db, bytes);
            reading.look_ahead(seen);
        }
        let args = reading.args();
        if !args.is_empty() {
            reading.show(&mut client.inbox);
            let before = client.out.len();
            self.request(engine, client, args);
            let replied = client.out.len().saturating_sub(before);
            client.served.1 += 1 + (size + replied) / BYTES_PER_REQUEST;
        } else if client.replies == Replies::SkipNext {
            // As in Redis, `CLIENT REPLY SKIP` applies even if the next request is empty.
            client.replies = Replies::On;
        }
        if client.keeps_request {
            engine.data.keep_request(client, reading.take_request());
        }
    }

    /// Postpones the rest of the client's requests to the next turn, because the client has used up
    /// its share of this turn, or the turn's time is used up.
    fn fall_behind(&mut self, client: &mut Client) {
        if !std::mem::replace(&mut client.is_behind, true) {
            self.behind.push_back(client.conn);
        }
    }

    /// Whether the requests of any client are postponed to the next turn.
    pub(crate) fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Serves the clients that used up their share of the last turn, and those that sent requests
    /// after the last turn's time was used up. The first client is always served. Clients that this
    /// turn has no time for keep their places.
    pub(crate) fn serve_behind(&mut self, engine: &mut Engine) {
        for _ in 0..self.behind.len() {
            if engine.clock.is_turn_over() {
                return;
            }
            let Some(conn) = self.behind.pop_front() else { return };
            let Some(mut client) = self.clients.take(conn) else { continue };
            client.is_behind = false;
            if client.is_running() {
                self.waiting_requests(engine, &mut client);
                // This reads the clock for `is_turn_over`, because even parsing an incomplete
                // request takes time.
                engine.clock.begin_lap(Instant::now());
            }
            self.check_query_size(engine, &mut client);
            self.put_back(engine, client);
        }
    }

    fn check_query_size(&mut self, engine: &mut Engine, client: &mut Client) {
        // The limit is for incomplete requests. Bytes that wait for the next turn are whole
        // requests.
        if !client.is_behind && client.query_size() > engine.settings.query_size_max {
            log::warn!(
                "closing client that reached max query buffer length: {}",
                client.describe(engine.clock.now, engine.data.watches.is_stale(client), 0)
            );
            engine.stats.query_limit_disconnections += 1;
            self.close(engine, client);
        }
    }
}

/// Whether the server must go on reading from a client that has already sent much. The only
/// limit is then `client-query-buffer-limit`. The server must read from a client in a blocking
/// command, because only reading shows that the client has disconnected. An element that was given
/// to a disconnected client would be lost.
fn must_be_read(client: &Client) -> bool {
    client.can_be_given_up() && !is_planted("blocked-unread-on")
}
