//! Replies that must not be sent yet, because log records that they depend on are not yet as safe
//! as `appendfsync` asks.

use std::collections::VecDeque;

use slimio_resp::ReplyBuf;
use slimio_storage::Lsn;

/// Replies of earlier turns, oldest first, each with the LSN that the reply depends on.
#[derive(Debug, Default)]
pub(crate) struct Held {
    replies: VecDeque<(Lsn, ReplyBuf)>,
    size: usize,
    own_memory: usize,
}

impl Held {
    pub(crate) fn push(&mut self, needs: Lsn, reply: ReplyBuf) {
        self.size += reply.len();
        self.own_memory += memory_of(&reply);
        self.replies.push_back((needs, reply));
    }

    /// Takes the oldest reply if `may_leave` accepts the LSN that the reply depends on.
    pub(crate) fn pop_if(&mut self, may_leave: impl FnOnce(Lsn) -> bool) -> Option<ReplyBuf> {
        self.replies.front().filter(|(needs, _)| may_leave(*needs))?;
        let (_, reply) = self.replies.pop_front()?;
        self.size -= reply.len();
        self.own_memory -= memory_of(&reply);
        Some(reply)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.replies.is_empty()
    }

    pub(crate) fn len(&self) -> usize {
        self.replies.len()
    }

    /// Bytes of the held replies, as they will be sent.
    pub(crate) fn size(&self) -> usize {
        self.size
    }

    /// Panics if a stored sum differs from the sum over the replies.
    pub(crate) fn check(&self) {
        let size: usize = self.replies.iter().map(|(_, reply)| reply.len()).sum();
        assert_eq!(size, self.size, "the stored bytes of held replies differ from the sum");
        let memory: usize = self.replies.iter().map(|(_, reply)| memory_of(reply)).sum();
        assert_eq!(
            memory, self.own_memory,
            "the stored memory of held replies differs from the sum"
        );
    }

    /// Bytes of memory that are used only by the held replies.
    pub(crate) fn own_memory(&self) -> usize {
        self.own_memory
    }
}

fn memory_of(reply: &ReplyBuf) -> usize {
    size_of::<(Lsn, ReplyBuf)>() + reply.own_memory()
}
