//! Connected clients.

mod held;

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use slimio_keyspace::{DbIndex, Steps};
use slimio_planted::is_planted;
use slimio_resp::{OwnedRequest, Protocol, ReplyBuf};
use slimio_storage::Lsn;

use crate::inbox::Inbox;
use crate::net::{ConnId, Peer};
use crate::transactions::Multi;
use crate::waiting::{Line, Then, Waiting};
use held::Held;

/// A connected client.
#[derive(Debug)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
pub(crate) struct Client {
    pub(crate) id: u64,
    pub(crate) conn: ConnId,
    pub(crate) peer: Peer,
    /// The path of the server's Unix socket, if there is one. The server shows this path as the
    /// address of clients that are connected through the socket.
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

    pub(crate) inbox: Inbox,
    pub(crate) state: State,
    /// The last request did not run at once, so `Data::keep_request` must still store the
    /// request.
    pub(crate) keeps_request: bool,
    /// The turn of the event loop in which the client was last served, and how many of the client's
    /// requests count for that turn.
    pub(crate) served: (u64, usize),
    /// The client has used up its share of a turn, so its remaining requests wait for the next
    /// turn.
    pub(crate) is_behind: bool,
    /// The client's input has ended: the client will send nothing more.
    pub(crate) is_at_end: bool,
    /// The network saw the end of the client's input while bytes from the client were still unread.
    pub(crate) has_hung_up: bool,

    /// Replies of this turn.
    pub(crate) out: ReplyBuf,
    /// The LSN that the replies in `out` depend on.
    pub(crate) needs: Lsn,
    /// Replies of earlier turns, each with the LSN that the reply depends on.
    pub(crate) held: Held,
    /// Replies that may be sent, but wait until earlier replies are sent.
    pub(crate) ready: ReplyBuf,
    /// Bytes of the reply that the long request of this client has made so far.
    pub(crate) long_reply_size: usize,
    /// Bytes of replies handed to the network.
    pub(crate) sending: usize,
    /// Bytes of memory that are used only by the replies that `sending` counts.
    pub(crate) sending_memory: usize,
    pub(crate) replies: Replies,
    pub(crate) soft_limit_since: Option<Instant>,
    /// Whether the client is in the list of clients to look at when the turn ends.
    pub(crate) is_dirty: bool,
    /// Whether the client is listed as having held replies.
    pub(crate) is_holding: bool,

    pub(crate) multi: Option<Box<Multi>>,
    pub(crate) watching: BTreeSet<(DbIndex, Box<[u8]>)>,
    pub(crate) watching_memory: usize,
    /// Position of the last record that the client has written.
    pub(crate) last_write: Lsn,
    /// Bytes that `Clients::memory` includes for this client while the client is not being served.
    counted_memory: usize,
}

/// Whether a client's requests are run, or what they wait for.
#[derive(Debug)]
pub(crate) enum State {
    Running,
    /// The client is in the waiting room.
    Waiting(Box<Waiting>),
    /// The client's command runs in steps and has not finished. Unlike a long request, the command
    /// does not hold keys.
    Yielding(Box<LongCommand>),
    /// The client's request is the long request of `engine::long`. It runs in steps, and it holds
    /// its keys: other requests that need these keys wait.
    Long,
    /// The client's wait has ended, but its next requests have not run yet.
    Resumed,
    /// The server reads no more requests. It closes the connection when all replies are sent.
    Closing,
}

/// A command that runs in steps and has not finished.
#[derive(Debug)]
pub(crate) struct LongCommand {
    pub(crate) request: OwnedRequest,
    pub(crate) steps: Box<dyn Steps>,
    /// Time that the command's steps have taken so far.
    pub(crate) spent: Duration,
    /// Whether the command was already counted as a call. A command that waits for keys is counted
    /// when it begins to wait.
    pub(crate) is_counted: bool,
}

/// Which replies the client gets, as set by `CLIENT REPLY`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Replies {
    On,
    Off,
    /// The reply to the command that follows is left out.
    SkipNext,
    /// The reply to this command is left out.
    Skip,
}

impl LongCommand {
    pub(crate) fn memory(&self) -> usize {
        let made = self.steps.made().map_or(0, ReplyBuf::own_memory);
        self.request.memory() + if is_planted("made-in-steps-uncounted") { 0 } else { made }
    }
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
            inbox: Inbox::default(),
            state: State::Running,
            keeps_request: false,
            served: (0, 0),
            is_behind: false,
            is_at_end: false,
            has_hung_up: false,
            out: ReplyBuf::new(Protocol::Resp2),
            needs: Lsn(0),
            held: Held::default(),
            ready: ReplyBuf::new(Protocol::Resp2),
            long_reply_size: 0,
            sending: 0,
            sending_memory: 0,
            replies: Replies::On,
            soft_limit_since: None,
            is_dirty: false,
            is_holding: false,
            multi: None,
            watching: BTreeSet::new(),
            watching_memory: 0,
            last_write: Lsn(0),
            counted_memory: 0,
        }
    }

    /// Sets the protocol of the replies from now on.
    pub(crate) fn set_protocol(&mut self, protocol: Protocol) {
        self.out.set_protocol(protocol);
        self.ready.set_protocol(protocol);
    }

    /// Bytes of memory that the client's requests, replies and watched keys take. These bytes count
    /// towards the memory limit. Values that replies only refer to are not included.
    pub(crate) fn memory(&self) -> usize {
        let waiting = match &self.state {
            State::Waiting(waiting) => waiting.memory(),
            State::Yielding(command) => command.memory(),
            _ => 0,
        };
        let requests = self.inbox.memory() + waiting + self.multi_memory();
        let replies = self.out.own_memory()
            + self.held.own_memory()
            + self.ready.own_memory()
            + self.sending_memory;
        size_of::<Self>() + requests + replies + self.watching_memory + self.names_memory()
    }

    /// Bytes of memory for the names that the client has given itself.
    fn names_memory(&self) -> usize {
        self.name.capacity() + self.lib_name.capacity() + self.lib_ver.capacity()
    }

    /// Bytes of memory that the queued requests of a transaction take.
    fn multi_memory(&self) -> usize {
        self.multi.as_ref().map_or(0, |multi| multi.memory())
    }

    /// Whether the next request may be run.
    pub(crate) fn is_running(&self) -> bool {
        matches!(self.state, State::Running) && !self.inbox.is_filling()
    }

    /// The line in which the client waits.
    pub(crate) fn line(&self) -> Option<Line> {
        match &self.state {
            State::Waiting(waiting) => Some(waiting.reason.line()),
            _ => None,
        }
    }

    /// The request that waits to be run again.
    pub(crate) fn waiting_request(&self) -> Option<&OwnedRequest> {
        match &self.state {
            State::Waiting(waiting) => match &waiting.then {
                Then::Again(request) => Some(request),
                _ => None,
            },
            _ => None,
        }
    }

    /// Whether the client waits, and `CLIENT UNBLOCK` may end this wait.
    pub(crate) fn can_be_given_up(&self) -> bool {
        matches!(&self.state, State::Waiting(waiting) if waiting.can_be_given_up())
    }

    pub(crate) fn is_closing(&self) -> bool {
        matches!(self.state, State::Closing)
    }

    /// Drops the reply written since `before` if the client has turned replies off. After `CLIENT
    /// REPLY SKIP`, replies stay off until the next request has ended.
    pub(crate) fn leave_out(&mut self, before: usize) {
        if self.replies == Replies::On {
            return;
        }
        self.out.leave_out(before);
        let is_over = matches!(self.state, State::Running | State::Resumed | State::Closing);
        if self.replies == Replies::Skip && is_over {
            self.replies = Replies::On;
        }
    }

    /// Bytes of replies that have not reached the kernel.
    pub(crate) fn unsent_size(&self) -> usize {
        self.out.len() + self.held.size() + self.ready.len() + self.sending
    }

    /// Bytes of the reply that a command in steps has made so far.
    pub(crate) fn made_size(&self) -> usize {
        match &self.state {
            _ if is_planted("made-in-steps-unlimited") => 0,
            State::Yielding(command) => command.steps.made().map_or(0, ReplyBuf::len),
            State::Waiting(waiting) => waiting.made().map_or(0, ReplyBuf::len),
            State::Long => self.long_reply_size,
            _ => 0,
        }
    }

    /// Bytes of replies that count towards the client's output limit.
    pub(crate) fn output_size(&self) -> usize {
        self.unsent_size() + self.made_size()
    }

    /// Bytes of the request that is being received and of the requests that a transaction has
    /// queued.
    pub(crate) fn query_size(&self) -> usize {
        let queued = self.multi.as_ref().map_or(0, |multi| multi.size);
        self.inbox.size() + queued
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

    /// The line of `CLIENT LIST` and `CLIENT INFO`, without its newline. `is_stale` says whether to
    /// show that a watched key was changed; `argv_size` is the size in bytes of the running
    /// request's arguments.
    pub(crate) fn describe(&self, now: Instant, is_stale: bool, argv_size: usize) -> String {
        let mut flags = String::new();
        if self.line().is_some_and(Line::is_blocked) {
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
            self.inbox.buffered(),
            self.inbox.free(),
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
    /// A client is not in this vector while it is being served.
    by_index: Vec<Option<Box<Client>>>,
    count: usize,
    next_id: u64,
    /// Bytes of memory for all clients except the one that is being served.
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

    /// Takes a client out to be served. The caller must [put it back](Self::put) or [drop
    /// it](Self::remove).
    pub(crate) fn take(&mut self, conn: ConnId) -> Option<Box<Client>> {
        let place = self.by_index.get_mut(conn.index as usize)?;
        let client = place.take_if(|client| client.conn == conn)?;
        assert!(self.memory >= client.counted_memory, "the sum includes the client's memory");
        self.memory -= client.counted_memory;
        Some(client)
    }

    pub(crate) fn put(&mut self, mut client: Box<Client>) {
        debug_assert!(!client.keeps_request, "a client's unfinished request is stored");
        client.counted_memory = client.memory();
        self.memory += client.counted_memory;
        let index = client.conn.index as usize;
        assert!(self.by_index[index].is_none(), "a client's place is free");
        self.by_index[index] = Some(client);
    }

    /// Forgets a client that was taken out and will not be put back.
    pub(crate) fn remove(&mut self, client: Box<Client>) {
        if is_planted("left-still-counted") {
            self.memory += client.counted_memory;
        }
        drop(client);
        self.count -= 1;
    }

    /// Bytes of memory for the requests, replies and watched keys of all clients except the one
    /// that is being served.
    pub(crate) fn memory(&self) -> usize {
        self.memory
    }

    pub(crate) fn get(&self, conn: ConnId) -> Option<&Client> {
        self.by_index.get(conn.index as usize)?.as_deref().filter(|c| c.conn == conn)
    }

    /// Only for changes that do not affect [`Client::memory`], because the sum over all clients is
    /// not updated.
    pub(crate) fn get_mut(&mut self, conn: ConnId) -> Option<&mut Client> {
        self.by_index.get_mut(conn.index as usize)?.as_deref_mut().filter(|c| c.conn == conn)
    }

    /// Checks all clients while none is being served. Panics if an invariant does not hold.
    pub(crate) fn check(&self) {
        assert_eq!(self.iter().count(), self.count, "the stored count of clients is wrong");
        let counted: usize = self.iter().map(|client| client.counted_memory).sum();
        assert_eq!(counted, self.memory, "the stored memory of all clients differs from the sum");
        for (index, client) in self.by_index.iter().enumerate() {
            let Some(client) = client else { continue };
            assert_eq!(client.conn.index as usize, index, "a client is in its place");
            client.held.check();
        }
    }

    /// All clients except the one being served.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &Client> {
        self.by_index.iter().filter_map(|client| client.as_deref())
    }

    /// All clients except the one being served, for changes that do not affect [`Client::memory`].
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = &mut Client> {
        self.by_index.iter_mut().filter_map(|client| client.as_deref_mut())
    }
}

/// Whether the soft output limit has been exceeded for too long.
pub(crate) fn soft_limit_is_over(since: Option<Instant>, now: Instant, seconds: u64) -> bool {
    since.is_some_and(|since| now.saturating_duration_since(since) > Duration::from_secs(seconds))
}
