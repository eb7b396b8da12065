//! Files of every version, written, read, damaged, and exchanged with a stock server.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod files;
mod hostile;
mod maker;
mod stock;
