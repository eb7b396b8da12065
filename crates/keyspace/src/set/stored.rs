//! The sets that `SINTERSTORE`, `SUNIONSTORE` and `SDIFFSTORE` store, in the forms that Redis gives
//! them.

use slimio_planted::is_planted;

use super::algebra::{add, discard, set_of};
use crate::collection::EditForm;
use crate::context::{Context, Outcome};
use crate::effects::Part;
use crate::events::{DEL, Event};
use crate::kinds::Packing;
use crate::table::Written;
use crate::value::Value;

/// Replaces the value of the first key by a set, or deletes the key if the set is empty. Replies
/// with the size of the set. The event tells which command stores the set.
pub(super) fn store(context: &mut Context<'_>, form: EditForm<'static>, event: Event) -> Outcome {
    let found = context.peek(1);
    let was_there = context.delete(&found, None);
    let len = form.len();
    match form.into_value() {
        Some(value) => {
            let access = context.new_access();
            context.insert_value(&found, (value, Written::Whole), None, access, event);
            context.log_request();
        }
        None if was_there => {
            context.note(1, DEL);
            context.log(&[Part::Bytes(b"DEL"), Part::Request(1)]);
        }
        None => {}
    }
    context.integer(len as i64)
}

/// When Redis stores an intersection, it adds the members to a set that is empty at first. Returns
/// the form of this empty set. `smallest` is the smallest of the intersected sets.
pub(super) fn result_packing(smallest: &Value) -> Packing {
    match smallest {
        Value::Packed(Packing::SetIntset, _) => Packing::SetIntset,
        _ => Packing::SetListpack,
    }
}

/// The same set in the form that it would have if its members were added to an empty set one by
/// one. A set that is too large to be packed stays as it is.
pub(super) fn formed_anew(context: &mut Context<'_>, form: EditForm<'static>) -> EditForm<'static> {
    let limits = context.keyspace.config.packed_limits.set;
    let is_large = form.len() > limits.integers_max().max(limits.members_max());
    if is_large || is_planted("stored-form-kept") {
        return form;
    }
    let mut anew = EditForm::empty(Packing::SetIntset);
    if let Some(value) = form.into_value() {
        for member in set_of(&value).members() {
            add(context, &mut anew, member);
        }
        discard(context, [value]);
    }
    anew
}

/// The same set, converted to an intset if all members are integers and an intset may have that
/// many members. Redis does the same with a stored intersection.
pub(super) fn integers_anew(
    context: &mut Context<'_>,
    form: EditForm<'static>,
) -> EditForm<'static> {
    let is_intset = matches!(form, EditForm::Packed { packing: Packing::SetIntset, .. });
    let limits = context.keyspace.config.packed_limits.set;
    if is_intset || form.len() > limits.integers_max() {
        return form;
    }
    let Some(value) = form.into_value() else { return EditForm::empty(Packing::SetIntset) };
    let are_integers = set_of(&value).members().all(|member| member.to_i64().is_some());
    let form = EditForm::of_value(value).expect("it is a set");
    if are_integers { formed_anew(context, form) } else { form }
}
