//! Commands with many arguments, or with one large argument. A long request of a client runs in
//! steps; any other request runs at once.
//!
//! Other clients are served between two steps. The caller ensures that these clients neither see a
//! partial result of a command in steps, nor change data that the command still has to read.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use slimio_resp::{Arg, Args};

use crate::collection::CollectionRef;
use crate::context::{Context, Outcome, Steps};
use crate::events::Event;
use crate::keyspace::{DbIndex, Keyspace};
use crate::value::ValueRef;

/// If a client's command has more arguments than this, it runs in steps.
pub const ARGS_AT_ONCE_MAX: usize = 1024;

/// The limit that counts instead for a command that changes elements of a huge collection.
const ARGS_AT_ONCE_OF_HUGE_MAX: usize = 128;

/// Count of arguments that one step processes.
const STEP_ARGS: usize = 64;

/// Size in bytes of the longest argument that is written at once.
const PATCH_AT_ONCE_MAX: usize = 1 << 20;

impl Keyspace {
    /// Whether the first argument of a request names a huge collection, and the request has too
    /// many arguments to run at once. The limit is meant for commands that change an element of the
    /// collection for each argument.
    pub fn changes_much_of_huge(&self, db: DbIndex, args: Args<'_>) -> bool {
        let is_huge = || {
            let value = self.get(db, &args.bytes(1), i64::MIN);
            value.and_then(ValueRef::as_collection).is_some_and(CollectionRef::is_huge)
        };
        args.len() > ARGS_AT_ONCE_OF_HUGE_MAX && is_huge()
    }
}

/// A command that processes its arguments in ranges, from first to last.
pub(crate) trait InSteps: 'static {
    /// Index of the first of the many arguments.
    const FIRST: usize;
    /// Count of arguments that belong together, such as a key and its value.
    const STRIDE: usize = 1;
    /// Count of passes over all arguments.
    const PASSES: usize = 1;
    /// Whether the command changes one element of a collection for each argument.
    const CHANGES_ELEMENTS: bool = false;

    /// Checks the request as a whole. If there is an error, replies with it and returns `false`.
    fn begin(_: &mut Context<'_>) -> bool {
        true
    }

    /// Processes some arguments.
    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally);

    /// Logs the effect and replies, after all arguments were processed.
    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome;
}

/// The state of a command after the arguments that were processed so far.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// What the command counts.
    pub(crate) count: i64,
    /// Count of passes completed before this one.
    pub(crate) pass: usize,
    /// Whether the remaining arguments can be skipped.
    pub(crate) is_done: bool,
    /// Whether the command has replied with an error.
    pub(crate) is_refused: bool,
    /// Whether a step has noted the event for the change, so that `end` need not note it.
    pub(crate) is_noted: bool,
}

/// A command with many arguments that has processed some of them, and resumes later.
struct ArgsWalk<C> {
    next: usize,
    tally: Tally,
    /// Names the command's type. No value of the type is kept.
    command: PhantomData<fn() -> C>,
}

impl<C> fmt::Debug for ArgsWalk<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArgsWalk").field("next", &self.next).finish_non_exhaustive()
    }
}

/// Runs a command, or its first step.
pub(crate) fn run<C: InSteps>(context: &mut Context<'_>) -> Outcome {
    if !C::begin(context) {
        return Outcome::Reply;
    }
    let len = context.args.len();
    let has_many = || {
        len > ARGS_AT_ONCE_MAX
            || C::CHANGES_ELEMENTS
                && context.keyspace.changes_much_of_huge(context.db, context.args)
    };
    if context.mode.yields() && has_many() {
        let (tally, command) = (Tally::default(), PhantomData::<fn() -> C>);
        return Box::new(ArgsWalk { next: C::FIRST, tally, command }).resume(context);
    }
    let mut tally = Tally::default();
    for pass in 0..C::PASSES {
        tally.pass = pass;
        if !tally.is_done {
            C::step(context, C::FIRST..len, &mut tally);
        }
    }
    end::<C>(context, &tally)
}

fn end<C: InSteps>(context: &mut Context<'_>, tally: &Tally) -> Outcome {
    if tally.is_refused { Outcome::Reply } else { C::end(context, tally) }
}

impl<C: InSteps> Steps for ArgsWalk<C> {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let len = context.args.len();
        let to = (self.next + STEP_ARGS.next_multiple_of(C::STRIDE)).min(len);
        C::step(context, self.next..to, &mut self.tally);
        self.next = to;
        if to == len && self.tally.pass + 1 < C::PASSES {
            self.tally.pass += 1;
            self.next = C::FIRST;
        }
        if self.tally.is_done || self.next == len {
            return end::<C>(context, &self.tally);
        }
        Outcome::Yield(self)
    }
}

/// A large argument that is written piece by piece over a string, or appended to the string. The
/// key exists and holds a string.
#[derive(Debug)]
struct Patch {
    offset: usize,
    index: usize,
    written: usize,
    event: Event,
}

/// From `offset` on, writes argument `index` over the string at the command's key. Logs the
/// request, and replies with the new size of the string.
pub(crate) fn patch(
    context: &mut Context<'_>,
    offset: usize,
    index: usize,
    event: Event,
) -> Outcome {
    Box::new(Patch { offset, index, written: 0, event }).resume(context)
}

impl Steps for Patch {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let arg = context.args.get(self.index);
        let found = context.peek(1);
        let Some(spot) = found.spot else { unreachable!("nobody else touches the key") };
        let yields = context.mode.yields();
        let (db, displaced) = context.db_and_displaced(found.db);
        if let Arg::Blob(blob) = arg
            && yields
            && blob.size() > PATCH_AT_ONCE_MAX
        {
            let at = self.written;
            let part = blob.chunks(at..blob.size()).next().unwrap_or_default();
            db.update(spot, displaced, |value| value.write_at(self.offset + at, Arg::Bytes(part)));
            self.written += part.len();
            if self.written < blob.size() {
                return Outcome::Yield(self);
            }
        } else {
            db.update(spot, displaced, |value| value.write_at(self.offset, arg));
        }
        context.touch(&found, self.event);
        context.log_request();
        let size = context.string(&found).map_or(0, crate::value::StringRef::size);
        context.integer(size as i64)
    }
}
