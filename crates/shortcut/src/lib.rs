//! The short path for the log file of any program.
//!
//! A program makes a record of its log durable by `write` and `fdatasync`. If the file grows by that,
//! the file system must also make its metadata durable, and this takes most of the time. If the bytes
//! were written before, with zeros, nothing but the data changes, and one direct write that is durable
//! when it returns (`O_DIRECT`, `RWF_DSYNC`) does it all. This is the way of Exitos (ICCD 2026) down to
//! the point where it leaves the file system; its ways below the file system are not built.
//!
//! [`LogFile`] is a log that is written this way, and [`repair`] mends what a power cut leaves of it.
//! [`WholeFile`] is a file that is written in another way: in whole blocks, by several processes.
//! [`Probe`] says whether a file can go this way: it must be overwritten in place, block by block.

mod ahead;
mod debts;
mod ending;
mod fill;
mod folder;
mod guard;
mod identity;
mod keeper;
mod log;
mod log_file;
mod mend;
mod notes;
mod place;
mod probe;
mod profile;
pub mod protocol;
mod put;
mod read;
mod refusal;
mod repair;
mod run;
mod stage;
mod staged;
mod tables;
mod take;
mod whole_file;

pub use slimio_device::end_lease;

pub use debts::{Debt, Debts, Totals};
pub use folder::{Folder, Staged, lock_stage};
pub use guard::guard;
pub use identity::Identity;
pub use keeper::Keeper;
pub use log_file::LogFile;
pub use mend::Mended;
pub use notes::Notes;
pub use probe::{Probe, Space};
pub use profile::{Kind, PROFILES, Pattern, Profile};
pub use put::Written;
pub use refusal::Refusal;
pub use repair::{Repaired, repair};
pub use run::Run;
pub use stage::Stage;
pub use take::NotTaken;
pub use whole_file::{WholeFile, open_direct};
