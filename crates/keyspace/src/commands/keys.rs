//! Commands on keys of any type.

use std::ops::Range;

use super::lookup::Found;
use super::steps::{InSteps, Tally};
use super::text;
use crate::access::Access;
use crate::context::{Context, Outcome};
use crate::events::{COPY_TO, DEL, MOVE_FROM, MOVE_TO, RENAME_FROM, RENAME_TO};
use crate::table::Written;
use crate::value::Value;

/// `DEL` and `UNLINK`. The two commands do the same, because neither frees a large value itself.
pub(super) struct Del;

impl InSteps for Del {
    const FIRST: usize = 1;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        for index in range {
            let found = context.find(index);
            tally.count += i64::from(context.delete(&found, DEL));
        }
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        if tally.count > 0 {
            context.log_request();
        }
        context.integer(tally.count)
    }
}

pub(super) struct Exists;

impl InSteps for Exists {
    const FIRST: usize = 1;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        for index in range {
            tally.count += i64::from(context.peek_read(index).spot.is_some());
        }
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        context.integer(tally.count)
    }
}

pub(super) struct Touch;

impl InSteps for Touch {
    const FIRST: usize = 1;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        for index in range {
            let found = context.peek_read(index);
            // `TOUCH` counts as a use of the key even if the client has turned off the counting of
            // uses for its other commands (`CLIENT NO-TOUCH`).
            context.touch_access(&found);
            tally.count += i64::from(found.spot.is_some());
        }
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        context.integer(tally.count)
    }
}

pub(super) fn type_key(context: &mut Context<'_>) -> Outcome {
    let found = context.peek_read(1);
    let name = context.value(&found).map_or("none", |value| value.value_type().name());
    context.reply.simple(name);
    Outcome::Reply
}

pub(super) fn rename(context: &mut Context<'_>) -> Outcome {
    match rename_key(context, false) {
        Some(_) => context.ok(),
        None => context.error(text::NO_SUCH_KEY),
    }
}

pub(super) fn renamenx(context: &mut Context<'_>) -> Outcome {
    match rename_key(context, true) {
        Some(done) => context.integer(i64::from(done)),
        None => context.error(text::NO_SUCH_KEY),
    }
}

/// Renames a key. Returns whether the key was renamed, or `None` if there is no such key.
fn rename_key(context: &mut Context<'_>, only_if_free: bool) -> Option<bool> {
    let from = context.find(1);
    from.spot?;
    if from.key == context.args.bytes(2) {
        return Some(!only_if_free);
    }
    let to = context.find(2);
    if to.spot.is_some() && only_if_free {
        return Some(false);
    }
    context.delete(&to, None);
    let to = to.deleted();
    // Deleting one key may have moved the other key's entry, so the other key is looked up again.
    let from = context.peek(1);
    let (value, expiry, access) = take(context, &from)?;
    context.insert_value(&to, value, expiry, access, None);
    context.note(1, RENAME_FROM);
    context.note(2, RENAME_TO);
    context.log_request();
    Some(true)
}

/// Removes a key whose value moves to another key.
fn take(context: &mut Context<'_>, found: &Found<'_>) -> Option<Taken> {
    let spot = found.spot?;
    let expiry = context.expires_at_ms(found);
    let (db, displaced) = context.db_and_displaced(found.db);
    let (access, written) = (db.access(spot), db.table().get(spot).meta().written());
    let value = db.take(spot, displaced);
    context.touch(found, None);
    Some(((value, written), expiry, access))
}

/// A value and the way in which it was written, its expiry, and its last use.
type Taken = ((Value, Written), Option<i64>, Access);

pub(super) fn move_key(context: &mut Context<'_>) -> Outcome {
    let Some(db) = context.db_arg(2) else { return Outcome::Reply };
    if db == context.db {
        return context.error(text::SAME_OBJECT);
    }
    let from = context.find(1);
    if from.spot.is_none() {
        return context.integer(0);
    }
    let to = context.find_in(db, 1);
    if to.spot.is_some() {
        return context.integer(0);
    }
    if let Some((value, expiry, access)) = take(context, &from) {
        context.insert_value(&to, value, expiry, access, None);
        context.note(1, MOVE_FROM);
        context.effects.note_event(db, 1, MOVE_TO);
        context.log_request();
    }
    context.integer(1)
}

pub(super) fn copy(context: &mut Context<'_>) -> Outcome {
    let (mut db, mut over) = (context.db, false);
    let mut index = 3;
    while index < context.args.len() {
        let arg = context.args.get(index);
        if arg.is("replace") {
            over = true;
        } else if arg.is("db") && index + 1 < context.args.len() {
            index += 1;
            match context.db_arg(index) {
                Some(named) => db = named,
                None => return Outcome::Reply,
            }
        } else {
            return context.error(text::SYNTAX);
        }
        index += 1;
    }
    if db == context.db && context.args.bytes(1) == context.args.bytes(2) {
        return context.error(text::SAME_OBJECT);
    }
    let from = context.read(1);
    if from.spot.is_none() {
        return context.integer(0);
    }
    let to = context.find_in(db, 2);
    if to.spot.is_some() && !over {
        return context.integer(0);
    }
    context.delete(&to, None);
    let to = to.deleted();
    // Deleting one key may have moved the other key's entry, so the other key is looked up again.
    let from = context.peek(1);
    let expiry = context.expires_at_ms(&from);
    if let Some(value) = context.copy_of(&from) {
        let access = context.new_access();
        context.insert_value(&to, value, expiry, access, COPY_TO);
        context.log_request();
    }
    context.integer(1)
}
