//! RESP2 and RESP3. This crate parses bytes into requests, and writes replies as bytes. It knows
//! neither sockets nor keys.
//!
//! A connection's unconsumed bytes go into a [`Parser`], which keeps its place between calls. To
//! avoid copies, the parser returns the arguments as ranges of those bytes. Large arguments are the
//! exception. The parser asks for each of them as a [`Blob`], so that the argument is received
//! directly into its final memory. Replies are written into a [`ReplyBuf`], where large strings are
//! spliced in by reference.
//!
//! A length that a client announces never decides how much memory is allocated. Memory is allocated
//! as the bytes arrive.
//!
//! ```
//! use slimio_resp::{Limits, Parser, Protocol, ReplyBuf, Step};
//!
//! let received = b"*2\r\n$3\r\nGET\r\n$3\r\nkey\r\n*1\r\n$4\r\nPI";
//! let mut parser = Parser::new();
//! let step = parser.step(received, &Limits::default());
//! assert_eq!(step, Step::Complete { consumed: 22 });
//! let args = parser.request().args(received);
//! assert!(args.get(0).is("get"));
//! assert_eq!(&args.bytes(1)[..], b"key");
//! // The next request is incomplete.
//! assert_eq!(parser.step(&received[22..], &Limits::default()), Step::NeedMore);
//!
//! let mut reply = ReplyBuf::new(Protocol::Resp3);
//! reply.null();
//! assert_eq!(reply.segments(0..reply.len()).next(), Some(&b"_\r\n"[..]));
//! ```

mod ahead;
mod blob;
mod builder;
mod double;
mod inline;
mod integer;
mod parser;
mod reply;
mod request;
mod scan;

pub use ahead::{Ahead, requests_ahead};
pub use blob::{BLOB_PIECE_SIZE, Blob, BlobPart, Piece, reserve_in_piece};
pub use builder::BlobBuilder;
pub use double::format_double;
pub use integer::{DecimalBuffer, format_i64, parse_i64};
pub use parser::{LARGE_ARG_SIZE_MIN, Limits, Parser, ProtocolError, REQUEST_ARGS_MAX, Step};
pub use reply::{Protocol, ReplyBuf, SHARED_REPLY_SIZE_MIN, Segments};
pub use request::{Arg, Args, OwnedRequest, Request};
pub use scan::{ReplyError, reply_size};
