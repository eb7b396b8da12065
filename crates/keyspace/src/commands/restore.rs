//! `RESTORE`: makes a key from the bytes that `DUMP` replies with.

use std::io::{self, Read};

use slimio_rdb::{Crc64, FileReader, Part as RdbPart, Version};
use slimio_resp::{Arg, Blob};

use super::text;
use crate::context::{Context, Outcome, Steps};
use crate::effects::Part;
use crate::events::{DEL, RESTORE};
use crate::evict::Usage;
use crate::incoming::Incoming;
use crate::value::Value;

/// Bytes of the version and the checksum, which follow the value.
const FOOTER_SIZE: usize = 10;

/// Bytes of the payload that one step reads.
const STEP_SIZE: usize = 256 << 10;

/// How many parts of a value one step reads at most. The bytes of these parts have a limit of their
/// own, because compressed strings become longer when they are read.
const STEP_PARTS: usize = 1024;
const STEP_PARTS_SIZE: usize = 1 << 20;

const BAD_PAYLOAD: &str = "ERR DUMP payload version or checksum are wrong";
const BAD_DATA: &str = "ERR Bad data format";

#[derive(Clone, Copy, Debug, Default)]
struct Options {
    replaces: bool,
    is_absolute: bool,
    usage: Option<Usage>,
}

pub(super) fn restore(context: &mut Context<'_>) -> Outcome {
    let Some(options) = options(context) else { return Outcome::Reply };
    let found = context.find(1);
    if found.spot.is_some() && !options.replaces {
        return context.error("BUSYKEY Target key name already exists.");
    }
    let Some(ttl_ms) = context.integer_arg(2) else { return Outcome::Reply };
    if ttl_ms < 0 {
        return context.error("ERR Invalid TTL value, must be >= 0");
    }
    let expires_at_ms = match ttl_ms {
        0 => None,
        at_ms if options.is_absolute => Some(at_ms),
        ttl_ms => Some(ttl_ms.saturating_add(context.now_ms)),
    };
    let stage = Stage::Checking(Crc64::new(), 0);
    Box::new(Restore { options, expires_at_ms, stage }).resume(context)
}

/// Reads the options, or replies with the error.
fn options(context: &mut Context<'_>) -> Option<Options> {
    let (args, mut options) = (context.args, Options::default());
    let mut index = 4;
    while index < args.len() {
        let arg = args.get(index);
        let has_more = index + 1 < args.len();
        if arg.is("replace") {
            options.replaces = true;
        } else if arg.is("absttl") {
            options.is_absolute = true;
        } else if arg.is("idletime") && has_more && !matches!(options.usage, Some(Usage::Freq(_))) {
            index += 1;
            let Ok(idle_s) = u64::try_from(context.integer_arg(index)?) else {
                context.error("ERR Invalid IDLETIME value, must be >= 0");
                return None;
            };
            options.usage = Some(Usage::IdleSeconds(idle_s));
        } else if arg.is("freq")
            && has_more
            && !matches!(options.usage, Some(Usage::IdleSeconds(_)))
        {
            index += 1;
            let Ok(freq) = u8::try_from(context.integer_arg(index)?) else {
                context.error("ERR Invalid FREQ value, must be >= 0 and <= 255");
                return None;
            };
            options.usage = Some(Usage::Freq(freq));
        } else {
            context.error(text::SYNTAX);
            return None;
        }
        index += 1;
    }
    Some(options)
}

/// A running `RESTORE`.
#[derive(Debug)]
struct Restore {
    options: Options,
    expires_at_ms: Option<i64>,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The checksum is being computed. The number counts the bytes that the checksum covers so far.
    Checking(Crc64, usize),
    /// The value is being read.
    Reading(Box<FileReader<Bytes>>, Option<Incoming>),
}

/// Why the command ends after a step.
enum Stop {
    /// The error to reply with.
    Refused(&'static str),
    Read(Option<Value>),
}

impl Steps for Restore {
    fn resume(mut self: Box<Self>, context: &mut Context<'_>) -> Outcome {
        loop {
            match self.step(context) {
                Ok(()) => {}
                Err(Stop::Refused(error)) => return context.error(error),
                Err(Stop::Read(None)) => return context.error(BAD_DATA),
                Err(Stop::Read(Some(value))) => return self.finish(context, value),
            }
            // Clients that want to read or write the key wait for this request only if it has a
            // large argument. So only a request with a large argument may pause here.
            if context.mode.yields() && matches!(context.args.get(3), Arg::Blob(_)) {
                return Outcome::Yield(self);
            }
        }
    }
}

impl Restore {
    fn step(&mut self, context: &mut Context<'_>) -> Result<(), Stop> {
        let payload = context.args.get(3);
        let Some(size) = payload.size().checked_sub(FOOTER_SIZE) else {
            return Err(Stop::Refused(BAD_PAYLOAD));
        };
        match &mut self.stage {
            Stage::Checking(checksum, at) => {
                // The checksum covers the version, too.
                let end = (*at + STEP_SIZE).min(size + 2);
                for chunk in payload.chunks_from(*at) {
                    let chunk = &chunk[..chunk.len().min(end - *at)];
                    checksum.update(chunk);
                    *at += chunk.len();
                    if *at == end {
                        break;
                    }
                }
                if *at == size + 2 {
                    let version = footer(payload, size, checksum.value());
                    let version = version.ok_or(Stop::Refused(BAD_PAYLOAD))?;
                    let opened = open(context, payload, size, version);
                    self.stage = opened.ok_or(Stop::Refused(BAD_DATA))?;
                }
            }
            Stage::Reading(reader, incoming) => {
                let (from, mut size) = (reader.offset(), 0);
                for _ in 0..STEP_PARTS {
                    let part = reader.next_part().map_err(|_| Stop::Refused(BAD_DATA))?;
                    let Some(part) = part else {
                        return Err(Stop::Read(incoming.take().and_then(Incoming::finish)));
                    };
                    size += size_of(&part);
                    let added = incoming.as_mut().map(|incoming| incoming.add(part));
                    if added.is_none_or(|added| added.is_err()) {
                        return Err(Stop::Refused(BAD_DATA));
                    }
                    if size >= STEP_PARTS_SIZE || reader.offset() - from >= STEP_SIZE as u64 {
                        break;
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(self: Box<Self>, context: &mut Context<'_>, value: Value) -> Outcome {
        let Self { options, expires_at_ms, .. } = *self;
        let found = context.peek(1);
        let was_there = context.delete(&found, None);
        let found = found.deleted();
        if expires_at_ms.is_some_and(|at_ms| context.is_past(at_ms)) {
            if was_there {
                context.note(1, DEL);
                context.log(&[Part::Bytes(b"DEL"), Part::Request(1)]);
            }
            return context.ok();
        }
        let access = context.new_access();
        let value = (value, crate::table::Written::Whole);
        context.insert_value(&found, value, expires_at_ms, access, RESTORE);
        if let Some(usage) = options.usage {
            let now_ms = context.access_ms();
            context.keyspace.set_usage(context.db, &found.key, usage, now_ms);
        }
        let name = [Part::Bytes(b"RESTORE"), Part::Request(1)];
        let rest = [Part::Integer(expires_at_ms.unwrap_or(0)), Part::Request(3)];
        let how = [Part::Bytes(b"ABSTTL"), Part::Bytes(b"REPLACE")];
        context.log(&[name, rest, how].concat());
        context.ok()
    }
}

/// Checks the version and the checksum, which follow the value. Returns the version if both are
/// right.
fn footer(payload: Arg<'_>, size: usize, checksum: u64) -> Option<Version> {
    let mut footer = Vec::with_capacity(FOOTER_SIZE);
    payload.chunks_from(size).for_each(|chunk| footer.extend_from_slice(chunk));
    let (version, stored) = footer.split_first_chunk()?;
    let stored = u64::from_le_bytes(*stored.first_chunk()?);
    let version = Version::to_read(u16::from_le_bytes(*version))?;
    (stored == checksum).then_some(version)
}

/// Begins to read a value; `None` if there are no bytes, or if the type of the value is not
/// supported here.
fn open(context: &Context<'_>, payload: Arg<'_>, size: usize, version: Version) -> Option<Stage> {
    let blob = match payload {
        Arg::Blob(blob) => blob.clone(),
        Arg::Bytes(bytes) => Blob::from_bytes(bytes),
    };
    let bytes = Bytes { blob, at: 0, end: size };
    let (reader, rdb_type) = FileReader::open_value(bytes, size, version).ok()?;
    let incoming = Incoming::new(rdb_type, context.keyspace).ok()?;
    Some(Stage::Reading(Box::new(reader), Some(incoming)))
}

/// Size in bytes of all strings of a part.
fn size_of(part: &RdbPart) -> usize {
    match part {
        RdbPart::String { bytes, .. } | RdbPart::Element(bytes) => bytes.len(),
        RdbPart::Scored { member, .. } => member.len(),
        RdbPart::Field(field) => field.name.len() + field.value.len(),
        RdbPart::Stream(_) => 0,
    }
}

/// The bytes of the value within the payload.
#[derive(Debug)]
struct Bytes {
    blob: Blob,
    at: usize,
    end: usize,
}

impl Read for Bytes {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let end = self.end.min(self.at + out.len());
        let mut filled = 0;
        for chunk in self.blob.chunks(self.at..end) {
            out[filled..filled + chunk.len()].copy_from_slice(chunk);
            filled += chunk.len();
        }
        self.at += filled;
        Ok(filled)
    }
}
