//! Commands that look for a string among the elements of a list: `LPOS`, `LINSERT` and `LREM`.
//!
//! All of them look through a large list in steps. `LPOS` looks through a clone. `LINSERT` and
//! `LREM` change what they find, so they hold their key meanwhile: other clients' requests for the
//! key wait.

use slimio_planted::is_planted;
use slimio_resp::{Arg, Args, ReplyBuf};

use super::{LINSERT, LREM, ListRef};
use crate::collection::positional::{End, INSIDE_SIZE_MAX, PositionalTree, Wanted};
use crate::command::Weight;
use crate::commands::elements::{ELEMENTS_AT_ONCE_MAX, end_of_steps};
use crate::commands::text;
use crate::context::{Context, Outcome, Steps};
use crate::events::DEL;
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::ValueType;
use crate::value::Value;

/// In the time that a command needs to handle one element, this many elements could be compared
/// with a string.
const COMPARED_PER_ELEMENT: usize = 16;

/// A step of a command ends when its cost reaches this limit. The unit is a comparison with a short
/// element.
const STEP_COMPARED_MAX: usize = ELEMENTS_AT_ONCE_MAX * COMPARED_PER_ELEMENT;

/// Comparing this many bytes of a long string takes as long as comparing a short element. So a
/// string longer than [`SHORT_SIZE_MAX`] costs more.
const BYTES_PER_COMPARISON: usize = 64;

/// Size in bytes of the longest string that counts as short. Longer strings are outside their
/// leaves.
const SHORT_SIZE_MAX: usize = INSIDE_SIZE_MAX;

/// A leaf has a code for each of its elements, which says how the element is stored and how long it
/// is. Going over this many codes takes as long as comparing a short element.
const CODES_PER_COMPARISON: usize = 4;

/// At most this many bytes of an element are compared at a time.
const PIECE_SIZE: usize = 256 << 10;

/// The cost of comparing an element with the string `wanted`. The unit is a comparison with a short
/// string.
fn comparison_cost(wanted: Arg<'_>) -> usize {
    let is_long = wanted.size() > SHORT_SIZE_MAX && !is_planted("long-elements-cost-nothing");
    1 + if is_long { wanted.size() / BYTES_PER_COMPARISON } else { 0 }
}

/// Removing one element takes as long as this many comparisons.
const REMOVAL_COST: usize = 64;

/// The text is that of Redis since 7.2.
const RANK_OUT_OF_RANGE: &str = "ERR value is out of range, value must between \
-9223372036854775807 and 9223372036854775807";

/// Looks for a string, from one end towards the other.
#[derive(Clone, Copy, Debug)]
pub(super) struct Search {
    from: End,
    /// Count of elements that the search has passed.
    seen: usize,
    /// How many bytes of the next element are known to be equal to those of the string.
    equal: usize,
    /// The search looks at no more than this many elements.
    most: usize,
}

impl Search {
    pub(super) fn new(from: End, most: usize) -> Self {
        let from = if is_planted("search-from-first") { End::First } else { from };
        Self { from, seen: 0, equal: 0, most }
    }

    pub(super) fn is_over(self, list: ListRef<'_>) -> bool {
        self.seen >= self.most.min(list.len())
    }

    /// Looks at the elements of one more leaf, or at all elements of a listpack. If the wanted
    /// string is long, looks at a part of one element. Passes to `each` the index of each element
    /// that is equal to the string, until `each` returns `false`. Returns the cost of the step, in
    /// comparisons with a short string. The search must not be over.
    pub(super) fn step(
        &mut self,
        list: ListRef<'_>,
        wanted: Arg<'_>,
        mut each: impl FnMut(usize) -> bool,
    ) -> usize {
        if let Some(tree) = list.tree().filter(|_| wanted.size() > SHORT_SIZE_MAX) {
            return self.step_long(tree, list.len(), wanted, each);
        }
        let (len, most) = (list.len(), self.most);
        let mut found = Vec::new();
        let seen = if let Some(tree) = list.tree() {
            let index = match self.from {
                End::First => self.seen,
                End::Last => len - 1 - self.seen,
            };
            let (first, leaf) = tree.leaf_at(index);
            Wanted::new(wanted).find_in(leaf, &mut found);
            for index in &mut found {
                *index += first;
            }
            match self.from {
                End::First => first + leaf.len(),
                End::Last => len - first,
            }
        } else {
            let listpack = list.listpack().unwrap_or(&slimio_rdb::listpack::EMPTY);
            let string = wanted.to_bytes();
            found.extend(slimio_rdb::listpack::matches(listpack, &string).map(|it| it.0));
            len
        };
        // How many elements the search passes before the element at an index.
        let before = |index: &usize| match self.from {
            End::First => *index,
            End::Last => len - 1 - *index,
        };
        let is_new = |index: &usize| (self.seen..most).contains(&before(index));
        let is_rest = |index: usize| is_new(&index).then_some(index);
        let mut forth = found.iter().copied().filter_map(is_rest);
        let mut back = found.iter().rev().copied().filter_map(is_rest);
        match self.from {
            End::First => forth.all(&mut each),
            End::Last => back.all(&mut each),
        };
        seen - std::mem::replace(&mut self.seen, seen)
    }

    /// Like [`step`](Self::step), for a long string. Goes to the leaf's next element that has the
    /// same size as the string, and compares a part of that element.
    fn step_long(
        &mut self,
        tree: &PositionalTree,
        len: usize,
        wanted: Arg<'_>,
        mut each: impl FnMut(usize) -> bool,
    ) -> usize {
        let size = wanted.size();
        let index_of = |seen: usize| match self.from {
            End::First => seen,
            End::Last => len - 1 - seen,
        };
        let (first, leaf) = tree.leaf_at(index_of(self.seen));
        let within = leaf.next_outside(index_of(self.seen) - first, self.from, size);
        // How many elements the search passes before the next element of this size. If the leaf has
        // no such element, how many it passes before the next leaf.
        let before = match (within, self.from) {
            (Some(within), _) => index_of(first + within),
            (None, End::First) => first + leaf.len(),
            (None, End::Last) => len - first,
        };
        // To find the next element of this size, `next_outside` has gone over all codes of the
        // leaf.
        let mut cost = before - self.seen + leaf.len() / CODES_PER_COMPARISON;
        if before > self.seen {
            (self.seen, self.equal) = (before, 0);
        }
        let Some(within) = within.filter(|_| before < self.most) else { return cost };
        let piece = if is_planted("long-compared-at-once") { size } else { PIECE_SIZE };
        let range = self.equal..size.min(self.equal + piece);
        cost += 1 + range.len() / BYTES_PER_COMPARISON;
        let is_equal = leaf.is_in(within, wanted, range.clone());
        if is_equal && range.end < size {
            self.equal = range.end;
            return cost;
        }
        (self.seen, self.equal) = (before + 1, 0);
        if is_equal {
            each(first + within);
        }
        cost
    }

    /// Searches like [`step`](Self::step). Returns the indices of up to `count` elements that are
    /// equal to the wanted string, and the cost of the step. The indices ascend. The caller must
    /// remove these elements, because the search does not count them as passed.
    pub(super) fn step_removing(
        &mut self,
        list: ListRef<'_>,
        wanted: Arg<'_>,
        count: usize,
    ) -> (Vec<usize>, usize) {
        let mut found = Vec::new();
        let cost = self.step(list, wanted, |index| {
            found.push(index);
            found.len() < count
        });
        if self.from == End::Last {
            found.reverse();
        }
        self.seen -= found.len();
        (found, cost)
    }
}

/// What `LPOS` asks for.
#[derive(Clone, Copy, Debug)]
struct Positions {
    search: Search,
    /// Count of matches that the reply leaves out at the beginning.
    skipped: usize,
    /// If set, the reply is an array of at most this many positions.
    count: Option<usize>,
}

pub(super) fn lpos(context: &mut Context<'_>) -> Outcome {
    let Some(asked) = positions(context) else { return Outcome::Reply };
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    let Some(source) = context.list_at(&found).map(ListRef::to_value) else {
        match asked.count {
            Some(_) => context.reply.array(0),
            None => context.reply.null(),
        }
        return Outcome::Reply;
    };
    let out = context.reply.for_parts();
    Box::new(Finding { source, asked, met: 0, found: 0, out }).resume(context)
}

/// Reads the options of `LPOS`, or replies with the error.
fn positions(context: &mut Context<'_>) -> Option<Positions> {
    let args = context.args;
    let (mut rank, mut count, mut most) = (1, None, usize::MAX);
    let mut at = 3;
    while at < args.len() {
        let (name, has_more) = (args.get(at), at + 1 < args.len());
        let natural = || args.get(at + 1).to_i64().and_then(|it| usize::try_from(it).ok());
        if name.is("rank") && has_more {
            rank = context.integer_arg(at + 1)?;
            if rank == i64::MIN {
                // Negating this number would overflow.
                context.error(RANK_OUT_OF_RANGE);
                return None;
            }
            if rank == 0 {
                context.error(
                    "ERR RANK can't be zero: use 1 to start from the first match, 2 from the \
                     second ... or use negative to start from the end of the list",
                );
                return None;
            }
        } else if name.is("count") && has_more {
            count = natural();
            if count.is_none() {
                context.error("ERR COUNT can't be negative");
                return None;
            }
        } else if name.is("maxlen") && has_more {
            let Some(limit) = natural() else {
                context.error("ERR MAXLEN can't be negative");
                return None;
            };
            most = if limit == 0 { usize::MAX } else { limit };
        } else {
            context.error(text::SYNTAX);
            return None;
        }
        at += 2;
    }
    let from = if rank < 0 { End::Last } else { End::First };
    let skipped = usize::try_from(rank.unsigned_abs() - 1).unwrap_or(usize::MAX);
    let count = count.map(|count| if count == 0 { usize::MAX } else { count });
    Some(Positions { search: Search::new(from, most), skipped, count })
}

/// A running `LPOS`. `source` is the list as it was when the command began.
#[derive(Debug)]
struct Finding {
    source: Value,
    asked: Positions,
    /// Count of matches so far, including those that the reply leaves out.
    met: usize,
    /// Count of positions in the reply.
    found: usize,
    /// The positions found so far, as replies.
    out: ReplyBuf,
}

impl Steps for Finding {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let Self { source, asked, met, found, out } = &mut *self;
        let (list, wanted) = (super::walk::list_of(source), context.args.get(2));
        let limit = asked.count.unwrap_or(1);
        let mut cost = 0;
        while !asked.search.is_over(list) && *found < limit && !out.is_cut() {
            if cost >= STEP_COMPARED_MAX {
                // Sealed bytes are not copied again. If `out` were not sealed now, the last step
                // would copy all positions into the reply.
                out.seal_if_large();
                if context.mode.yields() {
                    return Outcome::Yield(self);
                }
                cost = 0;
            }
            let before = *found;
            cost += asked.search.step(list, wanted, |index| {
                *met += 1;
                if *met > asked.skipped {
                    *found += 1;
                    out.integer(index as i64);
                }
                *found < limit
            });
            cost += (*found - before) * COMPARED_PER_ELEMENT;
        }
        match asked.count {
            None if *found == 0 => context.reply.null(),
            None => {}
            Some(_) => context.reply.array(*found),
        }
        end_of_steps(context, &self.out, self.source)
    }

    fn has_all(&self) -> bool {
        true
    }

    fn made(&self) -> Option<&ReplyBuf> {
        Some(&self.out)
    }
}

/// Weighs `LINSERT` and `LREM`: returns how many elements a command could handle in the time that a
/// search of the whole list takes.
pub(super) fn weigh_search(keyspace: &Keyspace, db: DbIndex, args: Args<'_>) -> Weight {
    let len = super::len_at(keyspace, db, &args.bytes(1)).unwrap_or(0);
    let cost = len.saturating_mul(comparison_cost(args.get(3)));
    Weight { elements: cost / COMPARED_PER_ELEMENT, log_size: 0 }
}

/// Whether the list is so long that the request holds its key while it runs.
fn is_held(context: &Context<'_>) -> bool {
    let Context { keyspace, db, args, .. } = context;
    weigh_search(keyspace, *db, *args).elements > ELEMENTS_AT_ONCE_MAX && context.mode.yields()
}

pub(super) fn linsert(context: &mut Context<'_>) -> Outcome {
    let behind = context.args.get(2).is("after");
    if !behind && !context.args.get(2).is("before") {
        return context.error(text::SYNTAX);
    }
    let found = context.find(1);
    if found.spot.is_none() {
        return context.integer(0);
    }
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    let search = Search::new(End::First, usize::MAX);
    Box::new(Insertion { search, behind, is_held: is_held(context) }).resume(context)
}

/// A running `LINSERT`.
#[derive(Debug)]
struct Insertion {
    search: Search,
    /// Whether the new element is inserted after the element that is searched for, not before it.
    behind: bool,
    is_held: bool,
}

impl Steps for Insertion {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let found = context.peek(1);
        let (wanted, mut place, mut cost) = (context.args.get(3), None, 0);
        {
            let Some(list) = context.list_at(&found) else { return context.integer(0) };
            while place.is_none() && !self.search.is_over(list) {
                if self.is_held && cost >= STEP_COMPARED_MAX {
                    return Outcome::Yield(self);
                }
                cost += self.search.step(list, wanted, |index| {
                    place = Some(index);
                    false
                });
            }
        }
        let Some(index) = place else { return context.integer(-1) };
        let index = index + usize::from(self.behind && !is_planted("insert-before"));
        let element = context.args.get(4);
        let len = context.edit_list(&found, |list| {
            list.insert(index, element);
            list.len()
        });
        context.touch(&found, LINSERT);
        context.log_request();
        context.integer(len as i64)
    }
}

pub(super) fn lrem(context: &mut Context<'_>) -> Outcome {
    let Some(count) = context.integer_arg(2) else { return Outcome::Reply };
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::List) {
        return Outcome::Reply;
    }
    if found.spot.is_none() {
        return context.integer(0);
    }
    let from = if count < 0 { End::Last } else { End::First };
    let most = match count {
        0 => usize::MAX,
        _ => usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX),
    };
    let search = Search::new(from, usize::MAX);
    let is_held = is_held(context);
    Box::new(Removal { search, left: most, removed: 0, is_held }).resume(context)
}

/// A running `LREM`.
#[derive(Debug)]
struct Removal {
    search: Search,
    /// How many more elements are removed at most.
    left: usize,
    removed: usize,
    is_held: bool,
}

impl Steps for Removal {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let found = context.peek(1);
        let wanted = context.args.get(3);
        let mut cost = 0;
        while self.left > 0
            && let Some(list) = context.list_at(&found)
            && !self.search.is_over(list)
        {
            if self.is_held && cost >= STEP_COMPARED_MAX {
                return Outcome::Yield(self);
            }
            let (removed, of_search) = self.search.step_removing(list, wanted, self.left);
            let count = removed.len();
            cost += of_search + count * REMOVAL_COST;
            if count > 0 {
                context.edit_list(&found, |list| list.remove(&removed));
                (self.removed, self.left) = (self.removed + count, self.left - count);
            }
        }
        if self.removed == 0 {
            return context.integer(0);
        }
        let left = context.edit_list(&found, |list| {
            list.settle();
            list.len()
        });
        context.touch(&found, LREM);
        if left == 0 {
            context.delete(&found, DEL);
        }
        context.log_request();
        context.integer(self.removed as i64)
    }
}
