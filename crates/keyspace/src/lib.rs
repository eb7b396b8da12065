//! The data set: typed values, expiry, and every data command. This crate does no I/O. It has no
//! clock and no random source: the time and the seed are arguments. So the same input gives the
//! same state.
//!
//! A command is a row of [`command_table`] and a function that takes a [`Context`]. The function
//! writes the reply, and notes in [`Effects`] what the command did, with absolute times. The log
//! stores these effects, and [`Keyspace::apply`] replays them.
//!
//! No step takes time in proportion to the size of the data set or of one huge value. A value that
//! takes too long to free in one step is handed out as [`Garbage`].
//!
//! ```
//! use slimio_keyspace::*;
//! use slimio_resp::{OwnedRequest, ReplyBuf};
//!
//! let mut keyspace = Keyspace::new(Config::default(), 0x5eed);
//! let request = OwnedRequest::from_args(["SET", "key", "value", "EX", "10"]);
//! let (mut reply, mut effects) = (ReplyBuf::default(), Effects::new());
//! let command = command_table().lookup(b"SET").expect("a data command");
//! assert!(command.accepts(request.args().len()));
//! let outcome = (command.run)(&mut Context {
//!     keyspace: &mut keyspace,
//!     db: DbIndex(0),
//!     args: request.args(),
//!     now_ms: 1_000,
//!     reply: &mut reply,
//!     effects: &mut effects,
//!     mode: Mode::Client,
//! });
//! assert!(matches!(outcome, Outcome::Reply));
//! assert_eq!(reply.segments(0..reply.len()).next(), Some(&b"+OK\r\n"[..]));
//!
//! // For the log: `SET key value PXAT 11000`. Replaying it gives another keyspace the same state.
//! let mut payload = Payload::default();
//! payload.begin(DbIndex(0));
//! payload.add(&effects, request.args());
//! let mut recovered = Keyspace::new(Config::default(), 0xdead);
//! recovered.apply(DbIndex(0), payload.bytes()).expect("it was logged");
//! assert!(recovered.contains(DbIndex(0), b"key", 11_000));
//! assert!(!recovered.contains(DbIndex(0), b"key", 11_001));
//! ```

mod access;
mod ahead;
mod capture;
mod chunk;
mod collection;
mod command;
mod commands;
mod context;
mod db;
mod displaced;
mod effects;
mod encode;
mod events;
mod evict;
mod expire;
mod garbage;
mod glob;
mod hash;
mod hasher;
mod incoming;
mod keyspace;
mod kinds;
mod list;
mod log_size;
mod long_double;
mod memory;
mod payload;
mod reads;
mod set;
mod stretch;
mod table;
mod tail;
mod value;

pub use ahead::{AHEAD_MAX, ElementAhead};
pub use capture::{CaptureBudget, CaptureKind, CaptureState, CaptureStats, CaptureStep, Captured};
pub use chunk::{
    CHUNK_SIZE, Chunk, ChunkEncoder, ChunkError, ChunkOptions, DecodeContext, Decoded, Loader,
    WHOLE_SIZE_MAX, decode_chunk,
};
pub use collection::{CollectionRef, Element, PACKED_LEN_MAX, PACKED_SIZE_MAX};
pub use command::{
    Command, CommandTable, DataFn, Flags, KeyRange, KeySpec, WeighFn, Weight, flag, key, keys_from,
};
pub use commands::{
    ARGS_AT_ONCE_MAX, ELEMENTS_AT_ONCE_MAX, debug_digest, debug_digest_value, debug_populate,
    inspect, populate_log_size_max,
};
pub use context::{Block, Context, Mode, Nothing, Outcome, Steps};
pub use effects::{Effects, Noted, Part, PayloadWalk, Touched};
pub use encode::{ValueSink, encode_value, rdb_type};
pub use events::{Class, Event};
pub use evict::{EvictionConfig, EvictionPolicy, Usage};
pub use expire::{ExpireStep, no_args};
pub use garbage::Garbage;
pub use glob::{Glob, PatternTooLong};
pub use hash::{HashLimits, HashRef};
pub use hasher::KeyHasher;
pub use incoming::{Incoming, ValueRefused};
pub use keyspace::{
    ApplyError, Config, DB_COUNT_MAX, DbIndex, EntryView, Keyspace, Stats, command_table,
};
pub use kinds::{PackedLimits, ValueType};
pub use list::ListLimits;
pub use log_size::EFFECT_SIZE_BESIDE;
pub use payload::{Gather, Parts, Payload, PayloadError};
pub use reads::Read;
pub use set::SetLimits;
pub use tail::LogTail;
pub use value::{StringRef, ValueRef};
