//! Finds the sets that a command such as `SINTER` combines, and chooses how to combine them.

use slimio_planted::is_planted;

use super::filter::{Filter, Sink};
use super::members::{is_tree, len};
use super::merge::Merge;
use super::{Goal, Operation, Stage};
use crate::collection::EditForm;
use crate::collection::hashed::Position;
use crate::commands::steps::ARGS_AT_ONCE_MAX;
use crate::context::Context;
use crate::kinds::{Packing, ValueType};
use crate::set::stored::{formed_anew, result_packing};
use crate::value::{Value, ValueRef};

/// If a request has more than `ARGS_AT_ONCE_MAX` arguments, one step finds the sets of at most this
/// many keys.
const STEP_KEYS: usize = 64;

/// Finds the sets.
#[derive(Debug)]
pub(super) struct Finding {
    /// Index of the next key.
    pub(super) next: usize,
    /// Index of the argument after the last key.
    pub(super) end: usize,
    /// The sets found so far; `None` for a key that does not exist.
    pub(super) sources: Vec<Option<Value>>,
}

impl Finding {
    /// Finds the sets. If a key holds something other than a set, replies with the error and
    /// returns `false`.
    ///
    /// Nobody else may change a set until all sets are found. A request with many arguments holds
    /// its keys, so it can find some of its sets in each step. Any other request finds all of its
    /// sets in one step.
    pub(super) fn step(&mut self, context: &mut Context<'_>, goal: Goal) -> bool {
        let is_held = context.args.len() > ARGS_AT_ONCE_MAX || is_planted("sets-found-in-steps");
        let until = if is_held { self.end.min(self.next + STEP_KEYS) } else { self.end };
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
pub(super) fn plan(
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
            // The smallest set comes first, because the members of the first set are looked up in
            // the other sets.
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
            // If `copies` is true, Redis copies the first set and removes members from the copy. So
            // the result then has the form of the copy. (`sunionDiffGenericCommand` of `t_set.c`)
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
