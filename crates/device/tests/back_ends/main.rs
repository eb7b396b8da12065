//! Tests of this crate's back ends on the real kernel.

mod block;
mod canary;
mod claim;
mod common;
mod contract;
mod directory;
mod words;
