//! Commands on strings that are numbers.

use slimio_resp::{Arg, DecimalBuffer, parse_i64};

use super::text;
use crate::context::{Context, Outcome};
use crate::effects::Part;
use crate::events::events;
use crate::kinds::ValueType;
use crate::long_double::LongDouble;

events!(String: INCRBY "incrby", INCRBYFLOAT "incrbyfloat");

pub(super) fn incr(context: &mut Context<'_>) -> Outcome {
    add(context, 1)
}

pub(super) fn decr(context: &mut Context<'_>) -> Outcome {
    add(context, -1)
}

pub(super) fn incrby(context: &mut Context<'_>) -> Outcome {
    match context.integer_arg(2) {
        Some(value) => add(context, value),
        None => Outcome::Reply,
    }
}

pub(super) fn decrby(context: &mut Context<'_>) -> Outcome {
    let Some(value) = context.integer_arg(2) else { return Outcome::Reply };
    match value.checked_neg() {
        Some(value) => add(context, value),
        None => context.error("ERR decrement would overflow"),
    }
}

fn add(context: &mut Context<'_>, value: i64) -> Outcome {
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    let old = match context.string(&found).map(|value| value.as_arg().to_i64()) {
        None => 0,
        Some(Some(old)) => old,
        Some(None) => return context.error(text::NOT_AN_INTEGER),
    };
    let Some(new) = old.checked_add(value) else {
        return context.error(text::INTEGER_OVERFLOW);
    };
    let mut digits = DecimalBuffer::new();
    let expiry = context.expires_at_ms(&found);
    context.set(&found, Arg::Bytes(digits.format(new).as_bytes()), expiry, INCRBY);
    context.log_request();
    context.integer(new)
}

pub(super) fn incrbyfloat(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    let old = match context.string(&found) {
        None => Some(LongDouble::ZERO),
        Some(value) => parse_float(value.as_arg()),
    };
    let (Some(old), Some(value)) = (old, parse_float(context.args.get(2))) else {
        return context.error(text::NOT_A_FLOAT);
    };
    let Some(new) = old.add(value) else {
        return context.error(text::NOT_FINITE);
    };
    let new = new.format();
    let expiry = context.expires_at_ms(&found);
    context.set(&found, Arg::Bytes(new.as_bytes()), expiry, INCRBYFLOAT);
    context.set_as_text(&found);
    context.log(&[
        Part::Bytes(b"SET"),
        Part::Request(1),
        Part::Bytes(new.as_bytes()),
        Part::Bytes(b"KEEPTTL"),
    ]);
    context.reply.bulk(new.as_bytes());
    Outcome::Reply
}

pub(crate) fn parse_float(arg: Arg<'_>) -> Option<LongDouble> {
    match arg {
        // Most arguments are integers, and parsing an integer needs no arithmetic on big numbers.
        Arg::Bytes(bytes) if parse_i64(bytes).is_none() => LongDouble::parse(bytes),
        Arg::Bytes(bytes) => parse_i64(bytes).map(LongDouble::from),
        Arg::Blob(blob) if blob.size() < 8 * 1024 => LongDouble::parse(&blob.to_vec()),
        Arg::Blob(_) => None,
    }
}
