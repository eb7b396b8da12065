//! Random members: `SPOP` and `SRANDMEMBER`. The log says which members `SPOP` removed.

use slimio_planted::is_planted;
use slimio_resp::{Arg, Args, ReplyBuf};

use super::SetRef;
use crate::command::Weight;
use crate::commands::draw::{Draw, below};
use crate::commands::elements::{ELEMENTS_AT_ONCE_MAX, ElementsWalk, Head, Wanted};
use crate::commands::lookup::Found;
use crate::commands::text;
use crate::context::{Context, Outcome, Steps};
use crate::effects::Part;
use crate::events::{DEL, events};
use crate::keyspace::{DbIndex, Keyspace};
use crate::kinds::ValueType;
use crate::value::ValueRef;

events!(Set: SPOP "spop");

/// One step removes up to this many members, and one logged `SREM` names up to this many.
const LOGGED_MEMBERS_MAX: usize = 128;

/// Bytes that a logged `SREM` takes in addition to its key and members. The length that precedes
/// each member takes up to [`MEMBER_SIZE`] more bytes.
const SREM_SIZE: u64 = 32;
const MEMBER_SIZE: u64 = 10;

/// Size in bytes of the longest integer, as text.
const INTEGER_SIZE_MAX: usize = 20;

const NO_ROOM: &str = "MISCONF The log has too little room for what SPOP takes out of a set that the \
                       same transaction has changed; run SPOP after EXEC";

pub(super) fn srandmember(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    if args.len() > 3 {
        return context.error(text::SYNTAX);
    }
    let count = match args.len() {
        3 => match context.integer_arg(2) {
            Some(count) => Some(count),
            None => return Outcome::Reply,
        },
        _ => None,
    };
    if count == Some(i64::MIN) {
        let most = i64::MAX;
        let range = format!("value must between -{most} and {most}");
        return context.error(&format!("ERR value is out of range, {range}"));
    }
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Set) {
        return Outcome::Reply;
    }
    match count {
        Some(count) => context.reply_randoms(&found, count, Wanted::First),
        None => context.reply_random(&found),
    }
}

/// Weighs `SPOP`: its work, counted in elements, and the bytes of the removals in the log.
pub(super) fn weigh_pop(keyspace: &Keyspace, db: DbIndex, args: Args<'_>) -> Weight {
    let key = args.bytes(1);
    let collection = keyspace.get(db, &key, i64::MIN).and_then(ValueRef::as_collection);
    let Some(set) = collection.filter(|it| it.value_type() == ValueType::Set).map(SetRef::new)
    else {
        return Weight::default();
    };
    let count = match args.len() {
        2 => 1,
        _ => args.get(2).to_i64().and_then(|count| usize::try_from(count).ok()).unwrap_or(0),
    };
    if count >= set.len() {
        // If the command has a count, it logs a deletion of the key, not a removal of members.
        let log_size =
            if args.len() == 2 { removal_size(&key, 1, set.member_size_max()) } else { 0 };
        return Weight { elements: set.len(), log_size };
    }
    let size = if is_planted("spop-asks-little") { 0 } else { set.size_max(count) };
    let log_size = removal_size(&key, count, size);
    Weight { elements: Draw::cost(set.len(), count) * set.0.change_cost(), log_size }
}

/// Upper bound of the bytes in the log that the removal of `count` members takes. The members have
/// `size` bytes in all.
fn removal_size(key: &[u8], count: usize, size: usize) -> u64 {
    let logged = count.div_ceil(LOGGED_MEMBERS_MAX) as u64;
    size as u64 + count as u64 * MEMBER_SIZE + logged * (key.len() as u64 + SREM_SIZE)
}

impl SetRef<'_> {
    /// Upper bound of the size of `count` members, in bytes.
    fn size_max(self, count: usize) -> usize {
        let of_longest = count.saturating_mul(self.member_size_max());
        if is_planted("spop-asks-for-longest") {
            return of_longest;
        }
        // A string takes at least its own size in memory, unless it is stored as an integer.
        let in_memory = self.tree().map_or_else(|| self.packed_size(), super::SetTree::memory);
        of_longest.min(in_memory + count * INTEGER_SIZE_MAX)
    }

    /// Upper bound of the size of a member, in bytes.
    fn member_size_max(self) -> usize {
        let size = self.tree().map_or_else(|| self.packed_size(), super::SetTree::key_size_max);
        size.max(INTEGER_SIZE_MAX)
    }
}

pub(super) fn spop(context: &mut Context<'_>) -> Outcome {
    let args = context.args;
    if args.len() > 3 {
        return context.error(text::SYNTAX);
    }
    let count = if args.len() == 3 {
        match args.get(2).to_i64().and_then(|count| usize::try_from(count).ok()) {
            Some(count) => Some(count),
            None => return context.error("ERR value is out of range, must be positive"),
        }
    } else {
        None
    };
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::Set) {
        return Outcome::Reply;
    }
    let len = context.set_at(&found).map_or(0, SetRef::len);
    if len == 0 || count == Some(0) {
        match count {
            Some(_) => context.reply.set(0),
            None => context.reply.null(),
        }
        return Outcome::Reply;
    }
    match count {
        None => pop_one(context, &found),
        Some(count) => pop_many(context, &found, count),
    }
}

fn pop_one(context: &mut Context<'_>, found: &Found<'_>) -> Outcome {
    let random = context.keyspace.random();
    let value = found.spot.map(|spot| context.keyspace.db(found.db).value(spot));
    let Some(set) = value.and_then(ValueRef::as_collection) else { return Outcome::Reply };
    let element = set.nth(below(random, set.len()));
    if !context.effects.take_value_room(removal_size(&found.key, 1, element.size())) {
        return context.error(NO_ROOM);
    }
    element.reply(context.reply);
    let member = element.to_bytes().into_owned();
    log_removal(context, &[&member]);
    context.remove_members(found, std::iter::once(Arg::Bytes(&member)), Some(SPOP));
    Outcome::Reply
}

/// Logs that members are removed.
fn log_removal(context: &mut Context<'_>, members: &[impl AsRef<[u8]>]) {
    if is_planted("spop-logged-as-request") {
        return context.log_request();
    }
    let mut parts = vec![Part::Bytes(b"SREM"), Part::Request(1)];
    parts.extend(members.iter().map(|member| Part::Bytes(member.as_ref())));
    context.log(&parts);
}

fn pop_many(context: &mut Context<'_>, found: &Found<'_>, count: usize) -> Outcome {
    let weight = weigh_pop(context.keyspace, context.db, context.args);
    let value = context.value(found).and_then(ValueRef::as_collection);
    let Some(set) = value else { return Outcome::Reply };
    let is_long = weight.elements > ELEMENTS_AT_ONCE_MAX;
    let source = set.to_value();
    if count >= set.len() {
        let walk = ElementsWalk::new(source, Wanted::First, Head::Set, context.reply);
        return Box::new(PopAll { walk: Box::new(walk), is_long }).resume(context);
    }
    let draw = Draw::new(source, count as i64);
    let out = context.reply.for_parts();
    let members = Members::default();
    Box::new(PopMany { draw, members, is_removing: false, is_long, out }).resume(context)
}

/// A running `SPOP` that removes all members.
#[derive(Debug)]
struct PopAll {
    walk: Box<dyn Steps>,
    /// Whether the command has so much to do that it runs in steps. It may then pause between
    /// steps, because no other client uses its key meanwhile: other clients' requests for the key
    /// wait until the command has ended.
    is_long: bool,
}

impl Steps for PopAll {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        loop {
            match self.walk.resume(context) {
                Outcome::Yield(walk) => {
                    self.walk = walk;
                    if self.is_long {
                        return Outcome::Yield(self);
                    }
                }
                outcome => {
                    let found = context.peek(1);
                    context.delete(&found, SPOP);
                    context.note(1, DEL);
                    context.log(&[Part::Bytes(b"DEL"), Part::Request(1)]);
                    return outcome;
                }
            }
        }
    }

    fn made(&self) -> Option<&ReplyBuf> {
        self.walk.made()
    }
}

/// A running `SPOP` that removes some members. It first draws all these members, then removes them.
#[derive(Debug)]
struct PopMany {
    draw: Draw,
    /// The members that are drawn but not removed yet.
    members: Members,
    is_removing: bool,
    /// As in [`PopAll`].
    is_long: bool,
    /// The members drawn so far, as replies.
    out: ReplyBuf,
}

impl Steps for PopMany {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let yields = self.is_long && context.mode.yields();
        while !self.members.parts.is_empty() || self.draw.left > 0 {
            if !self.step(context) {
                self.draw.finish(context.keyspace);
                return context.error(NO_ROOM);
            }
            if yields {
                return Outcome::Yield(self);
            }
        }
        context.reply.set(self.members.count);
        context.reply.append(&self.out);
        self.draw.finish(context.keyspace);
        context.note(1, SPOP);
        Outcome::Reply
    }

    fn made(&self) -> Option<&ReplyBuf> {
        Some(&self.out)
    }
}

impl PopMany {
    /// Draws or removes some more members. Returns `false` if the log has no room for all removals.
    /// In this case, nothing was removed.
    fn step(&mut self, context: &mut Context<'_>) -> bool {
        let Self { draw, members, is_removing, out, .. } = self;
        if draw.left > 0 {
            draw.step(context.keyspace, |element| {
                element[0].reply(out);
                members.add(element[0].to_bytes().into_owned());
                true
            });
            // Sealing `out` makes its bytes shareable. So the last step need not copy all replies.
            out.seal();
            return true;
        }
        if !*is_removing {
            let size = removal_size(&context.args.bytes(1), members.count, members.size);
            if !context.effects.take_value_room(size) {
                return false;
            }
            *is_removing = true;
        }
        let Some(part) = members.parts.pop() else { return true };
        let found = context.peek(1);
        context.remove_members(&found, part.iter().map(|member| Arg::Bytes(member)), None);
        log_removal(context, &part);
        true
    }
}

/// Members in parts of up to [`LOGGED_MEMBERS_MAX`]. Each part is freed once its members are
/// removed.
#[derive(Debug, Default)]
struct Members {
    parts: Vec<Vec<Vec<u8>>>,
    /// Count of all members that were added.
    count: usize,
    /// Size in bytes of all members that were added.
    size: usize,
}

impl Members {
    fn add(&mut self, member: Vec<u8>) {
        self.count += 1;
        self.size += member.len();
        match self.parts.last_mut() {
            Some(part) if part.len() < LOGGED_MEMBERS_MAX => part.push(member),
            _ => self.parts.push(vec![member]),
        }
    }
}
