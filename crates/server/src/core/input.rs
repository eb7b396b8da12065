//! Turns received bytes into requests.

use std::borrow::Cow;
use std::time::Instant;

use slimio_planted::is_planted;
use slimio_resp::{BlobBuilder, Limits, OwnedRequest, Parser, Protocol, ReplyBuf, Step};

use super::{Core, NetRequest, SPARE_SIZE_MAX};
use crate::clients::{Client, Replies, State};
use crate::net::{ConnId, ReceiveBuffer};

/// Reading pauses when more than this many bytes wait behind a request that can't be run yet.
const WAITING_INPUT_SIZE_MAX: usize = 1 << 20;

/// Reading pauses when more than this many bytes wait for the next turn. This limit is lower than
/// [`WAITING_INPUT_SIZE_MAX`], because each turn moves all of these bytes.
const BEHIND_INPUT_SIZE_MAX: usize = 256 << 10;

/// Reading resumes when at most this many bytes wait for the next turn.
const BEHIND_INPUT_SIZE_LOW: usize = 128 << 10;

/// The received part of an incomplete request is kept apart from the input buffer if it has at
/// least this many bytes.
const SEALED_SIZE_MIN: usize = 1 << 20;

/// In one turn, at most this many requests of one client run before other clients are served. If
/// the requests are small, they take about a quarter of a millisecond together. The limit is a
/// count, not a time, so that the order in which requests run hardly depends on how busy the
/// machine is. [`TURN_TIME`](super::TURN_TIME) limits requests that take longer.
const SLICE: usize = 256;

/// If a request of up to this size has to be kept, it is copied, because the buffer that contains
/// it may be much larger.
const COPIED_SIZE_MAX: usize = 32 << 10;

/// The size of a request together with its reply is divided by this number. For the limit
/// [`SLICE`], the request counts as one request plus the quotient.
const BYTES_PER_REQUEST: usize = 4096;

impl Core {
    /// Takes bytes that were received from a client.
    pub(crate) fn received(&mut self, conn: ConnId, bytes: &[u8]) {
        self.stats.reads += 1;
        self.stats.input_bytes += bytes.len() as u64;
        let Some(mut client) = self.clients.take(conn) else { return };
        client.last_active = self.now;
        if client.is_closing() {
            self.clients.put(client);
            return;
        }
        // A large argument is received into its own memory, through `filled`. Here its bytes would
        // be parsed as requests.
        assert!(client.large.is_none(), "the bytes belong to the argument");
        if client.is_running() && !client.is_behind {
            self.requests(&mut client, bytes);
        } else {
            client.input.extend_from_slice(bytes);
            let is_behind = client.is_running();
            let size_max = if is_behind { BEHIND_INPUT_SIZE_MAX } else { WAITING_INPUT_SIZE_MAX };
            if client.input.len() > size_max {
                self.net_requests.push(NetRequest::Pause(conn));
            }
        }
        self.check_query_size(&mut client);
        self.put_back(client);
    }

    /// Called when the network returns the memory into which it received a large argument.
    pub(crate) fn filled(&mut self, conn: ConnId, filling: ReceiveBuffer) {
        let Some(mut client) = self.clients.take(conn) else { return };
        client.last_active = self.now;
        let Some(mut builder) = client.large.take() else {
            self.clients.put(client);
            return;
        };
        let before = builder.remaining();
        builder.put_buffer(filling.buffer);
        self.stats.reads += 1;
        self.stats.input_bytes += (before - builder.remaining()) as u64;
        self.go_on_filling(&mut client, builder);
        if client.large.is_none() {
            self.requests(&mut client, &[]);
        }
        self.check_query_size(&mut client);
        self.put_back(client);
    }

    /// Runs the requests that a client sent while it had to wait.
    pub(super) fn go_on(&mut self, client: &mut Box<Client>) {
        client.state = State::Running;
        self.waiting_requests(client);
    }

    /// Runs requests that were received earlier, and resumes reading if few are left.
    fn waiting_requests(&mut self, client: &mut Box<Client>) {
        let first = self.net_requests.len();
        self.requests(client, &[]);
        let has_many = match (client.is_behind, client.is_running()) {
            (true, _) => client.input.len() > BEHIND_INPUT_SIZE_LOW,
            (false, false) => client.input.len() > WAITING_INPUT_SIZE_MAX,
            (false, true) => false,
        };
        if !has_many || is_planted("received-without-end") {
            // Reading must resume before the network gets the tasks that the requests have added,
            // because it cannot receive a large argument while reading is paused.
            self.net_requests.insert(first, NetRequest::Receive(client.conn));
        }
    }

    /// Whether the server is shutting down; false during recovery. During a shutdown, no more
    /// requests run, because the last snapshot would lack their effects. The requests wait and are
    /// not dropped, because the shutdown may be given up.
    pub(super) fn is_ending(&self) -> bool {
        self.shutdown.is_some() && self.loading.is_none() && !is_planted("runs-behind-end")
    }

    /// Runs the complete requests in the client's unread bytes and in `received`. The bytes of
    /// `received` follow the unread bytes.
    fn requests(&mut self, client: &mut Box<Client>, received: &[u8]) {
        debug_assert!(self.transaction.is_none(), "the requests would become part of it");
        if client.out.memory() == 0 {
            let protocol = client.out.protocol();
            client.out = ReplyBuf::with_memory(self.spare_memory(), protocol);
        }
        let mut buffer = Cow::Borrowed(received);
        if !client.input.is_empty() {
            let mut input = std::mem::take(&mut client.input);
            input.extend_from_slice(received);
            buffer = Cow::Owned(input);
        }
        // The parser is taken out of the client, because the parsed request borrows the parser, and
        // the client must be changed while this request runs.
        let mut parser = std::mem::take(&mut client.parser);
        let mut at = 0;
        // End of the requests whose keys have been prefetched.
        let mut ahead = 0;
        if client.served.0 != self.turn {
            client.served = (self.turn, 0);
        }
        while client.is_running() && !self.is_ending() {
            if client.served.1 >= SLICE || self.is_turn_over() {
                self.fall_behind(client);
                break;
            }
            let limits = Limits {
                arg_size_max: self.settings.arg_size_max,
                unauthenticated: self.settings.password.is_some() && !client.is_authenticated,
            };
            match parser.step(&buffer[at..], &limits) {
                Step::Complete { consumed } => {
                    if at + consumed < buffer.len() && at >= ahead {
                        ahead = at + self.bring_in_pipeline(client.db, &buffer[at..]);
                    }
                    let args = parser.request().args(&buffer[at..]);
                    if !args.is_empty() {
                        client.running_size = buffer.len();
                        let before = client.out.len();
                        self.request(client, args);
                        let replied = client.out.len().saturating_sub(before);
                        client.served.1 += 1 + (consumed + replied) / BYTES_PER_REQUEST;
                    } else if client.replies == Replies::SkipNext {
                        // As in Redis, `CLIENT REPLY SKIP` applies even if the next request is
                        // empty.
                        client.replies = Replies::On;
                    }
                    if client.keeps_request {
                        let (request, next) = keep(&mut parser, &mut buffer, at, consumed);
                        self.keep_request(client, request);
                        at = next;
                    } else {
                        at += consumed;
                    }
                    if !is_planted("large-sizes-add-up") {
                        client.large_size = 0;
                    }
                    self.serve_beside(client);
                }
                Step::NeedMore => break,
                Step::Large { size, header_end } => {
                    let header = at + header_end;
                    client.large_size += size;
                    let mut builder = BlobBuilder::new(size);
                    let taken = builder.extend(&buffer[header..]);
                    // The parser expects the bytes after the argument at the place where the
                    // argument began. The bytes before the argument, which may be many, stay where
                    // they are.
                    if let Cow::Owned(bytes) = &mut buffer {
                        bytes.drain(header..header + taken);
                    } else {
                        let mut rest = buffer[at..header].to_vec();
                        rest.extend_from_slice(&buffer[header + taken..]);
                        (buffer, at) = (Cow::Owned(rest), 0);
                    }
                    supply(&mut parser, builder, client, &mut self.net_requests);
                }
                Step::Error(error) => {
                    log::debug!("client {}: {error}", client.id);
                    let before = client.out.len();
                    error.write(&mut client.out);
                    self.stats.error(error.reply().as_bytes());
                    self.close(client);
                    client.leave_out(before);
                    return;
                }
            }
        }
        if parser.sealable() >= SEALED_SIZE_MIN {
            // Otherwise, all received bytes of a large request would be copied whenever the buffer
            // grows.
            let end = at + parser.sealable();
            let mut rest = Vec::with_capacity(SEALED_SIZE_MIN + SPARE_SIZE_MAX);
            rest.extend_from_slice(&buffer[end..]);
            let mut bytes = std::mem::replace(&mut buffer, Cow::Owned(rest)).into_owned();
            bytes.truncate(end);
            bytes.drain(..at);
            parser.seal(bytes);
            at = 0;
        }
        client.parser = parser;
        client.running_size = 0;
        if client.is_closing() {
            return;
        }
        match buffer {
            Cow::Borrowed(bytes) => client.input.extend_from_slice(&bytes[at..]),
            Cow::Owned(mut bytes) => {
                bytes.drain(..at);
                let is_worth_keeping = !bytes.is_empty() || bytes.capacity() <= SPARE_SIZE_MAX;
                client.input = if is_worth_keeping { bytes } else { Vec::new() };
            }
        }
    }

    /// Leaves the requests that exceed the client's share of this turn to the next turn.
    fn fall_behind(&mut self, client: &mut Client) {
        if !std::mem::replace(&mut client.is_behind, true) {
            self.behind.push_back(client.conn);
        }
    }

    /// Whether any client has requests that exceed its share of this turn.
    pub(crate) fn has_behind(&self) -> bool {
        !self.behind.is_empty()
    }

    /// Serves the clients that used up their share of the last turn, and those that sent requests
    /// after the last turn's time was used up. The first client is always served. Clients that this
    /// turn has no time for keep their places.
    pub(crate) fn serve_behind(&mut self) {
        for _ in 0..self.behind.len() {
            if self.is_turn_over() {
                return;
            }
            let Some(conn) = self.behind.pop_front() else { return };
            let Some(mut client) = self.clients.take(conn) else { continue };
            client.is_behind = false;
            if client.is_running() {
                self.waiting_requests(&mut client);
                // Parsing an incomplete request took time, too.
                self.begin_lap(Instant::now());
            }
            self.check_query_size(&mut client);
            self.put_back(client);
        }
    }

    fn go_on_filling(&mut self, client: &mut Client, builder: BlobBuilder) {
        let mut parser = std::mem::take(&mut client.parser);
        supply(&mut parser, builder, client, &mut self.net_requests);
        client.parser = parser;
    }

    fn check_query_size(&mut self, client: &mut Client) {
        // Bytes that wait for the next turn are whole requests.
        if !client.is_behind && client.query_size() > self.settings.query_size_max {
            log::warn!(
                "closing client that reached max query buffer length: {}",
                client.describe(self.now, client.is_stale, 0)
            );
            self.stats.query_limit_disconnections += 1;
            self.close(client);
        }
    }

    /// Sets the protocol of a client's replies from now on.
    pub(crate) fn set_protocol(client: &mut Client, protocol: Protocol) {
        client.out.set_protocol(protocol);
        client.ready.set_protocol(protocol);
    }
}

/// Takes the last parsed request, which consists of the `consumed` bytes from `at` on. Returns the
/// request and the index at which the next request begins. If the request is large and makes up
/// most of the buffer, it is taken out together with the bytes before it, so that its own bytes are
/// not copied.
fn keep(
    parser: &mut Parser,
    buffer: &mut Cow<'_, [u8]>,
    at: usize,
    consumed: usize,
) -> (OwnedRequest, usize) {
    let end = at + consumed;
    let is_all_here = parser.request().sealed_size() == 0;
    if is_all_here && consumed < (buffer.len() / 2).max(COPIED_SIZE_MAX) {
        return (parser.request().args(&buffer[at..]).to_owned(), end);
    }
    let rest = buffer[end..].to_vec();
    let mut bytes = std::mem::replace(buffer, Cow::Owned(rest)).into_owned();
    bytes.truncate(end);
    (OwnedRequest::from_received(bytes, at, parser.take_request()), 0)
}

/// If a large argument is complete, hands it to the parser. If not, asks the network for more of
/// the argument.
fn supply(
    parser: &mut Parser,
    mut builder: BlobBuilder,
    client: &mut Client,
    net_requests: &mut Vec<NetRequest>,
) {
    if builder.remaining() == 0 {
        parser.supply_large(builder.finish());
        return;
    }
    let wanted = builder.wanted();
    let buffer = builder.take_buffer();
    net_requests.push(NetRequest::Fill(client.conn, ReceiveBuffer { buffer, wanted }));
    client.large = Some(builder);
}
