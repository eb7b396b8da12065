//! What commands have thrown away and is too much to be freed on the spot.

use crate::table::Table;
use crate::value::Value;

/// Large values, and whole databases, that nobody can reach any more. Dropping it frees them: that
/// takes as long as it takes, and is better done by another thread.
#[derive(Debug, Default)]
pub struct Garbage {
    values: Vec<Value>,
    tables: Vec<Table>,
}

impl Garbage {
    /// Whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty() && self.tables.is_empty()
    }

    pub(crate) fn add_value(&mut self, value: Option<Value>) {
        self.values.extend(value);
    }

    pub(crate) fn add_table(&mut self, table: Table) {
        if table.len() > 0 {
            self.tables.push(table);
        }
    }
}
