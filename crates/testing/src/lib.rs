//! What tests share: servers that they, examples and the laboratory start, stock ones to compare with and
//! SlimIO's own; random commands; volumes that are held back. No part of what serves: a crate that does
//! has this as a dev-dependency at most.

pub mod address;
pub mod client;
pub mod error;
pub mod held;
pub mod media;
pub mod random;
pub mod raw;
pub mod server;
mod stock;

pub use stock::stock;
