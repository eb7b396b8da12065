//! Commands on whole databases.

use super::text;
use crate::context::{Context, Outcome};
use crate::keyspace::DbIndex;

pub(super) fn flushdb(context: &mut Context<'_>) -> Outcome {
    if !valid_flush(context) {
        return context.error(text::SYNTAX);
    }
    context.keyspace.clear_db(context.db);
    context.effects.touch_db(context.db);
    context.log_request();
    context.ok()
}

pub(super) fn flushall(context: &mut Context<'_>) -> Outcome {
    if !valid_flush(context) {
        return context.error(text::SYNTAX);
    }
    context.keyspace.clear_all();
    for index in 0..context.keyspace.db_count() {
        context.effects.touch_db(DbIndex(index as u16));
    }
    context.log_request();
    context.ok()
}

/// Whether the arguments of a flush are valid. `SYNC` and `ASYNC` mean the same, because the
/// command itself never frees the memory.
fn valid_flush(context: &Context<'_>) -> bool {
    let args = context.args;
    args.len() == 1 || args.len() == 2 && (args.get(1).is("sync") || args.get(1).is("async"))
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
    if a != b {
        context.keyspace.swap_dbs(a, b);
        context.effects.touch_db(a);
        context.effects.touch_db(b);
    }
    context.log_request();
    context.ok()
}
