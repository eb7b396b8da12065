//! The short path for the log file of any program.
//!
//! A program makes a record of its log durable by `write` and `fdatasync`. If the file grows, the
//! file system must also make metadata durable, and this takes most of the time. If the file
//! already has zeros in the record's place, only the data changes. Then one direct write suffices,
//! which is durable when it returns (`O_DIRECT`, `RWF_DSYNC`). This is the *short path*. Exitos
//! (ICCD 2026) does the same above the file system. Exitos also has a part below the file system;
//! this crate has none.
//!
//! [`LogFile`] is a log that is written this way, and [`repair`] mends such a log after a power
//! cut. [`WholeFile`] is a file that is written in another way: in whole blocks, by several
//! processes. [`Probe`] says whether a file can be written in one of these ways: the file system
//! must overwrite it in place, block by block.
//!
//! The words of this crate: a file is *taken* while it is written by the short path. It is *given
//! back*, or *released*, when the kernel writes it again. The *stage* is memory that processes
//! share. It has the bytes that were appended but are not in the file yet. The *keeper* is the
//! process that adds zeros to the ends of taken files, ahead of the next records. It also mends the
//! file of a process that was killed.

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
