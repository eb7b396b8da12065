//! Sockets, in the style of completions: the outcome of an operation comes back as an [`Event`].
//!
//! Two back ends do the same work: io_uring where the kernel allows it, epoll where not. The
//! caller's turn is always: ask for things, [`Net::wait`] (one system call, which also hands over
//! everything asked for), then take events one by one with [`Net::next`]. Received bytes are lent
//! for the time between two calls of `next`, straight from the memory that the kernel filled.

pub mod epoll;
pub mod listen;
mod outgoing;
pub mod uring;

pub use outgoing::Outgoing;

use std::net::SocketAddr;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::io::Errno;

/// Names a connection; never used for another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct ConnId {
    /// Small and reused, so that tables can be indexed by it.
    pub index: u32,
    /// Differs between two connections of the same index.
    pub generation: u32,
}

/// Name of a descriptor that is watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WatchId(pub u32);

/// Memory of the caller's that is filled with received bytes, behind its length.
#[derive(Debug, Default)]
pub struct ReceiveBuffer {
    /// Has room for `wanted` more bytes within its capacity.
    pub buffer: Vec<u8>,
    /// Most bytes to receive.
    pub wanted: usize,
}

/// What has happened, mostly to the connection named first.
#[derive(Debug)]
pub enum Event<'a> {
    /// A client connected to the listener with this index. Nothing is read before [`Net::receive`].
    Accepted(ConnId, usize),
    /// A connection could not be accepted. Reported once until accepting works again; meanwhile it
    /// is retried every [`ACCEPT_RETRY`].
    AcceptFailed(Errno),
    /// Bytes have come.
    Received(ConnId, &'a [u8]),
    /// The memory handed over with [`Net::fill`] comes back; it is longer by what came, or the
    /// connection has ended or is broken, which is an event of its own.
    Filled(ConnId, ReceiveBuffer),
    /// The other side sends nothing more: it has closed at least its sending half. Sending goes on.
    Ended(ConnId),
    /// As [`Event::Ended`], for a paused connection: what it sent before may be unread. Reported
    /// once until [`Net::receive`].
    HungUp(ConnId),
    /// The connection broke: nothing comes or leaves any more. [`Net::close`] is still to be called.
    Broken(ConnId),
    /// The kernel has taken all that [`Net::send`] was given. The memory comes back to be reused.
    Sent(ConnId, Outgoing),
    /// A watched descriptor is readable.
    Ready(WatchId),
}

/// How long accepting pauses after it failed for lack of descriptors or memory.
pub const ACCEPT_RETRY: Duration = Duration::from_millis(100);

/// A back end.
pub trait Net {
    /// Starts to accept. The listener's index is its place in the order of calls.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn listen(&mut self, fd: OwnedFd) -> Result<(), Errno>;

    /// Reports [`Event::Ready`] whenever the descriptor is readable. The caller keeps it open.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn watch(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno>;

    /// As [`watch`](Self::watch), but reported reliably only once after each
    /// [`expect`](Self::expect): a completion that nobody expects wakes nobody. At most one
    /// descriptor has the id.
    ///
    /// # Errors
    /// When the kernel refuses.
    fn watch_on_demand(&mut self, fd: BorrowedFd<'_>, id: WatchId) -> Result<(), Errno>;

    /// Reports [`Event::Ready`] when the descriptor watched on demand is readable, at once if it is
    /// already.
    fn expect(&mut self, id: WatchId);

    /// Starts or resumes reading.
    fn receive(&mut self, conn: ConnId);

    /// Stops reading. Bytes already taken from the socket may still be reported.
    fn pause(&mut self, conn: ConnId);

    /// Reads the next bytes of the connection into the caller's memory instead, until it is full
    /// or the kernel has no more. Returns with [`Event::Filled`]; then reading goes on as before.
    fn fill(&mut self, conn: ConnId, filling: ReceiveBuffer);

    /// Sends. One at a time per connection. Returns the memory when everything could be handed to
    /// the kernel at once; else [`Event::Sent`] or [`Event::Broken`] follows.
    fn send(&mut self, conn: ConnId, outgoing: Outgoing) -> Option<Outgoing>;

    /// Closes, once all that the kernel has taken is sent. No event of this connection follows.
    fn close(&mut self, conn: ConnId);

    /// The socket, for its address and options; `None` after [`Net::close`].
    fn socket(&self, conn: ConnId) -> Option<BorrowedFd<'_>>;

    /// Hands over what was asked for, and sleeps until there is an event or the timeout has passed.
    fn wait(&mut self, timeout: Option<Duration>);

    /// The next event; `None` ends the turn.
    fn next(&mut self) -> Option<Event<'_>>;

    /// Why no event will ever come again: the kernel takes nothing any more, because of a filter that
    /// was put on the process while it ran, for example.
    fn broken(&self) -> Option<String>;

    /// System calls made so far, for measurement.
    fn syscalls(&self) -> u64;
}

/// Who is at the other end of a connection, and which end is ours.
#[derive(Clone, Copy, Debug)]
pub struct Peer {
    /// `None` for a Unix socket.
    pub remote: Option<SocketAddr>,
    /// `None` for a Unix socket.
    pub local: Option<SocketAddr>,
}

impl Peer {
    /// Asks the kernel.
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
