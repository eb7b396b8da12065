//! Sockets with a completion interface: the outcome of an operation comes back as an [`Event`].
//!
//! Of the two back ends, io_uring is used if the kernel allows it, and epoll otherwise. In each
//! turn, the caller requests operations, calls [`Net::wait`] (one system call, which also submits
//! the requested operations), and takes events one by one with [`Net::next`]. Received bytes are
//! lent until the next call of `next`, directly from the memory that the kernel filled.

pub mod epoll;
pub mod listen;
mod outgoing;
pub mod uring;

pub use outgoing::Outgoing;

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

/// Identifies a connection. No other connection ever gets the same identifier.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ConnId {
    /// A small number, which later connections reuse, so that it can index tables.
    pub index: u32,
    /// Differs between two connections with the same index.
    pub generation: u32,
}

/// Identifies a watched descriptor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(pub u32);

/// Memory of the caller, to which received bytes are appended.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    /// The memory. Its capacity has room for `wanted` more bytes.
    pub buffer: Vec<u8>,
    /// Largest number of bytes to receive.
    pub wanted: usize,
}

/// An event. If its first value is a connection, the event has happened on this connection.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client connected to the listener with this index. Nothing is read from the client before
    /// [`Net::receive`] is called.
    Accepted(ConnId, usize),
    /// A connection could not be accepted. Until accepting works again, it is retried every
    /// [`ACCEPT_RETRY`], and further failures are not reported.
    AcceptFailed(Errno),
    /// Bytes were received.
    Received(ConnId, &'a [u8]),
    /// Returns the memory handed over with [`Net::fill`], with the received bytes appended. If no
    /// bytes were appended, the connection has ended or is broken. A separate event reports the end
    /// or the breakage.
    Filled(ConnId, ReceiveBuffer),
    /// The peer sends nothing more: it has closed at least its sending half. Bytes can still be
    /// sent to the peer.
    Ended(ConnId),
    /// Like [`Event::Ended`], but for a paused connection. Bytes that the peer sent earlier may
    /// still be unread. The event is not reported again before [`Net::receive`] is called.
    HungUp(ConnId),
    /// The connection broke: nothing can be received or sent any more. The caller must still call
    /// [`Net::close`].
    Broken(ConnId),
    /// The kernel has taken all bytes that were given to [`Net::send`]. Returns the memory for
    /// reuse.
    Sent(ConnId, Outgoing),
    /// A watched descriptor is readable.
    Ready(WatchId),
}

/// How long accepting pauses after it failed for lack of descriptors or memory.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A back end.
pub trait Net {
    /// Starts to accept connections of a listener. Listeners are numbered from 0 in the order of
    /// these calls.
    ///
    /// # Errors
    /// When the kernel refuses to report the connections of this socket.
    fn listen(&mut self, fd: OwnedFd) -> Result<(), Errno>;

    /// Reports [`Event::Ready`] whenever the descriptor is readable. The caller must keep the
    /// descriptor open.
    ///
    /// # Errors
    /// When the kernel refuses to watch the descriptor.
    fn watch(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno>;

    /// Like [`watch`](Self::watch), but the caller must ask for each [`Event::Ready`] with
    /// [`expect`](Self::expect). A back end may leave out an event that nobody asked for. An event
    /// that is left out does not end a wait. Each id belongs to at most one descriptor.
    ///
    /// # Errors
    /// When the kernel refuses to watch the descriptor.
    fn watch_on_demand(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno>;

    /// Asks for one [`Event::Ready`] as soon as the descriptor that is watched on demand is
    /// readable. If it is readable already, the event comes at once.
    fn expect(&mut self, id: WatchId);

    /// Starts or resumes reading.
    fn receive(&mut self, conn: ConnId);

    /// Stops reading. Bytes already taken from the socket may still be reported.
    fn pause(&mut self, conn: ConnId);

    /// Reads the next bytes of the connection into the caller's memory instead of lending them,
    /// until the memory is full or the kernel has no more bytes. [`Event::Filled`] returns the
    /// memory; after this event, reading continues as before.
    fn fill(&mut self, conn: ConnId, filling: ReceiveBuffer);

    /// Sends bytes; each connection has at most one send at a time. If the kernel takes everything
    /// at once, returns the memory; otherwise [`Event::Sent`] or [`Event::Broken`] follows.
    fn send(&mut self, conn: ConnId, outgoing: Outgoing) -> Option<Outgoing>;

    /// Closes the connection; the kernel still sends the bytes that it has taken. No event of this
    /// connection follows.
    fn close(&mut self, conn: ConnId);

    /// The socket, for its address and options; `None` after [`Net::close`].
    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>>;

    /// Submits the requested operations, and sleeps until there is an event or the timeout has
    /// passed.
    fn wait(&mut self, timeout: Option<Duration>);

    /// Passes to `_see` the received bytes that [`next`](Self::next) will report, as far as the
    /// back end knows them already.
    fn peek_received<'a>(&'a self, _see: &mut dyn FnMut(ConnId, &'a [u8])) {}

    /// The next event; `None` ends the turn.
    fn next(&mut self) -> Option<Event<'_>>;

    /// If the kernel refuses all operations, says why. There will then be no more events. This
    /// happens, for example, if a system-call filter was installed while the process ran.
    fn broken(&self) -> Option<String>;

    /// System calls made so far, for measurement.
    fn syscalls(&self) -> u64;
}

/// The addresses of both ends of a connection.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// `None` for a Unix socket.
    pub remote: Option<SocketAddr>,
    /// `None` for a Unix socket.
    pub local: Option<SocketAddr>,
}

impl Peer {
    /// Asks the kernel for both addresses of a socket.
    pub fn of(fd: BorrowedFd<'_>) -> Self {
        let remote = rustix::net::getpeername(fd).ok().flatten();
        let local = rustix::net::getsockname(fd).ok();
        Self {
            remote: remote.and_then(|a| SocketAddr::try_from(a).ok()),
            local: local.and_then(|a| SocketAddr::try_from(a).ok()),
        }
    }
}

#[cfg(test)]
mod tests;
