//! Keeps the received bytes of requests that have not run yet, and splits them into whole requests.
//! An inbox belongs to one client. This module uses neither the data set nor other clients.

use std::borrow::Cow;

use slimio_planted::is_planted;
use slimio_resp::{Args, BlobBuilder, Limits, OwnedRequest, Parser, ProtocolError, Step};

use crate::net::ReceiveBuffer;

/// The received part of an incomplete request is kept apart from the buffer if it has at least this
/// many bytes.
const SEALED_SIZE_MIN: usize = 1 << 20;

/// If a request of up to this size has to be kept, it is copied, because the buffer that contains
/// the request may be much larger.
const COPIED_SIZE_MAX: usize = 32 << 10;

/// An empty buffer of at most this many bytes is kept, for the bytes that are received next.
const EMPTY_SIZE_MAX: usize = 64 << 10;

/// A client's bytes between two reads.
#[derive(Debug, Default)]
pub(crate) struct Inbox {
    parser: Parser,
    /// Received bytes: an incomplete request, or requests that wait for their turn. The bytes
    /// before `start` have been read. They are removed when they outnumber the other bytes. So a
    /// turn that reads a few of many requests need not move the bytes of all other requests.
    bytes: Vec<u8>,
    start: usize,
    /// Size of the whole buffer that contains the running request.
    running_size: usize,
    /// The large argument that is being received.
    large: Option<BlobBuilder>,
    /// Sum of the sizes of the large arguments in the request that is being received, as the client
    /// announced them.
    large_size: usize,
}

/// What [`Reading::next`] has found.
#[derive(Debug)]
pub(crate) enum Next {
    /// A whole request, see [`Reading::args`]. Contains the request's size in bytes, without large
    /// arguments and without the part that was kept apart from the buffer.
    Request(usize),
    /// The rest of the request has not arrived yet.
    Incomplete,
    /// An argument is large. Its next bytes are received directly into this memory.
    /// [`Inbox::filled`] takes the memory back. Until then, there is nothing else to read.
    Fill(ReceiveBuffer),
    /// The client has broken the protocol.
    Broken(ProtocolError),
}

/// An inbox whose requests are being read. In the meantime, the client has an empty stand-in, so
/// that requests may change the client.
#[derive(Debug)]
pub(crate) struct Reading<'a> {
    inbox: Inbox,
    buffer: Cow<'a, [u8]>,
    /// Start of the request that was read last. Once that request has been passed, this is the
    /// start of the next request.
    at: usize,
    /// Size of the request that was read last; 0 once it has been passed.
    consumed: usize,
    /// End of the requests that were looked at in advance.
    seen: usize,
}

impl Inbox {
    /// Whether no bytes wait to be read.
    pub(crate) fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Number of bytes in the buffer that wait to be read. Large arguments are not in the buffer,
    /// nor is the part of an incomplete request that is kept apart.
    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.start
    }

    /// Bytes in the buffers, including the buffer of the running request.
    pub(crate) fn buffered(&self) -> usize {
        self.len() + self.running_size
    }

    /// Bytes that the buffer could take without growing.
    pub(crate) fn free(&self) -> usize {
        self.bytes.capacity() - self.bytes.len()
    }

    /// Bytes of memory in use, including the buffer of the running request.
    pub(crate) fn memory(&self) -> usize {
        let sealed = self.parser.request().sealed_memory();
        let sealed = if is_planted("sealed-memory-uncounted") { 0 } else { sealed };
        self.bytes.capacity() + self.running_size + self.large_received() + sealed
    }

    /// Bytes that have arrived for requests which have not run yet.
    pub(crate) fn size(&self) -> usize {
        let sealed = self.parser.request().sealed_size();
        let sealed = if is_planted("sealed-uncounted") { 0 } else { sealed };
        self.len() + sealed + self.large_received()
    }

    /// Bytes of large arguments that have arrived so far, for a request that has not run yet.
    fn large_received(&self) -> usize {
        self.large_size - self.large.as_ref().map_or(0, BlobBuilder::remaining)
    }

    /// Whether a large argument is being received into its own memory.
    pub(crate) fn is_filling(&self) -> bool {
        self.large.is_some()
    }

    /// Keeps received bytes until they are read.
    pub(crate) fn push(&mut self, received: &[u8]) {
        assert!(
            self.large.is_none(),
            "while a large argument is being received, all bytes belong to it"
        );
        self.bytes.extend_from_slice(received);
    }

    /// Takes back the memory of [`Next::Fill`], with the bytes that were received. Returns the
    /// number of these bytes and, if the argument is still incomplete, the memory for the bytes
    /// that follow. If no argument is being received, does nothing.
    pub(crate) fn filled(
        &mut self,
        received: ReceiveBuffer,
    ) -> Option<(usize, Option<ReceiveBuffer>)> {
        let mut builder = self.large.take()?;
        let before = builder.remaining();
        builder.put_buffer(received.buffer);
        let count = before - builder.remaining();
        Some((count, self.fill(builder)))
    }

    /// If a large argument is complete, hands it to the parser. If not, returns the memory for its
    /// next bytes.
    fn fill(&mut self, mut builder: BlobBuilder) -> Option<ReceiveBuffer> {
        if builder.remaining() == 0 {
            self.parser.supply_large(builder.finish());
            return None;
        }
        let wanted = builder.wanted();
        let buffer = builder.take_buffer();
        self.large = Some(builder);
        Some(ReceiveBuffer { buffer, wanted })
    }

    /// Begins to read requests. Their bytes are those that wait, followed by `received`.
    pub(crate) fn read<'a>(&mut self, received: &'a [u8]) -> Reading<'a> {
        let mut inbox = std::mem::take(self);
        let mut buffer = Cow::Borrowed(received);
        let at = std::mem::take(&mut inbox.start);
        if !inbox.bytes.is_empty() {
            let mut bytes = std::mem::take(&mut inbox.bytes);
            bytes.extend_from_slice(received);
            buffer = Cow::Owned(bytes);
        }
        Reading { inbox, buffer, at, consumed: 0, seen: at }
    }
}

impl Reading<'_> {
    /// Reads the next request.
    pub(crate) fn next(&mut self, limits: &Limits) -> Next {
        self.pass();
        loop {
            match self.inbox.parser.step(&self.buffer[self.at..], limits) {
                Step::Complete { consumed } => {
                    self.consumed = consumed;
                    return Next::Request(consumed);
                }
                Step::NeedMore => return Next::Incomplete,
                Step::Large { size, header_end } => {
                    if let Some(buffer) = self.begin_large(size, header_end) {
                        return Next::Fill(buffer);
                    }
                }
                Step::Error(error) => return Next::Broken(error),
            }
        }
    }

    /// The arguments of the request that was read last.
    pub(crate) fn args(&self) -> Args<'_> {
        self.inbox.parser.request().args(&self.buffer[self.at..])
    }

    /// The request that was read last, and the bytes after this request. `None` if there are no
    /// bytes after it, or if they were [looked at](Self::look_ahead) already.
    pub(crate) fn unseen(&self) -> Option<&[u8]> {
        let has_more = self.at + self.consumed < self.buffer.len();
        (has_more && self.at >= self.seen).then(|| &self.buffer[self.at..])
    }

    /// Notes that `size` bytes were looked at, beginning with the request that was read last.
    pub(crate) fn look_ahead(&mut self, size: usize) {
        self.seen = self.at + size;
    }

    /// Notes in the client's stand-in how much memory the running request takes.
    pub(crate) fn show(&self, stand_in: &mut Inbox) {
        stand_in.running_size = self.buffer.len();
        stand_in.large_size = self.inbox.large_size;
    }

    /// Takes out the request that was read last. If the request is large and makes up at least half
    /// of the buffer, it is taken together with the bytes before it, so that the bytes of the
    /// request are not copied. The same happens if a part of the request was kept apart from the
    /// buffer.
    pub(crate) fn take_request(&mut self) -> OwnedRequest {
        let end = self.at + self.consumed;
        let is_all_here = self.inbox.parser.request().sealed_size() == 0;
        if is_all_here && self.consumed < (self.buffer.len() / 2).max(COPIED_SIZE_MAX) {
            let request = self.args().to_owned();
            self.pass();
            return request;
        }
        let rest = self.buffer[end..].to_vec();
        let mut bytes = std::mem::replace(&mut self.buffer, Cow::Owned(rest)).into_owned();
        bytes.truncate(end);
        let request = self.inbox.parser.take_request();
        let request = OwnedRequest::from_received(bytes, self.at, request);
        (self.at, self.consumed, self.seen) = (0, 0, 0);
        self.forget_large();
        request
    }

    /// Moves past the request that was read last.
    fn pass(&mut self) {
        if self.consumed > 0 {
            self.at += std::mem::take(&mut self.consumed);
            self.forget_large();
        }
    }

    fn forget_large(&mut self) {
        if !is_planted("large-sizes-add-up") {
            self.inbox.large_size = 0;
        }
    }

    /// Begins to receive a large argument. Returns the memory for the bytes of the argument that
    /// have not arrived yet; `None` if all have arrived.
    fn begin_large(&mut self, size: usize, header_end: usize) -> Option<ReceiveBuffer> {
        let header = self.at + header_end;
        self.inbox.large_size += size;
        let mut builder = BlobBuilder::new(size);
        let taken = builder.extend(&self.buffer[header..]);
        // The parser expects the bytes after the argument at the place where the argument began.
        // In an owned buffer, the bytes before the argument, which may be many, stay where they
        // are. A borrowed buffer can't be changed, so its unread bytes are copied, without
        // those of the argument.
        if let Cow::Owned(bytes) = &mut self.buffer {
            bytes.drain(header..header + taken);
        } else {
            let mut rest = self.buffer[self.at..header].to_vec();
            rest.extend_from_slice(&self.buffer[header + taken..]);
            (self.buffer, self.at, self.seen) = (Cow::Owned(rest), 0, 0);
        }
        self.inbox.fill(builder)
    }

    /// Ends reading; the inbox keeps the bytes that were not read.
    pub(crate) fn end(mut self) -> Inbox {
        self.pass();
        self.seal_large();
        let Self { mut inbox, buffer, at, .. } = self;
        match buffer {
            Cow::Borrowed(bytes) => inbox.bytes.extend_from_slice(&bytes[at..]),
            Cow::Owned(mut bytes) => {
                let start = if at > bytes.len() / 2 || is_planted("inbox-moved-each-turn") {
                    bytes.drain(..at);
                    0
                } else {
                    at
                };
                if bytes.len() > start || bytes.capacity() <= EMPTY_SIZE_MAX {
                    (inbox.bytes, inbox.start) = (bytes, start);
                }
            }
        }
        inbox
    }

    /// If a large part of an incomplete request has arrived, keeps that part apart from the buffer.
    /// Otherwise, the part would be copied whenever the buffer grows.
    fn seal_large(&mut self) {
        let sealable = self.inbox.parser.sealable();
        if sealable < SEALED_SIZE_MIN {
            return;
        }
        let end = self.at + sealable;
        let mut rest = Vec::with_capacity(SEALED_SIZE_MIN + EMPTY_SIZE_MAX);
        rest.extend_from_slice(&self.buffer[end..]);
        let mut bytes = std::mem::replace(&mut self.buffer, Cow::Owned(rest)).into_owned();
        bytes.truncate(end);
        bytes.drain(..self.at);
        self.inbox.parser.seal(bytes);
        self.at = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE_SIZE: usize = 3 << 20;

    fn stream() -> (Vec<u8>, Vec<Vec<Vec<u8>>>) {
        let large = vec![b'x'; LARGE_SIZE];
        let requests: Vec<Vec<Vec<u8>>> = vec![
            vec![b"SET".to_vec(), b"a".to_vec(), b"1".to_vec()],
            vec![b"SET".to_vec(), b"b".to_vec(), large, b"NX".to_vec()],
            vec![b"GET".to_vec(), b"a".to_vec()],
        ];
        let mut bytes = Vec::new();
        for request in &requests {
            bytes.extend_from_slice(format!("*{}\r\n", request.len()).as_bytes());
            for arg in request {
                bytes.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
                bytes.extend_from_slice(arg);
                bytes.extend_from_slice(b"\r\n");
            }
        }
        (bytes, requests)
    }

    /// Feeds the bytes to an inbox in parts of these sizes, as the network would. Takes every
    /// second request out of the inbox. Returns all requests.
    fn read_in_parts(bytes: &[u8], sizes: impl Iterator<Item = usize>) -> Vec<Vec<Vec<u8>>> {
        let (mut inbox, mut rest, mut all) = (Inbox::default(), bytes, Vec::new());
        let mut wanted: Option<ReceiveBuffer> = None;
        for size in sizes {
            if rest.is_empty() && wanted.is_none() {
                break;
            }
            let mut size = size.min(rest.len());
            let mut received: &[u8] = &[];
            if let Some(mut buffer) = wanted.take() {
                size = size.min(buffer.wanted);
                buffer.buffer.extend_from_slice(&rest[..size]);
                let (count, next) = inbox.filled(buffer).expect("an argument is being received");
                assert_eq!(count, size);
                wanted = next;
            } else {
                received = &rest[..size];
            }
            rest = &rest[size..];
            if wanted.is_some() {
                continue;
            }
            let mut reading = inbox.read(received);
            loop {
                match reading.next(&Limits::default()) {
                    Next::Request(_) if all.len() % 2 == 1 => {
                        let request = reading.take_request();
                        all.push(request.args().iter().map(|arg| arg.to_bytes().into()).collect());
                    }
                    Next::Request(_) => {
                        all.push(reading.args().iter().map(|arg| arg.to_bytes().into()).collect());
                    }
                    Next::Incomplete => break,
                    Next::Fill(buffer) => {
                        wanted = Some(buffer);
                        break;
                    }
                    Next::Broken(error) => panic!("{error}"),
                }
            }
            inbox = reading.end();
        }
        assert!(rest.is_empty() && inbox.is_empty(), "some bytes were not read");
        assert_eq!(inbox.size(), 0, "requests that were read must not count");
        all
    }

    /// Many requests wait, and a few of them are read at a time.
    #[test]
    fn what_was_read_is_moved_seldom() {
        const COUNT: usize = 10_000;
        let mut inbox = Inbox::default();
        inbox.push(&b"PING\r\n".repeat(COUNT));
        let (mut moves, mut left) = (0, COUNT);
        while left > 0 {
            let mut reading = inbox.read(&[]);
            for _ in 0..16.min(left) {
                assert!(matches!(reading.next(&Limits::default()), Next::Request(6)));
                left -= 1;
            }
            inbox = reading.end();
            assert_eq!(inbox.len(), left * 6);
            moves += usize::from(inbox.start == 0);
        }
        assert!(moves < 20, "{moves} moves, although a move should halve the rest");
        assert!(inbox.is_empty());
    }

    #[test]
    fn requests_are_the_same_however_their_bytes_arrive() {
        let (bytes, requests) = stream();
        let all_at_once = [bytes.len(), usize::MAX, usize::MAX, usize::MAX, usize::MAX];
        assert_eq!(read_in_parts(&bytes, all_at_once.into_iter().cycle().take(20)), requests);
        let mut rng = fastrand::Rng::with_seed(7);
        for _ in 0..50 {
            let sizes = std::iter::repeat_with(|| match rng.u8(..3) {
                0 => rng.usize(1..4),
                1 => rng.usize(1..100),
                _ => rng.usize(1..2 << 20),
            });
            assert_eq!(read_in_parts(&bytes, sizes.take(100_000)), requests);
        }
    }

    #[test]
    fn half_a_request_counts_with_its_large_argument() {
        let (bytes, _) = stream();
        let mut inbox = Inbox::default();
        let mut reading = inbox.read(&bytes[..1 << 20]);
        assert!(matches!(reading.next(&Limits::default()), Next::Request(_)));
        let Next::Fill(_) = reading.next(&Limits::default()) else {
            panic!("the argument is large")
        };
        let inbox = reading.end();
        assert!(inbox.is_filling());
        assert!(inbox.size() > (1 << 20) - 100, "{} bytes", inbox.size());
        assert!(inbox.memory() >= inbox.size());
    }
}
