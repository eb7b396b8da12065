//! RESP2 and RESP3: bytes to requests, replies to bytes. No sockets, no keys.
//!
//! A connection's unconsumed bytes go into a [`Parser`], which keeps its place between calls and
//! names the arguments as ranges of those bytes: nothing is copied. An argument that is large is
//! the exception: the parser asks for it as a [`Blob`], so that it is received right into the
//! memory it will live in. Replies are written into a [`ReplyBuf`], where large strings are
//! spliced in by reference.
//!
//! Nothing here allocates from a length that a client merely claimed.

mod blob;
mod builder;
mod double;
mod inline;
mod integer;
mod parser;
mod reply;
mod request;
mod scan;

pub use blob::{BLOB_PIECE_SIZE, Blob, BlobPart, Piece};
pub use builder::BlobBuilder;
pub use double::format_double;
pub use integer::{DecimalBuffer, format_i64, parse_i64};
pub use parser::{LARGE_ARG_SIZE_MIN, Limits, Parser, ProtocolError, REQUEST_ARGS_MAX, Step};
pub use reply::{Protocol, ReplyBuf, SHARED_REPLY_SIZE_MIN, Segments};
pub use request::{Arg, Args, OwnedRequest, Request};
pub use scan::{ReplyError, reply_size};
