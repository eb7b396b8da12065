//! The data set: typed values, expiry, and every data command. No I/O, no clock, no random source:
//! time is an argument and so is the seed. Same input, same state.
//!
//! A command is a row of [`command_table`] and a function of a [`Context`]. It replies, and writes
//! down in [`Effects`] what it did, with absolute times. What the log keeps of that,
//! [`Keyspace::apply`] does again.
//!
//! No step is proportional to the data set or to one huge value. What is too large to be freed on
//! the spot is handed out as [`Garbage`].

mod command;
mod commands;
mod context;
mod db;
mod effects;
mod expire;
mod garbage;
mod glob;
mod keyspace;
mod long_double;
mod payload;
mod table;
mod value;

pub use command::{Command, CommandTable, DataFn, Flags, KeyRange, KeySpec};
pub use commands::KeysWalk;
pub use context::{Context, Mode, Outcome, Yielded};
pub use effects::{Effects, Part, Touched};
pub use expire::{ExpireStep, no_args};
pub use garbage::Garbage;
pub use glob::glob_match;
pub use keyspace::{
    ApplyError, Config, DB_COUNT_MAX, DbIndex, EntryView, Keyspace, Stats, command_table,
};
pub use payload::{Payload, PayloadError};
