//! One database: its keys, and how many of them expire.

use slimio_resp::Arg;

use crate::garbage::Garbage;
use crate::table::{Position, Slot, Spot, Table, worth_deferring};
use crate::value::{Value, ValueRef};

/// The keys of one database.
#[derive(Debug, Default)]
pub(crate) struct Db {
    table: Table,
    /// Count of keys that expire.
    expiring: usize,
    /// Where active expiry goes on.
    pub(crate) expiry_walk: Position,
    /// Mean time to live of the keys that expire, as last seen, in milliseconds.
    pub(crate) ttl_mean_ms: i64,
}

impl Db {
    pub(crate) fn len(&self) -> usize {
        self.table.len()
    }

    pub(crate) fn expiring(&self) -> usize {
        self.expiring
    }

    pub(crate) fn table(&self) -> &Table {
        &self.table
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

    /// Adds a key that is not there.
    pub(crate) fn insert(
        &mut self,
        hash: u64,
        key: &[u8],
        value: Arg<'_>,
        expiry: Option<i64>,
    ) -> Spot {
        self.expiring += usize::from(expiry.is_some());
        self.table.insert(Slot::new(hash as u32, key, value, expiry))
    }

    /// Adds a key that is not there with a value that is.
    pub(crate) fn insert_value(
        &mut self,
        hash: u64,
        key: &[u8],
        value: Value,
        expiry: Option<i64>,
    ) {
        self.expiring += usize::from(expiry.is_some());
        self.table.insert(Slot::with_value(hash as u32, key, value, expiry));
    }

    /// Gives a key another value and expiry.
    pub(crate) fn replace(
        &mut self,
        spot: Spot,
        value: Arg<'_>,
        expiry: Option<i64>,
        garbage: &mut Garbage,
    ) {
        let slot = self.table.get_mut(spot);
        self.expiring -= usize::from(slot.expires());
        self.expiring += usize::from(expiry.is_some());
        garbage.add_value(slot.set(value, expiry));
    }

    /// Gives a key another time to expire, or none.
    pub(crate) fn set_expiry(&mut self, spot: Spot, expiry: Option<i64>) {
        let slot = self.table.get_mut(spot);
        self.expiring -= usize::from(slot.expires());
        self.expiring += usize::from(expiry.is_some());
        slot.set_expiry(expiry);
    }

    /// Changes a value.
    pub(crate) fn update(&mut self, spot: Spot, change: impl FnOnce(&mut Value)) {
        self.table.get_mut(spot).update(change);
    }

    /// Takes a key out and gives back its value.
    pub(crate) fn take(&mut self, spot: Spot) -> Value {
        self.remove_slot(spot).into_value()
    }

    /// Deletes a key.
    pub(crate) fn remove(&mut self, spot: Spot, garbage: &mut Garbage) {
        let slot = self.remove_slot(spot);
        if slot.value().is_large() {
            garbage.add_value(worth_deferring(slot.into_value()));
        }
    }

    fn remove_slot(&mut self, spot: Spot) -> Slot {
        let slot = self.table.remove(spot);
        self.expiring -= usize::from(slot.expires());
        slot
    }

    /// Deletes all keys.
    pub(crate) fn clear(&mut self, garbage: &mut Garbage) {
        garbage.add_table(std::mem::take(self).table);
    }
}
