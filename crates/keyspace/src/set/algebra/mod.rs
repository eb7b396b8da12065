//! Intersections, unions and differences of sets.
//!
//! At its beginning, a command clones the sets, which takes constant time for each set. So a
//! command that only reads can run in steps while other commands change the sets. A command that
//! stores its result holds its keys while it runs in steps: other clients' requests for these keys
//! wait. The reason is that the log contains the request, not the result, so a replay must find the
//! same sets.

mod filter;
mod finding;
mod members;
mod merge;

use slimio_planted::is_planted;
use slimio_resp::{Args, ReplyBuf};

use crate::collection::{CollectionRef, Element};
use crate::command::Weight;
use crate::commands::elements::ELEMENTS_AT_ONCE_MAX;
use crate::commands::steps::ARGS_AT_ONCE_MAX;
use crate::commands::text;
use crate::context::{Context, Outcome, Steps};
use crate::events::events;
use crate::keyspace::{DbIndex, Keyspace};
use crate::value::ValueRef;
use filter::Filter;
use finding::{Finding, plan};
pub(super) use members::{add, discard, set_of};
use merge::Merge;

/// The largest number of members that one step looks up.
const STEP_LOOKUPS: usize = ELEMENTS_AT_ONCE_MAX;

/// Comparing and copying this many bytes of a member takes about as long as a lookup.
const BYTES_PER_LOOKUP: usize = 512;

events!(Set: SINTERSTORE "sinterstore", SUNIONSTORE "sunionstore", SDIFFSTORE "sdiffstore");

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// What the command does with the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Reply,
    /// Replies with the size of the result, counted up to this limit.
    Count(usize),
    /// Replaces the value of the first key by the result.
    Store,
}

pub(super) fn sinter(context: &mut Context<'_>) -> Outcome {
    run(context, Operation::Intersection, Goal::Reply)
}

pub(super) fn sinterstore(context: &mut Context<'_>) -> Outcome {
    run(context, Operation::Intersection, Goal::Store)
}

pub(super) fn sunion(context: &mut Context<'_>) -> Outcome {
    run(context, Operation::Union, Goal::Reply)
}

pub(super) fn sunionstore(context: &mut Context<'_>) -> Outcome {
    run(context, Operation::Union, Goal::Store)
}

pub(super) fn sdiff(context: &mut Context<'_>) -> Outcome {
    run(context, Operation::Difference, Goal::Reply)
}

pub(super) fn sdiffstore(context: &mut Context<'_>) -> Outcome {
    run(context, Operation::Difference, Goal::Store)
}

pub(super) fn sintercard(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    let Some(count) = args.get(1).to_i64().filter(|count| *count > 0) else {
        return context.error("ERR numkeys should be greater than 0");
    };
    let last = usize::try_from(count).ok().and_then(|count| count.checked_add(1));
    let Some(last) = last.filter(|last| *last < args.len()) else {
        return context.error("ERR Number of keys can't be greater than number of args");
    };
    let (mut index, mut limit) = (last + 1, 0);
    while index < args.len() {
        if !args.get(index).is("limit") || index + 1 == args.len() {
            return context.error(text::SYNTAX);
        }
        let wanted = args.get(index + 1).to_i64().and_then(|limit| usize::try_from(limit).ok());
        let Some(wanted) = wanted else { return context.error("ERR LIMIT can't be negative") };
        (limit, index) = (wanted, index + 2);
    }
    let limit = if limit == 0 { usize::MAX } else { limit };
    begin(context, Operation::Intersection, Goal::Count(limit), 2, last + 1)
}

/// Weighs a command that stores its result: counts the members of all its sets, and their bytes.
pub(super) fn weigh_sources(keyspace: &Keyspace, db: DbIndex, args: Args<'_>) -> Weight {
    let cost =
        |collection: CollectionRef<'_>| collection.len() + collection.size() / BYTES_PER_LOOKUP;
    let of_key = |index| {
        let value = keyspace.get(db, &args.bytes(index), i64::MIN);
        value.and_then(ValueRef::as_collection).map_or(0, cost)
    };
    Weight { elements: (2..args.len()).map(of_key).sum(), log_size: 0 }
}

fn run(context: &mut Context<'_>, operation: Operation, goal: Goal) -> Outcome {
    let first = if goal == Goal::Store { 2 } else { 1 };
    begin(context, operation, goal, first, context.args.len())
}

fn begin(
    context: &mut Context<'_>,
    operation: Operation,
    goal: Goal,
    first: usize,
    end: usize,
) -> Outcome {
    let finding = Finding { next: first, end, sources: Vec::with_capacity((end - first).min(64)) };
    let may_pause = context.mode.yields() && (goal != Goal::Store || is_held(context));
    Box::new(Algebra { operation, goal, may_pause, stage: Stage::Finding(finding) }).resume(context)
}

/// Whether a command that stores its result has so much to do that it holds its keys while it runs.
fn is_held(context: &Context<'_>) -> bool {
    let Context { keyspace, db, args, .. } = context;
    args.len() > ARGS_AT_ONCE_MAX
        || weigh_sources(keyspace, *db, *args).elements > ELEMENTS_AT_ONCE_MAX
}

/// A running command.
#[derive(Debug)]
struct Algebra {
    operation: Operation,
    goal: Goal,
    /// Whether other clients may be served between two steps.
    may_pause: bool,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    Finding(Finding),
    Filtering(Filter),
    Merging(Merge),
}

/// Count of lookups that a step may still make. While lookups are left, a step continues with the
/// next stage. So a command on small sets takes one step.
struct Lookups(usize);

impl Lookups {
    /// Counts `count` lookups of a member. A long member costs more.
    fn count(&mut self, count: usize, member: Element<'_>) {
        let size = if is_planted("long-members-cost-nothing") { 0 } else { member.size() };
        self.0 = self.0.saturating_sub(count + size / BYTES_PER_LOOKUP);
    }

    /// Ends the step, however many lookups are left.
    fn end(&mut self) {
        self.0 = 0;
    }

    fn are_used_up(&self) -> bool {
        self.0 == 0
    }
}

impl Steps for Algebra {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let mut lookups = Lookups(STEP_LOOKUPS);
        loop {
            let is_over = match &mut self.stage {
                Stage::Finding(finding) => {
                    if !finding.step(context, self.goal) {
                        return Outcome::Reply;
                    }
                    let is_over = finding.next == finding.end;
                    if !is_over {
                        lookups.end();
                    }
                    is_over
                }
                Stage::Filtering(filter) => filter.step(context, &mut lookups),
                Stage::Merging(merge) => merge.step(context, &mut lookups),
            };
            if is_over {
                match self.stage {
                    Stage::Finding(finding) => {
                        self.stage = plan(context, self.operation, self.goal, finding.sources);
                    }
                    Stage::Filtering(filter) => return filter.finish(context),
                    Stage::Merging(merge) => return merge.finish(context, self.goal),
                }
            } else if lookups.are_used_up() {
                if self.may_pause {
                    return Outcome::Yield(self);
                }
                lookups = Lookups(STEP_LOOKUPS);
            }
        }
    }

    fn has_all(&self) -> bool {
        self.goal != Goal::Store && !matches!(self.stage, Stage::Finding(_))
    }

    fn made(&self) -> Option<&ReplyBuf> {
        match &self.stage {
            Stage::Filtering(filter) => filter.made(),
            Stage::Finding(_) | Stage::Merging(_) => None,
        }
    }
}
