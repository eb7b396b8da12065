//! Memory that commands no longer use. It is freed later, because freeing it takes long.

use std::collections::BTreeSet;

use crate::capture::Captured;
use crate::collection::LargeString;
use crate::context::Steps;
use crate::table::{Buckets, Table};
use crate::value::Value;

/// Large values and whole databases that are no longer reachable. Dropping the garbage frees them.
/// This can take long, so another thread should do it.
#[derive(Debug, Default)]
pub struct Garbage {
    values: Vec<Value>,
    tables: Vec<Table>,
    buckets: Vec<Buckets>,
    captured: Vec<Captured>,
    /// Large strings that were removed from collections.
    pub(crate) elements: Vec<LargeString>,
    /// Indices of elements that a command has drawn at random.
    pub(crate) drawn: Vec<BTreeSet<usize>>,
    /// Abandoned commands, for which no client waits any more.
    abandoned: Vec<Box<dyn Steps>>,
}

impl From<Box<dyn Steps>> for Garbage {
    /// Takes a command that is abandoned, with the results that it has so far.
    fn from(steps: Box<dyn Steps>) -> Self {
        Self { abandoned: vec![steps], ..Self::default() }
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
            && self.drawn.is_empty()
            && self.abandoned.is_empty()
    }

    /// Count of values, databases, and large strings of collections to free.
    pub fn len(&self) -> usize {
        self.values.len() + self.tables.len() + self.elements.len()
    }

    pub(crate) fn add_value(&mut self, value: Option<Value>) {
        self.values.extend(value);
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
