//! Commands that wait until a list exists. Once there is something to take, such a command is
//! logged as a command that does not wait: for example, `BLPOP` as `LPOP`.

use slimio_planted::is_planted;

use super::moves::{Pop, end_arg, move_one, pop_first, pop_request};
use crate::collection::positional::End;
use crate::commands::text;
use crate::commands::timeout::timeout_arg;
use crate::context::{Block, Context, Mode, Nothing, Outcome};
use crate::effects::Part;
use crate::kinds::ValueType;

pub(super) fn blpop(context: &mut Context<'_>) -> Outcome {
    pop(context, End::First)
}

pub(super) fn brpop(context: &mut Context<'_>) -> Outcome {
    pop(context, End::Last)
}

fn pop(context: &mut Context<'_>, end: End) -> Outcome {
    let timeout = context.args.len() - 1;
    wait_to_pop(context, timeout, (1, timeout - 1), end, Pop::One)
}

pub(super) fn blmpop(context: &mut Context<'_>) -> Outcome {
    let Some(request) = pop_request(context, 2) else { return Outcome::Reply };
    let keys = (3, request.keys_end - 3);
    wait_to_pop(context, 1, keys, request.end, Pop::Many(request.count))
}

/// Pops from the first list that exists, or waits until one exists. `timeout` is the index of the
/// argument that limits the wait. `keys` is the index of the first argument that names a key, and
/// the count of keys.
fn wait_to_pop(
    context: &mut Context<'_>,
    timeout: usize,
    keys: (usize, usize),
    end: End,
    pop: Pop,
) -> Outcome {
    let Some(timeout) = timeout_arg(context, timeout) else { return Outcome::Reply };
    // A woken client is served from the key for which it was woken, whatever the other keys hold.
    let (first, count) = match context.mode {
        Mode::Woken(index) => (index, 1),
        _ => keys,
    };
    if let Some(outcome) = pop_first(context, first..first + count, end, pop) {
        return outcome;
    }
    let (wanted, nothing) = (ValueType::List, Nothing::NullArray);
    Outcome::Block(Block { keys, destination: None, wanted, timeout, nothing })
}

pub(super) fn blmove(context: &mut Context<'_>) -> Outcome {
    let ends = (end_arg(context.args.get(3)), end_arg(context.args.get(4)));
    let (Some(from), Some(to)) = ends else { return context.error(text::SYNTAX) };
    wait_to_move(
        context,
        5,
        from,
        to,
        &[
            Part::Bytes(b"LMOVE"),
            Part::Request(1),
            Part::Request(2),
            Part::Request(3),
            Part::Request(4),
        ],
    )
}

pub(super) fn brpoplpush(context: &mut Context<'_>) -> Outcome {
    let effect = [Part::Bytes(b"RPOPLPUSH"), Part::Request(1), Part::Request(2)];
    wait_to_move(context, 3, End::Last, End::First, &effect)
}

/// Moves an element from one list to another, or waits for the first list.
fn wait_to_move(
    context: &mut Context<'_>,
    timeout: usize,
    from: End,
    to: End,
    effect: &[Part<'_>],
) -> Outcome {
    let Some(timeout) = timeout_arg(context, timeout) else { return Outcome::Reply };
    let Some(is_moved) = move_one(context, from, to) else {
        let (wanted, nothing) = (ValueType::List, Nothing::Null);
        let (keys, destination) = ((1, 1), Some(2));
        return Outcome::Block(Block { keys, destination, wanted, timeout, nothing });
    };
    if is_moved && !is_planted("blocked-move-unlogged") {
        context.log(effect);
    }
    Outcome::Reply
}
