//! A connection: a socket, a session, and a queue to the drive, in one thread.
//!
//! The thread sleeps in `poll` until bytes come, an operation of the drive is due, or another
//! thread has news. The kernel's timers wake a thread some tens of microseconds late, which is as
//! long as a read of NAND takes. So the thread spins for the last part of a wait. The number of
//! threads that spin at once is limited, so that some cores are left for the hosts.
//!
//! A host measures the drive's time plus the times of two transfers: to the target, and back. If
//! host and target are on one machine, each transfer takes as long as the system call that sends,
//! because that call also puts the bytes into the receiver's socket. If the drive simulates times,
//! the target subtracts the times of both transfers from the drive's time, up to a limit. So a host
//! on this machine measures the drive's own time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use slimio_device::Completion;
use slimio_planted::is_planted;
use slimio_ssd::DriveQueue;

use crate::limits::{INBOX_SIZE, UNREACHABLE_TIME_MAX};
use crate::link::Link;
use crate::session::Session;
use crate::subsystem::Subsystem;
use crate::waker::Waker;

/// Length of the last part of a wait for the drive, during which the thread spins.
const SPUN: Duration = Duration::from_micros(60);
/// The longest time that the thread spins after a reply, waiting for the host's next command. The
/// thread spins only if the host's latest commands came within half of this time.
const LINGER_MAX: Duration = Duration::from_micros(300);
/// The longest time that is subtracted from the drive's time for the transfer in one direction.
const WAY_MAX: Duration = Duration::from_micros(10);
/// If fewer bytes than this are free at the inbox's end, the received bytes are moved to its start.
const INBOX_ROOM_MIN: usize = 64 << 10;
/// Largest number of bytes that are received before operations are begun. Without this limit, the
/// first commands would wait until the last commands are received.
const RECEIVED_AT_ONCE_MAX: usize = 128 << 10;

/// Number of threads that spin at this moment.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// The state that a connection shares with its server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) waker: Arc<Waker>,
    pub(crate) is_stopping: Arc<AtomicBool>,
    pub(crate) progress: Arc<Progress>,
}

/// How far a connection has come, as the thread that accepts connections sees it.
#[derive(Debug, Default)]
pub(crate) struct Progress {
    /// Whether the connection's host has connected a queue.
    pub(crate) is_connected: AtomicBool,
    /// Whether the connection must end if it has no queue yet.
    pub(crate) gives_way: AtomicBool,
}

impl Progress {
    /// Whether the connection has no queue yet, and was not told to end.
    pub(crate) fn is_waiting(&self) -> bool {
        !self.is_connected.load(Ordering::Relaxed) && !self.gives_way.load(Ordering::Relaxed)
    }
}

struct Connection {
    session: Session,
    queue: DriveQueue,
    link: Arc<Link>,
    shared: Shared,
    inbox: Box<[u8]>,
    /// `inbox[start..end]` are the received bytes that the session has not taken yet.
    start: usize,
    end: usize,
    /// Whether the socket may have bytes to receive.
    is_readable: bool,
    completions: Vec<Completion>,
    spinning_max: usize,
    /// Whether the drive simulates how long operations take on NAND.
    has_timing: bool,
    /// Whether another thread has news for the session.
    has_news: bool,
    clock: Clock,
    /// When bytes were last sent.
    sent_at: Instant,
    /// Time that the host takes from a reply to its next command, as a mean over its latest
    /// commands.
    gap: Duration,
    /// Time that a transfer to the host takes, as a mean over the latest replies.
    way: Duration,
    /// The last field, so that it is dropped last. When the host sees the socket close, the rest of
    /// the connection has already ended.
    stream: TcpStream,
}

/// Serves a connection until it ends.
pub(crate) fn run(stream: TcpStream, subsystem: Arc<Subsystem>, shared: Shared) -> io::Result<()> {
    prepare(&stream)?;
    // One nanosecond of slack makes timers as exact as possible. If the call fails, timers are only
    // less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let mut connection = Connection::new(stream, subsystem, shared);
    loop {
        if connection.is_readable && !connection.receive()? {
            return Ok(());
        }
        connection.turn()?;
        if !connection.look()? {
            return Ok(());
        }
        if connection.session.is_connected() {
            connection.shared.progress.is_connected.store(true, Ordering::Relaxed);
        } else if connection.shared.progress.gives_way.load(Ordering::Relaxed) {
            return Ok(());
        }
        if connection.session.is_over() && connection.session.output().is_empty()
            || connection.shared.is_stopping.load(Ordering::Acquire)
        {
            return Ok(());
        }
        if !connection.is_busy() && !connection.wait()? {
            return Ok(());
        }
    }
}

/// Sets the socket's options. The kernel then probes a silent host, and waits for a host's
/// acknowledgements. After [`UNREACHABLE_TIME_MAX`] without an answer, the kernel ends the
/// connection.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    /// Number of probes. The first probe comes when a host has been silent for half of
    /// [`UNREACHABLE_TIME_MAX`]. The other half is divided into as many equal pauses as there are
    /// probes.
    const QUESTIONS: u32 = 4;
    let half = UNREACHABLE_TIME_MAX / 2;
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    sockopt::set_socket_keepalive(stream, true)?;
    sockopt::set_tcp_keepidle(stream, half)?;
    sockopt::set_tcp_keepintvl(stream, half / QUESTIONS)?;
    sockopt::set_tcp_keepcnt(stream, QUESTIONS)?;
    sockopt::set_tcp_user_timeout(stream, UNREACHABLE_TIME_MAX.as_millis() as u32)?;
    Ok(())
}

impl Connection {
    fn new(stream: TcpStream, subsystem: Arc<Subsystem>, shared: Shared) -> Self {
        let queue = subsystem.open_queue();
        let has_timing = subsystem.has_timing();
        let now = Instant::now();
        let mut session = Session::new(subsystem, stream.local_addr().ok(), now);
        let link = Arc::new(Link::new(shared.waker.clone(), queue.canceller()));
        session.set_link(link.clone());
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
        Self {
            stream,
            session,
            queue,
            link,
            shared,
            inbox: vec![0; INBOX_SIZE].into_boxed_slice(),
            start: 0,
            end: 0,
            is_readable: true,
            completions: Vec::new(),
            spinning_max: (cores / 2).max(1),
            has_timing,
            has_news: false,
            clock: Clock::default(),
            sent_at: now,
            gap: LINGER_MAX,
            way: Duration::ZERO,
        }
    }

    /// Receives bytes from the socket, if the session takes input. Returns false if the host is
    /// gone.
    fn receive(&mut self) -> io::Result<bool> {
        if !self.session.wants_input() {
            return Ok(true);
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if INBOX_SIZE - self.end < INBOX_ROOM_MIN {
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = (INBOX_SIZE - self.end).min(RECEIVED_AT_ONCE_MAX);
        if room == 0 {
            return Ok(true);
        }
        match self.stream.read(&mut self.inbox[self.end..][..room]) {
            Ok(0) => Ok(false),
            Ok(count) => {
                self.end += count;
                // If there was room for more bytes, the socket has none left now. `poll` reports
                // when more bytes arrive.
                self.is_readable = count == room;
                Ok(true)
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => {
                    self.is_readable = false;
                    Ok(true)
                }
                ErrorKind::Interrupted => Ok(true),
                _ => Err(error),
            },
        }
    }

    /// Passes received bytes to the session, begins and completes operations, and sends replies.
    fn turn(&mut self) -> io::Result<()> {
        self.take();
        self.work();
        self.send()
    }

    /// Passes the received bytes to the session.
    fn take(&mut self) {
        if self.end > self.start {
            let now = self.clock.now();
            self.start += self.session.receive(&self.inbox[self.start..self.end], now);
        }
    }

    /// Lets the session check its deadlines and its news, if a deadline has passed or there is
    /// news. If a deadline has passed, sends and receives first: the last turn may have waited for
    /// a slow disk, and the host must not be blamed for that delay. Returns false if the host is
    /// gone.
    fn look(&mut self) -> io::Result<bool> {
        let deadline = self.session.next_deadline();
        let is_late = deadline.is_some_and(|deadline| self.clock.now() >= deadline);
        if !is_late && !self.has_news {
            return Ok(true);
        }
        self.has_news = false;
        if is_late && !is_planted("target-slow-disk-cuts-off") {
            self.send()?;
            let received = self.end - self.start;
            if !self.receive()? {
                return Ok(false);
            }
            if self.end - self.start > received {
                self.session.note_heard(self.clock.now());
            }
            self.take();
        }
        self.session.tick(self.clock.now());
        self.send()?;
        Ok(true)
    }

    /// Whether the next turn has input to take, so that the thread need not wait.
    fn is_busy(&self) -> bool {
        // The session takes no bytes while its output is full. When the output has room again, the
        // session takes those PDUs from the inbox that are complete.
        let has_left = self.session.has_left(&self.inbox[self.start..self.end]);
        self.session.wants_input() && (self.is_readable || has_left)
    }

    /// Begins the operations that wait, and completes the operations that are due. A completion may
    /// add further operations. These are left to the next turn, so that a command of many
    /// operations delays neither replies nor new commands.
    fn work(&mut self) {
        loop {
            self.begin();
            self.queue.poll(&mut self.completions);
            let now = self.clock.now();
            for completion in self.completions.drain(..) {
                self.session.complete(completion, now);
            }
            if !self.session.has_operations() || !is_planted("target-turn-unbounded") {
                break;
            }
        }
    }

    fn begin(&mut self) {
        let Some(_open) = self.link.enter() else {
            // The queue does not belong to its controller any more. The session notices that in
            // the next `look`, and ends.
            self.has_news = true;
            return;
        };
        while let Some(operation) = self.session.next_operation() {
            let sent = operation.arrived.checked_sub(self.way * 2);
            let sent = sent.unwrap_or(operation.arrived);
            self.queue.begin(operation.token, operation.op, sent);
        }
    }

    /// Sends as many bytes as the socket takes.
    fn send(&mut self) -> io::Result<()> {
        let mut began = self.clock.now();
        while !self.session.output().is_empty() {
            match self.stream.write(self.session.output()) {
                Ok(count) => {
                    let now = self.clock.now();
                    if self.has_timing {
                        let way = now.saturating_duration_since(began).min(WAY_MAX);
                        self.way = (self.way * 7 + way) / 8;
                    }
                    began = now;
                    self.sent_at = now;
                    self.session.note_sent(count, now);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(())
    }

    /// Sleeps until the connection may have work. Returns false if the host is gone.
    fn wait(&mut self) -> io::Result<bool> {
        let now = Instant::now();
        let has_operations = self.session.has_operations() && !is_planted("target-operations-left");
        let wake_at = match self.queue.next_due() {
            // Operations wait to be begun, so `poll` must not sleep. It only looks for bytes and
            // news.
            _ if has_operations => Some(now),
            Some(due) if due <= now => return Ok(true),
            Some(due) if due <= now + SPUN => match self.spin(due)? {
                Spin::NotHere => Some(due),
                Spin::Over => return Ok(true),
                Spin::Gone => return Ok(false),
            },
            Some(due) => Some(due.checked_sub(SPUN).unwrap_or(due)),
            None => {
                // A host that waits for each reply sends its next command soon after the reply.
                let until = self.sent_at + self.gap * 2;
                if self.gap <= LINGER_MAX / 2 && now < until {
                    match self.spin(until)? {
                        Spin::Over if self.end > self.start => return Ok(true),
                        Spin::Over | Spin::NotHere => {}
                        Spin::Gone => return Ok(false),
                    }
                }
                None
            }
        };
        let until = [wake_at, self.session.next_deadline()].into_iter().flatten().min();
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(Instant::now());
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() }
        });
        let mut wanted = PollFlags::empty();
        if self.session.wants_input() {
            wanted |= PollFlags::IN;
        }
        if !self.session.output().is_empty() {
            wanted |= PollFlags::OUT;
        }
        let mut fds = [
            PollFd::from_borrowed_fd(self.stream.as_fd(), wanted),
            PollFd::from_borrowed_fd(self.shared.waker.as_fd(), PollFlags::IN),
        ];
        match poll(&mut fds, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let found = fds[0].revents();
        let has_news = !fds[1].revents().is_empty();
        if found.intersects(PollFlags::IN) {
            self.is_readable = true;
            self.note_gap();
        } else if found.intersects(PollFlags::HUP | PollFlags::ERR) {
            // The host is gone, so nobody would take the replies. Without this branch, nothing
            // would notice the host's end as long as the session wants no input.
            return Ok(false);
        }
        if has_news {
            self.shared.waker.clear();
            self.has_news = true;
        }
        Ok(true)
    }

    /// Spins until the time is `until`, or until bytes are received.
    fn spin(&mut self, until: Instant) -> io::Result<Spin> {
        if SPINNING.fetch_add(1, Ordering::Relaxed) >= self.spinning_max {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
            return Ok(Spin::NotHere);
        }
        let left = self.end - self.start;
        let is_waiting = self.queue.in_flight() > 0;
        let mut found = Ok(true);
        while Instant::now() < until {
            found = self.receive();
            if self.end - self.start > left || !matches!(found, Ok(true)) {
                break;
            }
            // The last reply has woken the host's thread. The kernel may have put that thread on
            // this core, so this thread lets it run.
            std::thread::yield_now();
        }
        SPINNING.fetch_sub(1, Ordering::Relaxed);
        if self.end - self.start > left && !is_waiting {
            self.note_gap();
        }
        Ok(if found? { Spin::Over } else { Spin::Gone })
    }

    /// Adds the time since the last reply to the mean `gap`, because the host's next bytes have
    /// come.
    fn note_gap(&mut self) {
        let gap = self.sent_at.elapsed().min(LINGER_MAX);
        self.gap = (self.gap * 3 + gap) / 4;
    }
}

/// The machine's clock, which tests can move forward.
#[derive(Debug, Default)]
struct Clock {
    /// Time by which a test has moved the clock forward.
    ahead: Duration,
}

impl Clock {
    fn now(&self) -> Instant {
        Instant::now() + self.ahead
    }
}

/// Why spinning ended.
enum Spin {
    /// Too many threads spin already, so this one did not begin.
    NotHere,
    /// The time has passed, or bytes have come.
    Over,
    /// The host is gone.
    Gone,
}

#[cfg(test)]
mod tests;
