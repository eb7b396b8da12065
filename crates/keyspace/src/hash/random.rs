//! `HRANDFIELD`: random fields of a hash.

use crate::commands::elements::Wanted;
use crate::commands::text;
use crate::context::{Context, Outcome};
use crate::kinds::ValueType;

pub(super) fn hrandfield(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    if args.len() > 2 {
        let Some((count, wanted)) = options(context) else { return Outcome::Reply };
        let found = context.read(1);
        if context.is_wrong(&found, ValueType::Hash) {
            return Outcome::Reply;
        }
        return context.reply_randoms(&found, count, wanted);
    }
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    context.reply_random(&found)
}

/// Reads how many fields are wanted, and what to reply for each field. A negative count allows
/// repetitions. Replies with the error if the options are invalid.
fn options(context: &mut Context<'_>) -> Option<(i64, Wanted)> {
    let args = context.args;
    let count = context.integer_arg(2)?;
    let with_values = args.len() > 3;
    if count == i64::MIN {
        let most = i64::MAX;
        let range = format!("value must between -{most} and {most}");
        context.reply.error(&format!("ERR value is out of range, {range}"));
        return None;
    }
    if args.len() > 4 || with_values && !args.get(3).is("withvalues") {
        context.reply.error(text::SYNTAX);
        return None;
    }
    if with_values && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        context.reply.error("ERR value is out of range");
        return None;
    }
    let wanted = if with_values { Wanted::pairs(context.reply.protocol()) } else { Wanted::First };
    Some((count, wanted))
}
