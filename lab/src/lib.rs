//! A load generator, comparisons of SlimIO with stock servers, and the ledger, which checks that a
//! server keeps its promises. Invariant: the lab knows the servers only by their sockets, files and
//! `/proc`, so it measures all servers in the same way.

pub mod beside;
pub mod block;
pub mod commands;
pub mod compare;
pub mod drive;
pub mod elements;
pub mod environment;
pub mod error;
pub mod keys;
pub mod ledger;
pub mod load;
pub mod markdown;
pub mod measure;
pub mod middle;
pub mod mix;
pub(crate) mod persistence;
pub mod plot;
pub mod proc;
pub mod recorder;
pub mod recovery;
pub mod replay;
pub mod reply;
pub mod request;
pub mod rng;
pub mod run;
pub mod runtime;
pub mod scenario;
pub mod series;
pub mod slowest;
pub mod snapshot;
pub mod stalls;
pub mod syscalls;
pub mod targets;
pub mod tree;
pub mod values;
pub mod waiters;
pub mod watch;

pub use slimio_testing::{address, client, server};
