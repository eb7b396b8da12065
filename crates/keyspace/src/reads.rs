//! The keys and databases that a command's reply depends on, noted at each lookup.
//!
//! A command does not have to declare which keys it reads, because the lookup functions note these
//! keys. They also note a key that does not exist, because the reply can reveal its absence. If a
//! server holds back a reply until everything that the reply shows is durable, the server waits for
//! the newest change to anything that is noted here.

use crate::keyspace::DbIndex;

/// Something that a command has looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A key, whether it exists or not, by its [hash](crate::Keyspace::hash).
    Key(DbIndex, u64),
    /// The set of keys that a database has.
    Db(DbIndex),
}

/// Largest number of items for which memory is kept from one command to the next.
const KEPT_MAX: usize = 1024;

/// What one or more commands have looked at. One `Reads` is cleared and reused for all commands, so
/// that noting a read allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    /// Whether reads are noted.
    is_wanted: bool,
    items: Vec<Read>,
}

impl Reads {
    /// Forgets everything. `is_wanted` says whether to note the reads that follow.
    pub(crate) fn begin(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
        self.items.clear();
        self.items.shrink_to(KEPT_MAX);
    }

    pub(crate) fn note(&mut self, read: Read) {
        // If a read only repeats the last one, it is not noted again: a command that walks over a
        // key's elements looks up the same key in each step.
        if self.is_wanted && self.items.last() != Some(&read) {
            self.items.push(read);
        }
    }

    pub(crate) fn reserve(&mut self, count: usize) {
        self.items.reserve(count);
    }

    /// The reads that were noted; `None` if no reads are wanted.
    pub(crate) fn items(&self) -> Option<&[Read]> {
        self.is_wanted.then_some(&self.items)
    }
}
