//! Sockets over io_uring: in each turn of the event loop, one system call submits all sends and
//! brings all completions.
//!
//! Multishot operations, which the kernel repeats by itself, accept connections and receive bytes.
//! Received bytes are parsed where the kernel put them, in a buffer that goes back to the kernel
//! when the next event is taken. A large argument is received directly into its final memory, and
//! the multishot receive is cancelled for that time.

use std::collections::VecDeque;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use slimio_planted::is_planted;
use slimio_ring::{Completion, Fd, Interest, OpId, Outcome, Provided, Ring, Setup};

use super::{ACCEPT_RETRY, ConnId, Event, Net, Outgoing, ReceiveBuffer, WatchId};

/// Number of buffers for received bytes. If more connections than this have bytes to receive, some
/// of them wait.
const BUFFERS: u16 = 128;
/// Size of each buffer, in bytes. It has room for several small requests, or for a common value
/// with its header.
const BUFFER_SIZE: u32 = 16 << 10;

/// The purpose of an operation, and its listener, connection or watch.
#[derive(Clone, Copy, Debug)]
enum Tag {
    Accept(usize),
    Receive(ConnId),
    Fill(ConnId),
    Send(ConnId),
    HangUp(ConnId),
    Watch(Fd, WatchId),
    Expect(WatchId),
}

/// The back end that uses io_uring.
pub struct UringNet {
    ring: Ring<Tag>,
    listeners: Vec<Listening>,
    conns: Vec<Conn>,
    free: Vec<u32>,
    completions: Vec<Completion<Tag>>,
    todo: VecDeque<Completion<Tag>>,
    /// The buffer whose bytes are lent to the caller.
    lent: Option<Provided>,
    /// Set if a buffer had bytes left when a large argument was complete. The values are the
    /// connection, the buffer, and the place where these bytes begin.
    rest: Option<(ConnId, Provided, usize)>,
    /// Connections on which receiving may have to be started before the next sleep.
    unarmed: Vec<ConnId>,
    /// Connections whose end or breakage is to be reported.
    ended: VecDeque<(ConnId, Ended)>,
    accept_retry_at: Option<Instant>,
    on_demand: Vec<OnDemand>,
    syscalls: u64,
}

/// What has ended on a connection: only receiving, or everything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    Receiving,
    Everything,
}

/// A descriptor that is polled only while it is expected to become ready.
struct OnDemand {
    id: WatchId,
    fd: Fd,
    is_expected: bool,
}

struct Listening {
    fd: Fd,
    is_armed: bool,
}

#[derive(Default)]
#[expect(clippy::struct_excessive_bools, reason = "the flags are independent of each other")]
struct Conn {
    generation: u32,
    fd: Option<Fd>,
    wants_receive: bool,
    /// Receiving is paused, and a hang-up of the peer is to be reported.
    is_paused: bool,
    /// The hang-up was reported.
    is_hung_up: bool,
    /// A poll for the hang-up is in flight.
    is_polled: bool,
    /// There is nothing more to receive.
    is_ended: bool,
    /// Nothing can be sent.
    is_broken: bool,
    /// The multishot receive operation in flight.
    receive: Option<OpId>,
    is_cancelling: bool,
    /// The memory to fill, as long as no operation uses it.
    filling: Option<ReceiveBuffer>,
    /// An operation is filling memory.
    is_filling: bool,
}

impl UringNet {
    /// Makes a ring with its buffers, and checks that the ring works. The ring belongs to the
    /// calling thread.
    ///
    /// # Errors
    /// When io_uring cannot be used; the error says why.
    pub fn new() -> Result<Self, String> {
        let mut ring = Ring::new(Setup::default()).map_err(|refused| refused.to_string())?;
        ring.provide_buffers(BUFFERS, BUFFER_SIZE)
            .map_err(|errno| format!("cannot give buffers to io_uring: {errno}"))?;
        ring.try_out().map_err(|refused| refused.to_string())?;
        Ok(Self {
            ring,
            listeners: Vec::new(),
            conns: Vec::new(),
            free: Vec::new(),
            completions: Vec::new(),
            todo: VecDeque::new(),
            lent: None,
            rest: None,
            unarmed: Vec::new(),
            ended: VecDeque::new(),
            accept_retry_at: None,
            on_demand: Vec::new(),
            syscalls: 0,
        })
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.index as usize)?;
        (conn.generation == id.generation && conn.fd.is_some()).then_some(conn)
    }

    fn end(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.is_ended
        {
            conn.is_ended = true;
            self.ended.push_back((id, Ended::Receiving));
        }
    }

    fn broke(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.is_broken
        {
            (conn.is_ended, conn.is_broken) = (true, true);
            self.ended.push_back((id, Ended::Everything));
        }
    }

    /// Starts to receive from a connection, if this is wanted and no receive operation is in
    /// flight.
    fn arm(&mut self, id: ConnId) {
        let Some(conn) = self.conn(id) else { return };
        let Some(fd) = conn.fd else { return };
        if self.rest.as_ref().is_some_and(|(other, ..)| *other == id) {
            // The bytes left in an earlier buffer must be taken first.
            self.unarmed.push(id);
            return;
        }
        let Some(conn) = self.conn(id) else { return };
        if conn.is_ended || !conn.wants_receive || conn.receive.is_some() || conn.is_filling {
            return;
        }
        if let Some(ReceiveBuffer { buffer, wanted }) = conn.filling.take() {
            conn.is_filling = true;
            self.ring.receive_into(fd, buffer, wanted, Tag::Fill(id));
        } else {
            let op = self.ring.receive(fd, Tag::Receive(id));
            if let Some(conn) = self.conn(id) {
                conn.receive = Some(op);
                conn.is_cancelling = false;
            }
        }
    }

    fn cancel_receive(&mut self, id: ConnId) {
        let Some(conn) = self.conn(id) else { return };
        if let Some(op) = conn.receive
            && !std::mem::replace(&mut conn.is_cancelling, true)
        {
            self.ring.cancel(op);
        }
    }

    fn accepted(&mut self, fd: Fd, listener: usize) -> Event<'static> {
        self.accept_retry_at = None;
        let index = self.free.pop().unwrap_or_else(|| {
            self.conns.push(Conn::default());
            self.conns.len() as u32 - 1
        });
        let generation = self.conns[index as usize].generation;
        self.conns[index as usize] = Conn { generation, fd: Some(fd), ..Conn::default() };
        Event::Accepted(ConnId { index, generation }, listener)
    }

    fn accept_failed(
        &mut self,
        listener: usize,
        errno: slimio_ring::Errno,
    ) -> Option<Event<'static>> {
        self.listeners[listener].is_armed = false;
        let errno = Errno::from_raw_os_error(errno.number());
        if matches!(errno, Errno::CONNABORTED | Errno::INTR | Errno::AGAIN) {
            self.arm_listeners();
            return None;
        }
        let is_first = self.accept_retry_at.replace(Instant::now() + ACCEPT_RETRY).is_none();
        is_first.then_some(Event::AcceptFailed(errno))
    }

    fn arm_listeners(&mut self) {
        for (index, listening) in self.listeners.iter_mut().enumerate() {
            if !std::mem::replace(&mut listening.is_armed, true) {
                self.ring.accept(listening.fd, Tag::Accept(index));
            }
        }
    }

    /// Takes bytes from a buffer of the ring. If the caller has given memory to fill, copies the
    /// bytes there. Otherwise returns the buffer, so that its bytes can be lent to the caller.
    fn received(&mut self, id: ConnId, provided: Provided, from: usize) -> Option<Taken> {
        let Some(conn) = self.conn(id) else {
            self.ring.give_back(provided);
            return None;
        };
        let Some(mut filling) = conn.filling.take() else {
            return Some(Taken::Lend(provided, from));
        };
        let bytes = &self.ring.bytes(&provided)[from..];
        let count = filling.wanted.min(bytes.len());
        filling.buffer.extend_from_slice(&bytes[..count]);
        if count < bytes.len() {
            self.rest = Some((id, provided, from + count));
        } else {
            self.ring.give_back(provided);
        }
        Some(Taken::Filled(filling))
    }

    /// What a completion means; `None` if the caller need not know about the completion.
    fn judge(&mut self, completion: Completion<Tag>) -> Option<Judged> {
        let Completion { payload, is_last, outcome, .. } = completion;
        match (payload, outcome) {
            (Tag::Accept(listener), Outcome::Accepted(result)) => {
                if is_last {
                    self.listeners[listener].is_armed = false;
                }
                match result {
                    Ok(fd) => Some(Judged::Event(self.accepted(fd, listener))),
                    Err(errno) => self.accept_failed(listener, errno).map(Judged::Event),
                }
            }
            (Tag::Receive(id), Outcome::Received(result)) => {
                if is_last && let Some(conn) = self.conn(id) {
                    conn.receive = None;
                    conn.is_cancelling = false;
                    self.unarmed.push(id);
                }
                match result {
                    Ok(Some(provided)) => match self.received(id, provided, 0)? {
                        Taken::Lend(provided, from) => Some(Judged::Lend(id, provided, from)),
                        Taken::Filled(filling) => Some(Judged::Event(Event::Filled(id, filling))),
                    },
                    Err(errno) if errno == slimio_ring::Errno::CANCELED => None,
                    Ok(None) => {
                        self.end(id);
                        None
                    }
                    Err(_) => {
                        self.broke(id);
                        None
                    }
                }
            }
            (Tag::Fill(id), Outcome::ReceivedInto { bytes, result }) => {
                let conn = self.conn(id)?;
                conn.is_filling = false;
                self.unarmed.push(id);
                match result {
                    Ok(0) => self.end(id),
                    Ok(_) => {}
                    Err(_) => self.broke(id),
                }
                Some(Judged::Event(Event::Filled(id, ReceiveBuffer { buffer: bytes, wanted: 0 })))
            }
            (Tag::Send(id), Outcome::Sent { bytes, result }) => {
                self.sent(id, Outgoing::Bytes(bytes, 0), result.is_ok())
            }
            (Tag::Send(id), Outcome::SentSegments { segments, result }) => {
                self.sent(id, Outgoing::Segments(Box::new(segments)), result.is_ok())
            }
            (Tag::HangUp(id), Outcome::Polled(result)) => {
                let conn = self.conn(id)?;
                conn.is_polled = false;
                // If reading was resumed, the hang-up is not reported, because the receive
                // operation reports the end.
                if result.is_err() || conn.is_ended || !std::mem::take(&mut conn.is_paused) {
                    return None;
                }
                conn.is_hung_up = true;
                Some(Judged::Event(Event::HungUp(id)))
            }
            (Tag::Watch(fd, id), Outcome::Polled(result)) => {
                // The kernel ends a multishot poll of another ring after the first event, so that
                // two rings cannot wake each other endlessly. The poll is therefore started again.
                if is_last && result.is_ok() {
                    self.ring.poll_repeatedly(fd, Interest::Readable, Tag::Watch(fd, id));
                }
                result.is_ok().then_some(Judged::Event(Event::Ready(id)))
            }
            (Tag::Expect(id), Outcome::Polled(result)) => {
                let mut watches = self.on_demand.iter_mut();
                let watch = watches.find(|watch| watch.id == id).expect("no watch is ever removed");
                watch.is_expected = false;
                result.is_ok().then_some(Judged::Event(Event::Ready(id)))
            }
            (tag, outcome) => unreachable!("{tag:?} does not end as {outcome:?}"),
        }
    }

    fn sent(&mut self, id: ConnId, outgoing: Outgoing, is_ok: bool) -> Option<Judged> {
        self.conn(id)?;
        if is_ok {
            return Some(Judged::Event(Event::Sent(id, outgoing)));
        }
        self.broke(id);
        None
    }
}

enum Taken {
    Lend(Provided, usize),
    Filled(ReceiveBuffer),
}

enum Judged {
    Event(Event<'static>),
    Lend(ConnId, Provided, usize),
}

impl Net for UringNet {
    fn listen(&mut self, fd: OwnedFd) -> Result<(), Errno> {
        let fd = self.ring.adopt(fd);
        self.listeners.push(Listening { fd, is_armed: false });
        self.arm_listeners();
        Ok(())
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno> {
        let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
        let fd = self.ring.adopt(copy);
        self.ring.poll_repeatedly(fd, Interest::Readable, Tag::Watch(fd, id));
        Ok(())
    }

    fn watch_on_demand(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno> {
        let copy = rustix::io::fcntl_dupfd_cloexec(fd, 0)?;
        let fd = self.ring.adopt(copy);
        self.on_demand.push(OnDemand { id, fd, is_expected: false });
        Ok(())
    }

    fn expect(&mut self, id: WatchId) {
        let mut watches = self.on_demand.iter_mut();
        if let Some(watch) = watches.find(|watch| watch.id == id && !watch.is_expected) {
            watch.is_expected = true;
            self.ring.poll(watch.fd, Interest::Readable, Tag::Expect(id));
        }
    }

    fn receive(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.wants_receive = true;
            (conn.is_paused, conn.is_hung_up) = (false, false);
            self.arm(id);
        }
    }

    fn pause(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.wants_receive = false;
            conn.is_paused = !conn.is_hung_up && !is_planted("gone-unnoticed");
            if let Some(fd) = conn.fd
                && conn.is_paused
                && !std::mem::replace(&mut conn.is_polled, true)
            {
                self.ring.poll(fd, Interest::HungUp, Tag::HangUp(id));
            }
            self.cancel_receive(id);
        }
    }

    fn fill(&mut self, id: ConnId, filling: ReceiveBuffer) {
        if let Some(conn) = self.conn(id) {
            conn.filling = Some(filling);
            self.cancel_receive(id);
            self.arm(id);
        }
    }

    fn send(&mut self, id: ConnId, outgoing: Outgoing) -> Option<Outgoing> {
        let conn = self.conn(id)?;
        if conn.is_broken {
            return None;
        }
        let fd = conn.fd?;
        match outgoing {
            _ if outgoing.is_empty() => return Some(outgoing),
            Outgoing::Bytes(bytes, _) => self.ring.send(fd, bytes, Tag::Send(id)),
            Outgoing::Segments(segments) => self.ring.send_segments(fd, *segments, Tag::Send(id)),
        };
        None
    }

    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            let fd = conn.fd.take();
            let generation = conn.generation.wrapping_add(1);
            *conn = Conn { generation, ..Conn::default() };
            self.free.push(id.index);
            if let Some(fd) = fd {
                self.ring.close(fd);
            }
        }
    }

    fn socket(&self, id: ConnId) -> Option<BorrowedFd<'_>> {
        let conn = self.conns.get(id.index as usize)?;
        if conn.generation != id.generation {
            return None;
        }
        self.ring.descriptor(conn.fd?)
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let mut timeout = timeout;
        if let Some(at) = self.accept_retry_at {
            let rest = at.saturating_duration_since(Instant::now());
            if rest.is_zero() {
                self.arm_listeners();
            } else {
                timeout = Some(timeout.map_or(rest, |t| t.min(rest)));
            }
        }
        while let Some(id) = self.unarmed.pop() {
            self.arm(id);
        }
        let must_not_sleep = !self.ended.is_empty() || timeout.is_some_and(|t| t.is_zero());
        self.syscalls += 1;
        // Logging an error is enough. If the kernel has no memory, it leaves operations queued. If
        // it refuses them for good, `broken` says so.
        let result =
            if must_not_sleep { self.ring.submit() } else { self.ring.submit_and_wait(1, timeout) };
        if let Err(errno) = result {
            log::debug!("io_uring: {errno}");
        }
        self.ring.reap(&mut self.completions);
        self.todo.extend(self.completions.drain(..));
    }

    fn peek_received<'a>(&'a self, see: &mut dyn FnMut(ConnId, &'a [u8])) {
        for completion in &self.todo {
            if let (Tag::Receive(id), Outcome::Received(Ok(Some(provided)))) =
                (completion.payload, &completion.outcome)
            {
                see(id, self.ring.bytes(provided));
            }
        }
    }

    fn next(&mut self) -> Option<Event<'_>> {
        if self.ring.refused().is_some() {
            // The operations failed because the kernel refuses all of them, so their results say
            // nothing about the connections.
            return None;
        }
        if let Some(provided) = self.lent.take() {
            self.ring.give_back(provided);
        }
        if let Some((id, provided, from)) = self.rest.take() {
            match self.received(id, provided, from) {
                Some(Taken::Lend(provided, from)) => return Some(self.lend(id, provided, from)),
                Some(Taken::Filled(filling)) => return Some(Event::Filled(id, filling)),
                None => {}
            }
        }
        loop {
            while let Some((id, ended)) = self.ended.pop_front() {
                if self.conn(id).is_some() {
                    return Some(match ended {
                        Ended::Receiving => Event::Ended(id),
                        Ended::Everything => Event::Broken(id),
                    });
                }
            }
            let completion = self.todo.pop_front()?;
            match self.judge(completion) {
                Some(Judged::Event(event)) => return Some(event),
                Some(Judged::Lend(id, provided, from)) => {
                    return Some(self.lend(id, provided, from));
                }
                None => {}
            }
        }
    }

    fn broken(&self) -> Option<String> {
        let errno = self.ring.refused()?;
        Some(format!(
            "the kernel refuses operations on sockets: io_uring_enter: {errno}; let this process \
             make that system call, or start the server with io-backend plain"
        ))
    }

    fn syscalls(&self) -> u64 {
        self.syscalls
    }
}

impl UringNet {
    fn lend(&mut self, id: ConnId, provided: Provided, from: usize) -> Event<'_> {
        let provided = self.lent.insert(provided);
        Event::Received(id, &self.ring.bytes(provided)[from..])
    }
}
