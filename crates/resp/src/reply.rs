//! Encodes replies.

use std::ops::Range;

use crate::blob::{Blob, Piece};
use crate::double::format_double;
use crate::integer::{DecimalBuffer, format_i64};

/// A string of at least this many bytes is spliced into a reply by reference. A shorter string is
/// copied.
///
/// For a shorter string, copying costs less than a reference count and one more part to send.
pub const SHARED_REPLY_SIZE_MIN: usize = 16 * 1024;

/// The protocol that a connection has agreed on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Protocol {
    /// The protocol that every connection begins with.
    #[default]
    Resp2,
    /// The protocol that a client asks for with `HELLO 3`.
    Resp3,
}

/// Replies that wait to be sent. They consist of bytes of their own, and of large strings that are
/// shared with the data set.
///
/// Positions count the bytes as they will be sent, shared bytes included.
#[derive(Debug, Default)]
pub struct ReplyBuf {
    bytes: Vec<u8>,
    shared: Vec<Shared>,
    /// Sum of the sizes of `shared`.
    shared_size: usize,
    /// Size of the [sealed](ReplyBuf::seal) strings in `shared`. The data set shares none of them.
    sealed_size: usize,
    protocol: Protocol,
    /// Limit of the reply's size in bytes.
    size_max: Option<usize>,
    is_cut: bool,
}

/// A shared string. It is sent before the byte at index `at` of the reply's own bytes.
#[derive(Debug)]
struct Shared {
    at: usize,
    piece: Piece,
    range: Range<usize>,
    /// Whether the bytes were the reply's own until [`ReplyBuf::seal`] made them shareable.
    is_sealed: bool,
}

impl ReplyBuf {
    /// An empty reply, to be written in `protocol`.
    pub fn new(protocol: Protocol) -> Self {
        Self { protocol, ..Self::default() }
    }

    /// The protocol that replies are written in.
    pub fn protocol(&self) -> Protocol {
        self.protocol
    }

    /// Changes the protocol of the replies that follow.
    pub fn set_protocol(&mut self, protocol: Protocol) {
        self.protocol = protocol;
    }

    /// An empty reply with the same protocol and limit. The caller appends it to this reply later.
    #[must_use]
    pub fn for_parts(&self) -> Self {
        Self { protocol: self.protocol, size_max: self.size_max, ..Self::default() }
    }

    /// Limits the reply to this many bytes, including the bytes already written. Strings that would
    /// exceed the limit are left out, and the reply [is cut](Self::is_cut).
    pub fn set_size_max(&mut self, size_max: Option<usize>) {
        self.size_max = size_max;
    }

    /// Whether a string was left out. If so, the reply must not be sent.
    pub fn is_cut(&self) -> bool {
        self.is_cut
    }

    /// Removes all bytes after the first `len` bytes of the reply, and forgets that the reply is
    /// cut.
    ///
    /// Panics if position `len` lies inside a shared string.
    pub fn leave_out(&mut self, len: usize) {
        self.truncate(len);
        self.is_cut = false;
    }

    /// Whether there is room for a string of `size` bytes. If not, notes that the reply is cut,
    /// because the caller leaves the string out.
    fn has_room(&mut self, size: usize) -> bool {
        let has_room = self.size_max.is_none_or(|max| self.len().saturating_add(size) <= max);
        self.is_cut |= !has_room;
        has_room
    }

    /// Number of bytes to send.
    pub fn len(&self) -> usize {
        self.bytes.len() + self.shared_size
    }

    /// Whether there is nothing to send.
    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty() && self.shared.is_empty()
    }

    /// Number of bytes of memory that the reply holds: the capacity for its own bytes and for the
    /// list of shared strings, and the shared bytes.
    pub fn memory(&self) -> usize {
        self.bytes.capacity() + self.shared_size + self.shared.capacity() * size_of::<Shared>()
    }

    /// Number of bytes of memory that only this reply holds, which is all its memory except the
    /// bytes that are shared with the data set.
    pub fn own_memory(&self) -> usize {
        self.memory() - (self.shared_size - self.sealed_size)
    }

    /// Removes all replies. The memory, the limit and [`is_cut`](Self::is_cut) stay as they are.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.shared.clear();
        (self.shared_size, self.sealed_size) = (0, 0);
    }

    /// Removes all bytes after the first `len` bytes of the reply.
    ///
    /// Panics if position `len` lies inside a shared string.
    pub fn truncate(&mut self, len: usize) {
        while self.len() > len {
            let own = self.bytes.len();
            let floor = self.shared.last().map_or(0, |shared| shared.at);
            let over = self.len() - len;
            if own - floor >= over {
                self.bytes.truncate(own - over);
            } else {
                self.bytes.truncate(floor);
                let shared = self.shared.pop().expect("a shared string remains");
                self.shared_size -= shared.range.len();
                self.sealed_size -= if shared.is_sealed { shared.range.len() } else { 0 };
                assert!(self.len() >= len, "the cut is inside a shared string");
            }
        }
    }

    /// An empty reply, to be written in `protocol`. It reuses the allocation of `memory`.
    pub fn with_memory(mut memory: Vec<u8>, protocol: Protocol) -> Self {
        memory.clear();
        Self { bytes: memory, protocol, ..Self::default() }
    }

    /// Takes the reply apart, for a sender that has to own the sent memory. Returns the reply's own
    /// bytes, and each shared string with a position. The string is sent before the byte at this
    /// position of the reply's own bytes.
    pub fn into_parts(
        self,
    ) -> (Vec<u8>, impl ExactSizeIterator<Item = (usize, Piece, Range<usize>)>) {
        let shared = self.shared.into_iter().map(|shared| (shared.at, shared.piece, shared.range));
        (self.bytes, shared)
    }

    /// Takes everything that was written so far, and leaves a reply of the same protocol that uses
    /// the memory of `spare`. The returned reply owns everything that it refers to, so it can be
    /// sent later.
    #[must_use]
    pub fn take(&mut self, mut spare: ReplyBuf) -> ReplyBuf {
        spare.clear();
        spare.protocol = self.protocol;
        std::mem::replace(self, spare)
    }

    /// Takes the first `len` bytes, and leaves the rest.
    ///
    /// Panics if the reply has fewer bytes.
    #[must_use]
    pub fn split_front(&mut self, len: usize) -> ReplyBuf {
        assert!(len <= self.len(), "the reply has fewer bytes");
        let mut front = ReplyBuf::new(self.protocol);
        if len == self.len() {
            std::mem::swap(self, &mut front);
            return front;
        }
        let rest_len = self.len() - len;
        let mut rest = ReplyBuf::new(self.protocol);
        rest.append_range(self, len..len + rest_len);
        front.append_range(self, 0..len);
        *self = rest;
        front
    }

    /// Makes the bytes after the last shared string shareable, so that they are not copied when
    /// this reply is appended to another reply. This is for replies of many parts. Call it after
    /// every [`SHARED_REPLY_SIZE_MIN`] bytes or more.
    pub fn seal(&mut self) {
        let start = self.shared.last().map_or(0, |shared| shared.at);
        if self.bytes.len() == start {
            return;
        }
        let piece = Piece::new(self.bytes.split_off(start));
        let range = 0..piece.len();
        self.splice(&piece, range, true);
    }

    /// [Seals](Self::seal) the reply if at least [`SHARED_REPLY_SIZE_MIN`] bytes follow its last
    /// shared string.
    pub fn seal_if_large(&mut self) {
        let start = self.shared.last().map_or(0, |shared| shared.at);
        if self.bytes.len() - start >= SHARED_REPLY_SIZE_MIN {
            self.seal();
        }
    }

    /// Appends all of `other`. Strings that `other` shares are not copied.
    pub fn append(&mut self, other: &ReplyBuf) {
        self.is_cut |= other.is_cut;
        if self.has_room(other.len()) {
            self.append_range(other, 0..other.len());
        }
    }

    /// The contiguous stretches of the bytes in `range`, in order, for a vectored send.
    ///
    /// Panics if `range` extends past the end.
    pub fn segments(&self, range: Range<usize>) -> Segments<'_> {
        assert!(range.end <= self.len(), "the range ends past the end of the reply");
        Segments {
            reply: self,
            index: 0,
            own: 0,
            in_own: true,
            skip: range.start,
            left: range.len(),
        }
    }

    /// The first contiguous stretch of the bytes from `position` on. The search begins at the end
    /// of the reply, so its cost grows with the number of parts after `position`, not with the
    /// number of parts before `position`.
    pub fn stretch_at(&self, position: usize) -> &[u8] {
        let mut behind = self.len().saturating_sub(position);
        let mut end = self.bytes.len();
        for shared in self.shared.iter().rev() {
            let own = &self.bytes[shared.at..end];
            if behind <= own.len() {
                return &own[own.len() - behind..];
            }
            behind -= own.len();
            end = shared.at;
            if behind <= shared.range.len() {
                return &shared.piece[shared.range.end - behind..shared.range.end];
            }
            behind -= shared.range.len();
        }
        &self.bytes[end - behind..end]
    }

    fn append_range(&mut self, other: &ReplyBuf, range: Range<usize>) {
        let mut position = 0;
        let mut own = 0;
        let clip = |start: usize, size: usize| {
            let from = range.start.clamp(start, start + size) - start;
            let to = range.end.clamp(start, start + size) - start;
            from..to
        };
        for shared in &other.shared {
            let part = clip(position, shared.at - own);
            self.bytes.extend_from_slice(&other.bytes[own + part.start..own + part.end]);
            position += shared.at - own;
            own = shared.at;
            let part = clip(position, shared.range.len());
            if !part.is_empty() {
                let start = shared.range.start;
                let range = start + part.start..start + part.end;
                self.splice(&shared.piece, range, shared.is_sealed);
            }
            position += shared.range.len();
        }
        let part = clip(position, other.bytes.len() - own);
        self.bytes.extend_from_slice(&other.bytes[own + part.start..own + part.end]);
    }

    /// `+text`. The text must not contain a line end.
    pub fn simple(&mut self, text: &str) {
        self.line(b'+', text.as_bytes());
    }

    /// `+OK`
    pub fn ok(&mut self) {
        self.bytes.extend_from_slice(b"+OK\r\n");
    }

    /// An error. `text` begins with the error's code (`ERR …`). Line ends within the text become
    /// spaces; line ends at the end of the text are removed.
    pub fn error(&mut self, text: &str) {
        self.error_bytes(text.as_bytes());
    }

    /// Like [`error`](Self::error), with a text that may contain any bytes.
    pub fn error_bytes(&mut self, mut text: &[u8]) {
        while let [rest @ .., b'\r' | b'\n'] = text {
            text = rest;
        }
        self.bytes.push(b'-');
        self.bytes.extend(
            text.iter().map(|&byte| if byte == b'\r' || byte == b'\n' { b' ' } else { byte }),
        );
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An integer.
    pub fn integer(&mut self, value: i64) {
        match value {
            0 => self.bytes.extend_from_slice(b":0\r\n"),
            1 => self.bytes.extend_from_slice(b":1\r\n"),
            _ => self.number_line(b':', value),
        }
    }

    /// A string. It is copied.
    pub fn bulk(&mut self, bytes: &[u8]) {
        if !self.has_room(bytes.len()) {
            return;
        }
        self.bytes.reserve(bytes.len() + 32);
        // Most strings are short, and replies have many of them, so short strings have a faster
        // path.
        match bytes.len() {
            len @ 0..10 => self.bytes.extend_from_slice(&[b'$', b'0' + len as u8, b'\r', b'\n']),
            len @ 10..100 => {
                let digits = [b'0' + (len / 10) as u8, b'0' + (len % 10) as u8];
                self.bytes.extend_from_slice(&[b'$', digits[0], digits[1], b'\r', b'\n']);
            }
            len => self.number_line(b'$', len as i64),
        }
        self.bytes.extend_from_slice(bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An integer as a string.
    pub fn bulk_integer(&mut self, value: i64) {
        self.bulk(DecimalBuffer::new().format(value).as_bytes());
    }

    /// A string that is part of a piece. It is shared if it has [`SHARED_REPLY_SIZE_MIN`] bytes or
    /// more, and copied otherwise.
    pub fn bulk_piece(&mut self, piece: &Piece, range: Range<usize>) {
        if range.len() < SHARED_REPLY_SIZE_MIN {
            self.bulk(&piece[range]);
            return;
        }
        if !self.has_room(range.len()) {
            return;
        }
        self.number_line(b'$', range.len() as i64);
        self.splice(piece, range, false);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A string that is part of a large string. The pieces of the large string are shared, but
    /// short stretches of them are copied.
    pub fn bulk_blob(&mut self, blob: &Blob, range: Range<usize>) {
        if !self.has_room(range.len()) {
            return;
        }
        self.number_line(b'$', range.len() as i64);
        for part in blob.parts(range) {
            if part.range.len() < SHARED_REPLY_SIZE_MIN {
                self.bytes.extend_from_slice(&part.piece[part.range]);
            } else {
                self.splice(&part.piece, part.range, false);
            }
        }
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// A missing value; a null string in RESP2.
    pub fn null(&mut self) {
        self.by_protocol(b"$-1\r\n", b"_\r\n");
    }

    /// A missing array.
    pub fn null_array(&mut self) {
        self.by_protocol(b"*-1\r\n", b"_\r\n");
    }

    /// The head of an array of `len` replies, which follow.
    pub fn array(&mut self, len: usize) {
        self.number_line(b'*', len as i64);
    }

    /// The head of a map of `len` pairs, which follow; an array in RESP2.
    pub fn map(&mut self, len: usize) {
        match self.protocol {
            Protocol::Resp2 => self.number_line(b'*', len as i64 * 2),
            Protocol::Resp3 => self.number_line(b'%', len as i64),
        }
    }

    /// The head of a set of `len` replies, which follow; an array in RESP2.
    pub fn set(&mut self, len: usize) {
        self.number_line(self.either(b'*', b'~'), len as i64);
    }

    /// The head of an out-of-band message of `len` replies, which follow; an array in RESP2.
    pub fn push(&mut self, len: usize) {
        self.number_line(self.either(b'*', b'>'), len as i64);
    }

    /// The head of a map of `len` attributes, which follow. RESP2 has no attributes.
    ///
    /// Panics in RESP2.
    pub fn attribute(&mut self, len: usize) {
        assert_eq!(self.protocol, Protocol::Resp3, "RESP2 has no attributes");
        self.number_line(b'|', len as i64);
    }

    /// A floating-point number; a string in RESP2.
    pub fn double(&mut self, value: f64) {
        let mut text = Vec::with_capacity(32);
        format_double(value, &mut text);
        match self.protocol {
            Protocol::Resp2 => self.bulk(&text),
            Protocol::Resp3 => self.line(b',', &text),
        }
    }

    /// A boolean; 1 or 0 in RESP2.
    pub fn boolean(&mut self, value: bool) {
        if value {
            self.by_protocol(b":1\r\n", b"#t\r\n");
        } else {
            self.by_protocol(b":0\r\n", b"#f\r\n");
        }
    }

    /// A verbatim string with a three-letter format (`txt`, `mkd`); a plain string in RESP2.
    ///
    /// Panics if `format` does not have three bytes.
    pub fn verbatim(&mut self, format: &str, text: &[u8]) {
        assert_eq!(format.len(), 3, "a verbatim format has three letters");
        if self.protocol == Protocol::Resp2 {
            self.bulk(text);
            return;
        }
        self.number_line(b'=', text.len() as i64 + 4);
        self.bytes.extend_from_slice(format.as_bytes());
        self.bytes.push(b':');
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    /// An integer of any size, given in digits; a string in RESP2.
    pub fn big_number(&mut self, digits: &str) {
        match self.protocol {
            Protocol::Resp2 => self.bulk(digits.as_bytes()),
            Protocol::Resp3 => self.line(b'(', digits.as_bytes()),
        }
    }

    fn either(&self, resp2: u8, resp3: u8) -> u8 {
        match self.protocol {
            Protocol::Resp2 => resp2,
            Protocol::Resp3 => resp3,
        }
    }

    fn by_protocol(&mut self, resp2: &[u8], resp3: &[u8]) {
        self.bytes.extend_from_slice(match self.protocol {
            Protocol::Resp2 => resp2,
            Protocol::Resp3 => resp3,
        });
    }

    fn line(&mut self, kind: u8, text: &[u8]) {
        self.bytes.push(kind);
        self.bytes.extend_from_slice(text);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn number_line(&mut self, kind: u8, value: i64) {
        self.bytes.push(kind);
        format_i64(value, &mut self.bytes);
        self.bytes.extend_from_slice(b"\r\n");
    }

    fn splice(&mut self, piece: &Piece, range: Range<usize>, is_sealed: bool) {
        self.shared_size += range.len();
        self.sealed_size += if is_sealed { range.len() } else { 0 };
        let (at, piece) = (self.bytes.len(), Piece::clone(piece));
        self.shared.push(Shared { at, piece, range, is_sealed });
    }
}

/// The contiguous stretches of a range of a [`ReplyBuf`].
#[derive(Clone, Debug)]
pub struct Segments<'a> {
    reply: &'a ReplyBuf,
    /// The next shared string.
    index: usize,
    /// Index of the first of the reply's own bytes that were not passed yet.
    own: usize,
    /// Whether the reply's own bytes before the next shared string are still to be passed.
    in_own: bool,
    /// Bytes to skip before the range.
    skip: usize,
    /// Bytes of the range still to come.
    left: usize,
}

impl<'a> Iterator for Segments<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        while self.left > 0 {
            let shared = self.reply.shared.get(self.index);
            let whole = if self.in_own {
                let end = shared.map_or(self.reply.bytes.len(), |shared| shared.at);
                &self.reply.bytes[std::mem::replace(&mut self.own, end)..end]
            } else {
                self.index += 1;
                let shared = shared.expect("the range has no bytes after the reply's end");
                &shared.piece[shared.range.clone()]
            };
            self.in_own = !self.in_own;
            let segment = &whole[self.skip.min(whole.len())..];
            self.skip -= whole.len() - segment.len();
            let segment = &segment[..segment.len().min(self.left)];
            self.left -= segment.len();
            if !segment.is_empty() {
                return Some(segment);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sealed_a_reply_is_the_same_bytes_and_is_appended_without_a_copy() {
        let mut reply = ReplyBuf::default();
        let mut whole = Vec::new();
        reply.seal();
        assert!(reply.is_empty());
        for number in 0..5 {
            reply.bulk_integer(number);
            whole.extend(format!("$1\r\n{number}\r\n").bytes());
            reply.seal();
        }
        reply.ok();
        whole.extend(b"+OK\r\n");
        let mut other = ReplyBuf::default();
        other.append(&reply);
        for reply in [&reply, &other] {
            let segments: Vec<_> = reply.segments(0..reply.len()).collect();
            assert_eq!(segments.len(), 6);
            assert_eq!(segments.concat(), whole);
            for position in 0..=reply.len() {
                let first = reply.segments(position..reply.len()).next().unwrap_or_default();
                assert_eq!(reply.stretch_at(position), first);
            }
        }
        assert_eq!(reply.bytes, b"+OK\r\n");
        other.truncate(whole.len() - 5 - 7);
        assert_eq!(other.segments(0..other.len()).count(), 4);
    }

    #[test]
    fn taken_apart_a_reply_is_the_same_bytes() {
        let piece = Piece::new(vec![b'v'; SHARED_REPLY_SIZE_MIN]);
        let mut reply = ReplyBuf::with_memory(b"left over".to_vec(), Protocol::Resp2);
        reply.ok();
        reply.bulk_piece(&piece, 0..SHARED_REPLY_SIZE_MIN);
        reply.integer(7);
        let whole: Vec<u8> = reply.segments(0..reply.len()).flatten().copied().collect();
        let (bytes, shared) = reply.into_parts();
        let (mut again, mut done) = (Vec::new(), 0);
        for (at, piece, range) in shared {
            again.extend_from_slice(&bytes[done..at]);
            again.extend_from_slice(&piece[range]);
            done = at;
        }
        again.extend_from_slice(&bytes[done..]);
        assert_eq!(again, whole);
    }
}
