//! Unions, and those differences that remove members from a clone of the first set.

use super::members::{discard, edit, set_of, walk};
use super::{Goal, Lookups, SDIFFSTORE, SUNIONSTORE};
use crate::collection::EditForm;
use crate::collection::hashed::Position;
use crate::commands::elements::{ElementsWalk, Head, Wanted};
use crate::context::{Context, Outcome, Steps as _};
use crate::set::stored::{formed_anew, store};
use crate::value::Value;

/// Adds the members of all sources to one set, or removes them from that set.
#[derive(Debug)]
pub(super) struct Merge {
    pub(super) form: EditForm<'static>,
    pub(super) sources: Vec<Value>,
    pub(super) adds: bool,
    /// Whether a stored result gets the form that it would have if its members were added to an
    /// empty set.
    pub(super) is_formed_anew: bool,
    /// Where the walk over the last source continues.
    pub(super) position: Position,
}

impl Merge {
    /// Adds or removes some more members. Returns whether the result is complete.
    pub(super) fn step(&mut self, context: &mut Context<'_>, lookups: &mut Lookups) -> bool {
        while let Some(source) = self.sources.last() {
            if lookups.are_used_up() {
                return false;
            }
            let (form, adds, mut edit) = (&mut self.form, self.adds, edit(context));
            let cost = form.change_cost();
            self.position = walk(set_of(source), self.position, |_, member| {
                lookups.count(cost, member);
                let mut set = edit.of(form);
                member.with_arg(|member| if adds { set.add(member) } else { set.remove(member) });
            });
            if self.position == Position::END {
                self.position = Position::START;
                discard(context, self.sources.pop());
            }
        }
        true
    }

    pub(super) fn finish(self, context: &mut Context<'_>, goal: Goal) -> Outcome {
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
