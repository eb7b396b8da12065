//! The data commands, by family: their rows of the command table, and their functions.

pub(crate) mod counter;
mod db;
mod digest;
pub(crate) mod draw;
mod dump;
pub(crate) mod elements;
mod expire;
pub mod inspect;
mod keys;
pub(crate) mod lookup;
mod options;
mod populate;
mod range;
mod restore;
mod rows_expire;
mod rows_keys;
mod rows_string;
pub(crate) mod scan;
pub(crate) mod steps;
mod string;
pub(crate) mod timeout;

pub use digest::{debug_digest, debug_digest_value};
pub use elements::ELEMENTS_AT_ONCE_MAX;
pub use populate::{debug_populate, populate_log_size_max};
pub use steps::ARGS_AT_ONCE_MAX;

use crate::command::Command;
use crate::{hash, list, set};

/// Error messages that several commands use. They are the same as in Redis, word for word.
pub(crate) mod text {
    pub(crate) const WRONG_TYPE: &str =
        "WRONGTYPE Operation against a key holding the wrong kind of value";
    pub(crate) const SYNTAX: &str = "ERR syntax error";
    pub(crate) const NOT_AN_INTEGER: &str = "ERR value is not an integer or out of range";
    pub(crate) const NOT_A_FLOAT: &str = "ERR value is not a valid float";
    pub(crate) const NOT_FINITE: &str = "ERR increment would produce NaN or Infinity";
    pub(crate) const INTEGER_OVERFLOW: &str = "ERR increment or decrement would overflow";
    pub(crate) const INVALID_CURSOR: &str = "ERR invalid cursor";
    pub(crate) const NO_SUCH_KEY: &str = "ERR no such key";
    pub(crate) const SAME_OBJECT: &str = "ERR source and destination objects are the same";
    pub(crate) const DB_OUT_OF_RANGE: &str = "ERR DB index is out of range";
    pub(crate) const STRING_TOO_LONG: &str =
        "ERR string exceeds maximum allowed size (proto-max-bulk-len)";
}

/// All rows, sorted by name.
pub(crate) fn rows() -> Vec<Command> {
    let types = [rows_string::ROWS, hash::ROWS, list::ROWS, set::ROWS];
    let mut rows = [types.concat().as_slice(), rows_expire::ROWS, rows_keys::ROWS].concat();
    rows.sort_by_key(|row| row.name);
    rows
}
