//! A queue: a protocol with a socket and time limits.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use slimio_nvme::Command;

use crate::protocol::PDU_SIZE_MAX;
use crate::{Error, Outcome, Protocol, Submission, Token, Transport};

/// Size of the receive buffer in bytes. The buffer grows if a PDU is longer.
const INBOX_SIZE: usize = 256 << 10;
/// The tokens above this one are for commands that [`Queue::run`] submits. Callers' tokens must be
/// below it.
const OWN_TOKENS: u64 = 1 << 63;

/// A connection with one queue.
#[derive(Debug)]
pub struct Queue {
    stream: TcpStream,
    protocol: Protocol,
    inbox: Vec<u8>,
    /// `inbox[start..end]` was received, but the protocol has not processed it yet.
    start: usize,
    end: usize,
    time_max: Duration,
    spin: Duration,
    /// Outcomes that came while `run` waited for a different one.
    ready: VecDeque<Outcome>,
    own_tokens: u64,
    /// When a command was last submitted.
    sent_at: Instant,
}

impl Queue {
    /// Connects, and waits until both sides have agreed on the transport. `time_max` limits each of
    /// these two steps, and each later call except [`wait_until`](Self::wait_until).
    ///
    /// # Errors
    /// If the target can't be reached, or breaks the protocol.
    pub fn open(
        address: SocketAddr,
        transport: Transport,
        time_max: Duration,
    ) -> Result<Self, Error> {
        let stream = TcpStream::connect_timeout(&address, time_max)?;
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        let mut queue = Self {
            stream,
            protocol: Protocol::new(transport),
            inbox: vec![0; INBOX_SIZE],
            start: 0,
            end: 0,
            time_max,
            spin: Duration::ZERO,
            ready: VecDeque::new(),
            own_tokens: OWN_TOKENS,
            sent_at: Instant::now(),
        };
        queue.until(Protocol::is_initialized)?;
        Ok(queue)
    }

    /// The protocol's state.
    pub fn protocol(&self) -> &Protocol {
        &self.protocol
    }

    /// Makes [`wait`](Self::wait) look for outcomes in a loop for the time `spin`, before it
    /// sleeps. That keeps a core busy, but saves the time that a wake-up takes.
    pub fn set_spin(&mut self, spin: Duration) {
        self.spin = spin;
    }

    /// When a command was last submitted.
    pub fn sent_at(&self) -> Instant {
        self.sent_at
    }

    /// Submits a command. The next call of [`poll`](Self::poll), [`wait`](Self::wait),
    /// [`wait_until`](Self::wait_until) or [`run`](Self::run) sends it. Hands the command back if
    /// the queue is full.
    ///
    /// # Errors
    /// The submission, if the queue is full.
    ///
    /// # Panics
    /// If bit 63 of the token is set, or if the data is longer than
    /// [`DATA_SIZE_MAX`](crate::DATA_SIZE_MAX).
    pub fn submit(&mut self, submission: Submission) -> Result<(), Submission> {
        assert!(submission.token.0 < OWN_TOKENS, "only the queue itself may set bit 63 of a token");
        self.sent_at = Instant::now();
        self.protocol.submit(submission)
    }

    /// Sends and receives as much as it can without waiting. Moves the outcomes of commands that
    /// have ended into `outcomes`, in any order.
    ///
    /// # Errors
    /// If the connection can't be used any more. Even then, outcomes that came earlier are moved.
    pub fn poll(&mut self, outcomes: &mut Vec<Outcome>) -> Result<(), Error> {
        let result = self.turn();
        outcomes.extend(self.ready.drain(..));
        while let Some(outcome) = self.protocol.next_outcome() {
            outcomes.push(outcome);
        }
        result
    }

    /// Like [`poll`](Self::poll), but waits until there is an outcome. Returns at once if nothing
    /// is in flight.
    ///
    /// # Errors
    /// If the connection can't be used any more, or if there is no outcome within the time limit.
    pub fn wait(&mut self, outcomes: &mut Vec<Outcome>) -> Result<(), Error> {
        let (start, count) = (Instant::now(), outcomes.len());
        loop {
            self.poll(outcomes)?;
            if outcomes.len() > count || self.protocol.in_flight() == 0 {
                return Ok(());
            }
            if self.spin.is_zero() || start.elapsed() >= self.spin {
                self.sleep(start + self.time_max)?;
            }
        }
    }

    /// Like [`poll`](Self::poll), but waits for an outcome, at most until the time `until`.
    ///
    /// # Errors
    /// If the connection can't be used any more.
    pub fn wait_until(&mut self, until: Instant, outcomes: &mut Vec<Outcome>) -> Result<(), Error> {
        let count = outcomes.len();
        loop {
            self.poll(outcomes)?;
            if outcomes.len() > count || Instant::now() >= until {
                return Ok(());
            }
            match self.sleep(until) {
                Ok(()) | Err(Error::TimedOut(_)) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Runs a command, and waits until it has ended. `data` is data for the target, or a buffer for
    /// the data that the target returns. Other commands may be in flight at the same time.
    ///
    /// # Errors
    /// If the command failed, if the connection can't be used any more, or if the time limit has
    /// passed.
    pub fn run(&mut self, command: Command, data: Vec<u8>) -> Result<Outcome, Error> {
        self.own_tokens += 1;
        let token = Token(self.own_tokens);
        let mut submission = Submission { token, command, data };
        let deadline = Instant::now() + self.time_max;
        self.sent_at = Instant::now();
        while let Err(back) = self.protocol.submit(submission) {
            submission = back;
            self.turn()?;
            self.set_aside();
            if self.protocol.is_full() {
                self.sleep(deadline)?;
            }
        }
        loop {
            self.turn()?;
            self.set_aside();
            if let Some(at) = self.ready.iter().position(|outcome| outcome.token == token)
                && let Some(outcome) = self.ready.remove(at)
            {
                return outcome.checked();
            }
            self.sleep(deadline)?;
        }
    }

    fn set_aside(&mut self) {
        while let Some(outcome) = self.protocol.next_outcome() {
            self.ready.push_back(outcome);
        }
    }

    fn until(&mut self, is_so: impl Fn(&Protocol) -> bool) -> Result<(), Error> {
        let deadline = Instant::now() + self.time_max;
        loop {
            self.turn()?;
            if is_so(&self.protocol) {
                return Ok(());
            }
            self.sleep(deadline)?;
        }
    }

    /// Sends and receives as much as it can without waiting.
    fn turn(&mut self) -> Result<(), Error> {
        let sent = self.send();
        // Before a target closes the connection, it sends the reason. So receive even if sending
        // failed: the reason is a better error than "the connection is closed".
        self.receive()?;
        sent?;
        self.send()
    }

    fn send(&mut self) -> Result<(), Error> {
        while !self.protocol.output().is_empty() {
            match self.stream.write(self.protocol.output()) {
                Ok(count) => self.protocol.note_sent(count),
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => break,
                    ErrorKind::Interrupted => {}
                    ErrorKind::BrokenPipe | ErrorKind::ConnectionReset => {
                        return Err(Error::Closed);
                    }
                    _ => return Err(error.into()),
                },
            }
        }
        Ok(())
    }

    fn receive(&mut self) -> Result<(), Error> {
        loop {
            let wanted = self.protocol.wanted(&self.inbox[self.start..self.end])?;
            assert!(wanted <= PDU_SIZE_MAX, "the protocol did not refuse a PDU that is too long");
            if self.start == self.end {
                (self.start, self.end) = (0, 0);
            }
            if self.start + wanted > self.inbox.len() {
                self.inbox.copy_within(self.start..self.end, 0);
                (self.start, self.end) = (0, self.end - self.start);
                self.inbox.resize(self.inbox.len().max(wanted), 0);
            }
            let room = self.inbox.len() - self.end;
            match self.stream.read(&mut self.inbox[self.end..]) {
                Ok(0) => return Err(Error::Closed),
                Ok(count) => {
                    self.end += count;
                    let received = self.protocol.receive(&self.inbox[self.start..self.end]);
                    match received {
                        Ok(taken) => self.start += taken,
                        Err(error) => {
                            // The last PDU of the output now tells the target the reason. The
                            // caller gets the error even if the target does not get this PDU.
                            let _ = self.send();
                            return Err(error);
                        }
                    }
                    if count < room {
                        return Ok(());
                    }
                }
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return Ok(()),
                    ErrorKind::Interrupted => {}
                    ErrorKind::ConnectionReset => return Err(Error::Closed),
                    _ => return Err(error.into()),
                },
            }
        }
    }

    /// Sleeps until something can be received or sent.
    fn sleep(&self, deadline: Instant) -> Result<(), Error> {
        let mut wanted = PollFlags::IN;
        if !self.protocol.output().is_empty() {
            wanted |= PollFlags::OUT;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
        let mut fds = [PollFd::from_borrowed_fd(self.stream.as_fd(), wanted)];
        match poll(&mut fds, Some(&timeout)) {
            Ok(0) => Err(Error::TimedOut(self.time_max)),
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(Error::Io(error.into())),
        }
    }
}
