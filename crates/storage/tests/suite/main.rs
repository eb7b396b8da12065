//! Tests of the storage crate's promises, on a simulated device.

mod buffers;
mod common;
mod contract;
mod crash;
mod crash_identity;
mod crash_making;
mod crash_snapshots;
mod damage;
mod drive;
mod ended_log;
mod failing;
mod faults;
mod fixture;
mod format_doc;
mod full_device;
mod fuzzy;
mod history;
mod identity;
mod model;
mod on_demand;
mod snapshot_damage;
mod snapshot_failing;
mod staged;
