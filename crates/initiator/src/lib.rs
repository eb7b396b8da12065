//! A small NVMe/TCP host for tests, fuzzing and benchmarks. It also runs on machines whose kernel
//! has no NVMe/TCP host.
//!
//! ```text
//!  caller ── Submission ──► protocol ── bytes ──► target      Host: the admin queue, for commands
//!         ◄── Outcome ─────         ◄── bytes ──                    to the controller
//!                         (no socket, no clock)               IoQueue: reads and writes of blocks
//!                 queue: adds socket and time limits
//! ```
//!
//! A [`Host`] connects, enables its controller, and opens an [`IoQueue`] for each I/O connection.
//! Both types have one method per command, which returns when the command has ended. To have
//! several commands in flight, submit them to a [`Queue`] and poll the queue. The crate starts no
//! thread, and each call ends within a time limit. [`Protocol`] is the protocol without a socket.
//! [`RawConnection`] sends arbitrary bytes, for tests of targets.
//!
//! The crate has only the parts of NVMe that NVMe/TCP needs. There is no authentication, no TLS, no
//! metadata, and there are no fused commands.
//!
//! ```no_run
//! use slimio_initiator::{Host, Options, Placed};
//!
//! let options = Options::new("127.0.0.1:4420".parse()?, "nqn.2014-08.org.example:drive");
//! let mut host = Host::connect(&options)?;
//! let mut queue = host.open_queue(1, 32)?;
//! queue.write(0, &[7; 4096], Placed { durable: true, ..Placed::default() })?;
//! assert_eq!(queue.read(0, 1)?, [7; 4096]);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod error;
mod host;
mod io;
mod options;
mod protocol;
mod queue;
mod raw;

pub use error::Error;
pub use host::Host;
pub use io::{IoQueue, Placed};
pub use options::Options;
pub use protocol::{DATA_SIZE_MAX, Outcome, Protocol, Submission, Token, Transport};
pub use queue::Queue;
pub use raw::RawConnection;
