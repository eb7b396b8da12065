//! All entries of a keyspace, in a form that can be compared.

use slimio_keyspace::{DbIndex, EntryView, Keyspace};

use crate::contents::words;

/// Database, key, contents of the value, and expiry.
pub(crate) type Entry = (u16, Vec<u8>, Vec<Vec<u8>>, Option<i64>);

/// All entries of all databases, sorted.
pub(crate) fn contents(keyspace: &Keyspace) -> Vec<Entry> {
    sorted((0..16).map(DbIndex).flat_map(|db| keyspace.entries(db).map(move |entry| (db, entry))))
}

/// Entries from any source, in the same form as [`contents`].
pub(crate) fn sorted<'a>(entries: impl Iterator<Item = (DbIndex, EntryView<'a>)>) -> Vec<Entry> {
    let entry = |(db, entry): (DbIndex, EntryView<'_>)| {
        (db.0, entry.key.to_vec(), words(entry.value), entry.expires_at_ms)
    };
    let mut entries: Vec<Entry> = entries.map(entry).collect();
    entries.sort();
    entries
}
