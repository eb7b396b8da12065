//! Memory that commands have released and that takes too long to free on the spot.

use crate::capture::Captured;
use crate::context::Yielded;
use crate::hash::{HashTree, LargeString};
use crate::table::{Buckets, Table};
use crate::value::Value;

/// Large values, and whole databases, that nobody can reach any more. Dropping it frees them, which
/// can take long and is better done by another thread.
#[derive(Debug, Default)]
pub struct Garbage {
    values: Vec<Value>,
    tables: Vec<Table>,
    buckets: Vec<Buckets>,
    captured: Vec<Captured>,
    /// Large strings removed from hashes.
    pub(crate) elements: Vec<LargeString>,
    /// Hashes that somebody has finished reading, perhaps as the last to hold them.
    trees: Vec<HashTree>,
    /// Commands that nobody waits for any more.
    yielded: Vec<Yielded>,
}

impl From<Yielded> for Garbage {
    /// A command that is given up, with what it has found so far.
    fn from(yielded: Yielded) -> Self {
        Self { yielded: vec![yielded], ..Self::default() }
    }
}

impl Garbage {
    /// Whether there is nothing to free.
    pub fn is_empty(&self) -> bool {
        self.values.is_empty()
            && self.tables.is_empty()
            && self.buckets.is_empty()
            && self.captured.is_empty()
            && self.elements.is_empty()
            && self.trees.is_empty()
            && self.yielded.is_empty()
    }

    /// Count of values and databases to free.
    pub fn len(&self) -> usize {
        self.values.len() + self.tables.len() + self.elements.len() + self.trees.len()
    }

    pub(crate) fn add_value(&mut self, value: Option<Value>) {
        self.values.extend(value);
    }

    pub(crate) fn add_tree(&mut self, tree: HashTree) {
        self.trees.push(tree);
    }

    pub(crate) fn add_table(&mut self, table: Table) {
        if table.len() > 0 {
            self.tables.push(table);
        }
    }

    pub(crate) fn add_buckets(&mut self, buckets: Buckets) {
        self.buckets.push(buckets);
    }

    pub(crate) fn add_captured(&mut self, captured: impl IntoIterator<Item = Captured>) {
        self.captured.extend(captured);
    }
}
