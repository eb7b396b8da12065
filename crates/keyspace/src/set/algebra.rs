//! Intersections, unions and differences of sets.
//!
//! The sets are cloned when the command begins, which takes constant time for each. So a command
//! that only reads runs in steps beside other commands, which may change the sets meanwhile. A
//! command that stores its result holds its keys while it runs in steps, because its request is
//! what is logged: a replay must find the sets as they were.

use slimio_planted::is_planted;
use slimio_resp::{Args, ReplyBuf};

use super::stored::{formed_anew, integers_anew, result_packing, store};
use super::{SetEdit, SetLimits, SetRef, SetTree};
use crate::collection::hashed::{Position, Probe};
use crate::collection::{CollectionRef, EditForm, Element, LargeString};
use crate::command::Weight;
use crate::commands::elements::{ELEMENTS_AT_ONCE_MAX, ElementsWalk, Head, Wanted};
use crate::commands::steps::ARGS_AT_ONCE_MAX;
use crate::commands::text;
use crate::context::{Context, Outcome, Steps, Yielded};
use crate::events::events;
use crate::hasher::KeyHasher;
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::{Packing, ValueType};
use crate::table::worth_deferring;
use crate::value::{Value, ValueRef};

events!(Set: SINTERSTORE "sinterstore", SUNIONSTORE "sunionstore", SDIFFSTORE "sdiffstore");

/// Limit of the lookups of members that one step makes.
const STEP_LOOKUPS: usize = 1024;

/// Keys that one step finds.
const STEP_KEYS: usize = 64;

/// Limit of the other sets in which a member of the first set is looked up in one walk.
const GROUP_LEN: usize = 16;

/// Members of a packed set that are looked at together.
const PACKED_STRETCH: usize = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Operation {
    Intersection,
    Union,
    Difference,
}

/// What becomes of the result.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Goal {
    Reply,
    /// Its size is the reply. If there is a limit, nothing beyond it is counted.
    Count(usize),
    /// It replaces the value of the first key.
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

/// Weighs a command that stores its result: the members of all its sets.
pub(super) fn weigh_sources(keyspace: &Keyspace, db: DbIndex, args: Args<'_>) -> Weight {
    let len = |index| {
        let value = keyspace.get(db, &args.bytes(index), i64::MIN);
        value.and_then(ValueRef::as_collection).map_or(0, CollectionRef::len)
    };
    Weight { elements: (2..args.len()).map(len).sum(), log_size: 0 }
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

/// Whether the keys of a command that stores its result are held while it runs, because it has much
/// to do.
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

/// Finds the sets.
#[derive(Debug)]
struct Finding {
    /// Index of the next key.
    next: usize,
    /// Index behind the last key.
    end: usize,
    /// The sets found so far; `None` for a key that does not exist.
    sources: Vec<Option<Value>>,
}

/// Takes those members of the first set that all other sets have, or that none of them has. Looks
/// at a group of other sets at a time, so that a step over many sets takes no longer.
#[derive(Debug)]
struct Filter {
    first: Option<Value>,
    group: Vec<Value>,
    /// The sets of later groups.
    later: Vec<Value>,
    wants_all: bool,
    /// Where the walk over the first set goes on.
    position: Position,
    /// The members taken, if there are later groups. Otherwise they go to the result.
    taken: EditForm<'static>,
    /// The form in which a result that is stored begins.
    packing: Packing,
    result: Sink,
}

/// Adds the members of all sets to a set, or removes them from it.
#[derive(Debug)]
struct Merge {
    form: EditForm<'static>,
    sources: Vec<Value>,
    adds: bool,
    /// Whether the result, if it is stored, gets the form that it has when its members are added to
    /// an empty set.
    is_formed_anew: bool,
    /// Where the walk over the last of the sources goes on.
    position: Position,
}

#[derive(Debug)]
enum Sink {
    Reply { out: ReplyBuf, len: usize },
    Count { len: usize, limit: usize },
    Set(EditForm<'static>),
}

impl Steps for Algebra {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        loop {
            let is_over = match &mut self.stage {
                Stage::Finding(finding) => {
                    if !finding.step(context, self.goal) {
                        return Outcome::Reply;
                    }
                    finding.next == finding.end
                }
                Stage::Filtering(filter) => filter.step(context),
                Stage::Merging(merge) => merge.step(context),
            };
            if is_over {
                match self.stage {
                    Stage::Finding(finding) => {
                        self.stage = plan(context, self.operation, self.goal, finding.sources);
                    }
                    Stage::Filtering(filter) => return filter.finish(context),
                    Stage::Merging(merge) => return merge.finish(context, self.goal),
                }
            }
            if self.may_pause {
                return Outcome::Yield(Yielded::Steps(self));
            }
        }
    }
}

impl Finding {
    /// Finds some more sets. Returns `false` if one is no set, after replying with the error.
    fn step(&mut self, context: &mut Context<'_>, goal: Goal) -> bool {
        let until = self.end.min(self.next + STEP_KEYS);
        while self.next < until {
            let stores = goal == Goal::Store;
            let found = context.read(self.next);
            if context.is_wrong(&found, ValueType::Set) {
                return false;
            }
            let source = if stores && !is_planted("store-sources-uncaptured") {
                context.copy_of(&found).map(|(value, _)| value)
            } else {
                context.value(&found).map(ValueRef::to_value)
            };
            self.sources.push(source);
            self.next += 1;
        }
        true
    }
}

/// Chooses how to compute the result.
fn plan(
    context: &mut Context<'_>,
    operation: Operation,
    goal: Goal,
    sources: Vec<Option<Value>>,
) -> Stage {
    let result = match goal {
        Goal::Reply => Sink::Reply { out: context.reply.for_parts(), len: 0 },
        Goal::Count(limit) => Sink::Count { len: 0, limit },
        Goal::Store => Sink::Set(EditForm::empty(Packing::SetIntset)),
    };
    let all_exist = sources.iter().all(Option::is_some);
    let first_exists = sources.first().is_some_and(Option::is_some);
    let mut sources: Vec<Value> = sources.into_iter().flatten().collect();
    let position = Position::START;
    match operation {
        Operation::Intersection => {
            if !all_exist {
                sources.clear();
            }
            // The smallest set first, because its members are looked up in the others.
            sources.sort_by_key(len);
            let mut filter = Filter::new(sources, true, result);
            filter.packing = filter.first.as_ref().map_or(Packing::SetIntset, result_packing);
            if let Sink::Set(form) = &mut filter.result {
                *form = EditForm::empty(filter.packing);
            }
            Stage::Filtering(filter)
        }
        Operation::Union => {
            let largest = (0..sources.len()).max_by_key(|index| len(&sources[*index]));
            let largest = largest.filter(|index| is_tree(&sources[*index]));
            let form = largest.and_then(|index| EditForm::of_value(sources.remove(index)));
            let is_formed_anew = form.is_some();
            let form = form.unwrap_or_else(|| EditForm::empty(Packing::SetIntset));
            sources.reverse();
            Stage::Merging(Merge { form, sources, adds: true, is_formed_anew, position })
        }
        Operation::Difference => {
            if !first_exists {
                sources.clear();
            }
            let others: usize = sources.iter().skip(1).map(len).sum();
            let first_len = sources.first().map_or(0, len);
            let removes = sources.first().is_some_and(is_tree)
                && others < first_len.saturating_mul(sources.len() - 1);
            // Redis makes a copy of the first set and removes members from it in this case. Then
            // the form of the result is that of the copy. (`sunionDiffGenericCommand` of `t_set.c`)
            let copies = goal == Goal::Store
                && first_len.saturating_mul(sources.len()) / 2 > first_len + others;
            if (removes || copies)
                && let Some(form) = EditForm::of_value(sources.remove(0))
            {
                let form = if copies { formed_anew(context, form) } else { form };
                let is_formed_anew = !copies;
                return Stage::Merging(Merge {
                    form,
                    sources,
                    adds: false,
                    is_formed_anew,
                    position,
                });
            }
            Stage::Filtering(Filter::new(sources, false, result))
        }
    }
}

pub(super) fn set_of(value: &Value) -> SetRef<'_> {
    SetRef::new(value.as_ref().as_collection().expect("the sources are sets"))
}

fn len(value: &Value) -> usize {
    set_of(value).len()
}

fn is_tree(value: &Value) -> bool {
    matches!(value, Value::Tree(_))
}

/// Members, with their hashes if these are known.
type Members<'a> = Box<dyn Iterator<Item = (Option<u32>, Element<'a>)> + 'a>;

/// Some members of a set from a position on, with their hashes if the set is a tree; and the
/// position behind them. In a packed set, a position counts members.
fn members_from(set: SetRef<'_>, from: Position) -> (Position, Members<'_>) {
    if let Some(tree) = set.tree() {
        let (next, elements) = tree.walk_hashes(from);
        return (next, Box::new(elements.map(|(hash, [member])| (Some(hash), member))));
    }
    let next = Position(from.0 + PACKED_STRETCH as u64);
    let next = if next.0 < set.len() as u64 { next } else { Position::END };
    let members = set.members().skip(from.0 as usize).take(PACKED_STRETCH);
    (next, Box::new(members.map(|member| (None, member))))
}

/// Looks members up in a set.
enum Lookup<'a> {
    Packed(SetRef<'a>),
    Tree(Probe<'a, 1>),
}

impl<'a> Lookup<'a> {
    fn new(set: SetRef<'a>) -> Self {
        set.tree().map_or(Lookup::Packed(set), |tree: &'a SetTree| Lookup::Tree(Probe::new(tree)))
    }

    fn contains(&mut self, hasher: &KeyHasher, hash: Option<u32>, member: Element<'_>) -> bool {
        match self {
            Lookup::Packed(set) => set.packed_contains(member),
            Lookup::Tree(probe) => member.with_arg(|member| {
                probe.contains(hash.unwrap_or_else(|| hasher.hash_arg(member) as u32), member)
            }),
        }
    }
}

impl Filter {
    fn new(sources: Vec<Value>, wants_all: bool, result: Sink) -> Self {
        let mut sources = sources.into_iter();
        let first = sources.next();
        let group = sources.by_ref().take(GROUP_LEN).collect();
        let (position, packing) = (Position::START, Packing::SetIntset);
        let (later, taken) = (sources.collect(), EditForm::empty(packing));
        Self { first, group, later, wants_all, position, taken, packing, result }
    }

    /// Filters some more members. Returns whether the result is complete.
    fn step(&mut self, context: &mut Context<'_>) -> bool {
        let Self { first, group, later, wants_all, position, taken, packing: _, result } = self;
        let Some(set) = first.as_ref().map(set_of) else { return true };
        let is_last = later.is_empty();
        let mut others: Vec<_> = group.iter().map(|other| Lookup::new(set_of(other))).collect();
        let (hasher, mut lookups) = (context.keyspace.hasher, 0);
        while *position != Position::END && lookups < STEP_LOOKUPS && !result.is_full() {
            let (next, members) = members_from(set, *position);
            for (hash, member) in members {
                lookups += 1;
                let is_wanted = others.iter_mut().all(|other| {
                    lookups += 1;
                    other.contains(&hasher, hash, member) == *wants_all
                });
                match result {
                    _ if !is_wanted => {}
                    Sink::Set(form) => add(context, form, member),
                    _ if !is_last => add(context, taken, member),
                    Sink::Reply { out, len } => {
                        member.reply(out);
                        *len += 1;
                    }
                    Sink::Count { len, .. } => *len += 1,
                }
            }
            *position = next;
        }
        if let Sink::Reply { out, .. } = result {
            // Sealed, so that the last step need not copy all replies.
            out.seal();
        }
        if *position != Position::END && !result.is_full() {
            return false;
        }
        is_last || !self.begin_group(context)
    }

    /// Goes on with what is left of the first set, and the next group of other sets. Returns
    /// `false` if nothing is left.
    fn begin_group(&mut self, context: &mut Context<'_>) -> bool {
        let packing = self.packing;
        let empty = || EditForm::empty(packing);
        let taken = match &mut self.result {
            Sink::Set(form) => std::mem::replace(form, empty()),
            _ => std::mem::replace(&mut self.taken, empty()),
        };
        discard(context, self.first.take().into_iter().chain(self.group.drain(..)));
        self.first = taken.into_value();
        self.group.extend(self.later.drain(..self.later.len().min(GROUP_LEN)));
        self.position = Position::START;
        self.first.is_some()
    }

    fn finish(self, context: &mut Context<'_>) -> Outcome {
        discard(context, self.first.into_iter().chain(self.group).chain(self.later));
        match self.result {
            Sink::Reply { out, len } => {
                context.reply.set(len);
                context.reply.append(&out);
                Outcome::Reply
            }
            Sink::Count { len, limit } => context.integer(len.min(limit) as i64),
            Sink::Set(form) if self.wants_all => {
                let form = integers_anew(context, form);
                store(context, form, SINTERSTORE)
            }
            Sink::Set(form) => store(context, form, SDIFFSTORE),
        }
    }
}

impl Sink {
    /// Whether nothing more can change the result.
    fn is_full(&self) -> bool {
        match self {
            Sink::Reply { out, .. } => out.is_cut(),
            Sink::Count { len, limit } => len >= limit,
            Sink::Set(_) => false,
        }
    }
}

impl Merge {
    /// Adds or removes some more members. Returns whether the result is complete.
    fn step(&mut self, context: &mut Context<'_>) -> bool {
        let mut lookups = 0;
        while let Some(source) = self.sources.last()
            && lookups < STEP_LOOKUPS
        {
            let (next, members) = members_from(set_of(source), self.position);
            let (form, mut edit) = (&mut self.form, edit(context));
            for (_, member) in members {
                lookups += 1;
                let mut set = edit.of(form);
                member.with_arg(
                    |member| if self.adds { set.add(member) } else { set.remove(member) },
                );
            }
            self.position = next;
            if next == Position::END {
                self.position = Position::START;
                discard(context, self.sources.pop());
            }
        }
        self.sources.is_empty()
    }

    fn finish(self, context: &mut Context<'_>, goal: Goal) -> Outcome {
        if goal == Goal::Store {
            let form = self.form;
            let form = if self.is_formed_anew { formed_anew(context, form) } else { form };
            return store(context, form, if self.adds { SUNIONSTORE } else { SDIFFSTORE });
        }
        let Some(result) = self.form.into_value() else {
            context.reply.set(0);
            return Outcome::Reply;
        };
        Box::new(ElementsWalk::new(result, Wanted::First, Head::Set, context.reply)).resume(context)
    }
}

/// What changes of sets that are in no keyspace need.
struct Edit<'a> {
    hasher: KeyHasher,
    limits: SetLimits,
    old: &'a mut Vec<LargeString>,
}

fn edit<'a>(context: &'a mut Context<'_>) -> Edit<'a> {
    let keyspace = &mut *context.keyspace;
    let (hasher, limits) = (keyspace.hasher, keyspace.config.packed_limits.set);
    Edit { hasher, limits, old: &mut keyspace.displaced.garbage.elements }
}

impl Edit<'_> {
    fn of<'a, 'b>(&'a mut self, form: &'a mut EditForm<'b>) -> SetEdit<'a, 'b> {
        SetEdit { form, hasher: self.hasher, limits: self.limits, old: self.old }
    }
}

pub(super) fn add(context: &mut Context<'_>, form: &mut EditForm<'static>, member: Element<'_>) {
    member.with_arg(|member| edit(context).of(form).add(member));
}

/// Lets go of clones. Such a clone may be the last reference to a set whose key was deleted
/// meanwhile.
pub(super) fn discard(context: &mut Context<'_>, sources: impl IntoIterator<Item = Value>) {
    for source in sources {
        context.keyspace.displaced.garbage.add_value(worth_deferring(source));
    }
}
