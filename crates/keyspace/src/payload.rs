//! Effects to bytes of a log record and back.

use slimio_resp::{Args, Request};

use crate::effects::Effects;
use crate::keyspace::DbIndex;

/// Most arguments that a logged command may have.
const ARGS_MAX: u64 = i32::MAX as u64;

/// The payload of one record of the log: the effects of a command, or of a whole transaction.
#[derive(Clone, Debug, Default)]
pub struct Payload {
    bytes: Vec<u8>,
    /// Where the next effect without a `SELECT` before it would take place.
    db: DbIndex,
}

impl Payload {
    /// Begins a payload, forgetting what was in it, whose record names `db`.
    pub fn begin(&mut self, db: DbIndex) {
        self.bytes.clear();
        self.db = db;
    }

    /// Adds the effects of a command whose arguments are `args`.
    pub fn add(&mut self, effects: &Effects, args: Args<'_>) {
        let bytes = &mut self.bytes;
        effects.encode(self.db, args, |part| bytes.extend_from_slice(part));
        self.db = effects.last_db().unwrap_or(self.db);
    }

    /// The bytes so far; empty if there is nothing to log.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

/// The payload is not one: the log was written by something else.
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

    /// Reads the next command into `request`, as ranges of the payload; `false` at the end.
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

/// A varint in memory of its own.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Varint {
    bytes: [u8; 10],
    size: usize,
}

impl Varint {
    pub(crate) fn new(mut value: u64) -> Self {
        let mut varint = Self { bytes: [0; 10], size: 1 };
        while value >= 0x80 {
            varint.bytes[varint.size - 1] = value as u8 | 0x80;
            varint.size += 1;
            value >>= 7;
        }
        varint.bytes[varint.size - 1] = value as u8;
        varint
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.size]
    }
}
