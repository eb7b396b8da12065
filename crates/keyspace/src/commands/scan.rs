//! Commands that list keys.

use slimio_resp::ReplyBuf;

use super::text;
use crate::context::{Context, Mode, Outcome, Steps};
use crate::glob::{Glob, PatternTooLong};
use crate::long_double::split_sign;
use crate::table::{Position, Spot};

/// Limit of keys and buckets that one step of `KEYS` or one call of `SCAN` looks at, whatever count
/// the client has asked for.
const STEP_KEYS_MAX: usize = 10_000;

/// Limit of the [cost](Glob::cost) of matching in one step. The last bucket of a step may exceed
/// this limit.
pub(crate) const STEP_COST_MAX: usize = 1 << 20;

/// Limit of buckets that `SCAN` looks at for each key that the client has asked for.
const SCAN_BUCKETS_PER_KEY: usize = 10;

/// One step of `RANDOMKEY` ends after it has drawn this many expired keys.
const RANDOM_EXPIRED_MAX: usize = 100;

pub(crate) fn dbsize(context: &mut Context<'_>) -> Outcome {
    context.look_at_db();
    let len = context.keyspace.dbsize(context.db);
    context.integer(len as i64)
}

/// The walk of `KEYS` over a database, in steps. A key that exists during the whole walk is found
/// exactly once. A key that is created or deleted during the walk may be found or not. A small
/// database takes one step.
#[derive(Debug)]
struct KeysWalk {
    /// `None` stands for all keys.
    pattern: Option<Glob>,
    position: Position,
    count: usize,
    /// The keys that were found so far, as replies.
    found: ReplyBuf,
}

pub(crate) fn keys(context: &mut Context<'_>) -> Outcome {
    let pattern = match pattern_of(&context.args.bytes(1)) {
        Ok(pattern) => pattern,
        Err(why) => return context.error(&format!("ERR {why}")),
    };
    let found = context.reply.for_parts();
    Box::new(KeysWalk { pattern, position: Position::START, count: 0, found }).resume(context)
}

impl Steps for KeysWalk {
    fn made(&self) -> Option<&ReplyBuf> {
        Some(&self.found)
    }

    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        context.look_at_db();
        let (mut examined, mut cost) = (0, 0);
        while self.position != Position::END && !self.found.is_cut() {
            let is_step_over = examined >= STEP_KEYS_MAX || cost >= STEP_COST_MAX;
            if context.mode.yields() && is_step_over {
                // Sealing `found` makes its bytes shareable. So the last step need not copy all
                // replies.
                self.found.seal();
                return Outcome::Yield(self);
            }
            let (next, entries) = context.keyspace.db(context.db).table().walk(self.position);
            self.position = next;
            // Looking at an empty bucket is work, too.
            examined += 1;
            for (spot, slot) in entries {
                examined += 1;
                cost += cost_of(self.pattern.as_ref(), slot.key());
                // An expired key is skipped but not deleted, as in Redis.
                let is_wanted = matches(self.pattern.as_ref(), slot.key());
                if is_wanted && !context.has_expired(context.db, spot) {
                    self.found.bulk(slot.key());
                    self.count += 1;
                }
            }
        }
        context.reply.array(self.count);
        context.reply.append(&self.found);
        Outcome::Reply
    }
}

pub(crate) fn scan(context: &mut Context<'_>) -> Outcome {
    let Some(cursor) = parse_cursor(&context.args.bytes(1)) else {
        return context.error(text::INVALID_CURSOR);
    };
    let Some(options) = scan_options(context, 2, true) else { return Outcome::Reply };
    context.look_at_db();
    let count = options.count;
    let mut step = Step::default();
    let mut buckets = count.saturating_mul(SCAN_BUCKETS_PER_KEY);
    let mut position = Position(cursor);
    // No scan returns a cursor beyond the end. If a client sends one, the scan ends at once.
    while position < Position::END {
        position = step.bucket(context, position, &options);
        buckets -= 1;
        let is_step_over = step.examined >= STEP_KEYS_MAX || step.cost >= STEP_COST_MAX;
        if buckets == 0 || step.keys.len() >= count || is_step_over {
            break;
        }
    }
    let cursor = if position < Position::END { position.0 } else { 0 };
    reply_scan(context.reply, cursor, step.keys.len());
    for key in &step.keys {
        context.reply.bulk(key);
    }
    Outcome::Reply
}

/// The head of a scan's reply: the next cursor, and how many strings follow.
pub(crate) fn reply_scan(reply: &mut ReplyBuf, cursor: u64, len: usize) {
    reply.array(2);
    reply.bulk_integer(cursor as i64);
    reply.array(len);
}

/// Prepares a pattern. The result is `None` for a lone `*`, which means all keys, even the empty
/// key.
fn pattern_of(pattern: &[u8]) -> Result<Option<Glob>, PatternTooLong> {
    if pattern == b"*" { Ok(None) } else { Glob::new(pattern).map(Some) }
}

fn matches(pattern: Option<&Glob>, key: &[u8]) -> bool {
    pattern.is_none_or(|pattern| pattern.matches(key))
}

/// The cost of matching a key, and of copying it if it matches.
fn cost_of(pattern: Option<&Glob>, key: &[u8]) -> usize {
    pattern.map_or(key.len(), |pattern| pattern.cost(key.len()))
}

/// Options of `SCAN`, `HSCAN` and `SSCAN`.
pub(crate) struct ScanOptions {
    pub(crate) count: usize,
    pattern: Option<Glob>,
    type_name: Option<Vec<u8>>,
}

impl ScanOptions {
    pub(crate) fn matches(&self, name: &[u8]) -> bool {
        matches(self.pattern.as_ref(), name)
    }

    /// The cost of looking at a name; see [`Glob::cost`].
    pub(crate) fn cost_of(&self, name: &[u8]) -> usize {
        cost_of(self.pattern.as_ref(), name)
    }

    /// Whether a key with a value of type `type_found` is wanted.
    fn matches_key(&self, key: &[u8], type_found: &str) -> bool {
        let is_type = |name: &Vec<u8>| name.eq_ignore_ascii_case(type_found.as_bytes());
        self.matches(key) && self.type_name.as_ref().is_none_or(is_type)
    }
}

/// Reads the options from argument `index` on, or replies with the error. `TYPE` is an option only
/// if keys are scanned.
pub(crate) fn scan_options(
    context: &mut Context<'_>,
    mut index: usize,
    of_keys: bool,
) -> Option<ScanOptions> {
    let mut options = ScanOptions { count: 10, pattern: None, type_name: None };
    let mut pattern = None;
    while index < context.args.len() {
        let arg = context.args.get(index);
        let value = (index + 1 < context.args.len()).then_some(index + 1);
        match value {
            Some(value) if arg.is("count") => {
                let count = context.integer_arg(value)?;
                if count < 1 {
                    context.reply.error(text::SYNTAX);
                    return None;
                }
                options.count = count as usize;
            }
            // Only the last pattern counts. The others are not prepared, because that would take
            // time.
            Some(value) if arg.is("match") => pattern = Some(value),
            Some(value) if of_keys && arg.is("type") => {
                options.type_name = Some(context.args.bytes(value).into_owned());
            }
            _ => {
                context.reply.error(text::SYNTAX);
                return None;
            }
        }
        index += 2;
    }
    if let Some(index) = pattern {
        match pattern_of(&context.args.bytes(index)) {
            Ok(pattern) => options.pattern = pattern,
            Err(why) => {
                context.reply.error(&format!("ERR {why}"));
                return None;
            }
        }
    }
    Some(options)
}

/// Reads a cursor by the rules of C's `strtoul`, as Redis does: a sign is allowed, and an empty
/// text is zero.
pub(crate) fn parse_cursor(text: &[u8]) -> Option<u64> {
    if text.is_empty() {
        return Some(0);
    }
    let (negative, digits) = split_sign(text);
    if digits.is_empty() {
        return None;
    }
    let mut value: u64 = 0;
    for &byte in digits {
        let digit = char::from(byte).to_digit(10)?;
        value = value.checked_mul(10)?.checked_add(u64::from(digit))?;
    }
    Some(if negative { value.wrapping_neg() } else { value })
}

pub(crate) fn randomkey(context: &mut Context<'_>) -> Outcome {
    context.look_at_db();
    let mut expired = 0;
    while let Some(spot) = draw(context) {
        let key = context.keyspace.db(context.db).key(spot).to_vec();
        if !context.has_expired(context.db, spot) {
            context.reply.bulk(&key);
            return Outcome::Reply;
        }
        expired += 1;
        let hash = context.keyspace.hash(&key);
        if context.mode == Mode::Frozen
            || !context.keyspace.expire(context.db, hash, &key, spot, context.effects)
        {
            // This expired key was not deleted, so it can be drawn again. Without a limit, the loop
            // might not end.
            if expired >= RANDOM_EXPIRED_MAX {
                break;
            }
            continue;
        }
        if context.mode.yields() && expired >= RANDOM_EXPIRED_MAX {
            return Outcome::Yield(Box::new(RandomKey));
        }
    }
    context.reply.null();
    Outcome::Reply
}

/// A running `RANDOMKEY` that has found only expired keys so far.
#[derive(Debug)]
struct RandomKey;

impl Steps for RandomKey {
    fn resume(self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        randomkey(context)
    }
}

/// A random entry; all entries are equally likely. `None` if the database is empty.
fn draw(context: &mut Context<'_>) -> Option<Spot> {
    if context.keyspace.db(context.db).len() == 0 {
        return None;
    }
    loop {
        let random = context.keyspace.random();
        if let Some(spot) = context.keyspace.db(context.db).table().draw(random) {
            return Some(spot);
        }
    }
}

/// What a call of `SCAN` has seen so far.
#[derive(Default)]
struct Step {
    examined: usize,
    cost: usize,
    keys: Vec<Vec<u8>>,
}

impl Step {
    /// Looks at the bucket at a position. Adds the wanted keys to `keys`, except those that have
    /// expired: [`delete_if_expired`] deletes them. Returns the position of the next bucket.
    fn bucket(
        &mut self,
        context: &mut Context<'_>,
        from: Position,
        options: &ScanOptions,
    ) -> Position {
        let db = context.keyspace.db(context.db);
        let (next, entries) = db.table().walk(from);
        let first = self.keys.len();
        let mut any_expired = false;
        for (spot, slot) in entries {
            self.examined += 1;
            self.cost += options.cost_of(slot.key());
            if options.matches_key(slot.key(), slot.value().value_type().name()) {
                any_expired |= context.has_expired(context.db, spot);
                self.keys.push(slot.key().to_vec());
            }
        }
        // Looking at an empty bucket is work, too.
        self.examined += 1;
        if any_expired {
            let keys = self.keys.split_off(first);
            self.keys.extend(keys.into_iter().filter(|key| !delete_if_expired(context, key)));
        }
        next
    }
}

/// Deletes a key if it has expired, but not in [`Mode::Frozen`], and not if the log has no room for
/// the deletion. Returns true if the key has expired, or does not exist any more.
fn delete_if_expired(context: &mut Context<'_>, key: &[u8]) -> bool {
    let hash = context.keyspace.hash(key);
    let Some(spot) = context.keyspace.db(context.db).find(hash, key) else { return true };
    let has_expired = context.has_expired(context.db, spot);
    if has_expired && context.mode != Mode::Frozen {
        context.keyspace.expire(context.db, hash, key, spot, context.effects);
    }
    has_expired
}
