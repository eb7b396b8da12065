//! Commands on the expiry of keys.

use super::options::Unit;
use super::string::delete_and_log;
use crate::context::{Context, Outcome};
use crate::effects::Part;

pub(super) fn expire(context: &mut Context<'_>) -> Outcome {
    set_expiry(context, Unit::EX, "expire")
}

pub(super) fn pexpire(context: &mut Context<'_>) -> Outcome {
    set_expiry(context, Unit::PX, "pexpire")
}

pub(super) fn expireat(context: &mut Context<'_>) -> Outcome {
    set_expiry(context, Unit::EXAT, "expireat")
}

pub(super) fn pexpireat(context: &mut Context<'_>) -> Outcome {
    set_expiry(context, Unit::PXAT, "pexpireat")
}

/// The condition for setting an expiry. A key without an expiry is treated as if it expired after
/// all other keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Condition {
    /// `NX`: the key has no expiry.
    None,
    /// `XX`: the key has an expiry.
    Some,
    /// `GT`: the new expiry is later.
    Later,
    /// `LT`: the new expiry is earlier.
    Earlier,
}

impl Condition {
    const NAMES: [(&str, Condition); 4] = [
        ("nx", Condition::None),
        ("xx", Condition::Some),
        ("gt", Condition::Later),
        ("lt", Condition::Earlier),
    ];

    fn allows(self, now: Option<i64>, new: i64) -> bool {
        match self {
            Condition::None => now.is_none(),
            Condition::Some => now.is_some(),
            Condition::Later => now.is_some_and(|now| new > now),
            Condition::Earlier => now.is_none_or(|now| new < now),
        }
    }
}

fn set_expiry(context: &mut Context<'_>, unit: Unit, command: &str) -> Outcome {
    let Some(conditions) = conditions(context) else { return Outcome::Reply };
    let Some(value) = context.integer_arg(2) else { return Outcome::Reply };
    let now_ms = if unit.absolute { 0 } else { context.now_ms };
    let at_ms = if unit.seconds { value.checked_mul(1000) } else { Some(value) };
    // As in Redis, a sum that is too large is an error. The sum cannot be too small, because
    // `now_ms` is not negative.
    let Some(at_ms) = at_ms.and_then(|at_ms| at_ms.checked_add(now_ms)) else {
        context.invalid_expiry(command);
        return Outcome::Reply;
    };
    let found = context.find(1);
    let now = context.expires_at_ms(&found);
    if found.spot.is_none() || !conditions.iter().all(|condition| condition.allows(now, at_ms)) {
        return context.integer(0);
    }
    if context.is_past(at_ms) {
        delete_and_log(context, &found);
    } else {
        context.set_expiry(&found, Some(at_ms));
        context.log(&[Part::Bytes(b"PEXPIREAT"), Part::Request(1), Part::Integer(at_ms)]);
    }
    context.integer(1)
}

/// Reads the options, or replies with the error.
fn conditions(context: &mut Context<'_>) -> Option<Vec<Condition>> {
    let mut conditions = Vec::new();
    for index in 3..context.args.len() {
        let arg = context.args.get(index);
        let Some((_, condition)) = Condition::NAMES.iter().find(|(name, _)| arg.is(name)) else {
            let option = arg.to_bytes();
            let option = option.split(|&byte| byte == 0).next().unwrap_or_default();
            context.reply.error_bytes(&[b"ERR Unsupported option ", option].concat());
            return None;
        };
        if !conditions.contains(condition) {
            conditions.push(*condition);
        }
    }
    let has = |condition| conditions.contains(&condition);
    let error = if has(Condition::None) && conditions.len() > 1 {
        "ERR NX and XX, GT or LT options at the same time are not compatible"
    } else if has(Condition::Later) && has(Condition::Earlier) {
        "ERR GT and LT options at the same time are not compatible"
    } else {
        return Some(conditions);
    };
    context.reply.error(error);
    None
}

pub(super) fn persist(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    if context.expires_at_ms(&found).is_none() {
        return context.integer(0);
    }
    context.set_expiry(&found, None);
    context.log_request();
    context.integer(1)
}

pub(super) fn ttl(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, Unit::EX)
}

pub(super) fn pttl(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, Unit::PX)
}

pub(super) fn expiretime(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, Unit::EXAT)
}

pub(super) fn pexpiretime(context: &mut Context<'_>) -> Outcome {
    reply_expiry(context, Unit::PXAT)
}

fn reply_expiry(context: &mut Context<'_>, unit: Unit) -> Outcome {
    let found = context.peek_read(1);
    if found.spot.is_none() {
        return context.integer(-2);
    }
    let Some(at_ms) = context.expires_at_ms(&found) else { return context.integer(-1) };
    let value = if unit.absolute { at_ms } else { (at_ms - context.now_ms).max(0) };
    // Rounds to the nearest second. A time near the largest `i64` is rounded down instead, to avoid
    // an overflow.
    context.integer(if unit.seconds { value.saturating_add(500) / 1000 } else { value })
}
