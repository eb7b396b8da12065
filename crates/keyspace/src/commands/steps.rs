//! Commands over any number of arguments, or one large one: all at once, or in steps where a client
//! waits for many.
//!
//! Between two steps others are served. That nobody sees a part of what such a command does, or changes
//! what it has still to read, is for the caller to see to.

use std::fmt;
use std::ops::Range;

use slimio_resp::Arg;

use crate::context::{Context, Outcome, Yielded};

/// Most arguments that a client's command takes in without a break.
pub const ARGS_AT_ONCE_MAX: usize = 1024;

/// Arguments that one step takes in.
const STEP_ARGS: usize = 64;

/// Bytes of one argument from which it is written in steps.
const PATCH_AT_ONCE_MAX: usize = 1 << 20;

/// What a command does with its arguments, a range of them at a time, first to last.
pub(super) trait InSteps {
    /// The first argument that is one of many.
    const FIRST: usize;
    /// Arguments that belong together.
    const STRIDE: usize = 1;
    /// How often all arguments are gone through.
    const PASSES: usize = 1;

    /// Looks at the request as a whole; `false` when an error was replied.
    fn begin(_: &mut Context<'_>) -> bool {
        true
    }

    /// Takes in some arguments.
    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally);

    /// All were taken in: writes down what was done, and replies.
    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome;
}

/// What has come of the arguments so far.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Tally {
    /// What the command counts.
    pub(super) count: i64,
    /// How often all arguments were gone through before.
    pub(super) pass: usize,
    /// The rest of the arguments need not be looked at.
    pub(super) is_over: bool,
    /// An error was replied.
    pub(super) is_refused: bool,
}

/// A command over many arguments that goes on later.
pub struct ArgsWalk {
    next: usize,
    tally: Tally,
    resume: fn(Box<ArgsWalk>, &mut Context<'_>) -> Outcome,
}

impl fmt::Debug for ArgsWalk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgsWalk").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Runs a command, or the first step of it.
pub(super) fn run<C: InSteps>(context: &mut Context<'_>) -> Outcome {
    if !C::begin(context) {
        return Outcome::Reply;
    }
    let len = context.args.len();
    if context.mode.yields() && len > ARGS_AT_ONCE_MAX {
        let walk = ArgsWalk { next: C::FIRST, tally: Tally::default(), resume: resume::<C> };
        return Box::new(walk).resume(context);
    }
    let mut tally = Tally::default();
    for pass in 0..C::PASSES {
        tally.pass = pass;
        if !tally.is_over {
            C::step(context, C::FIRST..len, &mut tally);
        }
    }
    end::<C>(context, &tally)
}

fn end<C: InSteps>(context: &mut Context<'_>, tally: &Tally) -> Outcome {
    if tally.is_refused { Outcome::Reply } else { C::end(context, tally) }
}

fn resume<C: InSteps>(mut walk: Box<ArgsWalk>, context: &mut Context<'_>) -> Outcome {
    let len = context.args.len();
    let to = (walk.next + STEP_ARGS.next_multiple_of(C::STRIDE)).min(len);
    C::step(context, walk.next..to, &mut walk.tally);
    walk.next = to;
    if to == len && walk.tally.pass + 1 < C::PASSES {
        walk.tally.pass += 1;
        walk.next = C::FIRST;
    }
    if walk.tally.is_over || walk.next == len {
        return end::<C>(context, &walk.tally);
    }
    Outcome::Yield(Yielded::Args(walk))
}

impl ArgsWalk {
    /// Goes on for a step; the context is as for running the command.
    pub(crate) fn resume(self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        (self.resume)(self, context)
    }
}

/// A large argument that is written over a string, or appended to it, piece by piece. The key is there,
/// and holds a string.
#[derive(Debug)]
pub struct Patch {
    offset: usize,
    index: usize,
    written: usize,
}

/// Writes argument `index` over the string at the command's key from `offset` on, logs the request and
/// replies with the size that the string has then.
pub(super) fn patch(context: &mut Context<'_>, offset: usize, index: usize) -> Outcome {
    Box::new(Patch { offset, index, written: 0 }).resume(context)
}

impl Patch {
    /// Goes on for a step; the context is as for running the command.
    pub(crate) fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let arg = context.args.get(self.index);
        let found = context.peek(1);
        let Some(spot) = found.spot else { unreachable!("nobody else touches the key") };
        let yields = context.mode.yields();
        let (db, past) = context.db_and_past(found.db);
        if let Arg::Blob(blob) = arg
            && yields
            && blob.size() > PATCH_AT_ONCE_MAX
        {
            let at = self.written;
            let part = blob.chunks(at..blob.size()).next().unwrap_or_default();
            db.update(spot, past, |value| value.write_at(self.offset + at, Arg::Bytes(part)));
            self.written += part.len();
            if self.written < blob.size() {
                return Outcome::Yield(Yielded::Patch(self));
            }
        } else {
            db.update(spot, past, |value| value.write_at(self.offset, arg));
        }
        context.touch(&found);
        context.log_request();
        let size = context.string(&found).map_or(0, crate::value::StringRef::size);
        context.integer(size as i64)
    }
}
