//! Bytes on their way to a socket.

use std::collections::VecDeque;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

/// Bytes on their way to a socket: copied small ones, and large ones by reference.
#[derive(Debug, Default)]
pub struct Outgoing {
    pieces: VecDeque<Piece>,
    /// Bytes of the first piece that have left.
    sent: usize,
}

#[derive(Debug)]
enum Piece {
    Bytes(Vec<u8>),
    Shared(Arc<Vec<u8>>, Range<usize>),
}

impl Piece {
    fn bytes(&self) -> &[u8] {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Shared(bytes, range) => &bytes[range.clone()],
        }
    }
}

impl Outgoing {
    /// Adds bytes that were written for this connection.
    pub fn push_bytes(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            self.pieces.push_back(Piece::Bytes(bytes));
        }
    }

    /// Adds bytes of a value, by reference.
    pub fn push_shared(&mut self, bytes: Arc<Vec<u8>>, range: Range<usize>) {
        if !range.is_empty() {
            self.pieces.push_back(Piece::Shared(bytes, range));
        }
    }

    /// Whether everything has left.
    pub fn is_empty(&self) -> bool {
        self.pieces.is_empty()
    }

    /// Bytes that have not left.
    pub fn len(&self) -> usize {
        self.pieces.iter().map(|p| p.bytes().len()).sum::<usize>() - self.sent
    }

    /// The bytes, if they are in one place.
    pub fn single(&self) -> Option<&[u8]> {
        match self.pieces.len() {
            1 => Some(&self.pieces[0].bytes()[self.sent..]),
            _ => None,
        }
    }

    /// Fills `slices` with what is next, as far as it has room; returns how many it filled.
    pub fn slices<'a>(&'a self, slices: &mut [IoSlice<'a>]) -> usize {
        let mut count = 0;
        for (slot, piece) in slices.iter_mut().zip(&self.pieces) {
            let skip = if count == 0 { self.sent } else { 0 };
            *slot = IoSlice::new(&piece.bytes()[skip..]);
            count += 1;
        }
        count
    }

    /// Takes note that `count` bytes have left, and drops what is no longer needed, but for one
    /// buffer that [`Outgoing::reuse`] gives back.
    pub fn advance(&mut self, count: usize) {
        self.sent += count;
        while let Some(first) = self.pieces.front() {
            let len = first.bytes().len();
            if self.sent < len {
                return;
            }
            self.sent -= len;
            self.pieces.pop_front();
        }
        assert_eq!(self.sent, 0, "no more bytes leave than were there");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_leave_in_order_whatever_the_cuts() {
        let shared = Arc::new(b"0123456789".to_vec());
        let whole = b"ab345cdef012".to_vec();
        for step in 1..=whole.len() {
            let mut outgoing = Outgoing::default();
            outgoing.push_bytes(b"ab".to_vec());
            outgoing.push_shared(Arc::clone(&shared), 3..6);
            outgoing.push_bytes(Vec::new());
            outgoing.push_bytes(b"cdef".to_vec());
            outgoing.push_shared(Arc::clone(&shared), 0..3);
            let mut left = Vec::new();
            while !outgoing.is_empty() {
                assert_eq!(outgoing.len(), whole.len() - left.len());
                let mut slices = [IoSlice::new(&[]); 2];
                let count = outgoing.slices(&mut slices);
                let next: Vec<u8> =
                    slices[..count].iter().flat_map(|s| s.iter().copied()).take(step).collect();
                left.extend_from_slice(&next);
                outgoing.advance(next.len());
            }
            assert_eq!(left, whole);
        }
        assert_eq!(Arc::strong_count(&shared), 1);
    }
}
