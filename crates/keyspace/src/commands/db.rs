//! Databases as wholes.

use super::text;
use crate::context::{Context, Outcome};
use crate::keyspace::DbIndex;

pub(super) fn flushdb(context: &mut Context<'_>) -> Outcome {
    if !valid_flush(context) {
        return context.error(text::SYNTAX);
    }
    clear(context, context.db);
    context.log_request();
    context.ok()
}

pub(super) fn flushall(context: &mut Context<'_>) -> Outcome {
    if !valid_flush(context) {
        return context.error(text::SYNTAX);
    }
    for index in 0..context.keyspace.dbs.len() {
        clear(context, DbIndex(index as u16));
    }
    context.log_request();
    context.ok()
}

/// Nothing is ever freed here: `SYNC` and `ASYNC` mean the same.
fn valid_flush(context: &Context<'_>) -> bool {
    let args = context.args;
    args.len() == 1 || args.len() == 2 && (args.get(1).is("sync") || args.get(1).is("async"))
}

fn clear(context: &mut Context<'_>, db: DbIndex) {
    let (cleared, garbage) = context.db_and_garbage(db);
    cleared.clear(garbage);
    context.effects.touch_db(db);
}

pub(super) fn swapdb(context: &mut Context<'_>) -> Outcome {
    let mut numbers = [0; 2];
    for (index, name) in ["first", "second"].into_iter().enumerate() {
        match context.args.get(index + 1).to_i64() {
            Some(number) if i32::try_from(number).is_ok() => numbers[index] = number,
            _ => return context.error(&format!("ERR invalid {name} DB index")),
        }
    }
    let (Some(a), Some(b)) = (context.db_number(numbers[0]), context.db_number(numbers[1])) else {
        return context.error(text::DB_OUT_OF_RANGE);
    };
    context.keyspace.dbs.swap(usize::from(a.0), usize::from(b.0));
    context.effects.touch_db(a);
    context.effects.touch_db(b);
    context.log_request();
    context.ok()
}
