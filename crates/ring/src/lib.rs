//! A safe io_uring: the memory of an operation can't be freed before its completion is reaped.
//!
//! The caller gives a [`Ring`] operations, each with a payload, and gets [`Completion`]s with these
//! payloads. While an operation is in flight, the ring owns everything that the operation needs:
//! bytes to send, a buffer to fill, the open descriptor. The operation's last completion returns
//! the operation's memory, even if the operation failed. So memory that the kernel may still access
//! can't be freed.
//!
//! ```text
//!   caller ── receive(fd, payload) ──► table ──► submission queue ──► kernel
//!   caller ◄── reap() ◄── list of completions ◄── completion queue ◄────┘
//! ```
//!
//! A ring sleeps when there is nothing to do. As long as a ring has no more load than it has had
//! before, operations allocate no memory. If the kernel lacks a feature ([`Features`]), the ring
//! makes more system calls, but the caller sees no difference.
//!
//! ```
//! use slimio_ring::{Outcome, Ring, Setup};
//! use std::os::fd::OwnedFd;
//!
//! let Ok(mut ring) = Ring::<&str>::new(Setup::default()) else { return };
//! let (near, far) = std::os::unix::net::UnixStream::pair().unwrap();
//! let (near, far) = (ring.adopt(OwnedFd::from(near)), ring.adopt(OwnedFd::from(far)));
//! ring.send(near, b"hello".to_vec(), "sent");
//! ring.receive_into(far, Vec::with_capacity(16), 16, "received");
//! let mut completions = Vec::new();
//! while completions.len() < 2 {
//!     ring.submit_and_wait(1, None).unwrap();
//!     ring.reap(&mut completions);
//! }
//! let received = completions.iter().find(|completion| completion.payload == "received").unwrap();
//! let Outcome::ReceivedInto { bytes, result: Ok(5) } = &received.outcome else { panic!() };
//! assert_eq!(bytes, b"hello");
//! ```

mod errno;
mod eventfd;
mod files;
mod held;
mod memory;
mod nvme;
mod operations;
mod pool;
mod reap;
mod refused;
mod registered;
mod ring;
mod segments;
mod setup;
mod table;
mod width;

pub use errno::{Errno, TransferError, returned, transferred};
pub use eventfd::EventFd;
pub use files::Fd;
pub use memory::Memory;
pub use nvme::{NvmeCommand, NvmeStatus};
pub use operations::Interest;
pub use pool::{PROVIDED_BUFFERS_MAX, Provided};
pub use reap::{CommandError, Completion, Outcome};
pub use refused::{Cause, Refused};
pub use ring::{OpId, Ring};
pub use segments::Segments;
pub use setup::{Features, Polling, SUBMISSIONS_MAX, Setup, probe, probe_polling, probe_wide};
pub use width::{Narrow, Wide, Width};
