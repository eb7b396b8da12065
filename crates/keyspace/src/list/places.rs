//! Commands that name elements by their positions: `LLEN`, `LINDEX`, `LSET`, `LRANGE`, `LTRIM`.

use slimio_planted::is_planted;

use super::walk::Walk;
use super::{LSET, LTRIM, ListRef, discard, list_in};
use crate::collection::positional::End;
use crate::commands::elements::STEP_ELEMENTS_MAX;
use crate::commands::text;
use crate::context::{Context, Outcome};
use crate::events::DEL;
use crate::kinds::ValueType;

const INDEX_OUT_OF_RANGE: &str = "ERR index out of range";

/// The index that a number stands for; `None` if there is no such element. A negative number counts
/// from the end.
fn index_in(len: usize, number: i64) -> Option<usize> {
    let index = if number < 0 { number.checked_add_unsigned(len as u64)? } else { number };
    usize::try_from(index).ok().filter(|index| *index < len)
}

/// The range from one number to the other, both included. A negative number counts from the end.
/// The range is cut to the elements that exist.
fn range_in(len: usize, start: i64, stop: i64) -> std::ops::Range<usize> {
    let place = |number: i64| if number < 0 { number.saturating_add(len as i64) } else { number };
    let start = usize::try_from(place(start).max(0)).unwrap_or(usize::MAX);
    let end = usize::try_from(place(stop).saturating_add(1).max(0)).unwrap_or(0).min(len);
    if start < end { start..end } else { 0..0 }
}

pub(super) fn llen(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    let len = context.list_at(&found).map_or(0, ListRef::len);
    context.integer(len as i64)
}

pub(super) fn lindex(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    let Some(list) = list_in(context.keyspace, &found) else {
        context.reply.null();
        return Outcome::Reply;
    };
    let Some(number) = context.args.get(2).to_i64() else {
        return context.error(text::NOT_AN_INTEGER);
    };
    match index_in(list.len(), number).and_then(|index| list.get(index)) {
        Some(element) => element.reply(context.reply),
        None => context.reply.null(),
    }
    Outcome::Reply
}

pub(super) fn lset(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    if found.spot.is_none() {
        return context.error(text::NO_SUCH_KEY);
    }
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    let Some(number) = context.integer_arg(2) else { return Outcome::Reply };
    let len = context.list_at(&found).map_or(0, ListRef::len);
    let Some(index) = index_in(len, number) else { return context.error(INDEX_OUT_OF_RANGE) };
    let element = context.args.get(3);
    context.edit_list(&found, |list| list.set(index, element));
    context.touch(&found, LSET);
    context.log_request();
    context.ok()
}

/// Reads the two numbers of a range, or replies with the error.
fn numbers(context: &mut Context<'_>) -> Option<(i64, i64)> {
    Some((context.integer_arg(2)?, context.integer_arg(3)?))
}

pub(super) fn lrange(context: &mut Context<'_>) -> Outcome {
    let Some((start, stop)) = numbers(context) else { return Outcome::Reply };
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    let Some(list) = list_in(context.keyspace, &found) else {
        context.reply.array(0);
        return Outcome::Reply;
    };
    let range = range_in(list.len(), start, stop);
    if range.len() > STEP_ELEMENTS_MAX || list.is_large_in(range.clone()) {
        let source = list.to_value();
        return Walk::run(context, source, range.start, range.len(), End::First, None);
    }
    context.reply.array(range.len());
    list.reply(range.start, range.len(), End::First, context.reply);
    Outcome::Reply
}

pub(super) fn ltrim(context: &mut Context<'_>) -> Outcome {
    let Some((start, stop)) = numbers(context) else { return Outcome::Reply };
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    if found.spot.is_none() {
        return context.ok();
    }
    let len = context.list_at(&found).map_or(0, ListRef::len);
    let range = range_in(len, start, stop);
    if range.is_empty() {
        context.touch(&found, LTRIM);
        context.delete(&found, DEL);
        context.log_request();
        return context.ok();
    }
    let keeps_one = is_planted("trim-keeps-one") && range.end < len;
    let behind = len - range.end - usize::from(keeps_one);
    let cut = context.edit_list(&found, |list| {
        [(End::Last, behind), (End::First, range.start)]
            .map(|(end, count)| if count > 0 { list.remove_at_end(end, count) } else { None })
    });
    for cut in cut {
        discard(context, cut);
    }
    context.touch(&found, LTRIM);
    context.log_request();
    context.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_count_from_either_end() {
        for (number, index) in [(0, Some(0)), (2, Some(2)), (3, None), (-1, Some(2)), (-4, None)] {
            assert_eq!(index_in(3, number), index, "{number}");
        }
        assert_eq!(index_in(3, i64::MIN), None);
        assert_eq!(index_in(3, i64::MAX), None);
        for (start, stop, range) in [
            (0, -1, 0..3),
            (0, 0, 0..1),
            (-100, 100, 0..3),
            (1, 1, 1..2),
            (2, 1, 0..0),
            (3, 5, 0..0),
            (-2, -1, 1..3),
            (0, -4, 0..0),
            (i64::MIN, i64::MAX, 0..3),
            (i64::MAX, i64::MAX, 0..0),
            (i64::MIN, i64::MIN, 0..0),
        ] {
            assert_eq!(range_in(3, start, stop), range, "{start} {stop}");
        }
    }
}
