//! Encodes effects (the commands that are logged for a request) as the payload of a log record, and
//! decodes payloads again.

use slimio_resp::{Args, Request, format_i64};

use crate::effects::Effects;
use crate::keyspace::DbIndex;

/// The largest number of arguments of a logged command.
const ARGS_MAX: u64 = i32::MAX as u64;

/// The name of the command that selects the database for the commands after it.
pub(crate) const SELECT: &[u8] = b"SELECT";

/// An argument of at least this size in bytes becomes a separate part. A smaller argument is
/// copied.
const PART_SIZE_MIN: usize = 2048;

/// The largest number of parts that are listed without an allocation.
const INLINE_PARTS_MAX: usize = 8;

/// The payload of one record of the log, in one piece. A payload can have the effects of several
/// commands.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    bytes: Vec<u8>,
    /// The database of the next effect, unless a `SELECT` comes before it.
    db: DbIndex,
}

impl Payload {
    /// Clears this payload, and begins the payload of a record that names `db`.
    pub fn begin(&mut self, db: DbIndex) {
        self.bytes.clear();
        self.db = db;
    }

    /// Adds the effects of a command whose arguments are `args`.
    pub fn add(&mut self, effects: &Effects, args: Args<'_>) {
        effects.encode(self.db, args, |stretch| stretch.append_to(&mut self.bytes));
        self.db = effects.last_db().unwrap_or(self.db);
    }

    /// The bytes of the payload so far; empty if there is nothing to log.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// Makes the payload of one command's effects without copying large arguments. One `Gather` is
/// reused for all commands, so that small arguments need no allocation.
#[derive(Clone, Debug, Default)]
pub struct Gather {
    small: Vec<u8>,
}

impl Gather {
    /// The payload of the effects of a command whose arguments are `args`, in a record that names
    /// `db`.
    pub fn parts<'a>(&'a mut self, effects: &'a Effects, db: DbIndex, args: Args<'a>) -> Parts<'a> {
        self.small.clear();
        // Large arguments, each with the offset in `small` where it belongs.
        let mut large = Vec::new();
        effects.encode(db, args, |stretch| match stretch {
            Stretch::Bytes(bytes) if bytes.len() >= PART_SIZE_MIN => {
                large.push((self.small.len(), bytes));
            }
            _ => stretch.append_to(&mut self.small),
        });
        let mut parts = Parts { inline: [&[]; INLINE_PARTS_MAX], len: 0, more: Vec::new() };
        let mut start = 0;
        for (at, bytes) in large {
            parts.push(&self.small[start..at]);
            parts.push(bytes);
            start = at;
        }
        parts.push(&self.small[start..]);
        parts
    }
}

/// A payload as a list of parts, in order. If the list is empty, there is nothing to log.
#[derive(Clone, Debug)]
pub struct Parts<'a> {
    inline: [&'a [u8]; INLINE_PARTS_MAX],
    len: usize,
    /// All parts, if `inline` has no room for them.
    more: Vec<&'a [u8]>,
}

impl<'a> Parts<'a> {
    /// The parts.
    pub fn as_slice(&self) -> &[&'a [u8]] {
        if self.more.is_empty() { &self.inline[..self.len] } else { &self.more }
    }

    /// Length of the payload in bytes.
    pub fn size(&self) -> usize {
        self.as_slice().iter().map(|part| part.len()).sum()
    }

    fn push(&mut self, part: &'a [u8]) {
        if part.is_empty() {
            return;
        }
        if self.len < INLINE_PARTS_MAX {
            self.inline[self.len] = part;
            self.len += 1;
            return;
        }
        if self.more.is_empty() {
            self.more.extend_from_slice(&self.inline);
        }
        self.more.push(part);
    }
}

/// A contiguous piece of a payload that is being made.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Stretch<'a> {
    Varint(usize),
    /// The number of a database, in digits.
    Db(DbIndex),
    Bytes(&'a [u8]),
}

impl Stretch<'_> {
    pub(crate) fn append_to(self, out: &mut Vec<u8>) {
        match self {
            Stretch::Varint(value) => append_varint(value, out),
            Stretch::Db(db) => format_i64(i64::from(db.0), out),
            Stretch::Bytes(bytes) => out.extend_from_slice(bytes),
        }
    }
}

/// The bytes are not a payload, so this program did not write them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PayloadError;

/// Reads the commands of a payload one by one.
#[derive(Debug)]
pub(crate) struct Commands<'a> {
    payload: &'a [u8],
    position: usize,
}

impl<'a> Commands<'a> {
    pub(crate) fn new(payload: &'a [u8]) -> Self {
        Self { payload, position: 0 }
    }

    /// Reads the next command into `request`, as ranges of the payload. Returns `false` at the end.
    pub(crate) fn next(&mut self, request: &mut Request) -> Result<bool, PayloadError> {
        request.clear();
        if self.position == self.payload.len() {
            return Ok(false);
        }
        let count = self.varint()?;
        if count == 0 || count > ARGS_MAX {
            return Err(PayloadError);
        }
        for _ in 0..count {
            let size = usize::try_from(self.varint()?).map_err(|_| PayloadError)?;
            if size > self.payload.len() - self.position {
                return Err(PayloadError);
            }
            request.push_range(self.position, size);
            self.position += size;
        }
        Ok(true)
    }

    fn varint(&mut self) -> Result<u64, PayloadError> {
        let mut value = 0;
        for shift in (0..63).step_by(7) {
            let byte = *self.payload.get(self.position).ok_or(PayloadError)?;
            self.position += 1;
            value |= u64::from(byte & 0x7f) << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(PayloadError)
    }
}

fn append_varint(mut value: usize, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}
