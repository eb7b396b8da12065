//! Commands that add and remove elements at the ends of one list.

use std::ops::Range;

use slimio_planted::is_planted;
use slimio_resp::Args;

use super::walk::{Walk, reply_head};
use super::{ListEdit, discard, ends_events, len_at, list_in, value_of};
use crate::collection::positional::End;
use crate::command::Weight;
use crate::commands::elements::ELEMENTS_AT_ONCE_MAX;
use crate::commands::lookup::Found;
use crate::commands::steps::{InSteps, Tally};
use crate::context::{Context, Outcome};
use crate::events::DEL;
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::ValueType;

const NOT_POSITIVE: &str = "ERR value is out of range, must be positive";

/// The two ends of a list, as numbers that types can take as parameters.
pub(super) const FIRST: u8 = 0;
pub(super) const LAST: u8 = 1;

fn end_of(number: u8) -> End {
    if number == FIRST { End::First } else { End::Last }
}

/// `LPUSH` and `RPUSH`; if `MUST_EXIST` is true, `LPUSHX` and `RPUSHX`.
pub(super) struct Push<const END: u8, const MUST_EXIST: bool>;

impl<const END: u8, const MUST_EXIST: bool> InSteps for Push<END, MUST_EXIST> {
    const FIRST: usize = 2;
    const CHANGES_ELEMENTS: bool = true;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        let (end, args) = (end_of(END), context.args);
        let found = context.find(1);
        if context.is_wrong(&found, ValueType::List) {
            (tally.is_done, tally.is_refused) = (true, true);
            return;
        }
        if MUST_EXIST && found.spot.is_none() {
            tally.is_done = true;
            return;
        }
        let is_first = range.start == Self::FIRST;
        let is_whole = is_first && range.end == args.len();
        tally.count = context.edit_list(&found, |list| {
            if is_first {
                list.reserve((Self::FIRST..args.len()).map(|index| args.get(index).size()));
            }
            range.for_each(|index| list.push(end, args.get(index)));
            list.len() as i64
        });
        tally.is_noted = is_whole;
        context.touch(&found, is_whole.then_some(ends_events(end).push));
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        if tally.count > 0 {
            if !tally.is_noted {
                context.note(1, ends_events(end_of(END)).push);
            }
            if !is_planted("push-unlogged") {
                context.log_request();
            }
        }
        context.integer(tally.count)
    }
}

pub(super) fn lpop(context: &mut Context<'_>) -> Outcome {
    pop(context, End::First, "lpop")
}

pub(super) fn rpop(context: &mut Context<'_>) -> Outcome {
    pop(context, End::Last, "rpop")
}

fn pop(context: &mut Context<'_>, end: End, name: &str) -> Outcome {
    let args = context.args;
    if args.len() > 3 {
        return context.wrong_arity(name);
    }
    let mut count = None;
    if args.len() == 3 {
        count = args.get(2).to_i64().and_then(|count| usize::try_from(count).ok());
        if count.is_none() {
            return context.error(NOT_POSITIVE);
        }
    }
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    match (found.spot, count) {
        (None, None) => context.reply.null(),
        (None, Some(_)) => context.reply.null_array(),
        (Some(_), Some(0)) => context.reply.array(0),
        (Some(_), None) => {
            pop_one(context, &found, end);
            context.log_request();
        }
        (Some(_), Some(count)) => {
            context.log_request();
            return pop_many(context, &found, end, count, None);
        }
    }
    Outcome::Reply
}

/// Removes the element at an end of the list at a key, and replies with this element. The caller
/// must log an effect.
pub(super) fn pop_one(context: &mut Context<'_>, found: &Found<'_>, end: End) {
    let Some(spot) = found.spot else { return };
    let limits = context.keyspace.config.packed_limits.list;
    let Context { keyspace, reply, .. } = &mut *context;
    let left = keyspace.edit_collection(found.db, spot, |form, old| {
        let mut list = ListEdit { form, limits, old };
        list.pop(end, |element| element.reply(reply));
        list.len()
    });
    removed(context, found, end, left);
}

/// Notes that elements were removed at an end. Deletes the key if no element is left.
pub(super) fn removed(context: &mut Context<'_>, found: &Found<'_>, end: End, left: usize) {
    context.touch(found, ends_events(end).pop);
    if left == 0 {
        context.delete(found, DEL);
    }
}

/// Removes up to `count` elements at an end of the list at a key, and replies with these elements.
/// `count` must be at least 1. If the reply contains the key, `key` is the index of the argument
/// that names it. The caller must log an effect.
pub(super) fn pop_many(
    context: &mut Context<'_>,
    found: &Found<'_>,
    end: End,
    count: usize,
    key: Option<usize>,
) -> Outcome {
    let Some(list) = list_in(context.keyspace, found) else { return Outcome::Reply };
    let len = list.len();
    let count = count.min(len);
    let first = if end == End::First { 0 } else { len - 1 };
    let range = if end == End::First { 0..count } else { len - count..len };
    if count > ELEMENTS_AT_ONCE_MAX || list.is_large_in(range) {
        // The removed elements are cut off, or are the whole list. The reply reads them in steps.
        if count == len {
            let source = list.to_value();
            remove_all(context, found, end);
            return Walk::run(context, source, first, count, end, key);
        }
        let (cut, left) =
            context.edit_list(found, |list| (list.cut_at_end(end, count), list.len()));
        removed(context, found, end, left);
        let source = value_of(cut);
        let first = if end == End::First { 0 } else { count - 1 };
        return Walk::run(context, source, first, count, end, key);
    }
    reply_head(context, key, count);
    if let Some(list) = list_in(context.keyspace, found) {
        list.reply(first, count, end, context.reply);
    }
    if count == len {
        remove_all(context, found, end);
        return Outcome::Reply;
    }
    let (cut, left) = context.edit_list(found, |list| (list.remove_at_end(end, count), list.len()));
    discard(context, cut);
    removed(context, found, end, left);
    Outcome::Reply
}

/// Deletes the key, because all elements were popped.
fn remove_all(context: &mut Context<'_>, found: &Found<'_>, end: End) {
    context.touch(found, ends_events(end).pop);
    context.delete(found, DEL);
}

/// Weighs `LPOP` and `RPOP`: counts the elements that they remove.
pub(super) fn weigh_pop(keyspace: &Keyspace, db: DbIndex, args: Args<'_>) -> Weight {
    if args.len() < 3 {
        return Weight::default();
    }
    let count = args.get(2).to_i64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0);
    let len = len_at(keyspace, db, &args.bytes(1)).unwrap_or(0);
    Weight { elements: count.min(len), log_size: 0 }
}
