//! Tests of RDB files of every version. They write, read and damage such files, and exchange files
//! with a stock server.

#![expect(clippy::unwrap_used, reason = "if a helper fails, the test fails")]

mod files;
mod fuzz;
mod hostile;
mod maker;
mod stock;
