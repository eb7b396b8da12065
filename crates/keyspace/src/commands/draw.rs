//! Draws random elements of a collection, in steps if there are many.

use std::collections::BTreeSet;

use slimio_planted::is_planted;
use slimio_resp::ReplyBuf;

use super::elements::{STEP_ELEMENTS_MAX, STEP_SIZE_MAX, Wanted, each_element};
use super::lookup::Found;
use crate::collection::{CollectionRef, Element};
use crate::context::{Context, Outcome, Steps};
use crate::keyspace::Keyspace;
use crate::table::worth_deferring;
use crate::value::{Value, ValueRef};

/// If a collection has more than this many elements for each wanted element, the wanted elements
/// are drawn one by one. Otherwise, the draw walks over all elements.
const SPARSE: usize = 16;

impl Context<'_> {
    /// Replies with the first string of one random element, or with null if the key does not exist.
    pub(crate) fn reply_random(&mut self, found: &Found<'_>) -> Outcome {
        let random = self.keyspace.random();
        let value = found.spot.map(|spot| self.keyspace.db(found.db).value(spot));
        match value.and_then(ValueRef::as_collection) {
            Some(collection) => collection.nth(below(random, collection.len())).reply(self.reply),
            None => self.reply.null(),
        }
        Outcome::Reply
    }

    /// Replies with an array of random elements. If `count` is negative, an element may come
    /// several times.
    pub(crate) fn reply_randoms(
        &mut self,
        found: &Found<'_>,
        count: i64,
        wanted: Wanted,
    ) -> Outcome {
        let Some(collection) = self.value(found).and_then(ValueRef::as_collection) else {
            self.reply.array(0);
            return Outcome::Reply;
        };
        let draw = Draw::new(collection.to_value(), count);
        let (count, out) = (draw.left, self.reply.for_parts());
        Box::new(RandomElements { draw, wanted, count, out }).resume(self)
    }
}

/// At most this many elements are drawn one by one in one step. Each of them is found by a walk
/// through the collection's tree.
const STEP_DRAWS_MAX: usize = 256;

/// A running command that replies with random elements.
#[derive(Debug)]
struct RandomElements {
    draw: Draw,
    wanted: Wanted,
    /// Count of elements to reply.
    count: usize,
    /// The elements drawn so far, as replies.
    out: ReplyBuf,
}

impl Steps for RandomElements {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let Self { draw, wanted, out, .. } = &mut *self;
        while draw.left > 0 && !out.is_cut() {
            let start = out.len();
            draw.step(context.keyspace, |element| {
                wanted.reply(element, out);
                out.len() - start < STEP_SIZE_MAX
            });
            // The last step appends `out` to the reply. It need not copy bytes that are sealed.
            out.seal();
            if context.mode.yields() && draw.left > 0 {
                return Outcome::Yield(self);
            }
        }
        let flat =
            if self.wanted == Wanted::All { self.draw.collection().strings_each() } else { 1 };
        context.reply.array(self.count * flat);
        context.reply.append(&self.out);
        self.draw.finish(context.keyspace);
        Outcome::Reply
    }

    fn has_all(&self) -> bool {
        true
    }

    fn made(&self) -> Option<&ReplyBuf> {
        Some(&self.out)
    }
}

/// Draws elements of a collection as it was when the draw began.
#[derive(Debug)]
pub(crate) struct Draw {
    source: Value,
    choice: Choice,
    /// Count of elements that are still to be drawn.
    pub(crate) left: usize,
}

/// How elements are drawn. Without repetitions, every set of elements is equally likely. With
/// repetitions, every sequence of elements is equally likely.
#[derive(Debug)]
enum Choice {
    /// One by one, with repetitions.
    Repeated,
    /// One by one, without repetitions.
    Sparse { drawn: BTreeSet<usize> },
    /// In one walk over all elements. Each element is chosen with a probability of `left` divided
    /// by the number of elements from this element on.
    Dense { index: usize },
}

impl Draw {
    /// Draws `count` elements of a collection, or all elements if there are fewer. If `count` is
    /// negative, draws `-count` elements, and an element may be drawn several times.
    ///
    /// Panics if the value is no collection.
    pub(crate) fn new(source: Value, count: i64) -> Self {
        let len = source.as_ref().as_collection().expect("the value is a collection").len();
        let wanted = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
        let (left, choice) = if count < 0 {
            (wanted, Choice::Repeated)
        } else if wanted.saturating_mul(SPARSE) < len {
            (wanted, Choice::Sparse { drawn: BTreeSet::new() })
        } else {
            (wanted.min(len), Choice::Dense { index: 0 })
        };
        Self { source, choice, left }
    }

    /// Roughly how many elements have to be looked at to draw `count` out of `len` elements without
    /// repetitions.
    pub(crate) fn cost(len: usize, count: usize) -> usize {
        if count.saturating_mul(SPARSE) < len { 2 * count } else { len }
    }

    fn collection(&self) -> CollectionRef<'_> {
        self.source.as_ref().as_collection().expect("the draw is from a collection")
    }

    /// Draws some more elements, and passes each of them to `take`. If `take` returns false, the
    /// step ends: at once if elements are drawn one by one, or at the end of the current leaf if
    /// the draw walks over all elements.
    pub(crate) fn step(
        &mut self,
        keyspace: &mut Keyspace,
        mut take: impl FnMut(&[Element<'_>]) -> bool,
    ) {
        let Self { source, choice, left } = self;
        let collection = source.as_ref().as_collection().expect("the draw is from a collection");
        let (len, count) = (collection.len(), collection.strings_each());
        // Finding an element in a listpack takes a walk over it. Because a listpack is short, all
        // its strings are collected once instead.
        let packed: Vec<_> = match (&choice, collection.tree()) {
            (Choice::Dense { .. }, _) | (_, Some(_)) => Vec::new(),
            (_, None) => collection.strings().collect(),
        };
        let is_dense = matches!(choice, Choice::Dense { .. });
        let seen_max = if is_dense { STEP_ELEMENTS_MAX } else { STEP_DRAWS_MAX };
        let (mut seen, mut goes_on) = (0, true);
        while *left > 0 && seen < seen_max && goes_on {
            if let Choice::Dense { index } = choice {
                each_element(count, collection.strings_of_leaf(*index), |element| {
                    let is_skipped = *index == 0 && *left < len && is_planted("draw-skips-first");
                    if below(keyspace.random(), len - *index) < *left && !is_skipped {
                        goes_on &= take(element);
                        *left -= 1;
                    }
                    *index += 1;
                    seen += 1;
                });
                continue;
            }
            let index = below(keyspace.random(), len);
            seen += 1;
            if let Choice::Sparse { drawn } = choice
                && !drawn.insert(index)
            {
                continue;
            }
            if packed.is_empty() {
                let strings = collection.strings_of_leaf(index).take(count);
                each_element(count, strings, |element| goes_on &= take(element));
            } else {
                goes_on &= take(&packed[index * count..][..count]);
            }
            *left -= 1;
        }
    }

    /// Ends the draw.
    pub(crate) fn finish(self, keyspace: &mut Keyspace) {
        let garbage = &mut keyspace.displaced.garbage;
        // If the key was deleted meanwhile, this is the last reference to the elements. So they go
        // to the garbage, which another thread frees.
        garbage.add_value(worth_deferring(self.source));
        if let Choice::Sparse { drawn } = self.choice
            && drawn.len() > STEP_DRAWS_MAX
        {
            garbage.drawn.push(drawn);
        }
    }
}

/// A number from 0 to `bound` - 1.
pub(crate) fn below(random: u64, bound: usize) -> usize {
    // A random number of 64 bits is so much larger than `bound` that the bias is negligible.
    ((u128::from(random) * bound as u128) >> 64) as usize
}
