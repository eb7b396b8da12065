//! Intersections, and those differences that look up each member of the first set.

use slimio_resp::ReplyBuf;

use super::members::{add, discard, set_of, walk};
use super::{Lookups, SDIFFSTORE, SINTERSTORE};
use crate::collection::hashed::{Position, Probe};
use crate::collection::{EditForm, Element};
use crate::commands::elements::STEP_SIZE_MAX;
use crate::context::{Context, Outcome};
use crate::hasher::KeyHasher;
use crate::kinds::Packing;
use crate::set::stored::{integers_anew, store};
use crate::set::{SetRef, SetTree};
use crate::value::Value;

/// In one walk over the first set, its members are looked up in at most this many other sets.
const GROUP_LEN: usize = 16;

/// Takes the members of the first set that all other sets have, or that no other set has. Each walk
/// looks at one group of the other sets, so a step takes no longer if there are many sets.
#[derive(Debug)]
pub(super) struct Filter {
    pub(super) first: Option<Value>,
    group: Vec<Value>,
    /// The sets of later groups.
    later: Vec<Value>,
    wants_all: bool,
    /// Where the walk over the first set continues.
    position: Position,
    /// The members that this walk has taken so far. In two cases, they go to `result` instead: in
    /// the walk with the last group, and in every walk if the result is a set.
    taken: EditForm<'static>,
    /// The form that a stored result has at first, while it is empty.
    pub(super) packing: Packing,
    pub(super) result: Sink,
}

#[derive(Debug)]
pub(super) enum Sink {
    Reply { out: ReplyBuf, len: usize },
    Count { len: usize, limit: usize },
    Set(EditForm<'static>),
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
    pub(super) fn new(sources: Vec<Value>, wants_all: bool, result: Sink) -> Self {
        let mut sources = sources.into_iter();
        let first = sources.next();
        let group = sources.by_ref().take(GROUP_LEN).collect();
        let (position, packing) = (Position::START, Packing::SetIntset);
        let (later, taken) = (sources.collect(), EditForm::empty(packing));
        Self { first, group, later, wants_all, position, taken, packing, result }
    }

    /// Filters some more members. Returns whether the result is complete.
    pub(super) fn step(&mut self, context: &mut Context<'_>, lookups: &mut Lookups) -> bool {
        let Self { first, group, later, wants_all, position, taken, packing: _, result } = self;
        let Some(set) = first.as_ref().map(set_of) else { return true };
        let is_last = later.is_empty();
        let mut others: Vec<_> = group.iter().map(|other| Lookup::new(set_of(other))).collect();
        let hasher = context.keyspace.hasher;
        let start = result.size();
        while *position != Position::END && !result.is_full() {
            if result.size() - start >= STEP_SIZE_MAX {
                lookups.end();
            }
            if lookups.are_used_up() {
                result.seal();
                return false;
            }
            *position = walk(set, *position, |hash, member| {
                let mut count = 1;
                let is_wanted = others.iter_mut().all(|other| {
                    count += 1;
                    other.contains(&hasher, hash, member) == *wants_all
                });
                lookups.count(count, member);
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
            });
        }
        is_last || !self.begin_group(context)
    }

    /// Begins the walk with the next group of other sets, over those members of the first set that
    /// are left. Returns `false` if no member is left.
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

    /// The part of the reply that was made so far; `None` if the result is a count or a stored set.
    pub(super) fn made(&self) -> Option<&ReplyBuf> {
        if let Sink::Reply { out, .. } = &self.result { Some(out) } else { None }
    }

    pub(super) fn finish(self, context: &mut Context<'_>) -> Outcome {
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
    /// Bytes of the reply's members.
    fn size(&self) -> usize {
        if let Sink::Reply { out, .. } = self { out.len() } else { 0 }
    }

    /// Makes the reply's bytes shareable before a pause. Otherwise, the last step would have to
    /// copy the whole reply.
    fn seal(&mut self) {
        if let Sink::Reply { out, .. } = self {
            out.seal();
        }
    }

    /// Whether the result stays the same, whatever members follow.
    fn is_full(&self) -> bool {
        match self {
            Sink::Reply { out, .. } => out.is_cut(),
            Sink::Count { len, limit } => len >= limit,
            Sink::Set(_) => false,
        }
    }
}
