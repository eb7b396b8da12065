//! Commands that move an element from one list to another, or pop elements from the first list that
//! exists. The blocking commands do the same once there is something to take.

use slimio_planted::is_planted;
use slimio_resp::{Arg, Args};

use super::ends::{pop_many, pop_one, removed};
use super::{ListEdit, ends_events, len_at};
use crate::collection::positional::End;
use crate::command::Weight;
use crate::commands::steps::ARGS_AT_ONCE_MAX;
use crate::commands::text;
use crate::context::{Context, Outcome, Steps};
use crate::effects::Part;
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::ValueType;

/// Reads `LEFT` or `RIGHT`.
pub(crate) fn end_arg(arg: Arg<'_>) -> Option<End> {
    if arg.is("left") {
        Some(End::First)
    } else if arg.is("right") {
        Some(End::Last)
    } else {
        None
    }
}

/// How many elements are popped, and in which form the reply contains them.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Pop {
    /// One element. The reply is an array of the key and the element, like the reply to `BLPOP`.
    One,
    /// Up to this many elements. The reply is an array of the key and an array of the elements,
    /// like the reply to `LMPOP`.
    Many(usize),
}

/// Pops from the first key that exists, and logs an `LPOP` or `RPOP`. `keys` are the indices of the
/// arguments that name the keys. If the first key that exists holds another type, replies with the
/// error. If no key exists, returns `None` without a reply, and changes nothing.
pub(crate) fn pop_first(
    context: &mut Context<'_>,
    keys: impl IntoIterator<Item = usize>,
    end: End,
    pop: Pop,
) -> Option<Outcome> {
    for index in keys {
        let found = context.find(index);
        if context.is_wrong(&found, ValueType::List) {
            return Some(Outcome::Reply);
        }
        let Some(list) = context.list_at(&found) else { continue };
        let len = list.len();
        let name = Part::Bytes(if end == End::First { b"LPOP" } else { b"RPOP" });
        return Some(match pop {
            Pop::One => {
                context.log(&[name, Part::Request(index)]);
                context.reply.array(2);
                context.reply.bulk(&found.key);
                pop_one(context, &found, end);
                Outcome::Reply
            }
            Pop::Many(count) => {
                let logged = if is_planted("mpop-logs-one") { 1 } else { count.min(len) };
                context.log(&[name, Part::Request(index), Part::Integer(logged as i64)]);
                pop_many(context, &found, end, count, Some(index))
            }
        });
    }
    None
}

/// Moves an element from the list at the first key of the request to the list at the second key,
/// and replies with this element. The two keys may be the same. Returns `Some(true)` if the element
/// was moved; the caller must then log an effect. If the first key does not exist, returns `None`
/// without a reply, and changes nothing. If one of the keys holds another type, replies with the
/// error, returns `Some(false)`, and changes nothing.
pub(crate) fn move_one(context: &mut Context<'_>, from_end: End, to_end: End) -> Option<bool> {
    let from = context.find(1);
    from.spot?;
    if context.is_wrong(&from, ValueType::List) {
        return Some(false);
    }
    let to = context.find(2);
    if context.is_wrong(&to, ValueType::List) {
        return Some(false);
    }
    // If the second key had expired, the lookup has deleted it. This may have moved the first key's
    // entry, so the first key is looked up again.
    let from = context.peek(1);
    let spot = from.spot?;
    let limits = context.keyspace.config.packed_limits.list;
    let Context { keyspace, reply, .. } = &mut *context;
    let (element, left) = keyspace.edit_collection(from.db, spot, |form, old| {
        let mut list = ListEdit { form, limits, old };
        let element = list.pop(from_end, |element| {
            element.reply(reply);
            element.to_owned()
        });
        (element, list.len())
    });
    let is_same = from.key == to.key;
    let arg = element.as_arg();
    if is_same {
        context.edit_list(&from, |list| {
            list.reserve(std::iter::once(arg.size()));
            list.push(to_end, arg);
        });
        context.touch(&from, ends_events(to_end).push);
        context.touch(&from, ends_events(from_end).pop);
        return Some(true);
    }
    let to = context.peek(2);
    context.edit_list(&to, |list| {
        list.reserve(std::iter::once(arg.size()));
        list.push(to_end, arg);
    });
    context.touch(&to, ends_events(to_end).push);
    // Adding the second key may have moved the first key's entry.
    let from = context.peek(1);
    removed(context, &from, from_end, left);
    Some(true)
}

pub(super) fn lmove(context: &mut Context<'_>) -> Outcome {
    let ends = (end_arg(context.args.get(3)), end_arg(context.args.get(4)));
    let (Some(from), Some(to)) = ends else { return context.error(text::SYNTAX) };
    run_move(context, from, to)
}

pub(super) fn rpoplpush(context: &mut Context<'_>) -> Outcome {
    run_move(context, End::Last, End::First)
}

fn run_move(context: &mut Context<'_>, from: End, to: End) -> Outcome {
    match move_one(context, from, to) {
        None => context.reply.null(),
        Some(true) if is_planted("move-logged-as-pop") => {
            context.log(&[Part::Bytes(b"RPOP"), Part::Request(1)]);
        }
        Some(true) => context.log_request(),
        Some(false) => {}
    }
    Outcome::Reply
}

/// What `LMPOP` asks for.
pub(crate) struct PopRequest {
    /// Index of the argument after the last key.
    pub(crate) keys_end: usize,
    pub(crate) end: End,
    pub(crate) count: usize,
}

/// Reads the arguments of `LMPOP`, or replies with the error. Argument `index` is the number of
/// keys. The keys, the end and perhaps `COUNT` follow it.
pub(crate) fn pop_request(context: &mut Context<'_>, index: usize) -> Option<PopRequest> {
    let args = context.args;
    let positive = |index| args.get(index).to_i64().filter(|count| *count > 0);
    let Some(keys) = positive(index) else {
        context.error("ERR numkeys should be greater than 0");
        return None;
    };
    let keys_end = usize::try_from(keys).ok().and_then(|keys| keys.checked_add(index + 1));
    let Some(keys_end) = keys_end.filter(|end| *end < args.len()) else {
        context.error(text::SYNTAX);
        return None;
    };
    let Some(end) = end_arg(args.get(keys_end)) else {
        context.error(text::SYNTAX);
        return None;
    };
    let (mut at, mut count) = (keys_end + 1, None);
    while at < args.len() {
        if count.is_some() || !args.get(at).is("count") || at + 1 == args.len() {
            context.error(text::SYNTAX);
            return None;
        }
        let Some(wanted) = positive(at + 1) else {
            context.error("ERR count should be greater than 0");
            return None;
        };
        (at, count) = (at + 2, Some(usize::try_from(wanted).unwrap_or(usize::MAX)));
    }
    Some(PopRequest { keys_end, end, count: count.unwrap_or(1) })
}

pub(super) fn lmpop(context: &mut Context<'_>) -> Outcome {
    let Some(PopRequest { keys_end, end, count }) = pop_request(context, 1) else {
        return Outcome::Reply;
    };
    Box::new(PopAny { next: 2, keys_end, end, count }).resume(context)
}

/// A running `LMPOP`, which goes through its keys in steps.
#[derive(Debug)]
struct PopAny {
    next: usize,
    keys_end: usize,
    end: End,
    count: usize,
}

impl Steps for PopAny {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        loop {
            let to = self.keys_end.min(self.next + ARGS_AT_ONCE_MAX);
            let popped = pop_first(context, self.next..to, self.end, Pop::Many(self.count));
            if let Some(outcome) = popped {
                return outcome;
            }
            self.next = to;
            if to == self.keys_end {
                context.reply.null_array();
                return Outcome::Reply;
            }
            if context.mode.yields() {
                return Outcome::Yield(self);
            }
        }
    }
}

/// Weighs `LMPOP`: counts the elements that it removes.
pub(super) fn weigh_mpop(keyspace: &Keyspace, db: DbIndex, args: Args<'_>) -> Weight {
    let keys = args.get(1).to_i64().and_then(|keys| usize::try_from(keys).ok()).unwrap_or(0);
    let keys_end = keys.saturating_add(2).min(args.len());
    let count = (keys_end + 2 < args.len()).then(|| args.get(keys_end + 2).to_i64()).flatten();
    let count = count.and_then(|count| usize::try_from(count).ok()).unwrap_or(1);
    // The first list may have expired. The command then pops from a later list. So the longest of
    // all lists counts.
    let len = |index| len_at(keyspace, db, &args.bytes(index)).unwrap_or(0);
    let elements = if count > 1 { (2..keys_end).map(len).max().unwrap_or(0) } else { 0 };
    Weight { elements: elements.min(count), log_size: 0 }
}
