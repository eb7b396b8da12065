//! Functions that walk over the members of sets, and functions that change sets outside the
//! keyspace.

use crate::collection::hashed::Position;
use crate::collection::{EditForm, Element, LargeString};
use crate::context::Context;
use crate::hasher::KeyHasher;
use crate::set::{SetEdit, SetLimits, SetRef};
use crate::table::worth_deferring;
use crate::value::Value;

/// Count of members that one call of [`walk`] looks at in a packed set.
const PACKED_STRETCH: usize = 64;

pub(crate) fn set_of(value: &Value) -> SetRef<'_> {
    SetRef::new(value.as_ref().as_collection().expect("the sources are sets"))
}

pub(super) fn len(value: &Value) -> usize {
    set_of(value).len()
}

pub(super) fn is_tree(value: &Value) -> bool {
    matches!(value, Value::Tree(_))
}

/// Passes some members of a set, beginning at a position, to `each`. If the set is a tree, the hash
/// of each member is passed, too. Returns the position after these members. In a packed set, a
/// position is a count of members.
pub(super) fn walk<'a>(
    set: SetRef<'a>,
    from: Position,
    mut each: impl FnMut(Option<u32>, Element<'a>),
) -> Position {
    if let Some(tree) = set.tree() {
        let (next, elements) = tree.walk_hashes(from);
        elements.for_each(|(hash, [member])| each(Some(hash), member));
        return next;
    }
    let members = set.members().skip(from.0 as usize).take(PACKED_STRETCH);
    members.for_each(|member| each(None, member));
    let next = Position(from.0 + PACKED_STRETCH as u64);
    if next.0 < set.len() as u64 { next } else { Position::END }
}

/// What a change of a set outside the keyspace needs: settings, and a list. Large strings that the
/// change removes go into this list, and are freed later.
pub(super) struct Edit<'a> {
    hasher: KeyHasher,
    limits: SetLimits,
    old: &'a mut Vec<LargeString>,
}

pub(super) fn edit<'a>(context: &'a mut Context<'_>) -> Edit<'a> {
    let keyspace = &mut *context.keyspace;
    let (hasher, limits) = (keyspace.hasher, keyspace.config.packed_limits.set);
    Edit { hasher, limits, old: &mut keyspace.displaced.garbage.elements }
}

impl Edit<'_> {
    pub(super) fn of<'a, 'b>(&'a mut self, form: &'a mut EditForm<'b>) -> SetEdit<'a, 'b> {
        SetEdit { form, hasher: self.hasher, limits: self.limits, old: self.old }
    }
}

pub(crate) fn add(context: &mut Context<'_>, form: &mut EditForm<'static>, member: Element<'_>) {
    member.with_arg(|member| edit(context).of(form).add(member));
}

/// Moves clones of sets to the garbage, which another thread frees. A clone may be the last
/// reference to its set, because the set's key may have been deleted meanwhile.
pub(crate) fn discard(context: &mut Context<'_>, sources: impl IntoIterator<Item = Value>) {
    for source in sources {
        context.keyspace.displaced.garbage.add_value(worth_deferring(source));
    }
}
