//! What the reply of a command depends on, noted where it is looked up.
//!
//! A command need not say which keys it reads: whatever finds a key for it notes that, also where there
//! is no such key, since its absence is told, too. Who holds replies back until what they tell is
//! durable takes the newest of what was noted.

use crate::keyspace::DbIndex;

/// Something that a command looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// A key, there or not, by its [hash](crate::Keyspace::hash).
    Key(DbIndex, u64),
    /// Which keys a database has.
    Db(DbIndex),
}

/// Memory that is kept from one command to the next, in items.
const KEPT_MAX: usize = 1024;

/// What one or more commands looked at. Reused and cleared, so that it allocates nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Reads {
    /// Whether anybody asks.
    is_wanted: bool,
    items: Vec<Read>,
}

impl Reads {
    /// Forgets everything. `is_wanted`: notes what comes.
    pub(crate) fn begin(&mut self, is_wanted: bool) {
        self.is_wanted = is_wanted;
        self.items.clear();
        self.items.shrink_to(KEPT_MAX);
    }

    pub(crate) fn note(&mut self, read: Read) {
        // A command that goes through a key's elements finds the key again in each step.
        if self.is_wanted && self.items.last() != Some(&read) {
            self.items.push(read);
        }
    }

    pub(crate) fn reserve(&mut self, count: usize) {
        self.items.reserve(count);
    }

    /// `None` if nothing was noted because nobody asked.
    pub(crate) fn items(&self) -> Option<&[Read]> {
        self.is_wanted.then_some(&self.items)
    }
}
