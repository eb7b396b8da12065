//! Commands on parts of strings. Only the affected pieces of a large string are touched.

use slimio_resp::Arg;

use super::steps::patch;
use super::text;
use crate::context::{Context, Mode, Outcome};
use crate::events::{NEW, events};
use crate::kinds::ValueType;
use crate::value::StringRef;

events!(String: APPEND "append", SETRANGE "setrange");

/// Size in bytes of the longest string that replay accepts.
const REPLAYED_SIZE_MAX: i64 = 1 << 40;

pub(super) fn strlen(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    let size = context.string(&found).map_or(0, StringRef::size);
    context.integer(size as i64)
}

pub(super) fn append(context: &mut Context<'_>) -> Outcome {
    let found = context.find(1);
    let more = context.args.get(2);
    if found.spot.is_none() {
        context.set(&found, more, None, APPEND);
        context.log_request();
        return context.integer(more.size() as i64);
    }
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    let size = context.string(&found).map_or(0, StringRef::size);
    if !fits(context, size as i64, more.size()) {
        return context.error(text::STRING_TOO_LONG);
    }
    patch(context, size, 2, APPEND)
}

pub(super) fn setrange(context: &mut Context<'_>) -> Outcome {
    let Some(offset) = context.integer_arg(2) else { return Outcome::Reply };
    let patch_size = context.args.get(3).size();
    if offset < 0 {
        return context.error("ERR offset is out of range");
    }
    let found = context.find(1);
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    let size = context.string(&found).map_or(0, StringRef::size);
    if patch_size == 0 {
        return context.integer(size as i64);
    }
    if !fits(context, offset, patch_size) {
        return context.error(text::STRING_TOO_LONG);
    }
    if found.spot.is_none() {
        let access = context.new_access();
        let (db, displaced) = context.db_and_displaced(found.db);
        let epoch = displaced.capture.epoch();
        db.insert(found.hash, &found.key, Arg::Bytes(b""), None, access, epoch);
        context.note(1, NEW);
    }
    patch(context, offset as usize, 3, SETRANGE)
}

/// Whether a string of `size` bytes may grow by `more` bytes. Replay has a higher limit, because
/// the configured limit may have been higher when the command was logged.
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
    if context.is_wrong(&found, ValueType::String) {
        return Outcome::Reply;
    }
    let value = found.spot.and_then(|spot| context.keyspace.db(found.db).value(spot).as_string());
    let Some(value) = value else {
        context.reply.bulk(b"");
        return Outcome::Reply;
    };
    let size = value.size() as i64;
    let from_start = |position: i64| if position < 0 { position + size } else { position }.max(0);
    let (from, to) = (from_start(start), from_start(end).min(size - 1));
    if from > to || (start < 0 && end < 0 && start > end) {
        context.reply.bulk(b"");
        return Outcome::Reply;
    }
    let range = from as usize..to as usize + 1;
    match value {
        StringRef::Inline(bytes) => context.reply.bulk(&bytes[range]),
        StringRef::Piece(piece) => context.reply.bulk_piece(piece, range),
        StringRef::Blob(blob) => context.reply.bulk_blob(blob, range),
    }
    Outcome::Reply
}
