//! The data set, and what the running commands have done to it so far.

use slimio_keyspace::{Command, DbIndex, Effects, Garbage, Gather, Keyspace, Payload};
use slimio_planted::is_planted;
use slimio_resp::Args;
use slimio_storage::Lsn;

use super::{Listener, Long, Purpose, Told, expiry, memory};
use crate::commands::Entry;
use crate::freeing::Freeing;
use crate::gate::Change;
use crate::transactions::{Multi, Watches};
use crate::waiting::BlockingKeys;

/// A transaction that takes at least this many bytes of memory is freed by another thread.
const LARGE_MULTI_SIZE_MIN: usize = 64 << 10;

/// A command of a transaction can log data that it takes out of a value. If an earlier command of
/// the same transaction made this value by a copy or a renaming, the size of the data is not known
/// beforehand. This is the room in the log for such data, in bytes.
const COPIED_ROOM: u64 = 256 << 10;

/// The data set, and everything that depends on its changes.
pub(crate) struct Data {
    pub(crate) keyspace: Keyspace,
    pub(crate) watches: Watches,
    /// Which clients wait for which keys.
    pub(crate) blocking_keys: BlockingKeys,
    /// Called with every event. Only tests set a listener.
    pub(crate) listener: Option<Listener>,
    /// The effects of the command that is running.
    pub(super) effects: Effects,
    pub(super) gather: Gather,
    /// The effects of the transaction that is running.
    pub(super) payload: Payload,
    /// Set while the commands of a transaction run.
    pub(crate) transaction: Option<Transaction>,
    /// The long request. It runs in steps, but other clients see all its effects at the same time.
    pub(crate) long: Option<Box<Long>>,
    pub(crate) active_expire: bool,
    pub(super) expiry: expiry::Expiry,
    pub(super) memory: memory::Memory,
    pub(crate) freeing: Freeing,
}

/// What the commands of a running transaction have done.
#[derive(Debug, Default)]
pub(crate) struct Transaction {
    pub(super) changes: Vec<Change>,
    /// The events, if there is a listener.
    pub(super) told: Vec<Told<'static>>,
    pub(super) needs: Lsn,
    /// Bytes that deletions of expired keys can add to the transaction's record, beyond the bytes
    /// that its writes have asked for.
    pub(super) room: u64,
    /// Bytes of data from stored values that the effects can add to the record.
    pub(super) value_room: u64,
    /// The room in the log for which the transaction has asked, in bytes of payload.
    pub(super) asked: u64,
    /// The purpose of the transaction's writes.
    pub(super) purpose: Purpose,
    /// Whether the log is to be turned on or off after the transaction.
    pub(super) turns_log: bool,
}

impl Data {
    pub(super) fn new(keyspace: Keyspace) -> Self {
        let mut data = Self {
            keyspace,
            watches: Watches::default(),
            blocking_keys: BlockingKeys::default(),
            listener: None,
            effects: Effects::new(),
            gather: Gather::default(),
            payload: Payload::default(),
            transaction: None,
            long: None,
            active_expire: true,
            expiry: expiry::Expiry::default(),
            memory: memory::Memory::default(),
            freeing: Freeing::start(),
        };
        data.note_startup_memory();
        data
    }

    pub(crate) fn db_count(&self) -> usize {
        self.keyspace.config().db_count
    }

    pub(crate) fn dbs(&self) -> impl Iterator<Item = DbIndex> + use<> {
        (0..self.db_count()).map(|db| DbIndex(db as u16))
    }

    /// Whether a transaction is running. The transaction is logged only when it ends.
    pub(crate) fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    /// Drops a transaction. If the transaction is large, another thread drops it, because dropping
    /// it takes time.
    pub(crate) fn end_multi(&mut self, multi: Option<Box<Multi>>) {
        if let Some(multi) = multi.filter(|multi| multi.memory() >= LARGE_MULTI_SIZE_MIN) {
            self.freeing.drop_elsewhere(multi);
        }
    }

    /// Frees garbage on another thread, so that no client waits meanwhile.
    pub(crate) fn free(&mut self, garbage: Garbage) {
        self.freeing.free(garbage);
    }

    /// The queued requests of a transaction, each with the database in which it will run.
    pub(super) fn queued<'a>(
        &'a self,
        mut db: DbIndex,
        multi: &'a Multi,
    ) -> impl Iterator<Item = (DbIndex, &'static Command<Entry>, Args<'a>)> {
        multi.requests().filter_map(move |request| {
            let args = request.args();
            let row = crate::commands::find(args).ok()?;
            if row.name == "select" && !is_planted("weighed-in-first-db") {
                let selected = args.get(1).to_i64().and_then(|number| u16::try_from(number).ok());
                let selected = selected.filter(|index| usize::from(*index) < self.db_count());
                db = selected.map_or(db, DbIndex);
            }
            Some((db, row, args))
        })
    }

    /// How many bytes of data from stored values the queued requests of a transaction may append to
    /// the log. The sum has three parts: what each request would need now, room for the bytes that
    /// the transaction itself brings in, and [`COPIED_ROOM`] for values that it copies or renames.
    /// A request that needs more [asks for it](super::Engine::ask_for_more) when it runs.
    pub(crate) fn weigh_queued(&self, db: DbIndex, multi: &Multi) -> u64 {
        let known = COPIED_ROOM.saturating_add(2 * multi.size as u64);
        let sizes =
            self.queued(db, multi).map(|(db, row, args)| self.weigh(db, row, args).log_size);
        sizes.fold(known, u64::saturating_add)
    }

    /// Whether no database has a key.
    pub(crate) fn is_empty(&self) -> bool {
        self.dbs().all(|db| self.keyspace.dbsize(db) == 0)
    }
}
