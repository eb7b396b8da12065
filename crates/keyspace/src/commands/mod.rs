//! The data commands: rows of the table, and what they do, by family.

use crate::command::Command;
use crate::context::{Context, Outcome};

/// The walk of `KEYS` over a database.
#[derive(Debug)]
pub struct KeysWalk;

impl KeysWalk {
    pub(crate) fn resume(self: Box<Self>, _: &mut Context<'_>) -> Outcome {
        Outcome::Reply
    }
}

/// All rows, sorted by name.
pub(crate) fn rows() -> Vec<Command> {
    Vec::new()
}
