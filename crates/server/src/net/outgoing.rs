//! Bytes on their way to a socket.

use slimio_resp::ReplyBuf;
use slimio_ring::Segments;

/// Bytes on their way to a socket, owned or shared.
#[derive(Debug)]
pub enum Outgoing {
    /// In one piece. The number says how many of the bytes have been sent.
    Bytes(Vec<u8>, usize),
    /// In several pieces.
    Segments(Box<Segments>),
}

impl Outgoing {
    /// Takes over the bytes of a reply, without copying them.
    pub fn from_reply(reply: ReplyBuf) -> Self {
        let (bytes, shared) = reply.into_parts();
        if shared.len() == 0 {
            return Self::Bytes(bytes, 0);
        }
        let mut segments = Box::<Segments>::default();
        let (mut done, end) = (0, bytes.len());
        let own = segments.own(bytes);
        for (at, piece, range) in shared {
            segments.push_range(own, done..at);
            segments.push_shared(piece, range);
            done = at;
        }
        segments.push_range(own, done..end);
        Self::Segments(segments)
    }

    /// Number of bytes that have not been sent.
    pub fn len(&self) -> usize {
        match self {
            Self::Bytes(bytes, sent) => bytes.len() - sent,
            Self::Segments(segments) => segments.size(),
        }
    }

    /// Whether everything has been sent.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Notes that `count` more bytes have been sent.
    pub fn advance(&mut self, count: usize) {
        match self {
            Self::Bytes(_, sent) => *sent += count,
            Self::Segments(segments) => segments.advance(count),
        }
    }

    /// Returns the memory of the reply's own bytes, so that the next reply can be written into it.
    pub fn into_memory(self) -> Vec<u8> {
        match self {
            Self::Bytes(bytes, _) => bytes,
            Self::Segments(mut segments) => {
                let mut spare = Vec::with_capacity(1);
                segments.clear(&mut spare);
                spare.pop().unwrap_or_default()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use slimio_resp::{Piece, Protocol, SHARED_REPLY_SIZE_MIN};

    #[test]
    fn shared_strings_leave_in_their_place_and_the_memory_comes_back() {
        let piece = Piece::new(vec![b'v'; SHARED_REPLY_SIZE_MIN]);
        let mut reply = ReplyBuf::with_memory(Vec::with_capacity(777), Protocol::Resp2);
        reply.ok();
        reply.bulk_piece(&piece, 0..SHARED_REPLY_SIZE_MIN);
        reply.bulk_piece(&piece, 0..SHARED_REPLY_SIZE_MIN);
        reply.integer(7);
        let whole: Vec<u8> = reply.segments(0..reply.len()).flatten().copied().collect();
        let mut outgoing = Outgoing::from_reply(reply);
        assert_eq!(outgoing.len(), whole.len());
        let Outgoing::Segments(segments) = &outgoing else {
            panic!("the bytes are in one piece instead of several")
        };
        let sent: Vec<u8> = segments.slices().flatten().copied().collect();
        assert_eq!(sent, whole);
        outgoing.advance(whole.len());
        assert!(outgoing.is_empty());
        assert_eq!(outgoing.into_memory().capacity(), 777);
        assert_eq!(Piece::strong_count(&piece), 1);
    }
}
