//! `DUMP`: replies with a value as bytes that `RESTORE` accepts, in this program and in Redis.
//!
//! ```text
//! | type: u8 | value, as in an RDB file ... | version of RDB: u16 | CRC-64 of all this: u64 |
//! ```
//!
//! Integers are little-endian. (`createDumpPayload` in `cluster.c` of Redis.)

use slimio_rdb::{Crc64, Encoder, Version};
use slimio_resp::Blob;

use crate::context::{Context, Outcome, Steps};
use crate::encode::{encode_string, encode_value, rdb_type};
use crate::table::worth_deferring;
use crate::value::{StringRef, Value, ValueRef};

/// Number of encoded bytes after which a call of [`Steps::resume`] yields.
const STEP_SIZE: usize = 128 << 10;

pub(super) fn dump(context: &mut Context<'_>) -> Outcome {
    let found = context.read(1);
    let Some(value) = context.value(&found) else {
        context.reply.null();
        return Outcome::Reply;
    };
    let (is_large, value) = (value.is_large(), value.to_value());
    let dump = Box::new(Dump { value, next: 0, out: Payload::new() });
    if is_large { dump.resume(context) } else { dump.at_once(context) }
}

/// A running `DUMP`. `value` is the value at the time when the command began.
#[derive(Debug)]
struct Dump {
    value: Value,
    /// The next piece of a string, or the next element of a collection.
    next: usize,
    out: Payload,
}

/// The bytes encoded so far.
#[derive(Debug)]
struct Payload {
    encoder: Encoder,
    blob: Blob,
    checksum: Crc64,
}

impl Payload {
    fn new() -> Self {
        let encoder = Encoder::new(Version::DEFAULT);
        Self { encoder, blob: Blob::new(), checksum: Crc64::new() }
    }

    /// Moves the encoded bytes to the blob.
    fn flush(&mut self) {
        self.checksum.update(self.encoder.bytes());
        self.blob.append(self.encoder.bytes());
        self.encoder.clear();
    }

    fn finish(mut self) -> Blob {
        self.encoder.raw(&Version::DEFAULT.number().to_le_bytes());
        self.flush();
        self.blob.append(&self.checksum.value().to_le_bytes());
        self.blob
    }
}

impl Dump {
    fn at_once(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let value = self.value.as_ref();
        self.out.encoder.byte(rdb_type(value, Version::DEFAULT).code());
        match encode_value(&mut self.out.encoder, value) {
            Ok(()) => self.finish(context),
        }
    }

    fn finish(self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let blob = self.out.finish();
        context.reply.bulk_blob(&blob, 0..blob.size());
        // The key may have been deleted meanwhile, so this may be the last reference to the value.
        // Freeing a large value takes long. So the value goes to the garbage, which is freed later.
        context.keyspace.displaced.garbage.add_value(worth_deferring(self.value));
        Outcome::Reply
    }

    /// Encodes the next part of a large value. Returns whether this part was the last.
    fn step(&mut self) -> bool {
        let Self { value, next, out } = self;
        let value = value.as_ref();
        if *next == 0 {
            out.encoder.byte(rdb_type(value, Version::DEFAULT).code());
        }
        let is_over = match value {
            ValueRef::String(StringRef::Blob(blob)) => {
                if *next == 0 {
                    out.encoder.string_start(blob.size() as u64);
                }
                out.encoder.raw(&blob.pieces()[*next]);
                *next += 1;
                *next == blob.pieces().len()
            }
            ValueRef::Collection(collection) => {
                if *next == 0 {
                    out.encoder.length(collection.len() as u64);
                }
                let mut strings = 0;
                for string in collection.strings_of_leaf(*next) {
                    encode_string(&mut out.encoder, string);
                    strings += 1;
                }
                *next += strings / collection.value_type().strings();
                *next == collection.len()
            }
            ValueRef::String(_) => unreachable!("a short string is not encoded in steps"),
        };
        out.flush();
        is_over
    }
}

impl Steps for Dump {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        let stop = self.out.blob.size() + STEP_SIZE;
        while !self.step() {
            if self.out.blob.size() >= stop && context.mode.yields() {
                return Outcome::Yield(self);
            }
        }
        self.finish(context)
    }

    fn has_all(&self) -> bool {
        true
    }
}
