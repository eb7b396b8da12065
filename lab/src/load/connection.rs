//! One connection of the load generator: requests in flight, and bytes that the socket has not
//! taken yet.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;

use rustix::event::epoll::{self, EventData, EventFlags};
use rustix::io::Errno;

use crate::address::Address;
use crate::error::{BenchError, Doing, Result};
use crate::mix::Op;
use crate::reply::{ReplyReader, Seen};

/// A request whose reply is awaited.
#[derive(Clone, Copy, Debug)]
pub(super) struct InFlight {
    pub(super) op: Op,
    /// The moment from which the request's latency counts, in nanoseconds since the phase began.
    pub(super) since_ns: u64,
}

#[derive(Debug)]
pub(super) struct Connection {
    socket: OwnedFd,
    reader: ReplyReader,
    pub(super) in_flight: VecDeque<InFlight>,
    unsent: Vec<u8>,
}

impl Connection {
    pub(super) fn open(address: &Address, epoll: &OwnedFd, name: u64) -> Result<Self> {
        let socket = address.connect()?;
        rustix::io::ioctl_fionbio(&socket, true).doing("making a socket non-blocking")?;
        epoll::add(epoll, &socket, EventData::new_u64(name), EventFlags::IN)
            .doing("watching a socket")?;
        Ok(Self {
            socket,
            reader: ReplyReader::default(),
            in_flight: VecDeque::new(),
            unsent: Vec::new(),
        })
    }

    pub(super) fn error_text(&self) -> &str {
        self.reader.error_text()
    }

    /// Sends the bytes that earlier calls have left, and then `bytes`. Bytes that the socket does
    /// not take are kept, and `epoll` reports when the socket takes more.
    pub(super) fn send(&mut self, epoll: &OwnedFd, name: u64, bytes: &[u8]) -> Result<()> {
        if self.unsent.is_empty() {
            let taken = self.write(bytes)?;
            if taken < bytes.len() {
                self.unsent.extend_from_slice(&bytes[taken..]);
                self.watch(epoll, name, EventFlags::IN | EventFlags::OUT)?;
            }
            return Ok(());
        }
        self.unsent.extend_from_slice(bytes);
        let unsent = std::mem::take(&mut self.unsent);
        let taken = self.write(&unsent)?;
        self.unsent = unsent;
        self.unsent.drain(..taken);
        if self.unsent.is_empty() {
            self.watch(epoll, name, EventFlags::IN)?;
        }
        Ok(())
    }

    fn watch(&self, epoll: &OwnedFd, name: u64, flags: EventFlags) -> Result<()> {
        epoll::modify(epoll, &self.socket, EventData::new_u64(name), flags)
            .doing("watching a socket")
    }

    fn write(&self, bytes: &[u8]) -> Result<usize> {
        let mut taken = 0;
        while taken < bytes.len() {
            match rustix::io::write(&self.socket, &bytes[taken..]) {
                Ok(count) => taken += count,
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error).doing("sending requests"),
            }
        }
        Ok(taken)
    }

    /// Reads from the socket once. Adds every complete reply to `completed`, with its request.
    pub(super) fn receive(
        &mut self,
        buffer: &mut [u8],
        completed: &mut Vec<(InFlight, Seen)>,
    ) -> Result<()> {
        let count = match rustix::io::read(&self.socket, &mut *buffer) {
            Ok(0) => {
                return Err(BenchError::Server(format!(
                    "the server closed a connection with {} requests in flight",
                    self.in_flight.len()
                )));
            }
            Ok(count) => count,
            Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(error) => return Err(error).doing("receiving replies"),
        };
        let mut rest = &buffer[..count];
        while !rest.is_empty() {
            let (taken, seen) = self.reader.feed(rest)?;
            rest = &rest[taken..];
            if let Some(seen) = seen {
                let request = self.in_flight.pop_front().ok_or_else(|| {
                    BenchError::Reply(format!("a reply without a request: {seen:?}"))
                })?;
                completed.push((request, seen));
            }
        }
        Ok(())
    }
}
