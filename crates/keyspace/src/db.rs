//! One database with its keys.
//!
//! Every change of an entry goes through this module. A capture, which makes the contents of a
//! snapshot, takes every entry as it was when the capture began. So before a change, this module
//! lets the capture take the entry as it is. Each entry has a bit that is called its epoch (not an
//! epoch of the log). The capture still has to take the entries whose epoch is not the current one.

use slimio_planted::is_planted;
use slimio_resp::Arg;

use crate::access::Access;
use crate::capture::Overwrite;
use crate::collection::{EditForm, LargeString};
use crate::displaced::Displaced;
use crate::keyspace::DbIndex;
use crate::kinds::Packing;
use crate::table::{BucketSlot, Epoch, Spot, Table, Written, worth_deferring};
use crate::value::{Value, ValueRef};

/// The keys of one database.
#[derive(Debug, Default)]
pub(crate) struct Db {
    table: Table,
    /// The number of the database. During a capture, this is the number that the database had when
    /// the capture began.
    number: DbIndex,
    /// The bucket where active expiry continues.
    pub(crate) expiry_walk: usize,
    /// Moving average, in milliseconds, of the time to live of the keys that have an expiry.
    pub(crate) ttl_mean_ms: i64,
}

impl Db {
    pub(crate) fn new(number: DbIndex) -> Self {
        Self { number, ..Self::default() }
    }

    pub(crate) fn number(&self) -> DbIndex {
        self.number
    }

    pub(crate) fn set_number(&mut self, number: DbIndex) {
        self.number = number;
    }

    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn expiring(&self) -> usize {
        self.table.expiring()
    }

    /// Bytes that the keys, their values and the table take in memory.
    pub(crate) fn used_bytes(&self) -> usize {
        self.table.entry_bytes() + self.table.table_bytes()
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
    }

    /// The table. Only the capture uses this function. The capture must not change the contents of
    /// an entry.
    pub(crate) fn table_mut(&mut self) -> &mut Table {
        &mut self.table
    }

    pub(crate) fn find(&self, hash: u64, key: &[u8]) -> Option<Spot> {
        self.table.find(hash as u32, key)
    }

    pub(crate) fn key(&self, spot: Spot) -> &[u8] {
        self.table.get(spot).key()
    }

    pub(crate) fn value(&self, spot: Spot) -> ValueRef<'_> {
        self.table.get(spot).value()
    }

    pub(crate) fn expires_at_ms(&self, spot: Spot) -> Option<i64> {
        self.table.get(spot).expires_at_ms()
    }

    pub(crate) fn access(&self, spot: Spot) -> Access {
        self.table.get(spot).access()
    }

    /// Notes the last use of a key. This does not count as a change of the key.
    pub(crate) fn set_access(&mut self, spot: Spot, access: Access) {
        self.table.set_access(spot, access);
    }

    /// Adds a key, with the current epoch. The key must not exist yet.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: Arg<'_>,
        expiry: Option<i64>,
        access: Access,
        epoch: Epoch,
    ) -> Spot {
        let mut slot = BucketSlot::new(hash as u32, key, value, expiry);
        slot.set_access(access);
        slot.set_epoch(epoch);
        self.table.insert(slot)
    }

    /// Adds a key with an existing value and with the current epoch. The key must not exist yet.
    pub(crate) fn insert_value(
        &mut self,
        hash: u64,
        key: &[u8],
        (value, written): (Value, Written),
        expiry: Option<i64>,
        access: Access,
        epoch: Epoch,
    ) -> Spot {
        let mut slot = BucketSlot::with_value(hash as u32, key, value, expiry);
        slot.set_written(written);
        slot.set_access(access);
        slot.set_epoch(epoch);
        self.table.insert(slot)
    }

    /// Adds a key with a collection without elements, and with the current epoch. The key must not
    /// exist yet.
    pub(crate) fn insert_empty(
        &mut self,
        hash: u64,
        key: &[u8],
        packing: Packing,
        access: Access,
        epoch: Epoch,
    ) -> Spot {
        let mut slot = BucketSlot::of_empty(hash as u32, key, packing);
        slot.set_access(access);
        slot.set_epoch(epoch);
        self.table.insert(slot)
    }

    /// If the database is still empty, makes room for `keys` keys.
    pub(crate) fn reserve(&mut self, keys: usize) {
        self.table.reserve(keys);
    }

    /// Adds `count` entries with the current epoch. If the key of an entry exists already, stops
    /// and returns that entry.
    pub(crate) fn load(
        &mut self,
        slots: &mut std::vec::IntoIter<BucketSlot>,
        mut count: usize,
        epoch: Epoch,
    ) -> Result<(), BucketSlot> {
        const AHEAD: usize = 32;
        while count > 0 {
            let ahead = count.min(AHEAD);
            std::hint::black_box(self.table.bring_in(&slots.as_slice()[..ahead]));
            for mut slot in slots.by_ref().take(ahead) {
                slot.set_epoch(epoch);
                self.table.try_insert(slot)?;
            }
            count -= ahead;
        }
        Ok(())
    }

    pub(crate) fn replace(
        &mut self,
        spot: Spot,
        value: Arg<'_>,
        expiry: Option<i64>,
        overwrite: Overwrite,
        displaced: &mut Displaced,
    ) {
        let (db, capture) = (self.number, &mut displaced.capture);
        let old =
            self.table.change(spot, |slot| capture.replace(db, slot, value, expiry, overwrite));
        displaced.garbage.add_value(old);
    }

    /// Notes how the string at a key was written. Snapshots do not contain this information.
    pub(crate) fn set_written(&mut self, spot: Spot, written: Written) {
        self.table.change(spot, |slot| slot.set_written(written));
    }

    /// Changes or removes the expiry of a key.
    pub(crate) fn set_expiry(
        &mut self,
        spot: Spot,
        expiry: Option<i64>,
        displaced: &mut Displaced,
    ) {
        displaced.capture.before_change(self.number, &mut self.table, spot);
        self.table.change(spot, |slot| slot.set_expiry(expiry));
    }

    /// Must be called before an entry is copied to another key, so that even a fuzzy capture, which
    /// leaves out some entries that are changed, takes the entry.
    pub(crate) fn before_copy(&mut self, spot: Spot, displaced: &mut Displaced) {
        displaced.capture.before_copy(self.number, &mut self.table, spot);
    }

    pub(crate) fn update(
        &mut self,
        spot: Spot,
        displaced: &mut Displaced,
        change: impl FnOnce(&mut Value),
    ) {
        displaced.capture.before_change(self.number, &mut self.table, spot);
        self.table.change(spot, |slot| slot.update(change));
    }

    /// Changes a collection. `change` gets a list, to which it adds the old strings that take
    /// noticeable time to free.
    ///
    /// Panics if the value is a string.
    pub(crate) fn update_collection<R>(
        &mut self,
        spot: Spot,
        displaced: &mut Displaced,
        change: impl FnOnce(&mut EditForm<'_>, &mut Vec<LargeString>) -> R,
    ) -> R {
        if !is_planted("collection-not-captured") {
            displaced.capture.before_change(self.number, &mut self.table, spot);
        }
        let old = &mut displaced.garbage.elements;
        self.table.change(spot, |slot| slot.update_collection(|form| change(form, old)))
    }

    /// Removes a key and returns its value.
    pub(crate) fn take(&mut self, spot: Spot, displaced: &mut Displaced) -> Value {
        let slot = self.table.remove(spot);
        displaced.capture.before_move(self.number, &slot);
        slot.into_value()
    }

    pub(crate) fn remove(&mut self, spot: Spot, displaced: &mut Displaced) {
        let slot = self.table.remove(spot);
        if let Some(slot) = displaced.capture.take_removed(self.number, slot)
            && slot.value().is_large()
        {
            displaced.garbage.add_value(worth_deferring(slot.into_value()));
        }
    }

    pub(crate) fn clear(&mut self, displaced: &mut Displaced) {
        let Db { table, number, .. } = std::mem::replace(self, Db::new(self.number));
        displaced.flush(number, table);
    }
}
