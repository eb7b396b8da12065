//! Tests of rings on the real kernel, with each set of features that a kernel may have.

mod allocations;
mod commands;
mod common;
mod files;
mod held;
mod refused;
mod registered;
mod sockets;
