//! Parses replies, in whatever pieces the socket delivers them, and only as far as a check needs.

use crate::error::{BenchError, Result};
use crate::request::MARK_SIZE;

/// The longest line (status, error, length) that is accepted, in bytes.
const LINE_SIZE_MAX: usize = 64 * 1024;
/// The largest length of a string or array that is accepted.
const LENGTH_MAX: u64 = 1 << 32;

/// One complete reply, as far as checks need it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Seen {
    /// A status: `+…`.
    Status,
    /// An error: `-…`. Its text is in [`ReplyReader::error_text`].
    Error,
    /// An integer: `:…`.
    Integer(i64),
    /// A string of `len` bytes that starts with `mark` (filled up with zeros if the string is
    /// shorter).
    Bulk {
        /// Length in bytes.
        len: usize,
        /// First bytes.
        mark: [u8; MARK_SIZE],
    },
    /// A nil: `$-1` or `*-1`.
    Nil,
    /// An array. The elements of nested arrays count as its own elements.
    Array {
        /// Number of elements that are strings.
        strings: u64,
        /// Number of elements that are nil.
        nils: u64,
    },
}

/// Reads the replies of one connection. Keeps the bytes of a line that is not complete yet, but no
/// bytes of strings.
#[derive(Clone, Debug, Default)]
pub struct ReplyReader {
    /// The start of a line that is not complete yet.
    line: Vec<u8>,
    /// Number of bytes of the current string that have not arrived yet. The end of line after the
    /// string is included.
    skip: usize,
    bulk_len: usize,
    mark: [u8; MARK_SIZE],
    mark_len: usize,
    /// Number of elements of the current array that have not arrived yet.
    elements_left: u64,
    /// Number of strings and number of nils in the current array so far.
    array: Option<(u64, u64)>,
    error_text: String,
}

impl ReplyReader {
    /// Text of the last error reply.
    pub fn error_text(&self) -> &str {
        &self.error_text
    }

    /// Consumes bytes until a reply is complete or no bytes are left. Returns the number of bytes
    /// consumed, and the reply if it is complete. Fails if the bytes are not RESP2.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(usize, Option<Seen>)> {
        let mut at = 0;
        while at < bytes.len() {
            if self.skip > 0 {
                at += self.feed_bulk(&bytes[at..]);
                if self.skip == 0
                    && let Some(seen) =
                        self.element(Seen::Bulk { len: self.bulk_len, mark: self.mark })
                {
                    return Ok((at, Some(seen)));
                }
                continue;
            }
            let rest = &bytes[at..];
            let Some(end) = rest.iter().position(|&byte| byte == b'\n') else {
                self.line.extend_from_slice(rest);
                if self.line.len() > LINE_SIZE_MAX {
                    return Err(BenchError::Reply("a line of a reply is too long".into()));
                }
                return Ok((bytes.len(), None));
            };
            at += end + 1;
            let seen = if self.line.is_empty() {
                self.line_complete(&rest[..end])?
            } else {
                let mut line = std::mem::take(&mut self.line);
                line.extend_from_slice(&rest[..end]);
                let seen = self.line_complete(&line)?;
                line.clear();
                self.line = line;
                seen
            };
            if let Some(seen) = seen.and_then(|seen| self.element(seen)) {
                return Ok((at, Some(seen)));
            }
        }
        Ok((at, None))
    }

    fn feed_bulk(&mut self, bytes: &[u8]) -> usize {
        let taken = self.skip.min(bytes.len());
        let mark_left = MARK_SIZE.min(self.bulk_len) - self.mark_len;
        if mark_left > 0 {
            let copied = mark_left.min(taken);
            self.mark[self.mark_len..self.mark_len + copied].copy_from_slice(&bytes[..copied]);
            self.mark_len += copied;
        }
        self.skip -= taken;
        taken
    }

    /// Reads one line; returns the reply or element that it completes.
    fn line_complete(&mut self, line: &[u8]) -> Result<Option<Seen>> {
        let line = line.strip_suffix(b"\r").unwrap_or(line);
        let (&kind, rest) =
            line.split_first().ok_or_else(|| BenchError::Reply("a reply line is empty".into()))?;
        Ok(match kind {
            b'+' => Some(Seen::Status),
            b':' => Some(Seen::Integer(integer(rest)?)),
            b'-' => {
                self.error_text = String::from_utf8_lossy(rest).into_owned();
                Some(Seen::Error)
            }
            b'$' => match length(rest)? {
                None => Some(Seen::Nil),
                Some(len) => {
                    self.bulk_len = len as usize;
                    self.skip = len as usize + 2;
                    self.mark = [0; MARK_SIZE];
                    self.mark_len = 0;
                    None
                }
            },
            b'*' => match length(rest)? {
                None => Some(Seen::Nil),
                Some(0) if self.array.is_none() => Some(Seen::Array { strings: 0, nils: 0 }),
                Some(len) => {
                    if self.array.is_none() {
                        self.array = Some((0, 0));
                    } else {
                        self.elements_left -= 1;
                    }
                    self.elements_left += len;
                    (self.elements_left == 0).then(|| self.finish_array())
                }
            },
            other => {
                let shown = char::from(other);
                return Err(BenchError::Reply(format!("a reply has the unknown type {shown:?}")));
            }
        })
    }

    /// If an array is under way, counts `seen` as one of its elements. Returns the reply if `seen`
    /// completes it.
    fn element(&mut self, seen: Seen) -> Option<Seen> {
        if matches!(seen, Seen::Array { .. }) {
            return Some(seen);
        }
        let Some((strings, nils)) = &mut self.array else { return Some(seen) };
        match seen {
            Seen::Nil => *nils += 1,
            Seen::Bulk { .. } => *strings += 1,
            _ => {}
        }
        self.elements_left -= 1;
        (self.elements_left == 0).then(|| self.finish_array())
    }

    fn finish_array(&mut self) -> Seen {
        let (strings, nils) = self.array.take().unwrap_or_default();
        Seen::Array { strings, nils }
    }
}

fn integer(digits: &[u8]) -> Result<i64> {
    let text = std::str::from_utf8(digits).unwrap_or("?");
    text.parse().map_err(|_| BenchError::Reply(format!("a reply has the bad number {text:?}")))
}

fn length(digits: &[u8]) -> Result<Option<u64>> {
    if digits == b"-1" {
        return Ok(None);
    }
    let text = std::str::from_utf8(digits).unwrap_or("?");
    match text.parse::<u64>() {
        Ok(length) if length <= LENGTH_MAX => Ok(Some(length)),
        _ => Err(BenchError::Reply(format!("the length of a reply is not valid: {text:?}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read_in_pieces(bytes: &[u8], piece_size: usize) -> Vec<Seen> {
        let mut reader = ReplyReader::default();
        let mut all = Vec::new();
        for piece in bytes.chunks(piece_size) {
            let mut rest = piece;
            while !rest.is_empty() {
                let (taken, seen) = reader.feed(rest).unwrap();
                rest = &rest[taken..];
                all.extend(seen);
            }
        }
        all
    }

    #[test]
    fn replies_read_alike_however_they_arrive() {
        let bytes = b"+OK\r\n:12\r\n$-1\r\n$0\r\n\r\n$10\r\n0123\r\n6789\r\n-ERR no\r\n*0\r\n\
            *3\r\n$2\r\nab\r\n$-1\r\n:1\r\n*2\r\n*1\r\n$1\r\nx\r\n+OK\r\n*-1\r\n";
        let expected = vec![
            Seen::Status,
            Seen::Integer(12),
            Seen::Nil,
            Seen::Bulk { len: 0, mark: [0; 8] },
            Seen::Bulk { len: 10, mark: *b"0123\r\n67" },
            Seen::Error,
            Seen::Array { strings: 0, nils: 0 },
            Seen::Array { strings: 1, nils: 1 },
            Seen::Array { strings: 1, nils: 0 },
            Seen::Nil,
        ];
        for piece_size in 1..=bytes.len() {
            assert_eq!(read_in_pieces(bytes, piece_size), expected, "pieces of {piece_size} bytes");
        }
    }

    #[test]
    fn what_is_not_a_reply_is_refused() {
        for bytes in [&b"hello\r\n"[..], b"\r\n", b"$x\r\n", b"*-2\r\n", b":1x\r\n"] {
            let mut reader = ReplyReader::default();
            assert!(matches!(reader.feed(bytes), Err(BenchError::Reply(_))), "{bytes:?}");
        }
        let endless = vec![b'+'; LINE_SIZE_MAX + 1];
        assert!(ReplyReader::default().feed(&endless).is_err());
    }
}
