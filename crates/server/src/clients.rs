//! Connected clients.

mod held;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use slimio_keyspace::{DbIndex, Yielded};
use slimio_planted::is_planted;
use slimio_resp::{BlobBuilder, OwnedRequest, Parser, Protocol, ReplyBuf};
use slimio_storage::Lsn;

use crate::net::{ConnId, Peer};
use crate::transactions::{Multi, WatchRound};
use held::Held;

/// A connected client.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "they are independent of each other")]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) conn: ConnId,
    pub(crate) peer: Peer,
    /// For clients of the Unix socket, its path.
    pub(crate) unix_path: Option<String>,
    pub(crate) name: Vec<u8>,
    pub(crate) lib_name: Vec<u8>,
    pub(crate) lib_ver: Vec<u8>,
    pub(crate) connected_at: Instant,
    pub(crate) last_active: Instant,
    pub(crate) last_command: &'static str,
    pub(crate) db: DbIndex,
    pub(crate) is_authenticated: bool,
    pub(crate) no_evict: bool,
    /// Commands do not update the usage (LRU or LFU) of the keys that they access.
    pub(crate) no_touch: bool,

    pub(crate) parser: Parser,
    /// Received bytes: an incomplete request, or requests that wait for their turn.
    pub(crate) input: Vec<u8>,
    /// Size of the buffer that holds the running request, with the bytes around it.
    pub(crate) running_size: usize,
    /// The large argument that is being received.
    pub(crate) large: Option<BlobBuilder>,
    /// Sum of the announced sizes of the large arguments of the request being received.
    pub(crate) large_size: usize,
    pub(crate) state: State,
    /// The last request did not run at once: `Core::keep_request` must still store it.
    pub(crate) keeps_request: bool,
    /// The turn in which it was served last, and the requests counted for it in that turn.
    pub(crate) served: (u64, usize),
    /// It has used up its share of a turn; its remaining requests wait for the next one.
    pub(crate) is_behind: bool,
    /// The other end sends nothing more.
    pub(crate) is_at_end: bool,

    /// Replies of this turn.
    pub(crate) out: ReplyBuf,
    /// What they depend on.
    pub(crate) needs: Lsn,
    /// Replies of earlier turns, each with the LSN it depends on.
    pub(crate) held: Held,
    /// Replies that may leave, and wait for those before them to be sent.
    pub(crate) ready: ReplyBuf,
    /// Bytes of replies handed to the network.
    pub(crate) sending: usize,
    /// Bytes of memory that only they use.
    pub(crate) sending_memory: usize,
    pub(crate) replies: Replies,
    pub(crate) soft_limit_since: Option<Instant>,
    /// Whether the client is listed to be looked at when the turn ends.
    pub(crate) is_dirty: bool,
    /// Whether the client is listed as having held replies.
    pub(crate) is_holding: bool,

    pub(crate) multi: Option<Box<Multi>>,
    pub(crate) watching: BTreeSet<(DbIndex, Box<[u8]>)>,
    pub(crate) watching_memory: usize,
    pub(crate) watch_round: WatchRound,
    /// A watched key was changed: the transaction will not run.
    pub(crate) is_stale: bool,
    /// Position of the last record that the client has written.
    pub(crate) last_write: Lsn,
    /// Bytes counted for it in `Clients::memory` while it is not being served.
    counted_memory: usize,
}

/// Whether a client's requests are run, or what they wait for.
#[derive(Debug)]
pub(crate) enum State {
    Running,
    /// This request is retried when the log has room, or a pause or a long request ends.
    Parked(OwnedRequest),
    /// A long command is under way.
    Yielding(Box<LongCommand>),
    /// Its request runs in steps, driven by `core::long`.
    Long,
    /// A job runs for it on another thread.
    Away,
    /// `WAITAOF` waits.
    Waiting(Wait),
    /// `SAVE` or `SHUTDOWN SAVE` waits for the snapshot.
    Saving,
    /// Its wait is over; its next requests run in their turn.
    Resumed,
    /// Nothing is read any more; the connection is closed when all replies have left.
    Closing,
}

/// A command that goes on later.
#[derive(Debug)]
pub(crate) struct LongCommand {
    pub(crate) request: OwnedRequest,
    pub(crate) yielded: Yielded,
    /// Time that its steps have taken.
    pub(crate) spent: Duration,
}

/// What `WAITAOF` waits for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wait {
    pub(crate) lsn: Lsn,
    /// Our own log was asked for.
    pub(crate) is_local: bool,
    /// It can never be satisfied: replicas were asked for.
    pub(crate) never: bool,
    pub(crate) deadline: Option<Instant>,
}

/// `CLIENT REPLY`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// The reply to the command that follows is left out.
    SkipNext,
    /// The reply to this command is left out.
    Skip,
}

impl Client {
    pub(crate) fn new(id: u64, conn: ConnId, peer: Peer, now: Instant) -> Self {
        Self {
            id,
            conn,
            peer,
            unix_path: None,
            name: Vec::new(),
            lib_name: Vec::new(),
            lib_ver: Vec::new(),
            connected_at: now,
            last_active: now,
            last_command: "NULL",
            db: DbIndex(0),
            is_authenticated: false,
            no_evict: false,
            no_touch: false,
            parser: Parser::new(),
            input: Vec::new(),
            running_size: 0,
            large: None,
            large_size: 0,
            state: State::Running,
            keeps_request: false,
            served: (0, 0),
            is_behind: false,
            is_at_end: false,
            out: ReplyBuf::new(Protocol::Resp2),
            needs: Lsn(0),
            held: Held::default(),
            ready: ReplyBuf::new(Protocol::Resp2),
            sending: 0,
            sending_memory: 0,
            replies: Replies::On,
            soft_limit_since: None,
            is_dirty: false,
            is_holding: false,
            multi: None,
            watching: BTreeSet::new(),
            watching_memory: 0,
            watch_round: WatchRound::default(),
            is_stale: false,
            last_write: Lsn(0),
            counted_memory: 0,
        }
    }

    /// A stand-in client for work that no client requested, such as expiry and eviction.
    pub(crate) fn nobody(now: Instant) -> Self {
        let conn = ConnId { index: u32::MAX, generation: u32::MAX };
        Self::new(0, conn, Peer { remote: None, local: None }, now)
    }

    /// Bytes of memory that requests, replies and watched keys take. They count towards the memory
    /// limit; values that replies only refer to are not included.
    pub(crate) fn memory(&self) -> usize {
        let received = self.input.capacity() + self.running_size + self.large_received();
        let sealed = self.parser.request().sealed_memory();
        let received = received + if is_planted("sealed-memory-uncounted") { 0 } else { sealed };
        let waiting = match &self.state {
            State::Parked(request) => request.memory(),
            State::Yielding(command) => command.request.memory(),
            _ => 0,
        };
        let requests = received + waiting + self.multi_memory();
        let replies = self.out.own_memory()
            + self.held.own_memory()
            + self.ready.own_memory()
            + self.sending_memory;
        size_of::<Self>() + requests + replies + self.watching_memory
    }

    /// Bytes of memory that the queued requests of a transaction take.
    fn multi_memory(&self) -> usize {
        self.multi.as_ref().map_or(0, |multi| multi.memory())
    }

    /// Bytes received so far of the large arguments of a request that has not run yet.
    fn large_received(&self) -> usize {
        self.large_size - self.large.as_ref().map_or(0, BlobBuilder::remaining)
    }

    /// Whether the next request may be run.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running) && self.large.is_none()
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing)
    }

    /// Runs no more requests of this client; replies already written still leave.
    pub(crate) fn close_after_replies(&mut self) {
        self.state = State::Closing;
        self.input = Vec::new();
        self.large = None;
    }

    /// Drops the reply written since `before` if the client wants none. `CLIENT REPLY SKIP` ends
    /// together with its request.
    pub(crate) fn leave_out(&mut self, before: usize) {
        if self.replies == Replies::On {
            return;
        }
        self.out.truncate(before);
        let is_over = matches!(self.state, State::Running | State::Resumed | State::Closing);
        if self.replies == Replies::Skip && is_over {
            self.replies = Replies::On;
        }
    }

    /// Bytes of replies that have not reached the kernel.
    pub(crate) fn output_size(&self) -> usize {
        self.out.len() + self.held.size() + self.ready.len() + self.sending
    }

    /// Bytes of the request that is being received, and of those that a transaction has queued.
    pub(crate) fn query_size(&self) -> usize {
        let queued = self.multi.as_ref().map_or(0, |multi| multi.size);
        let sealed = self.parser.request().sealed_size();
        let sealed = if is_planted("sealed-uncounted") { 0 } else { sealed };
        self.input.len() + sealed + self.large_received() + queued
    }

    /// `ip:port` of the other end, as Redis writes it.
    pub(crate) fn address(&self) -> String {
        match (self.peer.remote, &self.unix_path) {
            (Some(address), _) => address.to_string(),
            (None, path) => format!("{}:0", path.as_deref().unwrap_or("?")),
        }
    }

    /// `ip:port` of our end.
    pub(crate) fn local_address(&self) -> String {
        match (self.peer.local, &self.unix_path) {
            (Some(address), _) => address.to_string(),
            (None, path) => format!("{}:0", path.as_deref().unwrap_or("?")),
        }
    }

    /// Whether the other end is on this machine.
    pub(crate) fn is_local(&self) -> bool {
        self.peer.remote.is_none_or(|a| a.ip().to_canonical().is_loopback())
    }

    /// The line of `CLIENT LIST` and `CLIENT INFO`, without its newline. `is_stale`: whether to
    /// show that a watched key was changed. `argv_size`: bytes of the running request's arguments.
    pub(crate) fn describe(&self, now: Instant, is_stale: bool, argv_size: usize) -> String {
        let mut flags = String::new();
        if matches!(self.state, State::Waiting(_) | State::Parked(_)) {
            flags.push('b');
        }
        if self.multi.is_some() {
            flags.push('x');
        }
        if is_stale {
            flags.push('d');
        }
        if self.is_closing() {
            flags.push('c');
        }
        if self.peer.remote.is_none() {
            flags.push('U');
        }
        if self.no_evict {
            flags.push('e');
        }
        if self.no_touch {
            flags.push('T');
        }
        if flags.is_empty() {
            flags.push('N');
        }
        let seconds = |since: Instant| now.saturating_duration_since(since).as_secs();
        let multi = self.multi.as_ref().map_or(-1, |multi| multi.len() as i64);
        let (multi_memory, output) =
            (self.multi_memory() + self.watching_memory, self.output_size());
        let memory = self.memory();
        let resp = if self.out.protocol() == Protocol::Resp3 { 3 } else { 2 };
        let mut line = String::with_capacity(320);
        // Writing to a string does not fail.
        let _ = write!(
            line,
            "id={} addr={} laddr={} fd={} name={} age={} idle={} flags={flags} db={} sub=0 psub=0 \
             ssub=0 multi={multi} qbuf={} qbuf-free={} argv-mem={argv_size} multi-mem={multi_memory} rbs={} \
             rbp=0 obl={output} oll={} omem={output} tot-mem={memory} events=r cmd={} user=default \
             redir=-1 resp={resp} lib-name={} lib-ver={}",
            self.id,
            self.address(),
            self.local_address(),
            self.conn.index,
            String::from_utf8_lossy(&self.name),
            seconds(self.connected_at),
            seconds(self.last_active),
            self.db.0,
            self.input.len() + self.running_size,
            self.input.capacity() - self.input.len(),
            self.out.memory(),
            self.held.len(),
            self.last_command,
            String::from_utf8_lossy(&self.lib_name),
            String::from_utf8_lossy(&self.lib_ver),
        );
        line
    }
}

/// All clients, by their connection's index.
#[derive(Debug, Default)]
pub(crate) struct Clients {
    /// A client that is being served is taken out for that time.
    by_index: Vec<Option<Box<Client>>>,
    count: usize,
    next_id: u64,
    /// Bytes of memory that they take, without the client being served.
    memory: usize,
}

impl Clients {
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    pub(crate) fn add(&mut self, conn: ConnId, peer: Peer, now: Instant) -> Box<Client> {
        self.count += 1;
        self.next_id += 1;
        let index = conn.index as usize;
        if index >= self.by_index.len() {
            self.by_index.resize_with(index + 1, || None);
        }
        Box::new(Client::new(self.next_id, conn, peer, now))
    }

    /// Takes a client out to be served; it must be [put back](Self::put) or [dropped](Self::remove).
    pub(crate) fn take(&mut self, conn: ConnId) -> Option<Box<Client>> {
        let place = self.by_index.get_mut(conn.index as usize)?;
        let client = place.take_if(|client| client.conn == conn)?;
        assert!(self.memory >= client.counted_memory, "a client's memory was counted");
        self.memory -= client.counted_memory;
        Some(client)
    }

    pub(crate) fn put(&mut self, mut client: Box<Client>) {
        debug_assert!(!client.keeps_request, "it waits with what it has asked for");
        client.counted_memory = client.memory();
        self.memory += client.counted_memory;
        let index = client.conn.index as usize;
        assert!(self.by_index[index].is_none(), "nobody else is in a client's place");
        self.by_index[index] = Some(client);
    }

    /// Notes that a client that was taken out does not come back.
    pub(crate) fn remove(&mut self, client: Box<Client>) {
        if is_planted("left-still-counted") {
            self.memory += client.counted_memory;
        }
        drop(client);
        self.count -= 1;
    }

    /// Bytes of memory that requests, replies and watched keys of all clients take, without the
    /// client being served.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&Client> {
        self.by_index.get(conn.index as usize)?.as_deref().filter(|c| c.conn == conn)
    }

    /// For changes that do not affect [`Client::memory`], which is not counted again.
    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Client> {
        self.by_index.get_mut(conn.index as usize)?.as_deref_mut().filter(|c| c.conn == conn)
    }

    /// Looks at all clients while none is being served. Panics with a sentence where something is
    /// not as it is promised.
    pub(crate) fn check(&self) {
        assert_eq!(self.iter().count(), self.count, "as many clients are there as are counted");
        let counted: usize = self.iter().map(|client| client.counted_memory).sum();
        assert_eq!(counted, self.memory, "the memory of all clients is their sum");
        for (index, client) in self.by_index.iter().enumerate() {
            let Some(client) = client else { continue };
            assert_eq!(client.conn.index as usize, index, "a client is in its place");
            client.held.check();
        }
    }

    /// All clients but the one being served.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.by_index.iter().filter_map(|client| client.as_deref())
    }

    /// All clients but the one being served, for changes that do not affect [`Client::memory`].
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.by_index.iter_mut().filter_map(|client| client.as_deref_mut())
    }
}

/// Whether the soft output limit has been exceeded for too long.
pub(crate) fn soft_limit_is_over(since: Option<Instant>, now: Instant, seconds: u64) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) > Duration::from_secs(seconds))
}
