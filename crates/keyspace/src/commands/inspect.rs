//! Information on a key besides its value: `OBJECT`, `MEMORY USAGE`, `DEBUG OBJECT`. This crate has
//! no rows for these subcommands. They are in the server's command table, as subcommands of
//! `OBJECT`, `MEMORY` and `DEBUG`.

use super::lookup::Found;
use super::text;
use crate::context::{Context, Outcome};
use crate::keyspace::{DbIndex, Keyspace};
use crate::table::{BucketSlot, Written};

/// `OBJECT ENCODING key`
pub fn object_encoding(context: &mut Context<'_>) -> Outcome {
    let Some(found) = object(context) else { return Outcome::Reply };
    if let Some(spot) = found.spot {
        let name = encoding_name(context.keyspace.db(found.db).table().get(spot));
        context.reply.bulk(name.as_bytes());
    }
    Outcome::Reply
}

fn encoding_name(slot: &BucketSlot) -> &'static str {
    slot.value().encoding_name(slot.meta().written())
}

/// `OBJECT REFCOUNT key`: 1 for most values, as if no value were shared. Redis has shared objects
/// for small integers, and clients recognise these objects by their count `i32::MAX`. So the reply
/// for a small integer is `i32::MAX`, too.
pub fn object_refcount(context: &mut Context<'_>) -> Outcome {
    let Some(found) = object(context) else { return Outcome::Reply };
    let shares = context.keyspace.eviction().shares_integers();
    let count = found
        .spot
        .map_or(1, |spot| refcount(context.keyspace.db(found.db).table().get(spot), shares));
    context.integer(count)
}

/// Redis has shared objects for the integers from 0 up to, but not including, this one
/// (`OBJ_SHARED_INTEGERS`).
const SHARED_INTEGERS: i64 = 10_000;

/// The reference count that an entry would have in Redis. `shares` says whether Redis would use its
/// shared objects for small integers.
fn refcount(slot: &BucketSlot, shares: bool) -> i64 {
    let is_shared = shares
        && slot.meta().written() == Written::Whole
        && slot.value().as_integer().is_some_and(|value| (0..SHARED_INTEGERS).contains(&value));
    if is_shared { i64::from(i32::MAX) } else { 1 }
}

/// `OBJECT IDLETIME key`
pub fn object_idletime(context: &mut Context<'_>) -> Outcome {
    let Some(found) = object(context) else { return Outcome::Reply };
    if context.keyspace.eviction().policy.is_lfu() {
        return context.error(IDLETIME_UNDER_LFU);
    }
    let access = found.spot.map(|spot| context.keyspace.db(found.db).access(spot));
    let seconds = access.map_or(0, |access| access.idle_seconds(context.now_ms));
    context.integer(i64::from(seconds))
}

/// `OBJECT FREQ key`
pub fn object_freq(context: &mut Context<'_>) -> Outcome {
    let Some(found) = object(context) else { return Outcome::Reply };
    let eviction = *context.keyspace.eviction();
    if !eviction.policy.is_lfu() {
        return context.error(FREQ_WITHOUT_LFU);
    }
    let access = found.spot.map(|spot| context.keyspace.db(found.db).access(spot));
    let count = access.map_or(0, |access| access.count(context.now_ms, eviction.rules()));
    context.integer(i64::from(count))
}

/// Finds the key of a subcommand. This does not count as a use of the key. Replies with null if
/// there is no such key.
fn object<'a>(context: &mut Context<'a>) -> Option<Found<'a>> {
    let found = context.peek_read(2);
    if found.spot.is_none() {
        context.reply.null();
        return None;
    }
    Some(found)
}

/// `MEMORY USAGE key [SAMPLES count]`. `SAMPLES` has no effect, because the size of every value is
/// known.
pub fn memory_usage(context: &mut Context<'_>) -> Outcome {
    let mut index = 3;
    while index < context.args.len() {
        if !context.args.get(index).is("samples") || index + 1 == context.args.len() {
            return context.error(text::SYNTAX);
        }
        match context.integer_arg(index + 1) {
            None => return Outcome::Reply,
            Some(..0) => return context.error(text::SYNTAX),
            Some(_) => index += 2,
        }
    }
    let found = context.peek(2);
    match found.spot {
        None => context.reply.null(),
        Some(spot) => {
            let slot = context.keyspace.db(found.db).table().get(spot);
            let bytes = slot.memory() + size_of::<BucketSlot>();
            context.reply.integer(bytes as i64);
        }
    }
    Outcome::Reply
}

impl Keyspace {
    /// The line that `DEBUG OBJECT` replies with; `None` if there is no such key. The length in the
    /// line is the size of the uncompressed value.
    pub fn describe(&self, db: DbIndex, key: &[u8], now_ms: i64) -> Option<String> {
        let rules = self.eviction().rules();
        let db = self.db(db);
        let spot = db.find(self.hash(key), key)?;
        let slot = db.table().get(spot);
        let access = slot.access();
        let used = if rules.counts {
            format!(
                "lfu_freq:{} lfu_access_time_minutes:{}",
                access.bits() & 0xff,
                access.bits() >> 8
            )
        } else {
            format!("lru_seconds_idle:{}", access.idle_seconds(now_ms))
        };
        Some(format!(
            "Value at:{slot:p} refcount:{} encoding:{} serializedlength:{} lru:{} {used}",
            refcount(slot, self.eviction().shares_integers()),
            encoding_name(slot),
            slot.value().size(),
            access.bits(),
        ))
    }
}

const IDLETIME_UNDER_LFU: &str = "ERR An LFU maxmemory policy is selected, idle time not tracked. \
Please note that when switching between policies at runtime LRU and LFU data will take some time to \
adjust.";

const FREQ_WITHOUT_LFU: &str = "ERR An LFU maxmemory policy is not selected, access frequency not \
tracked. Please note that when switching between policies at runtime LRU and LFU data will take some \
time to adjust.";
