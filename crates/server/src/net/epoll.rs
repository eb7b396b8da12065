//! Sockets over epoll, for kernels and containers that refuse io_uring.
//!
//! A connection is read when its event is taken. All connections share one receive buffer, so that
//! the bytes are in the processor's cache when they are parsed. Bytes to send are offered to the
//! kernel at once. If the kernel does not take all of them, the rest waits until the socket becomes
//! writable.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll;
use rustix::event::{Timespec, epoll::EventFlags};
use rustix::io::Errno;
use rustix::net::{SendAncillaryBuffer, SendFlags, SocketFlags};
use slimio_planted::is_planted;

use super::{ACCEPT_RETRY, ConnId, Event, Net, Outgoing, ReceiveBuffer, WatchId};

/// Largest number of bytes read from one connection before another connection is read.
const RECEIVE_SIZE: usize = 64 << 10;
/// Largest number of readiness events taken from the kernel at once.
const READY_MAX: usize = 512;
/// Largest number of connections accepted in one turn. There is a limit so that clients that are
/// connected already are served, too.
const ACCEPT_BATCH_MAX: usize = 64;
/// Largest number of pieces sent with one system call.
const SLICES_MAX: usize = 64;

const KIND_LISTENER: u64 = 1 << 62;
const KIND_WATCH: u64 = 2 << 62;
const KIND_MASK: u64 = 3 << 62;

/// The back end.
pub struct EpollNet {
    epoll: OwnedFd,
    listeners: Vec<OwnedFd>,
    conns: Vec<Conn>,
    free: Vec<u32>,
    ready: Vec<epoll::Event>,
    /// Events from the kernel that were not handled yet in this turn.
    todo: VecDeque<(u64, EventFlags)>,
    /// Work and events that this back end has queued itself. They are handled before `todo`.
    made: VecDeque<Made>,
    scratch: Vec<u8>,
    accept_retry_at: Option<Instant>,
    /// How often this turn has tried to accept a connection.
    accepted: usize,
    /// The error, if waiting for events has failed.
    broken: Option<Errno>,
    syscalls: u64,
}

#[derive(Debug)]
enum Made {
    Accept(usize),
    Ended(ConnId),
    Broken(ConnId),
}

#[derive(Debug, Default)]
#[expect(clippy::struct_excessive_bools, reason = "these flags are independent of each other")]
struct Conn {
    generation: u32,
    socket: Option<OwnedFd>,
    reading: bool,
    /// Whether reading is paused, and a hang-up of the peer is to be reported.
    is_paused: bool,
    /// The events that the kernel was told to report.
    interest: EventFlags,
    /// Whether `Event::HungUp` was reported.
    is_hung_up: bool,
    /// Whether `Event::Ended` or `Event::Broken` was reported or queued. Nothing can be read then.
    is_ended: bool,
    /// Whether `Event::Broken` was reported or queued. If so, nothing can be sent either.
    is_broken: bool,
    filling: Option<ReceiveBuffer>,
    outgoing: Option<Outgoing>,
}

impl EpollNet {
    /// Opens the event queue.
    ///
    /// # Errors
    /// When the kernel refuses an event queue, for example for lack of descriptors.
    pub fn new() -> Result<Self, Errno> {
        Ok(Self {
            epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?,
            listeners: Vec::new(),
            conns: Vec::new(),
            free: Vec::new(),
            ready: Vec::with_capacity(READY_MAX),
            todo: VecDeque::new(),
            made: VecDeque::new(),
            scratch: vec![0; RECEIVE_SIZE],
            accept_retry_at: None,
            accepted: 0,
            broken: None,
            syscalls: 0,
        })
    }

    fn conn(&mut self, id: ConnId) -> Option<&mut Conn> {
        let conn = self.conns.get_mut(id.index as usize)?;
        (conn.generation == id.generation && conn.socket.is_some()).then_some(conn)
    }

    /// Tells the kernel which events of a connection to report, if this set has changed.
    fn update(&mut self, id: ConnId) {
        let Some(conn) = self.conn(id) else { return };
        let mut interest = EventFlags::empty();
        if conn.reading && !conn.is_ended {
            interest |= EventFlags::IN;
        }
        if conn.is_paused && !conn.is_ended {
            interest |= EventFlags::RDHUP;
        }
        if conn.outgoing.is_some() && !conn.is_broken {
            interest |= EventFlags::OUT;
        }
        if interest == conn.interest {
            return;
        }
        let was_empty = conn.interest.is_empty();
        conn.interest = interest;
        let data = epoll::EventData::new_u64(pack(id));
        let conn = &self.conns[id.index as usize];
        let socket = conn.socket.as_ref().expect("the connection has a socket");
        // If no event is of interest, the descriptor is removed, because the kernel would otherwise
        // report its hang-ups again and again.
        let result = if interest.is_empty() {
            epoll::delete(&self.epoll, socket)
        } else if was_empty {
            epoll::add(&self.epoll, socket, data, interest)
        } else {
            epoll::modify(&self.epoll, socket, data, interest)
        };
        self.syscalls += 1;
        if result.is_err() {
            self.broke(id);
        }
    }

    fn end(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.is_ended
        {
            conn.is_ended = true;
            self.made.push_back(Made::Ended(id));
            self.update(id);
        }
    }

    fn broke(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id)
            && !conn.is_broken
        {
            (conn.is_ended, conn.is_broken) = (true, true);
            self.made.push_back(Made::Broken(id));
            self.update(id);
        }
    }

    fn is_paused(&mut self, id: ConnId) -> bool {
        self.conn(id).is_some_and(|conn| conn.is_paused && !conn.is_ended)
    }

    /// If the connection is paused, notes that its peer hung up. Returns whether the hang-up is to
    /// be reported.
    fn hung_up(&mut self, id: ConnId) -> bool {
        let is_news = self.is_paused(id);
        if is_news && let Some(conn) = self.conn(id) {
            (conn.is_paused, conn.is_hung_up) = (false, true);
            self.update(id);
        }
        is_news
    }

    fn accept(&mut self, listener: usize) -> Option<Event<'static>> {
        self.syscalls += 1;
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        match rustix::net::accept_with(&self.listeners[listener], flags) {
            Ok(socket) => {
                if self.accept_retry_at.take().is_some() {
                    self.listen_again();
                }
                self.made.push_back(Made::Accept(listener));
                let index = self.free.pop().unwrap_or_else(|| {
                    self.conns.push(Conn::default());
                    self.conns.len() as u32 - 1
                });
                let generation = self.conns[index as usize].generation;
                self.conns[index as usize] =
                    Conn { generation, socket: Some(socket), ..Conn::default() };
                Some(Event::Accepted(ConnId { index, generation }, listener))
            }
            Err(Errno::AGAIN | Errno::CONNABORTED | Errno::INTR) => {
                // If an earlier try to accept has failed, the clients that waited have given up,
                // and the kernel must report new clients again.
                if self.accept_retry_at.take().is_some() {
                    self.listen_again();
                }
                None
            }
            Err(errno) => {
                // The listeners are removed from the event queue, because they stay readable.
                // Otherwise, the kernel would report them again at once, and the loop would spin.
                let first = self.accept_retry_at.replace(Instant::now() + ACCEPT_RETRY).is_none();
                if first {
                    for fd in &self.listeners {
                        self.syscalls += 1;
                        let _ = epoll::delete(&self.epoll, fd);
                    }
                }
                first.then_some(Event::AcceptFailed(errno))
            }
        }
    }

    fn listen_again(&mut self) {
        for (index, fd) in self.listeners.iter().enumerate() {
            let data = epoll::EventData::new_u64(KIND_LISTENER | index as u64);
            self.syscalls += 1;
            let _ = epoll::add(&self.epoll, fd, data, EventFlags::IN);
        }
    }

    fn write(&mut self, id: ConnId) -> Option<Event<'static>> {
        let conn = self.conn(id)?;
        let outgoing = conn.outgoing.take()?;
        let outgoing = self.send(id, outgoing);
        if let Some(outgoing) = outgoing {
            self.update(id);
            return Some(Event::Sent(id, outgoing));
        }
        None
    }

    /// Reads from a readable connection. Returns how many bytes `scratch` holds. If the bytes went
    /// into memory of the caller, returns that memory instead.
    fn read(&mut self, id: ConnId) -> Option<Read> {
        self.syscalls += 1;
        let conn = self.conns.get_mut(id.index as usize)?;
        if conn.generation != id.generation || !conn.reading || conn.is_ended {
            return None;
        }
        let socket = conn.socket.as_ref()?;
        if let Some(mut filling) = conn.filling.take() {
            let before = filling.buffer.len();
            let result = if filling.buffer.capacity() - before == filling.wanted {
                rustix::io::read(socket, rustix::buffer::spare_capacity(&mut filling.buffer))
            } else {
                // The allocation is larger than requested, so the read is limited to `wanted`
                // bytes, which are set to zero first.
                filling.buffer.resize(before + filling.wanted, 0);
                let result = rustix::io::read(socket, &mut filling.buffer[before..]);
                filling.buffer.truncate(before + result.unwrap_or(0));
                result
            };
            return match result {
                Ok(0) => {
                    self.end(id);
                    Some(Read::Filled(filling))
                }
                Ok(_) => Some(Read::Filled(filling)),
                Err(Errno::AGAIN | Errno::INTR) => {
                    if !is_planted("filling-forgotten") {
                        conn.filling = Some(filling);
                    }
                    None
                }
                Err(_) => {
                    self.broke(id);
                    Some(Read::Filled(filling))
                }
            };
        }
        match rustix::io::read(socket, &mut self.scratch[..]) {
            Ok(0) => self.end(id),
            Ok(count) => return Some(Read::Scratch(count)),
            Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.broke(id),
        }
        None
    }
}

enum Read {
    Scratch(usize),
    Filled(ReceiveBuffer),
}

fn pack(id: ConnId) -> u64 {
    // The two top bits distinguish connections from listeners and watches.
    (u64::from(id.generation) << 32 | u64::from(id.index)) & !KIND_MASK
}

impl Net for EpollNet {
    fn listen(&mut self, fd: OwnedFd) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(KIND_LISTENER | self.listeners.len() as u64);
        rustix::io::ioctl_fionbio(&fd, true)?;
        self.syscalls += 1;
        epoll::add(&self.epoll, &fd, data, EventFlags::IN)?;
        self.listeners.push(fd);
        Ok(())
    }

    fn watch(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno> {
        let data = epoll::EventData::new_u64(KIND_WATCH | u64::from(id.0));
        self.syscalls += 1;
        epoll::add(&self.epoll, fd, data, EventFlags::IN)
    }

    fn watch_on_demand(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno> {
        self.watch(fd, id)
    }

    // Does nothing, because every readiness is reported anyway.
    fn expect(&mut self, _id: WatchId) {}

    fn receive(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            (conn.reading, conn.is_hung_up) = (true, false);
            conn.is_paused = false;
            self.update(id);
        }
    }

    fn pause(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            conn.reading = false;
            conn.is_paused = !conn.is_hung_up && !is_planted("gone-unnoticed");
            self.update(id);
        }
    }

    fn fill(&mut self, id: ConnId, filling: ReceiveBuffer) {
        if let Some(conn) = self.conn(id) {
            conn.filling = Some(filling);
        }
    }

    fn send(&mut self, id: ConnId, mut outgoing: Outgoing) -> Option<Outgoing> {
        while !outgoing.is_empty() {
            let conn = self.conn(id)?;
            if conn.is_broken {
                return None;
            }
            assert!(conn.outgoing.is_none(), "the connection has another send in flight");
            let socket = conn.socket.as_ref()?;
            let result = match &outgoing {
                Outgoing::Bytes(bytes, sent) => {
                    rustix::net::send(socket, &bytes[*sent..], SendFlags::NOSIGNAL)
                }
                Outgoing::Segments(segments) => {
                    let mut slices = [IoSlice::new(&[]); SLICES_MAX];
                    let count = slices
                        .iter_mut()
                        .zip(segments.slices())
                        .map(|(slice, bytes)| *slice = IoSlice::new(bytes))
                        .count();
                    let mut control = SendAncillaryBuffer::default();
                    let slices = &slices[..count];
                    rustix::net::sendmsg(socket, slices, &mut control, SendFlags::NOSIGNAL)
                }
            };
            self.syscalls += 1;
            match result {
                Ok(count) => outgoing.advance(count),
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => {
                    if let Some(conn) = self.conn(id) {
                        conn.outgoing = Some(outgoing);
                    }
                    self.update(id);
                    return None;
                }
                Err(_) => {
                    self.broke(id);
                    return None;
                }
            }
        }
        Some(outgoing)
    }

    fn close(&mut self, id: ConnId) {
        if let Some(conn) = self.conn(id) {
            // Closing removes the descriptor from the event queue.
            let generation = conn.generation.wrapping_add(1) & (u32::MAX >> 2);
            *conn = Conn { generation, ..Conn::default() };
            self.syscalls += 1;
            self.free.push(id.index);
        }
    }

    fn socket(&self, id: ConnId) -> Option<BorrowedFd<'_>> {
        let conn = self.conns.get(id.index as usize)?;
        (conn.generation == id.generation).then_some(conn.socket.as_ref()?.as_fd())
    }

    fn wait(&mut self, timeout: Option<Duration>) {
        let now = Instant::now();
        let mut timeout = if self.made.is_empty() { timeout } else { Some(Duration::ZERO) };
        if let Some(at) = self.accept_retry_at {
            let rest = at.saturating_duration_since(now);
            timeout = Some(timeout.map_or(rest, |t| t.min(rest)));
        }
        let timespec = timeout
            .map(|t| Timespec { tv_sec: t.as_secs() as i64, tv_nsec: i64::from(t.subsec_nanos()) });
        self.accepted = 0;
        self.ready.clear();
        self.syscalls += 1;
        let spare = rustix::buffer::spare_capacity(&mut self.ready);
        match epoll::wait(&self.epoll, spare, timespec.as_ref()) {
            // An interrupted wait is a turn without events.
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => self.broken = Some(errno),
        }
        for event in &self.ready {
            self.todo.push_back((event.data.u64(), event.flags));
        }
        if self.accept_retry_at.is_some_and(|at| at <= Instant::now()) {
            for listener in 0..self.listeners.len() {
                self.made.push_back(Made::Accept(listener));
            }
        }
    }

    fn next(&mut self) -> Option<Event<'_>> {
        loop {
            match self.made.pop_front() {
                Some(Made::Ended(conn)) => {
                    if self.conn(conn).is_some() {
                        return Some(Event::Ended(conn));
                    }
                    continue;
                }
                Some(Made::Broken(conn)) => {
                    if self.conn(conn).is_some() {
                        return Some(Event::Broken(conn));
                    }
                    continue;
                }
                Some(Made::Accept(listener)) => {
                    self.accepted += 1;
                    if self.accepted <= ACCEPT_BATCH_MAX
                        && let Some(event) = self.accept(listener)
                    {
                        return Some(event);
                    }
                    continue;
                }
                None => {}
            }
            let (data, flags) = self.todo.pop_front()?;
            match data & KIND_MASK {
                KIND_LISTENER => {
                    self.made.push_back(Made::Accept((data & !KIND_MASK) as usize));
                }
                KIND_WATCH => return Some(Event::Ready(WatchId((data & !KIND_MASK) as u32))),
                _ => {
                    let id = ConnId { index: data as u32, generation: (data >> 32) as u32 };
                    if flags.intersects(EventFlags::OUT | EventFlags::ERR | EventFlags::HUP)
                        && let Some(event) = self.write(id)
                    {
                        // If the socket is readable, too, the kernel reports that again in the next
                        // turn.
                        return Some(event);
                    }
                    if flags.contains(EventFlags::ERR) && self.is_paused(id) {
                        self.broke(id);
                        continue;
                    }
                    if flags.intersects(EventFlags::RDHUP | EventFlags::HUP) && self.hung_up(id) {
                        return Some(Event::HungUp(id));
                    }
                    if flags.intersects(EventFlags::IN | EventFlags::ERR | EventFlags::HUP) {
                        match self.read(id) {
                            Some(Read::Scratch(count)) => {
                                let bytes = &self.scratch[..count];
                                return Some(Event::Received(id, bytes));
                            }
                            Some(Read::Filled(filling)) => {
                                return Some(Event::Filled(id, filling));
                            }
                            None => {}
                        }
                    }
                }
            }
        }
    }

    fn broken(&self) -> Option<String> {
        let errno = self.broken?;
        Some(format!(
            "the kernel refuses to wait for sockets: epoll_pwait: {errno}; allow this process the \
             system call epoll_pwait, or start the server with io-backend auto"
        ))
    }

    fn syscalls(&self) -> u64 {
        self.syscalls
    }
}
