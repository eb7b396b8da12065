//! Tools that tests, examples and the lab share: servers to start (stock ones and SlimIO's), random
//! commands, random damage, loop devices, system calls that fail, and volumes whose completions can
//! be held. This crate is no part of the server, so the server's crates may use this crate only as
//! a dev-dependency.

pub mod address;
pub mod client;
pub mod damage;
pub mod error;
pub mod held;
pub mod loops;
pub mod media;
pub mod random;
pub mod raw;
pub mod refused;
pub mod server;
mod stock;

pub use stock::stock;
