//! Commands on whole hashes. A large one is read in steps, from a clone that no later write
//! changes.

use std::cell::Cell;

use slimio_resp::{Protocol, ReplyBuf};

use super::scan::{STEP_COST_MAX, parse_cursor, reply_scan, scan_options};
use super::text;
use crate::context::{Context, Outcome, Yielded};
use crate::hash::{Element, HashRef, HashTree, Position};
use crate::value::ValueType;

/// Most fields of a hash that one step looks at.
pub(super) const STEP_FIELDS_MAX: usize = 1024;

/// Bytes of replies after which a step ends.
pub(super) const STEP_SIZE_MAX: usize = 64 * 1024;

/// What to reply of each field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Wanted {
    Fields,
    Values,
    Both,
    /// Each field with its value in an array of its own.
    Pairs,
}

impl Wanted {
    pub(super) fn reply(self, field: Element<'_>, value: Element<'_>, reply: &mut ReplyBuf) {
        if self == Wanted::Pairs {
            reply.array(2);
        }
        if self != Wanted::Values {
            field.reply(reply);
        }
        if self != Wanted::Fields {
            value.reply(reply);
        }
    }
}

pub(super) fn hgetall(context: &mut Context<'_>) -> Outcome {
    walk(context, Wanted::Both)
}

pub(super) fn hkeys(context: &mut Context<'_>) -> Outcome {
    walk(context, Wanted::Fields)
}

pub(super) fn hvals(context: &mut Context<'_>) -> Outcome {
    walk(context, Wanted::Values)
}

fn walk(context: &mut Context<'_>, wanted: Wanted) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let hash = found.spot.and_then(|spot| context.keyspace.db(found.db).value(spot).as_hash());
    let len = hash.map_or(0, HashRef::len);
    if let Some(HashRef::Tree(tree)) = hash
        && tree.is_large()
    {
        let out = context.reply.for_parts();
        let walk = FieldsWalk { tree: tree.clone(), position: Position::START, wanted, out };
        return Box::new(walk).resume(context);
    }
    reply_head(wanted, len, context.reply);
    for (field, value) in hash.into_iter().flat_map(HashRef::iter) {
        wanted.reply(field, value, context.reply);
    }
    Outcome::Reply
}

fn reply_head(wanted: Wanted, len: usize, reply: &mut ReplyBuf) {
    if wanted == Wanted::Both { reply.map(len) } else { reply.array(len) }
}

/// The walk of `HGETALL`, `HKEYS` or `HVALS` over a large hash, as it was when the walk began.
#[derive(Debug)]
pub struct FieldsWalk {
    tree: HashTree,
    position: Position,
    wanted: Wanted,
    /// The fields found so far, as replies.
    out: ReplyBuf,
}

impl FieldsWalk {
    /// Runs another step, in a context as for running the command.
    pub(crate) fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        while self.position != Position::END && !self.out.is_cut() {
            self.step();
            if context.mode.yields() && self.position != Position::END {
                return Outcome::Yield(Yielded::Fields(self));
            }
        }
        reply_head(self.wanted, self.tree.len(), context.reply);
        context.reply.append(&self.out);
        // If the key was deleted meanwhile, nobody else holds the fields.
        context.keyspace.displaced.garbage.add_tree(self.tree);
        Outcome::Reply
    }

    fn step(&mut self) {
        let (start, mut fields) = (self.out.len(), 0);
        while self.position != Position::END
            && fields < STEP_FIELDS_MAX
            && self.out.len() - start < STEP_SIZE_MAX
        {
            let (next, entries) = self.tree.walk(self.position);
            for entry in entries {
                self.wanted.reply(entry.field, entry.value, &mut self.out);
                fields += 1;
            }
            self.position = next;
        }
        // So that the last step need not copy all replies.
        self.out.seal();
    }
}

pub(super) fn hscan(context: &mut Context<'_>) -> Outcome {
    let Some(cursor) = parse_cursor(&context.args.bytes(2)) else {
        return context.error(text::INVALID_CURSOR);
    };
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    if found.spot.is_none() {
        reply_scan(context.reply, 0, 0);
        return Outcome::Reply;
    }
    let Some(options) = scan_options(context, 3, false) else { return Outcome::Reply };
    let mut out = context.reply.for_parts();
    let (mut position, mut count, cost) = (Position::END, 0, Cell::new(0));
    let mut reply = |field: Element<'_>, value: Element<'_>| {
        cost.set(cost.get() + options.cost_of(&field.to_bytes()));
        if options.matches(&field.to_bytes()) {
            Wanted::Both.reply(field, value, &mut out);
            count += 2;
        }
    };
    match context.hash(&found) {
        Some(HashRef::Tree(tree)) => {
            position = Position(cursor);
            let (wanted, mut fields) = (options.count.min(STEP_FIELDS_MAX), 0);
            // No scan returns a cursor beyond the end. Such a cursor ends the scan.
            while position < Position::END && fields < wanted && cost.get() < STEP_COST_MAX {
                let (next, entries) = tree.walk(position);
                for entry in entries {
                    reply(entry.field, entry.value);
                    fields += 1;
                }
                position = next;
            }
        }
        // All at once, as in Redis, whatever the cursor.
        Some(packed) => packed.iter().for_each(|(field, value)| reply(field, value)),
        None => {}
    }
    let cursor = if position < Position::END { position.0 } else { 0 };
    reply_scan(context.reply, cursor, count);
    context.reply.append(&out);
    Outcome::Reply
}

/// How `HRANDFIELD` replies with fields and values.
pub(super) fn pairs(protocol: Protocol) -> Wanted {
    match protocol {
        Protocol::Resp2 => Wanted::Both,
        Protocol::Resp3 => Wanted::Pairs,
    }
}
