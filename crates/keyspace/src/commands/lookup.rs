//! What every command does with its keys: find them, expire them, note what was changed.

use std::borrow::Cow;

use slimio_planted::is_planted;
use slimio_resp::Arg;

use crate::access::Access;
use crate::capture::Overwrite;
use crate::context::{Context, Mode, Outcome};
use crate::db::Db;
use crate::displaced::Displaced;
use crate::effects::Part;
use crate::keyspace::DbIndex;
use crate::reads::Read;
use crate::table::Spot;
use crate::table::Written;
use crate::value::{StringRef, Value, ValueRef, ValueType};

/// A key of the request, and where it is.
pub(super) struct Found<'a> {
    pub(super) db: DbIndex,
    pub(super) key: Cow<'a, [u8]>,
    pub(super) hash: u64,
    /// Which argument the key is.
    index: usize,
    /// `None`: there is no such key. Valid until the next key is inserted or deleted.
    pub(super) spot: Option<Spot>,
}

impl<'a> Context<'a> {
    /// Finds the key that argument `index` names. Deletes it first if it has expired.
    pub(super) fn find(&mut self, index: usize) -> Found<'a> {
        self.find_in(self.db, index)
    }

    /// As [`find`](Self::find), in another database.
    pub(super) fn find_in(&mut self, db: DbIndex, index: usize) -> Found<'a> {
        let found = self.peek_in(db, index);
        self.count_use(&found);
        found
    }

    /// Counts a use of a key, unless the client wants none to count.
    pub(super) fn count_use(&mut self, found: &Found<'_>) {
        if !self.keyspace.is_untouched {
            self.touch_access(found);
        }
    }

    /// As [`find`](Self::find), but does not count as a use of the key.
    pub(super) fn peek(&mut self, index: usize) -> Found<'a> {
        self.peek_in(self.db, index)
    }

    /// The one way to a key of the request: it notes that the reply depends on the key.
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
    pub(super) fn look_at_db(&mut self) {
        if !is_planted("whole-db-undurable") {
            self.effects.note_read(Read::Db(self.db));
        }
    }

    /// As [`find`](Self::find), counted as a read of the key.
    pub(super) fn read(&mut self, index: usize) -> Found<'a> {
        let found = self.find(index);
        self.count_read(&found);
        found
    }

    /// As [`peek`](Self::peek), counted as a read of the key.
    pub(super) fn peek_read(&mut self, index: usize) -> Found<'a> {
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

    /// Notes that a key is used, if it is there.
    pub(super) fn touch_access(&mut self, found: &Found<'_>) {
        if let Some(spot) = found.spot {
            let now_ms = self.access_ms();
            self.keyspace.touch_access(found.db, spot, now_ms);
        }
    }

    /// The access of a key that is created now.
    pub(super) fn new_access(&self) -> Access {
        self.keyspace.new_access(self.access_ms())
    }

    /// The time of the last use to note. A record of the log does not contain it.
    fn access_ms(&self) -> i64 {
        if self.mode == Mode::Replay { self.keyspace.replay_ms } else { self.now_ms }
    }

    /// Whether an entry has expired. In replay it never has: the log says what expired.
    pub(super) fn has_expired(&self, db: DbIndex, spot: Spot) -> bool {
        self.mode != Mode::Replay
            && self.keyspace.db(db).expires_at_ms(spot).is_some_and(|at| self.now_ms > at)
    }

    /// Whether a key that is given this expiry is deleted instead. In replay it never is.
    pub(super) fn is_past(&self, at_ms: i64) -> bool {
        self.mode != Mode::Replay && at_ms <= self.now_ms
    }

    pub(super) fn value(&self, found: &Found<'_>) -> Option<ValueRef<'_>> {
        Some(self.keyspace.db(found.db).value(found.spot?))
    }

    /// The string at a key; `None` if there is no key, or it holds another type.
    pub(super) fn string(&self, found: &Found<'_>) -> Option<StringRef<'_>> {
        self.value(found)?.as_string()
    }

    /// Whether a key holds another type than `wanted`. If so, replies with the error.
    pub(super) fn is_wrong(&mut self, found: &Found<'_>, wanted: ValueType) -> bool {
        let is_wrong = self.value(found).is_some_and(|value| value.value_type() != wanted);
        if is_wrong {
            self.reply.error(super::text::WRONG_TYPE);
        }
        is_wrong
    }

    pub(super) fn expires_at_ms(&self, found: &Found<'_>) -> Option<i64> {
        self.keyspace.db(found.db).expires_at_ms(found.spot?)
    }

    /// Gives a key this value and expiry, whether it exists or not. For a command whose effect
    /// depends on the old entry: its value, type, expiry, or only its existence.
    pub(super) fn set(&mut self, found: &Found<'_>, value: Arg<'_>, expiry: Option<i64>) {
        self.set_by(found, value, expiry, Overwrite::Dependent);
    }

    /// The same for a command whose effect does not depend on the old entry.
    pub(super) fn overwrite(&mut self, found: &Found<'_>, value: Arg<'_>, expiry: Option<i64>) {
        self.set_by(found, value, expiry, Overwrite::Whole);
    }

    fn set_by(
        &mut self,
        found: &Found<'_>,
        value: Arg<'_>,
        expiry: Option<i64>,
        overwrite: Overwrite,
    ) {
        let access = self.new_access();
        let (db, displaced) = self.db_and_displaced(found.db);
        if let Some(spot) = found.spot {
            db.replace(spot, value, expiry, overwrite, displaced);
        } else {
            db.insert(found.hash, &found.key, value, expiry, access, displaced.capture.epoch());
        }
        self.touch(found);
    }

    /// Notes that the string at a key was computed.
    pub(super) fn set_as_text(&mut self, found: &Found<'_>) {
        let (db, _) = self.db_and_displaced(found.db);
        if let Some(spot) = db.find(found.hash, &found.key) {
            db.set_written(spot, Written::AsText);
        }
    }

    /// An owned copy of the value at a key. The effect may name the key instead of the value.
    pub(super) fn copy_of(&mut self, found: &Found<'_>) -> Option<(Value, Written)> {
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

    /// Inserts a key with this value, how it was written, its expiry and its last use. The key must
    /// not exist.
    pub(super) fn insert_value(
        &mut self,
        found: &Found<'_>,
        value: (Value, Written),
        expiry: Option<i64>,
        access: Access,
    ) {
        let (db, displaced) = self.db_and_displaced(found.db);
        let epoch = displaced.capture.epoch();
        db.insert_value(found.hash, &found.key, value, expiry, access, epoch);
        self.touch(found);
    }

    /// Changes or removes the expiry of a key that exists.
    pub(super) fn set_expiry(&mut self, found: &Found<'_>, expiry: Option<i64>) {
        if let Some(spot) = found.spot {
            let (db, displaced) = self.db_and_displaced(found.db);
            db.set_expiry(spot, expiry, displaced);
            self.touch(found);
        }
    }

    /// Deletes a key; says whether it existed. The logged effect must delete the key whatever it
    /// holds, and do nothing if it does not exist.
    pub(super) fn delete(&mut self, found: &Found<'_>) -> bool {
        let Some(spot) = found.spot else { return false };
        let (db, displaced) = self.db_and_displaced(found.db);
        db.remove(spot, displaced);
        self.touch(found);
        true
    }

    /// Notes that a key was changed.
    pub(super) fn touch(&mut self, found: &Found<'_>) {
        self.effects.touch_arg(found.db, found.hash, found.index);
    }

    /// Logs the request as its own effect.
    pub(super) fn log_request(&mut self) {
        self.effects.log_request(self.db);
    }

    /// Logs another effect than the request, in the client's database.
    pub(super) fn log(&mut self, parts: &[Part<'_>]) {
        self.effects.log(self.db, parts);
    }

    /// A database, and the capture and garbage that take its old entries.
    pub(super) fn db_and_displaced(&mut self, db: DbIndex) -> (&mut Db, &mut Displaced) {
        self.keyspace.db_and_displaced(db)
    }

    /// Replies with the string at a key; with null if there is no key, or it holds another type.
    pub(super) fn reply_string(&mut self, found: &Found<'_>) {
        let value = found.spot.map(|spot| self.keyspace.db(found.db).value(spot));
        match value.and_then(ValueRef::as_string) {
            None => self.reply.null(),
            Some(StringRef::Inline(bytes)) => self.reply.bulk(bytes),
            Some(StringRef::Piece(piece)) => self.reply.bulk_piece(piece, 0..piece.len()),
            Some(StringRef::Blob(blob)) => self.reply.bulk_blob(blob, 0..blob.size()),
        }
    }

    pub(super) fn ok(&mut self) -> Outcome {
        self.reply.ok();
        Outcome::Reply
    }

    pub(super) fn error(&mut self, text: &str) -> Outcome {
        self.reply.error(text);
        Outcome::Reply
    }

    pub(super) fn integer(&mut self, value: i64) -> Outcome {
        self.reply.integer(value);
        Outcome::Reply
    }

    /// Replies with the error for a wrong count of arguments.
    pub(super) fn wrong_arity(&mut self, name: &str) -> Outcome {
        self.error(&format!("ERR wrong number of arguments for '{name}' command"))
    }

    /// Reads an integer argument, or replies with the error.
    pub(super) fn integer_arg(&mut self, index: usize) -> Option<i64> {
        let value = self.args.get(index).to_i64();
        if value.is_none() {
            self.reply.error(super::text::NOT_AN_INTEGER);
        }
        value
    }

    /// Reads the number of a database, or replies with the error.
    pub(super) fn db_arg(&mut self, index: usize) -> Option<DbIndex> {
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

    /// The database of that number, if there is one.
    pub(super) fn db_number(&self, number: i64) -> Option<DbIndex> {
        let index = u16::try_from(number).ok()?;
        (usize::from(index) < self.keyspace.db_count()).then_some(DbIndex(index))
    }
}
