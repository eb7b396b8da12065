//! The data commands: rows of the table, and what they do, by family.

mod counter;
mod db;
mod expire;
mod hash;
mod hash_random;
mod hash_walk;
pub mod inspect;
mod keys;
mod lookup;
mod options;
mod populate;
mod range;
mod rows_expire;
mod rows_hash;
mod rows_keys;
mod rows_string;
mod scan;
mod steps;
mod string;

pub use hash_random::RandomFields;
pub use hash_walk::FieldsWalk;
pub use populate::{Populate, debug_populate, populate_log_size_max};
pub use scan::KeysWalk;
pub use steps::{ARGS_AT_ONCE_MAX, ArgsWalk, Patch};

use crate::command::Command;

pub(crate) use scan::randomkey as resume_randomkey;

/// What Redis says, word for word, where more than one command says it.
mod text {
    pub(super) const WRONG_TYPE: &str =
        "WRONGTYPE Operation against a key holding the wrong kind of value";
    pub(super) const SYNTAX: &str = "ERR syntax error";
    pub(super) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
    pub(super) const NOT_A_FLOAT: &str = "ERR value is not a valid float";
    pub(super) const NOT_FINITE: &str = "ERR increment would produce NaN or Infinity";
    pub(super) const INTEGER_OVERFLOW: &str = "ERR increment or decrement would overflow";
    pub(super) const INVALID_CURSOR: &str = "ERR invalid cursor";
    pub(super) const NO_SUCH_KEY: &str = "ERR no such key";
    pub(super) const SAME_OBJECT: &str = "ERR source and destination objects are the same";
    pub(super) const DB_OUT_OF_RANGE: &str = "ERR DB index is out of range";
    pub(super) const STRING_TOO_LONG: &str =
        "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
}

/// All rows, sorted by name.
pub(crate) fn rows() -> Vec<Command> {
    let mut rows =
        [rows_string::ROWS, rows_hash::ROWS, rows_expire::ROWS, rows_keys::ROWS].concat();
    rows.sort_by_key(|row| row.name);
    rows
}
