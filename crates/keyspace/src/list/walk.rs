//! Replies with elements of lists, one after the other from either end. Many elements are read in
//! steps. The steps read a clone of the list, or elements that a command has removed from the list.
//! So later writes change nothing in the reply.

use slimio_resp::ReplyBuf;

use super::ListRef;
use crate::collection::positional::End;
use crate::commands::elements::{STEP_ELEMENTS_MAX, STEP_SIZE_MAX, end_of_steps};
use crate::context::{Context, Outcome, Steps};
use crate::value::Value;

/// A running reply with elements of a list, as the list was when the walk began.
#[derive(Debug)]
pub(super) struct Walk {
    source: Value,
    /// Index of the next element.
    next: usize,
    /// Count of elements that are still to come.
    left: usize,
    /// The walk moves away from this end of the list.
    from: End,
    /// If the reply contains the list's key, the index of the argument that names it.
    key: Option<usize>,
    /// Count of all elements of the reply.
    count: usize,
    /// The elements found so far, as replies.
    out: ReplyBuf,
}

/// Begins the reply: an array of `count` elements. If `key` is given, the reply is an array of two:
/// the key, and the array of the elements.
pub(super) fn reply_head(context: &mut Context<'_>, key: Option<usize>, count: usize) {
    if let Some(index) = key {
        context.reply.array(2);
        let key = context.args.bytes(index);
        context.reply.bulk(&key);
    }
    context.reply.array(count);
}

/// A view of a value that is a list.
pub(super) fn list_of(value: &Value) -> ListRef<'_> {
    let collection = value.as_ref().as_collection();
    ListRef::new(collection.expect("the value is a list"))
}

impl Walk {
    /// Replies with `count` elements. Starts with the element at index `next`, and moves away from
    /// the end `from`.
    pub(super) fn run(
        context: &mut Context<'_>,
        source: Value,
        next: usize,
        count: usize,
        from: End,
        key: Option<usize>,
    ) -> Outcome {
        let out = context.reply.for_parts();
        Box::new(Self { source, next, left: count, from, key, count, out }).resume(context)
    }
}

impl Steps for Walk {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let Self { source, next, left, from, out, .. } = &mut *self;
        let list = list_of(source);
        while *left > 0 && !out.is_cut() {
            let (start, mut seen) = (out.len(), 0);
            while *left > 0 && seen < STEP_ELEMENTS_MAX && out.len() - start < STEP_SIZE_MAX {
                let most = if list.is_large_at(*next) { 1 } else { STEP_ELEMENTS_MAX };
                let count = (*left).min(most);
                let passed = list.run(*next, count, *from, |element| element.reply(out));
                *next = match from {
                    End::First => *next + passed,
                    End::Last => next.saturating_sub(passed),
                };
                (*left, seen) = (*left - passed, seen + passed);
            }
            if *left > 0 {
                // The bytes of a sealed `out` can be shared. So the last step need not copy them.
                out.seal();
                if context.mode.yields() {
                    return Outcome::Yield(self);
                }
            }
        }
        reply_head(context, self.key, self.count);
        end_of_steps(context, &self.out, self.source)
    }

    fn has_all(&self) -> bool {
        true
    }

    fn made(&self) -> Option<&ReplyBuf> {
        Some(&self.out)
    }
}
