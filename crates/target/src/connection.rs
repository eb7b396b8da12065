//! A connection: a socket, a session, and a queue to the drive, in one thread.
//!
//! The thread sleeps in `poll`, until bytes come, an operation of the drive is due, or another
//! connection has news. A timer of the kernel wakes it some ten microseconds late, which is as long
//! as a read of NAND takes. So the last of the time is spun away, by as many threads at once as
//! leave the hosts some cores.
//!
//! A host sees the drive's time and that of the way to the drive and back. On one machine, the way
//! is what the system call takes that sends, because that call also takes the bytes to the other
//! side's socket. So if the drive takes time, its operations begin as much earlier as both ways
//! take, up to a limit: then a host on this machine sees the drive's own time.

use std::io::{self, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slimio_device::Completion;
use slimio_ssd::DriveQueue;

use crate::limits::INBOX_SIZE;
use crate::session::Session;
use crate::subsystem::Subsystem;
use crate::waker::Waker;

/// The last part of a wait for the drive, which is spun away.
const SPUN: Duration = Duration::from_micros(60);
/// How long after a host's last command the thread spins for the next one, if the drive takes time:
/// waking up would add to that time.
const LINGER: Duration = Duration::from_micros(60);
/// The longest way that is taken off the drive's time.
const WAY_MAX: Duration = Duration::from_micros(10);
/// When less than this is free behind what was received, the rest moves to the inbox's start.
const INBOX_ROOM_MIN: usize = 64 << 10;
/// Most bytes that are received in one turn before operations are begun, so that the first of them
/// do not wait for the last.
const RECEIVED_AT_ONCE_MAX: usize = 128 << 10;

/// Threads that spin at this moment.
static SPINNING: AtomicUsize = AtomicUsize::new(0);

/// What a connection shares with its server.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) waker: Arc<Waker>,
    pub(crate) is_stopping: Arc<AtomicBool>,
}

struct Connection {
    stream: TcpStream,
    session: Session,
    queue: DriveQueue,
    shared: Shared,
    inbox: Box<[u8]>,
    /// What was received and not taken is `inbox[start..end]`.
    start: usize,
    end: usize,
    completions: Vec<Completion>,
    spinning_max: usize,
    /// Whether operations take as long as on NAND.
    has_timing: bool,
    /// When the drive last completed an operation.
    completed_at: Instant,
    /// How long the way to the other side takes, as a mean over the latest replies.
    way: Duration,
}

/// What a turn found.
#[derive(PartialEq, Eq)]
enum Turn {
    /// The host is gone, or everything that it shall get was sent.
    Over,
    /// There may be more to do at once.
    Busy,
    /// There is nothing to do at present.
    Idle,
}

/// Serves a connection until it ends.
pub(crate) fn run(stream: TcpStream, subsystem: Arc<Subsystem>, shared: Shared) -> io::Result<()> {
    stream.set_nonblocking(true)?;
    stream.set_nodelay(true)?;
    // A millionth of the default; this fails nowhere, and if it did, timers would be less exact.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    let queue = subsystem.open_queue();
    let has_timing = subsystem.has_timing();
    let now = Instant::now();
    let mut session = Session::new(subsystem, stream.local_addr().ok(), now);
    session.set_waker(shared.waker.clone());
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let mut connection = Connection {
        stream,
        session,
        queue,
        shared,
        inbox: vec![0; INBOX_SIZE].into_boxed_slice(),
        start: 0,
        end: 0,
        completions: Vec::new(),
        spinning_max: (cores / 2).max(1),
        has_timing,
        completed_at: now,
        way: Duration::ZERO,
    };
    loop {
        match connection.turn()? {
            Turn::Over => return Ok(()),
            Turn::Busy => {}
            Turn::Idle => connection.wait()?,
        }
        if connection.shared.is_stopping.load(Ordering::Acquire) {
            return Ok(());
        }
    }
}

impl Connection {
    /// Receives, runs, completes and sends what there is.
    fn turn(&mut self) -> io::Result<Turn> {
        let received = self.receive()?;
        let Some(received) = received else { return Ok(Turn::Over) };
        let now = Instant::now();
        let mut taken = 0;
        if self.end > self.start {
            taken = self.session.receive(&self.inbox[self.start..self.end], now);
            self.start += taken;
        }
        self.work(now);
        let sent = self.send()?;
        if self.session.is_over() && self.session.output().is_empty() {
            return Ok(Turn::Over);
        }
        // Bytes that a session left because its output was full are looked at again when some of
        // the output was sent.
        let is_more = self.end > self.start && sent > 0 && self.session.wants_input();
        Ok(if received > 0 || taken > 0 || is_more { Turn::Busy } else { Turn::Idle })
    }

    /// Receives what there is; `None` if the host is gone.
    fn receive(&mut self) -> io::Result<Option<usize>> {
        if !self.session.wants_input() {
            return Ok(Some(0));
        }
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        } else if INBOX_SIZE - self.end < INBOX_ROOM_MIN {
            self.inbox.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let room = (INBOX_SIZE - self.end).min(RECEIVED_AT_ONCE_MAX);
        if room == 0 {
            return Ok(Some(0));
        }
        match self.stream.read(&mut self.inbox[self.end..][..room]) {
            Ok(0) => Ok(None),
            Ok(count) => {
                self.end += count;
                Ok(Some(count))
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::Interrupted => Ok(Some(0)),
                _ => Err(error),
            },
        }
    }

    /// Begins operations, and completes those that are due.
    fn work(&mut self, mut now: Instant) {
        loop {
            while let Some(operation) = self.session.next_operation() {
                let sent = operation.arrived.checked_sub(self.way * 2);
                let sent = sent.unwrap_or(operation.arrived);
                self.queue.begin(operation.token, operation.op, sent);
            }
            self.queue.poll(&mut self.completions);
            if self.completions.is_empty() {
                break;
            }
            self.completed_at = now;
            for completion in self.completions.drain(..) {
                self.session.complete(completion, now);
            }
            now = Instant::now();
        }
        if self.session.next_deadline().is_some_and(|deadline| now >= deadline) {
            self.session.tick(now);
        }
    }

    /// Sends what the socket takes.
    fn send(&mut self) -> io::Result<usize> {
        let mut all = 0;
        let mut began = Instant::now();
        while !self.session.output().is_empty() {
            match self.stream.write(self.session.output()) {
                Ok(count) => {
                    all += count;
                    let now = Instant::now();
                    if self.has_timing {
                        let way = now.saturating_duration_since(began).min(WAY_MAX);
                        self.way = (self.way * 7 + way) / 8;
                        began = now;
                    }
                    self.session.note_sent(count, now);
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted => {}
                    _ => return Err(error),
                },
            }
        }
        Ok(all)
    }

    /// Sleeps until there may be something to do.
    fn wait(&mut self) -> io::Result<()> {
        let now = Instant::now();
        let due = self.queue.next_due();
        let wake_at = match due {
            Some(due) if due <= now + SPUN => {
                if due <= now || self.spin(due) {
                    return Ok(());
                }
                Some(due)
            }
            Some(due) => Some(due.checked_sub(SPUN).unwrap_or(due)),
            None => {
                let until = self.completed_at + LINGER;
                if self.has_timing && now < until && self.spin(until) {
                    return Ok(());
                }
                None
            }
        };
        let until = [wake_at, self.session.next_deadline()].into_iter().flatten().min();
        let timeout = until.map(|until| {
            let left = until.saturating_duration_since(now);
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
        if !fds[1].revents().is_empty() {
            self.shared.waker.clear();
            self.session.tick(Instant::now());
        }
        Ok(())
    }

    /// Spins until `due`, or until bytes come. Returns false if too many threads spin already.
    fn spin(&self, due: Instant) -> bool {
        if SPINNING.fetch_add(1, Ordering::Relaxed) >= self.spinning_max {
            SPINNING.fetch_sub(1, Ordering::Relaxed);
            return false;
        }
        let mut byte = [0];
        while Instant::now() < due {
            // Whatever else this may say, the next turn finds it out.
            if self.session.wants_input() && self.stream.peek(&mut byte).is_ok() {
                break;
            }
        }
        SPINNING.fetch_sub(1, Ordering::Relaxed);
        true
    }
}
