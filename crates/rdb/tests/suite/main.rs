//! Tests write, read and damage files of every version, and exchange files with a stock server.

#![expect(clippy::unwrap_used, reason = "if a helper fails, the test fails")]

mod files;
mod fuzz;
mod hostile;
mod maker;
mod stock;
