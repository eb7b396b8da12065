//! The back ends of this crate over the real kernel.

mod block;
mod canary;
mod claim;
mod common;
mod contract;
mod directory;
mod words;
