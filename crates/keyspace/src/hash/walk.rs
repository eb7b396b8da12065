//! Commands on whole hashes.

use crate::commands::elements::{Head, Wanted, scan_elements};
use crate::context::{Context, Outcome};
use crate::kinds::ValueType;

pub(super) fn hgetall(context: &mut Context<'_>) -> Outcome {
    walk(context, Wanted::All)
}

pub(super) fn hkeys(context: &mut Context<'_>) -> Outcome {
    walk(context, Wanted::First)
}

pub(super) fn hvals(context: &mut Context<'_>) -> Outcome {
    walk(context, Wanted::Second)
}

fn walk(context: &mut Context<'_>, wanted: Wanted) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::Hash) {
        return Outcome::Reply;
    }
    let head = if wanted == Wanted::All { Head::Map } else { Head::Array };
    context.reply_all(&found, wanted, head)
}

pub(super) fn hscan(context: &mut Context<'_>) -> Outcome {
    scan_elements(context, ValueType::Hash)
}
