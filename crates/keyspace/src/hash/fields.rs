//! Commands on the fields of hashes.

use std::ops::Range;

use slimio_resp::Arg;

use super::{HashEdit, HashRef};
use crate::collection::Element;
use crate::commands::counter::parse_float;
use crate::commands::lookup::Found;
use crate::commands::steps::{InSteps, Tally};
use crate::commands::text;
use crate::context::{Context, Outcome};
use crate::effects::Part;
use crate::events::{DEL, Event, events};
use crate::kinds::{Packing, ValueType};
use crate::long_double::LongDouble;

events!(Hash: HSET "hset", HDEL "hdel", HINCRBY "hincrby", HINCRBYFLOAT "hincrbyfloat");

impl Context<'_> {
    /// The hash at a key; `None` if the key does not exist, or holds another type.
    pub(super) fn hash(&self, found: &Found<'_>) -> Option<HashRef<'_>> {
        self.value(found)?.as_hash()
    }

    /// The value of the field that argument `index` names.
    fn field(&self, found: &Found<'_>, index: usize) -> Option<Element<'_>> {
        self.hash(found)?.get(&self.keyspace.hasher, self.args.get(index))
    }

    /// Changes the hash at a key, or a new hash if the key does not exist. The caller must not
    /// leave the hash empty. If the caller passes no event, it must [note](Self::note) the event
    /// later.
    fn edit_hash<R>(
        &mut self,
        found: &Found<'_>,
        event: Option<Event>,
        edit: impl FnOnce(&mut HashEdit<'_, '_>) -> R,
    ) -> R {
        let spot = found.spot.unwrap_or_else(|| self.insert_empty(found, Packing::HashListpack));
        let (hasher, limits) = (self.keyspace.hasher, self.keyspace.config.packed_limits.hash);
        let result = self.keyspace.edit_collection(found.db, spot, |form, old| {
            edit(&mut HashEdit { form, hasher, limits, old })
        });
        self.touch(found, event);
        result
    }
}

pub(super) struct Hset;

impl InSteps for Hset {
    const FIRST: usize = 2;
    const STRIDE: usize = 2;
    const CHANGES_ELEMENTS: bool = true;

    fn begin(context: &mut Context<'_>) -> bool {
        has_pairs(context, "hset")
    }

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        set_fields(context, range, tally);
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        context.note(1, HSET);
        context.log_request();
        context.integer(tally.count)
    }
}

pub(super) struct Hmset;

impl InSteps for Hmset {
    const FIRST: usize = 2;
    const STRIDE: usize = 2;
    const CHANGES_ELEMENTS: bool = true;

    fn begin(context: &mut Context<'_>) -> bool {
        has_pairs(context, "hmset")
    }

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        set_fields(context, range, tally);
    }

    fn end(context: &mut Context<'_>, _: &Tally) -> Outcome {
        context.note(1, HSET);
        context.log_request();
        context.ok()
    }
}

/// Whether each field has a value. If not, replies with the error.
fn has_pairs(context: &mut Context<'_>, name: &str) -> bool {
    let has_pairs = context.args.len().is_multiple_of(2);
    if !has_pairs {
        context.wrong_arity(name);
    }
    has_pairs
}

/// Finds the key. If the key holds something other than a hash, replies with an error.
fn find_hash<'a>(context: &mut Context<'a>, tally: &mut Tally) -> Option<Found<'a>> {
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::Hash) {
        (tally.is_done, tally.is_refused) = (true, true);
        return None;
    }
    Some(found)
}

/// Sets the fields in this range of the request's arguments, and counts the new fields.
fn set_fields(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
    let Some(found) = find_hash(context, tally) else { return };
    let args = context.args;
    tally.count += context.edit_hash(&found, None, |hash| {
        let pairs = range.step_by(2);
        pairs.map(|index| i64::from(hash.set(args.get(index), args.get(index + 1)))).sum::<i64>()
    });
}

pub(super) fn hsetnx(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    if context.field(&found, 2).is_some() {
        return context.integer(0);
    }
    let (field, value) = (context.args.get(2), context.args.get(3));
    context.edit_hash(&found, Some(HSET), |hash| hash.set(field, value));
    context.log_request();
    context.integer(1)
}

pub(super) fn hget(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if !context.is_wrong(&found, ValueType::Hash) {
        reply_field(context, &found, 2);
    }
    Outcome::Reply
}

pub(super) struct Hmget;

impl InSteps for Hmget {
    const FIRST: usize = 2;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        let is_first = range.start == Self::FIRST;
        let found = if is_first { context.read(1) } else { context.peek(1) };
        if context.is_wrong(&found, ValueType::Hash) {
            (tally.is_done, tally.is_refused) = (true, true);
            return;
        }
        if is_first {
            context.reply.array(context.args.len() - 2);
        }
        for index in range {
            reply_field(context, &found, index);
        }
        tally.is_done = context.reply.is_cut();
    }

    fn end(_: &mut Context<'_>, _: &Tally) -> Outcome {
        Outcome::Reply
    }
}

/// Replies with the value of the field that argument `index` names.
fn reply_field(context: &mut Context<'_>, found: &Found<'_>, index: usize) {
    let field = context.args.get(index);
    let hasher = context.keyspace.hasher;
    let hash = found.spot.and_then(|spot| context.keyspace.db(found.db).value(spot).as_hash());
    match hash.and_then(|hash| hash.get(&hasher, field)) {
        Some(value) => value.reply(context.reply),
        None => context.reply.null(),
    }
}

pub(super) fn hlen(context: &mut Context<'_>) -> Outcome {
    reply_number(context, |context, found| context.hash(found).map_or(0, HashRef::len))
}

pub(super) fn hstrlen(context: &mut Context<'_>) -> Outcome {
    reply_number(context, |context, found| context.field(found, 2).map_or(0, Element::size))
}

pub(super) fn hexists(context: &mut Context<'_>) -> Outcome {
    reply_number(context, |context, found| usize::from(context.field(found, 2).is_some()))
}

/// Replies with a number that `read` takes from the hash.
fn reply_number(
    context: &mut Context<'_>,
    read: impl FnOnce(&Context<'_>, &Found<'_>) -> usize,
) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let number = read(context, &found);
    context.integer(number as i64)
}

pub(super) struct Hdel;

impl InSteps for Hdel {
    const FIRST: usize = 2;
    const CHANGES_ELEMENTS: bool = true;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        let Some(found) = find_hash(context, tally) else { return };
        let args = context.args;
        // A hash that loses no field must not be noted as changed.
        if !range.clone().any(|index| context.field(&found, index).is_some()) {
            return;
        }
        let (deleted, left) = context.edit_hash(&found, None, |hash| {
            let deleted: i64 = range.map(|index| i64::from(hash.remove(args.get(index)))).sum();
            (deleted, hash.len())
        });
        if left == 0 {
            context.delete(&found, None);
            tally.is_done = true;
        }
        tally.count += deleted;
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        if tally.count > 0 {
            context.note(1, HDEL);
            // If `is_done` is set here, the hash has lost its last field.
            if tally.is_done {
                context.note(1, DEL);
            }
            context.log_request();
        }
        context.integer(tally.count)
    }
}

pub(super) fn hincrby(context: &mut Context<'_>) -> Outcome {
    let Some(value) = context.integer_arg(3) else { return Outcome::Reply };
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let old = match context.field(&found, 2).map(Element::to_i64) {
        None => 0,
        Some(Some(old)) => old,
        Some(None) => return context.error("ERR hash value is not an integer"),
    };
    let Some(new) = old.checked_add(value) else {
        return context.error(text::INTEGER_OVERFLOW);
    };
    let mut digits = slimio_resp::DecimalBuffer::new();
    let (field, digits) = (context.args.get(2), Arg::Bytes(digits.format(new).as_bytes()));
    context.edit_hash(&found, Some(HINCRBY), |hash| hash.set(field, digits));
    context.log_request();
    context.integer(new)
}

pub(super) fn hincrbyfloat(context: &mut Context<'_>) -> Outcome {
    let Some(value) = parse_float(context.args.get(3)) else {
        return context.error(text::NOT_A_FLOAT);
    };
    if !value.is_finite() {
        return context.error("ERR value is NaN or Infinity");
    }
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let old = match context.field(&found, 2) {
        None => Some(LongDouble::ZERO),
        Some(old) => old.with_arg(parse_float),
    };
    let Some(old) = old else { return context.error("ERR hash value is not a float") };
    let Some(new) = old.add(value) else { return context.error(text::NOT_FINITE) };
    let new = new.format();
    let field = context.args.get(2);
    context
        .edit_hash(&found, Some(HINCRBYFLOAT), |hash| hash.set(field, Arg::Bytes(new.as_bytes())));
    context.log(&[
        Part::Bytes(b"HSET"),
        Part::Request(1),
        Part::Request(2),
        Part::Bytes(new.as_bytes()),
    ]);
    context.reply.bulk(new.as_bytes());
    Outcome::Reply
}
