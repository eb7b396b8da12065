//! An emulated SSD that any host can plug in, over NVMe/TCP.
//!
//! ```text
//!  host ── TCP ──► connection: socket, thread, drive queue
//!                      └── session: PDUs, commands, data     (no socket, no clock, no thread)
//!                             └── controller: one association's state
//!                                    └── subsystem: the drive, its name, who may use it
//! ```
//!
//! [`Server`] accepts connections. Each connection is one queue of a controller, and has a thread
//! of its own. The thread itself runs the operations on the drive, through a
//! [`DriveQueue`](slimio_ssd::DriveQueue), and sleeps for as long as a real drive would work.
//! [`Session`] is the protocol alone, so that tests and fuzzers can run the protocol without a
//! network. All limits are in [`limits`].

mod buffers;
mod connection;
mod controller;
mod directives;
mod errors;
mod features;
mod identify;
pub mod limits;
mod link;
mod logs;
mod refusal;
mod reply;
mod server;
mod session;
mod statistics;
mod subsystem;
mod trace;
mod waker;
mod warnings;

pub use server::Server;
pub use session::{Operation, Session};
pub use statistics::{HandleStatistics, Statistics};
pub use subsystem::{NSID, OptionsError, Subsystem, SubsystemOptions};
pub use trace::Recorder;
