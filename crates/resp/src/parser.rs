//! Parses the bytes of a connection into requests, as they arrive.

use std::fmt;

use crate::blob::Blob;
use crate::inline;
use crate::integer::parse_i64;
use crate::reply::ReplyBuf;
use crate::request::Request;

/// An argument of at least this many bytes is asked for as a [`Blob`]. A shorter argument is left
/// in the connection's buffer.
pub const LARGE_ARG_SIZE_MIN: usize = 32 * 1024;

/// How many arguments one request may have.
pub const REQUEST_ARGS_MAX: usize = i32::MAX as usize;

/// Size in bytes of the longest line that is allowed. A line is an inline request, or it announces
/// a count or a length.
const LINE_SIZE_MAX: usize = 64 * 1024;

/// How many arguments a request may have before the client has authenticated.
const UNAUTHENTICATED_ARGS_MAX: i64 = 10;

/// Size in bytes of the longest argument that is allowed before the client has authenticated.
const UNAUTHENTICATED_ARG_SIZE_MAX: i64 = 16 * 1024;

/// What a client may send at this moment.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Size in bytes of the longest argument (`proto-max-bulk-len`).
    pub arg_size_max: usize,
    /// Whether the client still has to authenticate. Until then only small requests are allowed.
    pub unauthenticated: bool,
}

impl Default for Limits {
    fn default() -> Self {
        Self { arg_size_max: 512 * 1024 * 1024, unauthenticated: false }
    }
}

/// The result of parsing the bytes so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Step {
    /// A request is complete. [`Parser::request`] returns its arguments as ranges of the given
    /// bytes. After running the request, drop the first `consumed` bytes. A request without
    /// arguments (an empty line) is neither run nor replied to.
    Complete {
        /// Number of bytes that the request took.
        consumed: usize,
    },
    /// The request is incomplete. Call [`Parser::step`] again with the same bytes, followed by more
    /// bytes.
    NeedMore,
    /// The next argument is large. It has `size` bytes that begin at `header_end`. Move the bytes
    /// that have arrived already from the buffer into a [`BlobBuilder`](crate::BlobBuilder), and
    /// receive the rest into the builder. Then call [`Parser::supply_large`]. The argument is no
    /// longer in the buffer, so the bytes that follow the argument begin at `header_end`.
    Large {
        /// Length of the argument in bytes.
        size: usize,
        /// Where the argument begins.
        header_end: usize,
    },
    /// The bytes break the protocol. [Reply](ProtocolError::write), read nothing more from the
    /// client, and close the connection once the reply has been sent.
    Error(ProtocolError),
}

/// How the bytes broke the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProtocolError {
    /// The line with the count of arguments is too long.
    CountLineTooLong,
    /// The count of arguments is not a number, or too large.
    InvalidCount,
    /// There are more arguments than a client may send before it authenticates.
    UnauthenticatedCount,
    /// The line with the length of an argument is too long.
    LengthLineTooLong,
    /// This byte came instead of the `$` before the length of an argument.
    ExpectedLength(u8),
    /// The length of an argument is negative, above the limit, or not a number.
    InvalidLength,
    /// An argument is longer than a client may send before it authenticates.
    UnauthenticatedLength,
    /// The line of an inline request is too long.
    InlineTooLong,
    /// An inline request has a quote that is not closed, or that is closed in the middle of a word.
    UnbalancedQuotes,
}

impl ProtocolError {
    /// The error reply as text, without the leading `-` and the line end.
    pub fn reply(self) -> String {
        format!("ERR Protocol error: {self}")
    }

    /// Writes the error reply, byte for byte as Redis does.
    pub fn write(self, reply: &mut ReplyBuf) {
        let mut text = self.reply().into_bytes();
        if let Self::ExpectedLength(byte) = self {
            // The byte is sent unescaped, even if it is not a character.
            text = [b"ERR Protocol error: expected '$', got '", &[byte][..], b"'"].concat();
        }
        reply.error_bytes(&text);
    }
}

impl fmt::Display for ProtocolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::CountLineTooLong => "too big mbulk count string",
            Self::InvalidCount => "invalid multibulk length",
            Self::UnauthenticatedCount => "unauthenticated multibulk length",
            Self::LengthLineTooLong => "too big bulk count string",
            Self::ExpectedLength(byte) => {
                return write!(f, "expected '$', got '{}'", byte.escape_ascii());
            }
            Self::InvalidLength => "invalid bulk length",
            Self::UnauthenticatedLength => "unauthenticated bulk length",
            Self::InlineTooLong => "too big inline request",
            Self::UnbalancedQuotes => "unbalanced quotes in request",
        })
    }
}

/// Reads requests from a connection's bytes. Each connection has its own parser, which keeps its
/// place between calls. So a request that arrives in many parts is not read again from its start.
#[derive(Debug, Default)]
pub struct Parser {
    request: Request,
    state: State,
    /// Where to continue in the buffer.
    position: usize,
    /// Number of arguments still to come.
    missing: usize,
    /// The large argument that was asked for.
    supplied: Option<Blob>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    /// Nothing of the request has been parsed. A part of its first line may have arrived, but not
    /// the end of this line.
    #[default]
    Start,
    /// The length of an argument comes next.
    Length,
    /// An argument of this many bytes comes next.
    Arg(usize),
    /// A large argument was asked for and has to be supplied before anything else.
    Large(usize),
    /// The request was handed out; the next call begins another.
    Done,
}

/// The result of looking for a line.
enum Line {
    /// The line ends at this position with `\r\n`; the next line begins two bytes later.
    End(usize),
    Incomplete,
    TooLong,
}

impl Parser {
    /// A parser at the start of a connection.
    pub fn new() -> Self {
        Self::default()
    }

    /// Continues parsing. `buffer` begins with the bytes that earlier calls for this request have
    /// seen, except large arguments and [sealed](Self::seal) bytes.
    ///
    /// Panics if a large argument that was asked for has not been supplied.
    pub fn step(&mut self, buffer: &[u8], limits: &Limits) -> Step {
        if self.state == State::Done {
            self.reset();
        }
        match self.advance(buffer, limits) {
            Ok(step) => step,
            Err(error) => Step::Error(error),
        }
    }

    /// Hands over the argument that [`Step::Large`] asked for.
    ///
    /// Panics if no argument was asked for, or if an argument of another size was asked for.
    pub fn supply_large(&mut self, blob: Blob) {
        assert_eq!(self.state, State::Large(blob.size()), "no argument of this size was asked for");
        self.supplied = Some(blob);
    }

    /// The request that was completed last; valid until the next call of [`step`](Self::step).
    pub fn request(&self) -> &Request {
        &self.request
    }

    /// How many bytes at the start of the buffer may be [sealed](Self::seal). If a request is
    /// incomplete and not inline, these are the bytes of the request that have been parsed.
    /// Otherwise, the number is 0.
    pub fn sealable(&self) -> usize {
        if self.missing > 0 { self.position } else { 0 }
    }

    /// Stores `bytes` together with the arguments in them. The caller has removed `bytes` from the
    /// start of the buffer. They must be all [sealable](Self::sealable) bytes.
    pub fn seal(&mut self, bytes: Vec<u8>) {
        assert_eq!(bytes.len(), self.sealable(), "only the sealable bytes can be sealed");
        self.request.seal(bytes);
        self.position = 0;
    }

    /// Takes the request that was handed out last. This request still refers to the bytes it was
    /// parsed from.
    ///
    /// Panics unless a request was handed out.
    pub fn take_request(&mut self) -> Request {
        assert_eq!(self.state, State::Done, "no request was handed out");
        std::mem::take(&mut self.request)
    }

    /// Whether nothing of the next request has been read.
    pub fn is_idle(&self) -> bool {
        self.state == State::Done || (self.state == State::Start && self.position == 0)
    }

    fn reset(&mut self) {
        self.request.clear();
        self.state = State::Start;
        self.position = 0;
        self.missing = 0;
    }

    fn advance(&mut self, buffer: &[u8], limits: &Limits) -> Result<Step, ProtocolError> {
        if self.state == State::Start {
            match buffer.first() {
                None => return Ok(Step::NeedMore),
                Some(b'*') => {
                    if !self.read_count(buffer, limits)? {
                        return Ok(Step::NeedMore);
                    }
                }
                Some(_) => return self.read_inline(buffer),
            }
        }
        while self.missing > 0 {
            match self.state {
                State::Length => {
                    let Some(size) = self.read_length(buffer, limits)? else {
                        return Ok(Step::NeedMore);
                    };
                    if size >= LARGE_ARG_SIZE_MIN {
                        self.state = State::Large(size);
                        return Ok(Step::Large { size, header_end: self.position });
                    }
                    self.state = State::Arg(size);
                }
                State::Arg(size) => {
                    // The two bytes after an argument are skipped without a check, as in Redis.
                    if buffer.len() - self.position < size + 2 {
                        return Ok(Step::NeedMore);
                    }
                    self.request.push_range(self.position, size);
                    self.finish_arg(size + 2);
                }
                State::Large(_) => {
                    if self.supplied.is_none() || buffer.len() - self.position < 2 {
                        assert!(self.supplied.is_some(), "a large argument was not supplied");
                        return Ok(Step::NeedMore);
                    }
                    self.request.push_blob(self.supplied.take().unwrap_or_default());
                    self.finish_arg(2);
                }
                State::Start | State::Done => unreachable!("an argument is still to come"),
            }
        }
        self.state = State::Done;
        Ok(Step::Complete { consumed: self.position })
    }

    fn finish_arg(&mut self, size: usize) {
        self.position += size;
        self.missing -= 1;
        self.state = State::Length;
    }

    /// Reads `*<count>`; `false` if the line is incomplete.
    fn read_count(&mut self, buffer: &[u8], limits: &Limits) -> Result<bool, ProtocolError> {
        let end = match find_line(buffer, 0) {
            Line::End(end) => end,
            Line::Incomplete => return Ok(false),
            Line::TooLong => return Err(ProtocolError::CountLineTooLong),
        };
        let count = parse_i64(&buffer[1..end]).ok_or(ProtocolError::InvalidCount)?;
        if count > REQUEST_ARGS_MAX as i64 {
            return Err(ProtocolError::InvalidCount);
        }
        if limits.unauthenticated && count > UNAUTHENTICATED_ARGS_MAX {
            return Err(ProtocolError::UnauthenticatedCount);
        }
        self.position = end + 2;
        self.missing = usize::try_from(count).unwrap_or(0);
        self.state = State::Length;
        Ok(true)
    }

    /// Reads `$<length>`; `None` if the line is incomplete.
    fn read_length(
        &mut self,
        buffer: &[u8],
        limits: &Limits,
    ) -> Result<Option<usize>, ProtocolError> {
        let start = self.position;
        let end = match find_line(buffer, start) {
            Line::End(end) => end,
            Line::Incomplete => return Ok(None),
            Line::TooLong => return Err(ProtocolError::LengthLineTooLong),
        };
        if buffer[start] != b'$' {
            return Err(ProtocolError::ExpectedLength(buffer[start]));
        }
        let size = parse_i64(&buffer[start + 1..end]).ok_or(ProtocolError::InvalidLength)?;
        let size_max = i64::try_from(limits.arg_size_max).unwrap_or(i64::MAX);
        if size < 0 || size > size_max {
            return Err(ProtocolError::InvalidLength);
        }
        if limits.unauthenticated && size > UNAUTHENTICATED_ARG_SIZE_MAX {
            return Err(ProtocolError::UnauthenticatedLength);
        }
        self.position = end + 2;
        Ok(Some(size as usize))
    }

    /// Reads an inline request.
    fn read_inline(&mut self, buffer: &[u8]) -> Result<Step, ProtocolError> {
        // `position` is how far earlier calls have looked for the end of the line.
        let Some(found) = buffer[self.position..].iter().position(|&byte| byte == b'\n') else {
            self.position = buffer.len();
            if buffer.len() > LINE_SIZE_MAX {
                return Err(ProtocolError::InlineTooLong);
            }
            return Ok(Step::NeedMore);
        };
        let end = self.position + found;
        let line = buffer[..end].strip_suffix(b"\r").unwrap_or(&buffer[..end]);
        inline::split(line, &mut self.request).ok_or(ProtocolError::UnbalancedQuotes)?;
        self.state = State::Done;
        Ok(Step::Complete { consumed: end + 1 })
    }
}

/// Looks for the end of the line that begins at `start`. If the line arrives in parts, the search
/// starts over each time. This takes little time, because such lines are short.
fn find_line(buffer: &[u8], start: usize) -> Line {
    match buffer[start..].iter().position(|&byte| byte == b'\r') {
        Some(found) if start + found + 1 < buffer.len() => Line::End(start + found),
        None if buffer.len() - start > LINE_SIZE_MAX => Line::TooLong,
        Some(_) | None => Line::Incomplete,
    }
}
