//! Tests write, read and damage files of every version, and exchange files with a stock server.

#![expect(clippy::unwrap_used, reason = "a helper that fails fails the test")]

mod files;
mod fuzz;
mod hostile;
mod maker;
mod stock;
