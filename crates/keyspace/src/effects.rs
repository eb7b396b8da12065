//! Notes what commands have changed, for the log and for clients that depend on the changed keys.
//! Events are noted as well: they name what happened to a key, for keyspace notifications.
//!
//! The log stores effects, not requests. Effects contain absolute times, and include the deletions
//! of expired keys. Most effects are the same as the request. Such an effect only refers to the
//! request's arguments, so no argument is copied.
//!
//! The payload of a log record is a sequence of commands. Each command is encoded as follows:
//!
//! ```text
//! | varint: count of arguments | varint: size | bytes | varint: size | bytes | ...
//! ```
//!
//! A varint is little-endian, with seven bits in each byte and the high bit set in all bytes but
//! the last. A `SELECT` in a payload switches the database of the commands that follow. The
//! commands before the first `SELECT` are for the database that the record names.

use std::ops::Range;

use slimio_planted::is_planted;
use slimio_resp::{Arg, Args, DecimalBuffer};

use crate::events::{Event, NEW};
use crate::keyspace::DbIndex;
use crate::log_size::deletion_size_max;
use crate::payload::{SELECT, Stretch};
use crate::reads::{Read, Reads};

/// The effects of one or more commands. One `Effects` is [cleared](Effects::clear) and reused for
/// all commands, so that commands allocate nothing for their effects.
#[derive(Clone, Debug)]
pub struct Effects {
    commands: Vec<Effect>,
    args: Vec<EffectArg>,
    bytes: Vec<u8>,
    touched: Vec<TouchedItem>,
    reads: Reads,
    /// Bytes of the log that deletions by expiry or eviction may still take.
    room: u64,
    lacked_room: bool,
    /// Bytes that effects may still copy from values. [`Command::log_size_max`](crate::Command)
    /// does not include these bytes.
    value_room: u64,
}

impl Default for Effects {
    fn default() -> Self {
        let (commands, args, bytes, touched, reads) = Default::default();
        Self {
            commands,
            args,
            bytes,
            touched,
            reads,
            room: u64::MAX,
            lacked_room: false,
            value_room: u64::MAX,
        }
    }
}

/// A command to be logged.
#[derive(Clone, Debug)]
struct Effect {
    db: DbIndex,
    /// `None` stands for the request as it is.
    args: Option<Range<usize>>,
}

impl Effect {
    /// Writes what precedes the arguments: a `SELECT` if the effect's database is not `db`, then
    /// the count of arguments. Returns this count.
    fn begin<'a>(
        &self,
        db: &mut DbIndex,
        args: Args<'_>,
        mut write: impl FnMut(Stretch<'a>),
    ) -> usize {
        if self.db != *db {
            *db = self.db;
            write(Stretch::Varint(2));
            write(Stretch::Varint(SELECT.len()));
            write(Stretch::Bytes(SELECT));
            write(Stretch::Varint(DecimalBuffer::new().format(db.0).len()));
            write(Stretch::Db(*db));
        }
        let len = self.args.as_ref().map_or(args.len(), ExactSizeIterator::len);
        write(Stretch::Varint(len));
        len
    }
}

#[derive(Clone, Copy, Debug)]
enum EffectArg {
    /// An argument of the request.
    Request(usize),
    /// Part of `bytes`.
    Own { start: usize, size: usize },
}

/// A change, an event, or both.
#[derive(Clone, Copy, Debug)]
struct TouchedItem {
    db: DbIndex,
    /// Whether the item notes a change. `false` if it is only an event of a change that another
    /// item notes.
    is_change: bool,
    /// Whether the change has created the key.
    is_new: bool,
    event: Option<Event>,
    /// `None` stands for the whole database. Otherwise the key and its hash. In an item that is only
    /// an event, the hash is 0.
    key: Option<(u64, EffectArg)>,
}

const _: () = assert!(size_of::<TouchedItem>() <= 48, "noting a change copies little");

/// What a command noted at one point: a change, events, or both.
#[derive(Clone, Copy, Debug)]
pub struct Noted<'a> {
    /// What was changed; `None` for an event of a change that was noted before.
    pub change: Option<Touched<'a>>,
    /// The database.
    pub db: DbIndex,
    /// The key; `None` for a whole database.
    pub key: Option<Arg<'a>>,
    events: [Option<Event>; 2],
}

impl Noted<'_> {
    /// The events of the key, in order: no event, one event, or `new` and another event.
    pub fn events(&self) -> impl Iterator<Item = Event> + use<> {
        self.events.into_iter().flatten()
    }
}

/// Something that a command changed.
#[derive(Clone, Copy, Debug)]
pub enum Touched<'a> {
    /// A key was written or deleted, its expiry was changed, or it expired.
    Key {
        /// The key's database.
        db: DbIndex,
        /// The key's [hash](crate::Keyspace::hash).
        hash: u64,
        /// The key.
        key: Arg<'a>,
    },
    /// Any key of a database may have changed.
    Db(DbIndex),
}

/// An argument of an effect that is being logged.
#[derive(Clone, Copy, Debug)]
pub enum Part<'a> {
    /// An argument of the request, by index.
    Request(usize),
    /// Bytes, which are copied.
    Bytes(&'a [u8]),
    /// A number in decimal digits.
    Integer(i64),
}

impl Effects {
    /// No effects.
    pub fn new() -> Self {
        Self::default()
    }

    /// Clears everything, the limits included. Keeps the allocated memory for reuse.
    pub fn clear(&mut self) {
        (self.room, self.lacked_room, self.value_room) = (u64::MAX, false, u64::MAX);
        self.commands.clear();
        self.args.clear();
        self.bytes.clear();
        self.touched.clear();
        self.reads.begin(false);
    }

    /// From now on, notes what commands read. Makes room for `count` keys.
    pub fn note_reads(&mut self, count: usize) {
        self.reads.begin(true);
        self.reads.reserve(count);
    }

    /// The keys and databases that commands have read, in order; `None` unless they are
    /// [noted](Self::note_reads). A key may occur more than once.
    pub fn reads(&self) -> Option<&[Read]> {
        self.reads.items()
    }

    pub(crate) fn note_read(&mut self, read: Read) {
        self.reads.note(read);
    }

    /// From now on, deletions that no client has asked for may take `room` bytes of a record's
    /// payload. These are the deletions of evicted keys, and of expired keys that a command or
    /// active expiry finds. If there is no room for the deletion of a key, the key stays. If such a
    /// key has expired, it still counts as absent. Must not be called before a
    /// command that writes, because a write could not handle an expired key that stays.
    pub fn limit(&mut self, room: u64) {
        self.room = room;
    }

    /// How many bytes of the [limit](Self::limit) are left.
    pub fn room(&self) -> u64 {
        self.room
    }

    /// Whether there was no room for the deletion of an expired or evicted key.
    pub fn lacked_room(&self) -> bool {
        self.lacked_room
    }

    /// Limits how many bytes effects may copy from values.
    pub fn limit_values(&mut self, room: u64) {
        self.value_room = room;
    }

    /// How many bytes effects may still copy from values.
    pub fn value_room(&self) -> u64 {
        self.value_room
    }

    /// Takes room for the bytes that an effect copies from values. Returns `false` if there is not
    /// enough room.
    pub(crate) fn take_value_room(&mut self, size: u64) -> bool {
        let left = self.value_room.checked_sub(size);
        self.value_room = left.unwrap_or(self.value_room);
        left.is_some()
    }

    /// Takes room for the deletion of an expired or evicted key. Returns `false` if there is not
    /// enough room, or if there was [not enough](Self::lacked_room) for an earlier deletion.
    pub(crate) fn take_room(&mut self, key: &[u8]) -> bool {
        match self.room.checked_sub(deletion_size_max(key.len())) {
            Some(left) => self.room = left,
            None => self.lacked_room = true,
        }
        !self.lacked_room
    }

    /// Whether there is nothing to log.
    pub fn is_empty(&self) -> bool {
        self.commands.is_empty()
    }

    /// The keys and databases that were changed, in order. A key may occur more than once. `args`
    /// are the arguments of the command that ran.
    pub fn touched<'a>(&'a self, args: Args<'a>) -> impl Iterator<Item = Touched<'a>> {
        self.touched_in(0..self.touched.len(), args)
    }

    fn touched_item<'a>(&'a self, item: TouchedItem, args: Args<'a>) -> Touched<'a> {
        match item.key {
            None => Touched::Db(item.db),
            Some((hash, key)) => Touched::Key { db: item.db, hash, key: self.resolve(key, args) },
        }
    }

    /// The changes among the [noted](Self::noted) items of this range.
    pub fn touched_in<'a>(
        &'a self,
        items: Range<usize>,
        args: Args<'a>,
    ) -> impl Iterator<Item = Touched<'a>> {
        let changes = self.touched[items].iter().filter(|item| item.is_change);
        changes.map(move |item| self.touched_item(*item, args))
    }

    /// Changes and events, in the order in which the command noted them. `args` are the arguments
    /// of the command that ran.
    pub fn noted<'a>(
        &'a self,
        items: Range<usize>,
        args: Args<'a>,
    ) -> impl Iterator<Item = Noted<'a>> {
        self.touched[items].iter().map(move |item| Noted {
            change: item.is_change.then(|| self.touched_item(*item, args)),
            db: item.db,
            key: item.key.map(|(_, key)| self.resolve(key, args)),
            events: [item.is_new.then_some(NEW), item.event],
        })
    }

    /// Count of all items that were [noted](Self::noted).
    pub fn noted_count(&self) -> usize {
        self.touched.len()
    }

    /// Makes room for `changes` changes, so that noting each takes constant time.
    pub fn reserve(&mut self, changes: usize) {
        self.touched.reserve(changes);
    }

    /// Count of changes. A key that was changed twice counts twice.
    pub fn touched_count(&self) -> usize {
        self.touched_count_in(0..self.touched.len())
    }

    /// Count of the changes among the [noted](Self::noted) items of this range.
    pub fn touched_count_in(&self, items: Range<usize>) -> usize {
        let counts = |item: &&TouchedItem| item.is_change || is_planted("events-counted");
        self.touched[items].iter().filter(counts).count()
    }

    /// Logs the request as its own effect.
    pub fn log_request(&mut self, db: DbIndex) {
        self.commands.push(Effect { db, args: None });
    }

    /// Logs a command other than the request as an effect. In the log, this command replaces the
    /// request or, if the request is logged as well, precedes the request.
    pub fn log(&mut self, db: DbIndex, parts: &[Part<'_>]) {
        let start = self.args.len();
        for &part in parts {
            let arg = match part {
                Part::Request(index) => EffectArg::Request(index),
                Part::Bytes(bytes) => self.own(bytes),
                Part::Integer(value) => self.own(DecimalBuffer::new().format(value).as_bytes()),
            };
            self.args.push(arg);
        }
        self.commands.push(Effect { db, args: Some(start..self.args.len()) });
    }

    /// Notes that the key at argument `index` of the request was changed, and what happened to the
    /// key. `is_new` tells whether the change has created the key.
    pub(crate) fn touch_arg(
        &mut self,
        db: DbIndex,
        hash: u64,
        index: usize,
        is_new: bool,
        event: Option<Event>,
    ) {
        let key = Some((hash, EffectArg::Request(index)));
        self.touched.push(TouchedItem { db, is_change: true, is_new, event, key });
    }

    /// Notes that a key was changed, and what happened to the key.
    pub(crate) fn touch(&mut self, db: DbIndex, hash: u64, key: &[u8], event: Event) {
        let key = Some((hash, self.own(key)));
        let (is_change, is_new, event) = (true, false, Some(event));
        self.touched.push(TouchedItem { db, is_change, is_new, event, key });
    }

    /// Notes that any key of a database may have changed.
    pub fn touch_db(&mut self, db: DbIndex) {
        let (is_change, is_new, event) = (true, false, None);
        self.touched.push(TouchedItem { db, is_change, is_new, event, key: None });
    }

    /// Notes another event of the key at argument `index` of the request. The change itself is
    /// noted already.
    pub(crate) fn note_event(&mut self, db: DbIndex, index: usize, event: Event) {
        let key = Some((0, EffectArg::Request(index)));
        let (is_change, is_new, event) = (false, false, Some(event));
        self.touched.push(TouchedItem { db, is_change, is_new, event, key });
    }

    /// Passes the payload of these effects to `write`, piece by piece. `db` is the database in
    /// which the payload begins. `args` are the arguments of the command that ran.
    pub(crate) fn encode<'a>(
        &'a self,
        mut db: DbIndex,
        args: Args<'a>,
        mut write: impl FnMut(Stretch<'a>),
    ) {
        for effect in &self.commands {
            let len = effect.begin(&mut db, args, &mut write);
            for index in 0..len {
                let arg = match &effect.args {
                    None => args.get(index),
                    Some(range) => self.resolve(self.args[range.start + index], args),
                };
                write(Stretch::Varint(arg.size()));
                arg.chunks().for_each(|chunk| write(Stretch::Bytes(chunk)));
            }
        }
    }

    /// The database of the last effect.
    pub fn last_db(&self) -> Option<DbIndex> {
        self.commands.last().map(|effect| effect.db)
    }

    /// The `index`-th argument of an effect; `None` if the effect has no more arguments.
    fn arg<'a>(&'a self, effect: &Effect, index: usize, args: Args<'a>) -> Option<Arg<'a>> {
        match &effect.args {
            None => (index < args.len()).then(|| args.get(index)),
            Some(range) => {
                let arg = self.args[range.clone()].get(index)?;
                Some(self.resolve(*arg, args))
            }
        }
    }

    fn own(&mut self, bytes: &[u8]) -> EffectArg {
        let start = self.bytes.len();
        self.bytes.extend_from_slice(bytes);
        EffectArg::Own { start, size: bytes.len() }
    }

    fn resolve<'a>(&'a self, arg: EffectArg, args: Args<'a>) -> Arg<'a> {
        match arg {
            EffectArg::Request(index) => args.get(index),
            EffectArg::Own { start, size } => Arg::Bytes(&self.bytes[start..start + size]),
        }
    }
}

/// The progress of making a payload, which takes several steps if the effects are large.
#[derive(Clone, Copy, Debug)]
pub struct PayloadWalk {
    db: DbIndex,
    /// The command that is being written, by its index among the effects.
    command: usize,
    /// The next argument of this command. `given` counts the bytes of the argument that were
    /// written.
    arg: usize,
    given: usize,
}

impl PayloadWalk {
    /// A walk at the beginning of the payload of a record that names `db`.
    pub fn new(db: DbIndex) -> Self {
        Self { db, command: 0, arg: 0, given: 0 }
    }

    /// Passes the next bytes of the payload to `write`. Returns whether these bytes were the last.
    /// `args` are the arguments of the command that ran. A call passes no more than a few hundred
    /// KiB.
    pub fn step(
        &mut self,
        effects: &Effects,
        args: Args<'_>,
        mut write: impl FnMut(&[u8]),
    ) -> bool {
        let mut small = Vec::new();
        let mut write = |stretch: Stretch<'_>| {
            if let Stretch::Bytes(bytes) = stretch {
                return write(bytes);
            }
            small.clear();
            stretch.append_to(&mut small);
            write(&small);
        };
        let Some(effect) = effects.commands.get(self.command) else { return true };
        if self.arg == 0 && self.given == 0 {
            effect.begin(&mut self.db, args, &mut write);
        }
        let mut left = PAYLOAD_STEP_SIZE;
        while let Some(arg) = effects.arg(effect, self.arg, args) {
            if self.given == 0 {
                write(Stretch::Varint(arg.size()));
            }
            for chunk in arg.chunks_from(self.given) {
                write(Stretch::Bytes(chunk));
                self.given += chunk.len();
                left = left.saturating_sub(chunk.len());
                if left == 0 && self.given < arg.size() {
                    return false;
                }
            }
            (self.arg, self.given) = (self.arg + 1, 0);
            left = left.saturating_sub(PAYLOAD_ARG_COST);
            if left == 0 {
                return false;
            }
        }
        (self.command, self.arg) = (self.command + 1, 0);
        self.command == effects.commands.len()
    }
}

/// About how many bytes [`PayloadWalk::step`] writes. A piece of a large argument can make a step
/// exceed this size.
const PAYLOAD_STEP_SIZE: usize = 128 << 10;

/// The fixed cost of an argument. The unit is the time in which one byte is written.
const PAYLOAD_ARG_COST: usize = 64;

#[cfg(test)]
mod tests {
    use slimio_resp::{Blob, OwnedRequest};

    use super::*;
    use crate::payload::Payload;

    /// For effects of every kind, a payload that is made in steps equals the payload that is made
    /// at once, and no step passes too many bytes.
    #[test]
    fn a_payload_made_in_steps_is_the_same() {
        let mut request = OwnedRequest::from_args((0..5000).map(|number| format!("word {number}")));
        request.push(b"");
        request.push_blob(Blob::from_bytes(&vec![7; 1_000_000]));
        request.push(&vec![9; 30_000]);
        let args = request.args();
        let mut effects = Effects::new();
        for number in 0..200 {
            effects
                .log(DbIndex(number % 3), &[Part::Bytes(b"DEL"), Part::Integer(i64::from(number))]);
        }
        effects.log_request(DbIndex(1));
        effects.log(DbIndex(1), &[Part::Bytes(b""), Part::Request(5001), Part::Request(5000)]);
        effects.log_request(DbIndex(0));
        let mut whole = Payload::default();
        whole.begin(DbIndex(2));
        whole.add(&effects, args);
        let (mut walk, mut bytes, mut steps) = (PayloadWalk::new(DbIndex(2)), Vec::new(), 0);
        loop {
            let before = bytes.len();
            let is_over = walk.step(&effects, args, |more| bytes.extend_from_slice(more));
            assert!(bytes.len() - before < 600_000, "a step of {}", bytes.len() - before);
            steps += 1;
            if is_over {
                break;
            }
        }
        assert!(bytes == whole.bytes(), "the bytes differ");
        assert!(steps > 20, "{steps} steps");
    }
}
