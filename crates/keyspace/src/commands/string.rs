//! Commands on whole strings: set, get, and both at once.

use std::ops::Range;

use super::lookup::Found;
use super::options::{self, Condition, Expiry, Unit};
use super::steps::{InSteps, Tally};
use super::text;
use crate::context::{Context, Outcome};
use crate::effects::Part;
use crate::events::{DEL, EXPIRE, events};
use crate::kinds::ValueType;

events!(String: SET "set");

pub(super) fn get(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    context.reply_string(&found);
    Outcome::Reply
}

pub(super) fn set(context: &mut Context<'_>) -> Outcome {
    let Some(options) = options::parse(context.args, 3, true) else {
        return context.error(text::SYNTAX);
    };
    let expiry = match options.expiry {
        Expiry::At { unit, index } => match context.expiry_arg(index, unit, "set") {
            Some(at_ms) => Some(at_ms),
            None => return Outcome::Reply,
        },
        _ => None,
    };
    let found = if options.get {
        let found = context.read(1);
        if context.is_wrong(&found, ValueType::String) {
            return Outcome::Reply;
        }
        context.reply_string(&found);
        // Redis first reads and then writes the key. This counts as two uses.
        context.count_use(&found);
        found
    } else {
        context.find(1)
    };
    let refused = match options.condition {
        Condition::Always => false,
        Condition::IfMissing => found.spot.is_some(),
        Condition::IfPresent => found.spot.is_none(),
    };
    if refused {
        if !options.get {
            context.reply.null();
        }
        return Outcome::Reply;
    }
    let kept = if options.expiry == Expiry::Keep { context.expires_at_ms(&found) } else { None };
    let value = context.args.get(2);
    if options.condition == Condition::IfPresent || options.expiry == Expiry::Keep {
        context.set(&found, value, expiry.or(kept), SET);
    } else {
        context.overwrite(&found, value, expiry);
    }
    if let Some(at_ms) = expiry {
        context.note(1, EXPIRE);
        log_set_until(context, 2, at_ms);
    } else if options.get {
        log_without_get(context);
    } else {
        context.log_request();
    }
    if !options.get {
        context.reply.ok();
    }
    Outcome::Reply
}

pub(super) fn setnx(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    if found.spot.is_some() {
        return context.integer(0);
    }
    context.set(&found, context.args.get(2), None, SET);
    context.log_request();
    context.integer(1)
}

pub(super) fn setex(context: &mut Context<'_>) -> Outcome {
    set_until(context, Unit::EX, "setex")
}

pub(super) fn psetex(context: &mut Context<'_>) -> Outcome {
    set_until(context, Unit::PX, "psetex")
}

fn set_until(context: &mut Context<'_>, unit: Unit, command: &str) -> Outcome {
    let Some(at_ms) = context.expiry_arg(2, unit, command) else { return Outcome::Reply };
    let found = context.find(1);
    context.overwrite(&found, context.args.get(3), Some(at_ms));
    context.note(1, EXPIRE);
    log_set_until(context, 3, at_ms);
    context.ok()
}

pub(super) fn getset(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    context.reply_string(&found);
    // The read and the write count as two uses of the key, as for `SET` with `GET`.
    context.count_use(&found);
    context.overwrite(&found, context.args.get(2), None);
    context.log(&[Part::Bytes(b"SET"), Part::Request(1), Part::Request(2)]);
    Outcome::Reply
}

pub(super) fn getdel(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    context.reply_string(&found);
    delete_and_log(context, &found);
    Outcome::Reply
}

pub(super) fn getex(context: &mut Context<'_>) -> Outcome {
    let Some(options) = options::parse(context.args, 2, false) else {
        return context.error(text::SYNTAX);
    };
    let found = context.read(1);
    if found.spot.is_none() {
        context.reply.null();
        return Outcome::Reply;
    }
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    match options.expiry {
        Expiry::At { unit, index } => {
            let Some(at_ms) = context.expiry_arg(index, unit, "getex") else {
                return Outcome::Reply;
            };
            context.reply_string(&found);
            if unit.absolute && context.is_past(at_ms) {
                delete_and_log(context, &found);
            } else {
                context.set_expiry(&found, Some(at_ms));
                context.log(&[Part::Bytes(b"PEXPIREAT"), Part::Request(1), Part::Integer(at_ms)]);
            }
        }
        Expiry::Persist => {
            context.reply_string(&found);
            if context.expires_at_ms(&found).is_some() {
                context.set_expiry(&found, None);
                context.log(&[Part::Bytes(b"PERSIST"), Part::Request(1)]);
            }
        }
        Expiry::Unsaid | Expiry::Keep => context.reply_string(&found),
    }
    Outcome::Reply
}

pub(super) struct Mget;

impl InSteps for Mget {
    const FIRST: usize = 1;

    fn begin(context: &mut Context<'_>) -> bool {
        context.reply.array(context.args.len() - 1);
        true
    }

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        for index in range {
            let found = context.read(index);
            context.reply_string(&found);
        }
        tally.is_done = context.reply.is_cut();
    }

    fn end(_: &mut Context<'_>, _: &Tally) -> Outcome {
        Outcome::Reply
    }
}

pub(super) struct Mset;

impl InSteps for Mset {
    const FIRST: usize = 1;
    const STRIDE: usize = 2;

    fn begin(context: &mut Context<'_>) -> bool {
        has_pairs(context, "mset")
    }

    fn step(context: &mut Context<'_>, range: Range<usize>, _: &mut Tally) {
        set_all(context, range);
    }

    fn end(context: &mut Context<'_>, _: &Tally) -> Outcome {
        context.log_request();
        context.ok()
    }
}

/// `MSETNX`: checks that none of the keys exists, then sets all keys.
pub(super) struct Msetnx;

impl InSteps for Msetnx {
    const FIRST: usize = 1;
    const STRIDE: usize = 2;
    const PASSES: usize = 2;

    fn begin(context: &mut Context<'_>) -> bool {
        has_pairs(context, "msetnx")
    }

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        if tally.pass == 0 {
            let mut keys = range.step_by(2);
            tally.is_done = keys.any(|index| context.find(index).spot.is_some());
        } else {
            set_all(context, range);
            tally.count = 1;
        }
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        if tally.count > 0 {
            context.log_request();
        }
        context.integer(tally.count)
    }
}

/// Whether each key has a value. If not, replies that the number of arguments is wrong.
fn has_pairs(context: &mut Context<'_>, name: &str) -> bool {
    let has_pairs = !context.args.len().is_multiple_of(2);
    if !has_pairs {
        context.wrong_arity(name);
    }
    has_pairs
}

fn set_all(context: &mut Context<'_>, range: Range<usize>) {
    for index in range.step_by(2) {
        let found = context.find(index);
        context.overwrite(&found, context.args.get(index + 1), None);
    }
}

/// If a key exists, deletes it, and logs the deletion in place of the request.
pub(super) fn delete_and_log(context: &mut Context<'_>, found: &Found<'_>) {
    if context.delete(found, DEL) {
        context.log(&[Part::Bytes(b"DEL"), Part::Request(1)]);
    }
}

/// Logs a `SET` of the key to the argument at `value_index`, with the expiry `at_ms`.
fn log_set_until(context: &mut Context<'_>, value_index: usize, at_ms: i64) {
    context.log(&[
        Part::Bytes(b"SET"),
        Part::Request(1),
        Part::Request(value_index),
        Part::Bytes(b"PXAT"),
        Part::Integer(at_ms),
    ]);
}

/// Logs the request without the option `GET`, because `GET` affects only the reply.
fn log_without_get(context: &mut Context<'_>) {
    let args = context.args;
    let parts: Vec<_> =
        (0..args.len()).filter(|&i| i < 3 || !args.get(i).is("get")).map(Part::Request).collect();
    context.log(&parts);
}
