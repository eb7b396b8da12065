//! `DEBUG POPULATE`: creates many keys at once, for tests.

use slimio_planted::is_planted;
use slimio_resp::{Arg, Args};

use super::text;
use crate::context::{Context, Outcome, Steps};
use crate::effects::Part;
use crate::events::NEW;

/// A step creates at most this many keys.
const STEP_KEYS_MAX: usize = 64;

/// A step ends once its new values have this many bytes together.
const STEP_SIZE_MAX: usize = 256 << 10;

/// Upper bound of the bytes that a key takes in the log, beyond its prefix and the argument `size`.
/// These bytes are the colon and the number in the key, `SET`, the text of a value if the command
/// gives no size, the sizes and the count of the three arguments, and a `SELECT` before the first
/// key.
const KEY_OVERHEAD: u64 = 72;

/// A running `DEBUG POPULATE`, with the keys that are still to be created.
#[derive(Debug)]
struct Populate {
    next: u64,
    count: u64,
    prefix: Vec<u8>,
    /// Size of each value in bytes. If it is 0, each value has the size of its text.
    size: usize,
}

/// `DEBUG POPULATE count [prefix [size]]`: creates the keys `prefix:0`, `prefix:1` and so on, with
/// the values `value:0`, `value:1` and so on. If a size is given, each value is cut or padded with
/// zero bytes to this size. Existing keys stay as they are. Unlike in Redis, the keys are logged.
pub fn debug_populate(context: &mut Context<'_>) -> Outcome {
    let Some(count) = positive(context, 2) else { return Outcome::Reply };
    let args = context.args;
    let prefix = prefix(args);
    let mut size = 0;
    if args.len() > 4 {
        match positive(context, 4) {
            Some(given) => size = given as usize,
            None => return Outcome::Reply,
        }
    }
    if size > context.keyspace.config.string_size_max {
        return context.error(text::STRING_TOO_LONG);
    }
    let populate = Box::new(Populate { next: 0, count, prefix, size });
    if context.mode.yields() {
        // No key is created yet. Before each step, the caller has to check that the log has room.
        return Outcome::Yield(populate);
    }
    populate.resume(context)
}

/// If `DEBUG POPULATE` with these arguments runs all at once, as in a transaction, it logs at most
/// this many bytes of payload.
pub fn populate_log_size_max(args: Args<'_>) -> u64 {
    let number = |index: usize| {
        if index == args.len() {
            return Some(0);
        }
        args.get(index).to_i64().and_then(|value| usize::try_from(value).ok())
    };
    // If an argument is invalid, the command will be refused and create nothing.
    let (Some(count), Some(size)) = (number(2), number(4.min(args.len()))) else { return 0 };
    let populate = Populate { next: 0, count: count as u64, prefix: prefix(args), size };
    populate.size_of(populate.count, size)
}

fn prefix(args: Args<'_>) -> Vec<u8> {
    if args.len() > 3 { args.bytes(3).into_owned() } else { b"key".to_vec() }
}

fn positive(context: &mut Context<'_>, index: usize) -> Option<u64> {
    let value = context.args.get(index).to_i64().and_then(|value| u64::try_from(value).ok());
    if value.is_none() {
        context.reply.error("ERR value is out of range, must be positive");
    }
    value
}

impl Steps for Populate {
    /// Creates a few more keys.
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let (mut keys, mut size) = (0, 0);
        while self.next < self.count {
            if context.mode.yields() && (keys == STEP_KEYS_MAX || size >= STEP_SIZE_MAX) {
                return Outcome::Yield(self);
            }
            size += self.make(context, self.next);
            keys += 1;
            self.next += 1;
        }
        context.ok()
    }

    fn log_size_max(&self) -> Option<u64> {
        Some(self.step_size())
    }
}

impl Populate {
    /// Upper bound of the bytes that a step appends to the log.
    fn step_size(&self) -> u64 {
        let keys = self.size_of(STEP_KEYS_MAX as u64, 0);
        // A step ends once its values reach the limit together. So they may exceed the limit by up
        // to the size of the last value.
        keys + STEP_SIZE_MAX as u64 + self.size as u64
    }

    /// In the log, `count` keys with values of `size` bytes take at most this many bytes.
    fn size_of(&self, count: u64, size: usize) -> u64 {
        let overhead = if is_planted("populate-asks-little") { 8 } else { KEY_OVERHEAD };
        let each = overhead + self.prefix.len() as u64 + size as u64;
        count.saturating_mul(each)
    }

    /// Creates a key if it does not exist. Returns the size of the new value.
    fn make(&self, context: &mut Context<'_>, number: u64) -> usize {
        let key = [&self.prefix, format!(":{number}").as_bytes()].concat();
        let (db, hash) = (context.db, context.keyspace.hash(&key));
        if context.keyspace.db(db).find(hash, &key).is_some() {
            return 0;
        }
        let mut value = format!("value:{number}").into_bytes();
        if self.size > 0 {
            value.resize(self.size, 0);
        }
        let access = context.new_access();
        let (to, displaced) = context.keyspace.db_and_displaced(db);
        to.insert(hash, &key, Arg::Bytes(&value), None, access, displaced.capture.epoch());
        context.log(&[Part::Bytes(b"SET"), Part::Bytes(&key), Part::Bytes(&value)]);
        context.effects.touch(db, hash, &key, NEW);
        value.len()
    }
}
