//! Parts of strings. Only the pieces of a large string that a command is about are touched.

use slimio_resp::Arg;

use super::text;
use crate::context::{Context, Mode, Outcome};
use crate::value::ValueRef;

/// Longest string in bytes that a log is believed to hold.
const REPLAYED_SIZE_MAX: i64 = 1 << 40;

pub(super) fn strlen(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    let size = context.value(&found).map_or(0, ValueRef::size);
    context.integer(size as i64)
}

pub(super) fn append(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    let more = context.args.get(2);
    let Some(spot) = found.spot else {
        context.set(&found, more, None);
        context.log_request();
        return context.integer(more.size() as i64);
    };
    let size = context.keyspace.db(found.db).value(spot).size();
    if !fits(context, size as i64, more.size()) {
        return context.error(text::STRING_TOO_LONG);
    }
    context.keyspace.db_mut(found.db).update(spot, |value| value.append(more));
    context.touch(&found);
    context.log_request();
    context.integer((size + more.size()) as i64)
}

pub(super) fn setrange(context: &mut Context<'_>) -> Outcome {
    let Some(offset) = context.integer_arg(2) else { return Outcome::Reply };
    let patch = context.args.get(3);
    if offset < 0 {
        return context.error("ERR offset is out of range");
    }
    let found = context.find(1);
    let size = context.value(&found).map_or(0, ValueRef::size);
    if patch.size() == 0 {
        return context.integer(size as i64);
    }
    if !fits(context, offset, patch.size()) {
        return context.error(text::STRING_TOO_LONG);
    }
    let offset = offset as usize;
    let db = context.keyspace.db_mut(found.db);
    let spot =
        found.spot.unwrap_or_else(|| db.insert(found.hash, &found.key, Arg::Bytes(b""), None));
    db.update(spot, |value| value.write_at(offset, patch));
    context.touch(&found);
    context.log_request();
    context.integer(size.max(offset + patch.size()) as i64)
}

/// Whether a string of `size` bytes may grow by so many. What is in the log was allowed once, under
/// a limit that may have been another.
fn fits(context: &Context<'_>, size: i64, more: usize) -> bool {
    let most = match context.mode {
        Mode::Replay => REPLAYED_SIZE_MAX,
        _ => context.keyspace.config.string_size_max as i64,
    };
    size.checked_add(more as i64).is_some_and(|total| total <= most)
}

pub(super) fn substr(context: &mut Context<'_>) -> Outcome {
    getrange(context)
}

pub(super) fn getrange(context: &mut Context<'_>) -> Outcome {
    let Some(start) = context.integer_arg(2) else { return Outcome::Reply };
    let Some(end) = context.integer_arg(3) else { return Outcome::Reply };
    let found = context.read(1);
    let Some(spot) = found.spot else {
        context.reply.bulk(b"");
        return Outcome::Reply;
    };
    let value = context.keyspace.db(found.db).value(spot);
    let size = value.size() as i64;
    let from_start = |position: i64| if position < 0 { position + size } else { position }.max(0);
    let (from, to) = (from_start(start), from_start(end).min(size - 1));
    if from > to || (start < 0 && end < 0 && start > end) {
        context.reply.bulk(b"");
        return Outcome::Reply;
    }
    let range = from as usize..to as usize + 1;
    match value {
        ValueRef::Bytes(bytes) => context.reply.bulk(&bytes[range]),
        ValueRef::Piece(piece) => context.reply.bulk_piece(piece, range),
        ValueRef::Blob(blob) => context.reply.bulk_blob(blob, range),
    }
    Outcome::Reply
}
