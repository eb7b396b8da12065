//! Random fields of a hash, in steps if they are many.

use std::collections::BTreeSet;

use slimio_resp::{Piece, ReplyBuf};

use super::hash_walk::{STEP_FIELDS_MAX, STEP_SIZE_MAX, Wanted, pairs};
use super::text;
use crate::context::{Context, Outcome, Yielded};
use crate::hash::{Element, HashRef, HashTree, Position};
use crate::keyspace::Keyspace;
use crate::value::ValueType;

pub(super) fn hrandfield(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    if args.len() > 2 {
        let Some((count, wanted)) = options(context) else { return Outcome::Reply };
        return random_fields(context, count, wanted);
    }
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let random = context.keyspace.random();
    let hash = found.spot.and_then(|spot| context.keyspace.db(found.db).value(spot).as_hash());
    match hash.and_then(|hash| nth(hash, below(random, hash.len()))) {
        Some((field, _)) => field.reply(context.reply),
        None => context.reply.null(),
    }
    Outcome::Reply
}

/// Reads how many fields are wanted (negative: with repetitions), and what to reply of each.
/// Otherwise replies with the error.
fn options(context: &mut Context<'_>) -> Option<(i64, Wanted)> {
    let args = context.args;
    let count = context.integer_arg(2)?;
    let with_values = args.len() > 3;
    if count == i64::MIN {
        let most = i64::MAX;
        let range = format!("value must between -{most} and {most}");
        context.reply.error(&format!("ERR value is out of range, {range}"));
        return None;
    }
    if args.len() > 4 || with_values && !args.get(3).is("withvalues") {
        context.reply.error(text::SYNTAX);
        return None;
    }
    if with_values && !(-i64::MAX / 2..=i64::MAX / 2).contains(&count) {
        context.reply.error("ERR value is out of range");
        return None;
    }
    let wanted = if with_values { pairs(context.reply.protocol()) } else { Wanted::Fields };
    Some((count, wanted))
}

fn random_fields(context: &mut Context<'_>, count: i64, wanted: Wanted) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let Some(hash) = context.hash(&found) else {
        context.reply.array(0);
        return Outcome::Reply;
    };
    let len = hash.len();
    let source = match hash {
        HashRef::Tree(tree) => Source::Tree(tree.clone()),
        HashRef::Packed(piece) => Source::Packed(Piece::clone(piece)),
        HashRef::Inline(bytes) => Source::Packed(Piece::new(bytes.to_vec())),
    };
    let asked = usize::try_from(count.unsigned_abs()).unwrap_or(usize::MAX);
    let (count, choice) = if count < 0 {
        (asked, Choice::Repeated)
    } else if asked.saturating_mul(SPARSE) < len {
        (asked, Choice::Sparse { drawn: BTreeSet::new() })
    } else {
        (asked.min(len), Choice::Dense { position: Position::START, unseen: len })
    };
    let out = context.reply.for_parts();
    Box::new(RandomFields { source, choice, wanted, count, left: count, out }).resume(context)
}

/// If a hash has more than this many fields for each one wanted, they are drawn one by one.
/// Otherwise all fields are walked over.
const SPARSE: usize = 16;

/// A running `HRANDFIELD`, on the hash as it was when the command began.
#[derive(Debug)]
pub struct RandomFields {
    source: Source,
    choice: Choice,
    wanted: Wanted,
    /// Count of fields to reply.
    count: usize,
    /// Count of those not chosen yet.
    left: usize,
    /// The fields chosen so far, as replies.
    out: ReplyBuf,
}

#[derive(Debug)]
enum Source {
    Packed(Piece),
    Tree(HashTree),
}

/// How fields are chosen. Every set of them, or sequence with repetitions, is equally likely.
#[derive(Debug)]
enum Choice {
    /// One by one, with repetitions.
    Repeated,
    /// One by one, without repetitions.
    Sparse { drawn: BTreeSet<usize> },
    /// In one walk over all fields, where each is chosen with a probability of `left / unseen`.
    Dense { position: Position, unseen: usize },
}

impl RandomFields {
    /// Runs another step, in a context as for running the command.
    pub(crate) fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        while self.left > 0 && !self.out.is_cut() {
            self.step(context.keyspace);
            if context.mode.yields() && self.left > 0 {
                return Outcome::Yield(Yielded::RandomFields(self));
            }
        }
        let flat = if self.wanted == Wanted::Both { 2 } else { 1 };
        context.reply.array(self.count * flat);
        context.reply.append(&self.out);
        if let Source::Tree(tree) = self.source {
            // If the key was deleted meanwhile, nobody else holds the fields.
            context.keyspace.displaced.garbage.add_tree(tree);
        }
        Outcome::Reply
    }

    fn step(&mut self, keyspace: &mut Keyspace) {
        let Self { source, choice, wanted, left, out, .. } = self;
        let source = &*source;
        // To find a field in a listpack takes a walk over it. It is short, so collect all at once.
        let packed: Vec<_> = match source {
            Source::Packed(piece) => HashRef::Packed(piece).iter().collect(),
            Source::Tree(_) => Vec::new(),
        };
        let (start, mut fields) = (out.len(), 0);
        while *left > 0 && fields < STEP_FIELDS_MAX && out.len() - start < STEP_SIZE_MAX {
            let random = keyspace.random();
            let len = match source {
                Source::Packed(_) => packed.len(),
                Source::Tree(tree) => tree.len(),
            };
            let index = below(random, len);
            fields += 1;
            match choice {
                Choice::Dense { position, unseen } => {
                    let leaf = match source {
                        Source::Packed(_) => packed.clone(),
                        Source::Tree(tree) => {
                            let (next, entries) = tree.walk(*position);
                            *position = next;
                            entries.map(|entry| (entry.field, entry.value)).collect()
                        }
                    };
                    fields += leaf.len();
                    for (field, value) in leaf {
                        if below(keyspace.random(), *unseen) < *left {
                            wanted.reply(field, value, out);
                            *left -= 1;
                        }
                        *unseen -= 1;
                    }
                    continue;
                }
                Choice::Sparse { drawn } => {
                    if !drawn.insert(index) {
                        continue;
                    }
                }
                Choice::Repeated => {}
            }
            let (field, value) = match source {
                Source::Packed(_) => packed[index],
                Source::Tree(tree) => tree.nth(index),
            };
            wanted.reply(field, value, out);
            *left -= 1;
        }
        // So that the last step need not copy all replies.
        out.seal();
    }
}

/// A number from 0 to `bound` - 1.
fn below(random: u64, bound: usize) -> usize {
    // A random number of 64 bits is so much larger than `bound` that the bias is negligible.
    ((u128::from(random) * bound as u128) >> 64) as usize
}

/// The field at `index`, in the order of storage.
fn nth(hash: HashRef<'_>, index: usize) -> Option<(Element<'_>, Element<'_>)> {
    match hash {
        HashRef::Tree(tree) => Some(tree.nth(index)),
        packed => packed.iter().nth(index),
    }
}
