//! What the log promises, tried on a simulated device.

mod buffers;
mod common;
mod contract;
mod crash;
mod damage;
mod failing;
mod fixture;
mod format_doc;
mod history;
mod model;
