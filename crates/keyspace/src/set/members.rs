//! Commands on the members of one set, and `SMOVE`.

use std::ops::Range;

use slimio_planted::is_planted;
use slimio_resp::Arg;

use super::{SetEdit, SetRef};
use crate::commands::elements::{Head, Wanted, scan_elements};
use crate::commands::lookup::Found;
use crate::commands::steps::{InSteps, Tally};
use crate::context::{Context, Outcome};
use crate::effects::Part;
use crate::events::{DEL, Event, events};
use crate::kinds::{Packing, ValueType};
use crate::value::ValueRef;

events!(Set: SADD "sadd", SREM "srem");

impl Context<'_> {
    /// The set at a key; `None` if the key does not exist.
    ///
    /// Panics if the key holds another type.
    pub(super) fn set_at(&self, found: &Found<'_>) -> Option<SetRef<'_>> {
        self.value(found).and_then(ValueRef::as_collection).map(SetRef::new)
    }

    /// Whether argument `index` is a member of the set at a key.
    fn is_member(&self, found: &Found<'_>, index: usize) -> bool {
        let set = self.set_at(found);
        set.is_some_and(|set| set.contains(&self.keyspace.hasher, self.args.get(index)))
    }

    /// Changes the set at a key. If the key does not exist, changes a new set, which begins with
    /// this packing. The caller must [note](Self::touch) the change. If the set is empty
    /// afterwards, the caller must delete the key.
    pub(super) fn edit_set<R>(
        &mut self,
        found: &Found<'_>,
        packing: Packing,
        edit: impl FnOnce(&mut SetEdit<'_, '_>) -> R,
    ) -> R {
        let spot = found.spot.unwrap_or_else(|| self.insert_empty(found, packing));
        let (hasher, limits) = (self.keyspace.hasher, self.keyspace.config.packed_limits.set);
        self.keyspace.edit_collection(found.db, spot, |form, old| {
            edit(&mut SetEdit { form, hasher, limits, old })
        })
    }

    /// Removes members from the set at a key. Deletes the key if no member is left. Returns how
    /// many members were removed, and whether the key was deleted. If the caller passes no event,
    /// it must [note](Self::note) the event and the deletion later.
    pub(super) fn remove_members<'a>(
        &mut self,
        found: &Found<'_>,
        members: impl Iterator<Item = Arg<'a>>,
        event: Option<Event>,
    ) -> (usize, bool) {
        // The packing does not matter, because the key exists.
        let (removed, left) = self.edit_set(found, Packing::SetListpack, |set| {
            let removed = members.filter(|member| set.remove(*member)).count();
            (removed, set.len())
        });
        if removed > 0 {
            self.touch(found, event);
        }
        if left == 0 {
            self.delete(found, event.map(|_| DEL));
        }
        (removed, left == 0)
    }
}

/// Finds the key. If the key holds something other than a set, replies with an error.
fn find_set<'a>(context: &mut Context<'a>, tally: &mut Tally) -> Option<Found<'a>> {
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::Set) {
        (tally.is_done, tally.is_refused) = (true, true);
        return None;
    }
    Some(found)
}

pub(super) struct Sadd;

impl InSteps for Sadd {
    const FIRST: usize = 2;
    const CHANGES_ELEMENTS: bool = true;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        let Some(found) = find_set(context, tally) else { return };
        let (args, count) = (context.args, context.args.len() - Self::FIRST);
        let is_first = range.start == Self::FIRST;
        let packing = context.keyspace.config.packed_limits.set.packing(args.get(2), count);
        let added = context.edit_set(&found, packing, |set| {
            if is_first {
                set.reserve(count);
            }
            range.filter(|index| set.add(args.get(*index))).count()
        });
        if added > 0 {
            context.touch(&found, None);
        }
        tally.count += added as i64;
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        if tally.count > 0 {
            context.note(1, SADD);
            context.log_request();
        }
        context.integer(tally.count)
    }
}

pub(super) struct Srem;

impl InSteps for Srem {
    const FIRST: usize = 2;
    const CHANGES_ELEMENTS: bool = true;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        let Some(found) = find_set(context, tally) else { return };
        if found.spot.is_none() {
            tally.is_done = true;
            return;
        }
        let args = context.args;
        let members = range.map(|index| args.get(index));
        let (removed, is_deleted) = context.remove_members(&found, members, None);
        tally.count += removed as i64;
        tally.is_done = is_deleted;
    }

    fn end(context: &mut Context<'_>, tally: &Tally) -> Outcome {
        if tally.count > 0 {
            context.note(1, SREM);
            // If `is_done` is set here, the set has lost its last member.
            if tally.is_done {
                context.note(1, DEL);
            }
            context.log_request();
        }
        context.integer(tally.count)
    }
}

pub(super) fn sismember(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Set) {
        return Outcome::Reply;
    }
    let is_member = context.is_member(&found, 2);
    context.integer(i64::from(is_member))
}

pub(super) struct Smismember;

impl InSteps for Smismember {
    const FIRST: usize = 2;

    fn step(context: &mut Context<'_>, range: Range<usize>, tally: &mut Tally) {
        let is_first = range.start == Self::FIRST;
        let found = if is_first { context.read(1) } else { context.peek(1) };
        if context.is_wrong(&found, ValueType::Set) {
            (tally.is_done, tally.is_refused) = (true, true);
            return;
        }
        if is_first {
            context.reply.array(context.args.len() - Self::FIRST);
        }
        for index in range {
            let is_member = context.is_member(&found, index);
            context.reply.integer(i64::from(is_member));
        }
        tally.is_done = context.reply.is_cut();
    }

    fn end(_: &mut Context<'_>, _: &Tally) -> Outcome {
        Outcome::Reply
    }
}

pub(super) fn scard(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Set) {
        return Outcome::Reply;
    }
    let len = context.set_at(&found).map_or(0, SetRef::len);
    context.integer(len as i64)
}

pub(super) fn smembers(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Set) {
        return Outcome::Reply;
    }
    context.reply_all(&found, Wanted::First, Head::Set)
}

pub(super) fn sscan(context: &mut Context<'_>) -> Outcome {
    scan_elements(context, ValueType::Set)
}

pub(super) fn smove(context: &mut Context<'_>) -> Outcome {
    context.find(1);
    let to = context.find(2);
    // If the second key had expired, the lookup has deleted it. This may have moved the first key's
    // entry, so the first key is looked up again.
    let from = context.peek(1);
    if from.spot.is_none() {
        return context.integer(0);
    }
    if context.is_wrong(&from, ValueType::Set) || context.is_wrong(&to, ValueType::Set) {
        return Outcome::Reply;
    }
    if from.key == to.key {
        let is_member = context.is_member(&from, 3);
        return context.integer(i64::from(is_member));
    }
    let member = context.args.get(3);
    if context.remove_members(&from, std::iter::once(member), Some(SREM)).0 == 0 {
        return context.integer(0);
    }
    // If the first key was deleted with its last member, the second key's entry may have moved.
    let to = context.peek(2);
    let packing = context.keyspace.config.packed_limits.set.packing(member, 1);
    if context.edit_set(&to, packing, |set| set.add(member)) {
        context.touch(&to, SADD);
    }
    if is_planted("smove-logged-as-srem") {
        context.log(&[Part::Bytes(b"SREM"), Part::Request(1), Part::Request(3)]);
        return context.integer(1);
    }
    context.log_request();
    context.integer(1)
}
