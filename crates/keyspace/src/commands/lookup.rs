//! Functions for the keys of a request: commands use them to find keys, to delete expired keys,
//! and to note which keys have changed.

use std::borrow::Cow;

use slimio_planted::is_planted;
use slimio_resp::Arg;

use super::string::SET;
use crate::access::Access;
use crate::capture::Overwrite;
use crate::context::{Context, Mode, Outcome};
use crate::db::Db;
use crate::displaced::Displaced;
use crate::effects::Part;
use crate::events::{EXPIRE, Event, PERSIST};
use crate::keyspace::DbIndex;
use crate::kinds::{Packing, ValueType};
use crate::reads::Read;
use crate::table::Spot;
use crate::table::Written;
use crate::value::{StringRef, Value, ValueRef};

/// A key of the request, and its place in the keyspace.
pub(crate) struct Found<'a> {
    pub(crate) db: DbIndex,
    pub(crate) key: Cow<'a, [u8]>,
    pub(crate) hash: u64,
    /// Which argument the key is.
    index: usize,
    /// The place; `None` if there is no such key. The place is valid until the next key is inserted
    /// or deleted.
    pub(crate) spot: Option<Spot>,
}

impl Found<'_> {
    /// The same key, after it was deleted.
    pub(crate) fn deleted(self) -> Self {
        Self { spot: None, ..self }
    }
}

impl<'a> Context<'a> {
    /// Finds the key that argument `index` names. If the key has expired, deletes it first.
    pub(crate) fn find(&mut self, index: usize) -> Found<'a> {
        self.find_in(self.db, index)
    }

    /// Like [`find`](Self::find), but in another database.
    pub(crate) fn find_in(&mut self, db: DbIndex, index: usize) -> Found<'a> {
        let found = self.peek_in(db, index);
        self.count_use(&found);
        found
    }

    /// Counts a use of a key, unless the client has turned such counting off (`CLIENT NO-TOUCH`).
    pub(crate) fn count_use(&mut self, found: &Found<'_>) {
        if !self.keyspace.is_untouched {
            self.touch_access(found);
        }
    }

    /// Like [`find`](Self::find), but does not count as a use of the key.
    pub(crate) fn peek(&mut self, index: usize) -> Found<'a> {
        self.peek_in(self.db, index)
    }

    /// Every lookup of a request's key goes through this function, which notes that the reply
    /// depends on the key.
    fn peek_in(&mut self, db: DbIndex, index: usize) -> Found<'a> {
        let key = self.args.bytes(index);
        let hash = self.keyspace.hash(&key);
        let mut spot = self.keyspace.db(db).find(hash, &key);
        if let Some(met) = spot
            && self.has_expired(db, met)
        {
            if self.mode != Mode::Frozen {
                self.keyspace.expire(db, hash, &key, met, self.effects);
            }
            spot = None;
        }
        if !is_planted("lookup-unnoted") || index < 2 {
            self.effects.note_read(Read::Key(db, hash));
        }
        Found { db, key, hash, index, spot }
    }

    /// Notes that the reply depends on which keys the client's database has.
    pub(crate) fn look_at_db(&mut self) {
        self.look_at(self.db);
    }

    /// Notes that the reply depends on which keys a database has.
    pub(crate) fn look_at(&mut self, db: DbIndex) {
        if !is_planted("whole-db-undurable") {
            self.effects.note_read(Read::Db(db));
        }
    }

    /// Like [`find`](Self::find), but also counts as a read of the key.
    pub(crate) fn read(&mut self, index: usize) -> Found<'a> {
        let found = self.find(index);
        self.count_read(&found);
        found
    }

    /// Like [`peek`](Self::peek), but also counts as a read of the key.
    pub(crate) fn peek_read(&mut self, index: usize) -> Found<'a> {
        let found = self.peek(index);
        self.count_read(&found);
        found
    }

    fn count_read(&mut self, found: &Found<'_>) {
        match found.spot {
            Some(_) => self.keyspace.stats.keyspace_hits += 1,
            None => self.keyspace.stats.keyspace_misses += 1,
        }
    }

    /// If a key exists, notes that it is used.
    pub(crate) fn touch_access(&mut self, found: &Found<'_>) {
        if let Some(spot) = found.spot {
            let now_ms = self.access_ms();
            self.keyspace.touch_access(found.db, spot, now_ms);
        }
    }

    /// The [`Access`] (the stored last use) of a key that is created now.
    pub(crate) fn new_access(&self) -> Access {
        self.keyspace.new_access(self.access_ms())
    }

    /// The time to note as the last use of a key. In replay, the caller of the replay sets this
    /// time, because a log record does not contain it.
    pub(crate) fn access_ms(&self) -> i64 {
        if self.mode == Mode::Replay { self.keyspace.replay_ms } else { self.now_ms }
    }

    /// Whether an entry has expired. In replay, no entry counts as expired, because the log says
    /// which keys expired.
    pub(crate) fn has_expired(&self, db: DbIndex, spot: Spot) -> bool {
        self.mode != Mode::Replay
            && self.keyspace.db(db).expires_at_ms(spot).is_some_and(|at| self.now_ms > at)
    }

    /// Whether an expiry is in the past, so that setting this expiry deletes the key. In replay, no
    /// expiry counts as past.
    pub(crate) fn is_past(&self, at_ms: i64) -> bool {
        self.mode != Mode::Replay && at_ms <= self.now_ms
    }

    pub(crate) fn value(&self, found: &Found<'_>) -> Option<ValueRef<'_>> {
        Some(self.keyspace.db(found.db).value(found.spot?))
    }

    /// The string at a key; `None` if the key does not exist, or holds another type.
    pub(crate) fn string(&self, found: &Found<'_>) -> Option<StringRef<'_>> {
        self.value(found)?.as_string()
    }

    /// Whether a key holds a value of another type than `wanted`. If so, replies with the error.
    pub(crate) fn is_wrong(&mut self, found: &Found<'_>, wanted: ValueType) -> bool {
        let is_wrong = self.value(found).is_some_and(|value| value.value_type() != wanted);
        if is_wrong {
            self.reply.error(super::text::WRONG_TYPE);
        }
        is_wrong
    }

    pub(crate) fn expires_at_ms(&self, found: &Found<'_>) -> Option<i64> {
        self.keyspace.db(found.db).expires_at_ms(found.spot?)
    }

    /// Gives a key this value and expiry, whether the key exists or not. This is for commands whose
    /// effect depends on the value, type, expiry or mere existence of the old entry.
    pub(crate) fn set(
        &mut self,
        found: &Found<'_>,
        value: Arg<'_>,
        expiry: Option<i64>,
        event: Event,
    ) {
        self.set_by(found, value, expiry, Overwrite::Dependent, event);
    }

    /// Like [`set`](Self::set), for commands whose effect does not depend on the old entry.
    pub(crate) fn overwrite(&mut self, found: &Found<'_>, value: Arg<'_>, expiry: Option<i64>) {
        self.set_by(found, value, expiry, Overwrite::Whole, SET);
    }

    fn set_by(
        &mut self,
        found: &Found<'_>,
        value: Arg<'_>,
        expiry: Option<i64>,
        overwrite: Overwrite,
        event: Event,
    ) {
        let access = self.new_access();
        let (db, displaced) = self.db_and_displaced(found.db);
        if let Some(spot) = found.spot {
            db.replace(spot, value, expiry, overwrite, displaced);
        } else {
            db.insert(found.hash, &found.key, value, expiry, access, displaced.capture.epoch());
        }
        self.touch(found, event);
    }

    /// Notes that the string at a key was computed. `OBJECT ENCODING` must not call such a string
    /// an integer, even if it spells one.
    pub(crate) fn set_as_text(&mut self, found: &Found<'_>) {
        let (db, _) = self.db_and_displaced(found.db);
        if let Some(spot) = db.find(found.hash, &found.key) {
            db.set_written(spot, Written::AsText);
        }
    }

    /// An owned copy of the value at a key. If a fuzzy capture is running (for a snapshot that
    /// leaves later changes to the log), the capture takes the entry first. So the snapshot has
    /// this value, and the log record of the copy may name the key instead of containing the value.
    pub(crate) fn copy_of(&mut self, found: &Found<'_>) -> Option<(Value, Written)> {
        let spot = found.spot?;
        let (db, displaced) = self.db_and_displaced(found.db);
        db.before_copy(spot, displaced);
        let slot = db.table().get(spot);
        let written = match slot.meta().written() {
            Written::Whole => Written::Copied,
            written => written,
        };
        Some((slot.value().to_value(), written))
    }

    /// Inserts a key with a collection that has no elements. The key must not exist. The caller
    /// must not leave the collection empty.
    pub(crate) fn insert_empty(&mut self, found: &Found<'_>, packing: Packing) -> Spot {
        let access = self.new_access();
        let (db, displaced) = self.db_and_displaced(found.db);
        let epoch = displaced.capture.epoch();
        db.insert_empty(found.hash, &found.key, packing, access, epoch)
    }

    /// Inserts a key with this expiry and last use. `value` has the key's value, and says how that
    /// value was written. The key must not exist. The key counts as new if `found` has no place. A
    /// command that has just deleted the key passes `found` as it was before, or as
    /// [`deleted`](Found::deleted) if the key counts as new in Redis.
    pub(crate) fn insert_value(
        &mut self,
        found: &Found<'_>,
        value: (Value, Written),
        expiry: Option<i64>,
        access: Access,
        event: impl Into<Option<Event>>,
    ) {
        let (db, displaced) = self.db_and_displaced(found.db);
        let epoch = displaced.capture.epoch();
        db.insert_value(found.hash, &found.key, value, expiry, access, epoch);
        self.touch(found, event);
    }

    /// Changes or removes the expiry of a key that exists.
    pub(crate) fn set_expiry(&mut self, found: &Found<'_>, expiry: Option<i64>) {
        if let Some(spot) = found.spot {
            let (db, displaced) = self.db_and_displaced(found.db);
            db.set_expiry(spot, expiry, displaced);
            self.touch(found, if expiry.is_some() { EXPIRE } else { PERSIST });
        }
    }

    /// Deletes a key. Returns whether the key existed. The caller must log an effect that deletes
    /// the key whatever the key's value is, and that does nothing if the key does not exist. Pass
    /// no event if the key gets another value at once, or if the caller notes a specific event
    /// later.
    pub(crate) fn delete(&mut self, found: &Found<'_>, event: impl Into<Option<Event>>) -> bool {
        let Some(spot) = found.spot else { return false };
        let (db, displaced) = self.db_and_displaced(found.db);
        db.remove(spot, displaced);
        self.touch(found, event);
        true
    }

    /// Notes that a key was changed, and what happened to it. Without an event, the command
    /// [notes](Self::note) an event later, for example because it runs in steps. If the key did not
    /// exist when it was looked up, the event `new` comes first.
    pub(crate) fn touch(&mut self, found: &Found<'_>, event: impl Into<Option<Event>>) {
        let is_new = found.spot.is_none();
        self.effects.touch_arg(found.db, found.hash, found.index, is_new, event.into());
    }

    /// Notes another event of a key whose change is already noted. Argument `index` of the request
    /// names the key. The key is in the client's database.
    pub(crate) fn note(&mut self, index: usize, event: Event) {
        self.effects.note_event(self.db, index, event);
    }

    /// Logs the request as its own effect.
    pub(crate) fn log_request(&mut self) {
        self.effects.log_request(self.db);
    }

    /// Logs `parts` as the effect, instead of the request. The effect is in the client's database.
    pub(crate) fn log(&mut self, parts: &[Part<'_>]) {
        self.effects.log(self.db, parts);
    }

    /// A database, and the capture and garbage that take its old entries.
    pub(crate) fn db_and_displaced(&mut self, db: DbIndex) -> (&mut Db, &mut Displaced) {
        self.keyspace.db_and_displaced(db)
    }

    /// Replies with the string at a key. Replies with null if the key does not exist or holds
    /// another type.
    pub(crate) fn reply_string(&mut self, found: &Found<'_>) {
        let value = found.spot.map(|spot| self.keyspace.db(found.db).value(spot));
        match value.and_then(ValueRef::as_string) {
            None => self.reply.null(),
            Some(StringRef::Inline(bytes)) => self.reply.bulk(bytes),
            Some(StringRef::Piece(piece)) => self.reply.bulk_piece(piece, 0..piece.len()),
            Some(StringRef::Blob(blob)) => self.reply.bulk_blob(blob, 0..blob.size()),
        }
    }

    pub(crate) fn ok(&mut self) -> Outcome {
        self.reply.ok();
        Outcome::Reply
    }

    pub(crate) fn error(&mut self, text: &str) -> Outcome {
        self.reply.error(text);
        Outcome::Reply
    }

    pub(crate) fn integer(&mut self, value: i64) -> Outcome {
        self.reply.integer(value);
        Outcome::Reply
    }

    /// Replies with the error for a wrong count of arguments.
    pub(crate) fn wrong_arity(&mut self, name: &str) -> Outcome {
        self.error(&format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// Reads an integer argument, or replies with the error.
    pub(crate) fn integer_arg(&mut self, index: usize) -> Option<i64> {
        let value = self.args.get(index).to_i64();
        if value.is_none() {
            self.reply.error(super::text::NOT_AN_INTEGER);
        }
        value
    }

    /// Reads the number of a database, or replies with the error.
    pub(crate) fn db_arg(&mut self, index: usize) -> Option<DbIndex> {
        let number = self.integer_arg(index)?;
        if i32::try_from(number).is_err() {
            let (least, most) = (i32::MIN, i32::MAX);
            self.reply.error(&format!(
                "ERR value is out of range, value must between {least} and {most}"
            ));
            return None;
        }
        let db = self.db_number(number);
        if db.is_none() {
            self.reply.error(super::text::DB_OUT_OF_RANGE);
        }
        db
    }

    /// The database with this number, if there is one.
    pub(crate) fn db_number(&self, number: i64) -> Option<DbIndex> {
        let index = u16::try_from(number).ok()?;
        (usize::from(index) < self.keyspace.db_count()).then_some(DbIndex(index))
    }
}
