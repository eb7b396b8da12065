//! Servers that tests, examples and the laboratory start: stock ones to compare with, and SlimIO's own.
//! No part of what serves: a crate that does has this as a dev-dependency at most.

pub mod address;
pub mod client;
pub mod error;
pub mod raw;
pub mod server;
mod stock;

pub use stock::stock;
