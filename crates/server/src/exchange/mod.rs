//! Exports a volume as an RDB file, imports an RDB file into a new volume, and rolls a volume back
//! to its on-demand snapshot.
//!
//! The invariant: an existing file or volume is replaced only if everything succeeds. An exported
//! file gets its name only when it is complete and on stable media. An import touches a volume only
//! after the whole file was read.

mod export;
mod import;
mod rollback;
mod source;

pub use export::{ExportOptions, Exporter};
#[cfg(test)]
pub(crate) use import::NewVolumeSink;
pub use import::{import_file, write_volume};
pub use rollback::roll_back;
pub use source::{SlotSource, export_slot, export_volume, load_volume};

pub use slimio_keyspace::Keyspace;
pub use slimio_rdb::Version as RdbVersion;

use std::time::{SystemTime, UNIX_EPOCH};

use slimio_keyspace::{Config, DB_COUNT_MAX, DbIndex, EvictionConfig, EvictionPolicy, Usage};

/// Called with the progress: the number of bytes done, and the number of all bytes.
pub type OnProgress<'a> = &'a mut dyn FnMut(u64, u64);

/// Count of the keys in all databases.
pub fn key_count(keyspace: &Keyspace) -> usize {
    let dbs = (0..keyspace.config().db_count).map(|db| DbIndex(db as u16));
    dbs.map(|db| keyspace.dbsize(db)).sum()
}

/// Makes a keyspace keep this kind of usage (idle time or frequency) of its keys. Returns whether
/// the kind has changed.
fn keep_usage(keyspace: &mut Keyspace, usage: Usage) -> bool {
    let policy = match usage {
        Usage::IdleSeconds(_) => EvictionPolicy::AllKeysLru,
        Usage::Freq(_) => EvictionPolicy::AllKeysLfu,
    };
    let is_new = keyspace.eviction().policy != policy;
    keyspace.set_eviction(EvictionConfig { policy, ..*keyspace.eviction() });
    is_new
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_millis() as i64
}

/// A keyspace with the largest possible number of databases.
fn roomy_keyspace() -> Keyspace {
    // The seed need not be secret, because nobody chooses colliding keys to attack a tool.
    Keyspace::new(Config { db_count: DB_COUNT_MAX, ..Config::default() }, 0)
}
