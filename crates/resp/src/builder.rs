//! Receives a large string directly into its pieces.

use std::sync::Arc;

use crate::blob::{BLOB_PIECE_SIZE, Blob, Piece};

/// A [`Blob`] of known size that is being received.
///
/// Memory is taken one piece at a time, as bytes arrive. So if a client announces 512 MB and sends
/// nothing, at most one piece is allocated.
///
/// [`extend`](Self::extend) copies bytes in. To receive without a copy, call
/// [`take_buffer`](Self::take_buffer) to borrow the piece that is not full yet. Append to this
/// piece, and return it with [`put_buffer`](Self::put_buffer).
#[derive(Debug)]
pub struct BlobBuilder {
    /// Pieces that are full.
    pieces: Vec<Piece>,
    /// The piece being filled; empty while it is lent out.
    current: Vec<u8>,
    /// Number of bytes received so far, in full pieces and in the piece being filled.
    received: usize,
    size: usize,
}

impl BlobBuilder {
    /// Begins a string of `size` bytes.
    pub fn new(size: usize) -> Self {
        Self { pieces: Vec::new(), current: Vec::new(), received: 0, size }
    }

    /// Number of bytes still to come.
    pub fn remaining(&self) -> usize {
        self.size - self.received
    }

    /// Number of bytes that may be received next: as many as still fit in the piece being filled,
    /// but no more than are still to come.
    pub fn wanted(&self) -> usize {
        self.remaining().min(BLOB_PIECE_SIZE - self.received % BLOB_PIECE_SIZE)
    }

    /// Copies bytes in, but no more than are still to come. Returns how many were copied.
    pub fn extend(&mut self, bytes: &[u8]) -> usize {
        let taken = bytes.len().min(self.remaining());
        let mut rest = &bytes[..taken];
        while !rest.is_empty() {
            let (now, later) = rest.split_at(self.wanted().min(rest.len()));
            let mut buffer = self.take_buffer();
            buffer.extend_from_slice(now);
            self.put_buffer(buffer);
            rest = later;
        }
        taken
    }

    /// Lends out the piece being filled, which has capacity for [`wanted`](Self::wanted) more
    /// bytes. The piece must be put back before anything else is called.
    pub fn take_buffer(&mut self) -> Vec<u8> {
        if self.current.capacity() == 0 {
            self.current = Vec::with_capacity(self.wanted());
        }
        std::mem::take(&mut self.current)
    }

    /// Takes the piece back, with the received bytes appended.
    ///
    /// Panics if the piece shrank, or grew by more than [`wanted`](Self::wanted) bytes.
    pub fn put_buffer(&mut self, buffer: Vec<u8>) {
        let before = self.received % BLOB_PIECE_SIZE;
        assert!(buffer.len() >= before, "the caller shortened the piece");
        assert!(buffer.len() - before <= self.wanted(), "the caller appended too much");
        self.received += buffer.len() - before;
        if buffer.len() == BLOB_PIECE_SIZE || self.received == self.size {
            if !buffer.is_empty() {
                self.pieces.push(Arc::new(buffer));
            }
        } else {
            self.current = buffer;
        }
    }

    /// The whole string.
    ///
    /// Panics if bytes are missing.
    pub fn finish(self) -> Blob {
        assert_eq!(self.received, self.size, "bytes of a large argument are missing");
        Blob::from_pieces(self.pieces)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_ways_in_build_the_same_string() {
        for size in [0, 1, BLOB_PIECE_SIZE - 1, BLOB_PIECE_SIZE, 2 * BLOB_PIECE_SIZE + 5] {
            let bytes: Vec<u8> = (0..size).map(|i| (i % 253) as u8).collect();
            let mut builder = BlobBuilder::new(size);
            let mut rest = &bytes[..];
            let mut lent = false;
            while builder.remaining() > 0 {
                let step = rest.len().min(70_000);
                let took = if lent {
                    let mut buffer = builder.take_buffer();
                    let took = step.min(builder.wanted());
                    assert!(buffer.capacity() - buffer.len() >= builder.wanted());
                    buffer.extend_from_slice(&rest[..took]);
                    builder.put_buffer(buffer);
                    took
                } else {
                    builder.extend(&rest[..step])
                };
                rest = &rest[took..];
                lent = !lent;
            }
            assert_eq!(builder.finish(), Blob::from_bytes(&bytes), "size {size}");
        }
    }

    #[test]
    fn a_claimed_size_takes_one_piece_at_most() {
        let mut builder = BlobBuilder::new(512 * 1024 * 1024);
        assert_eq!(builder.extend(b"abc"), 3);
        assert_eq!(builder.take_buffer().capacity(), BLOB_PIECE_SIZE);
    }

    #[test]
    fn what_follows_the_string_is_left_alone() {
        let mut builder = BlobBuilder::new(3);
        assert_eq!(builder.extend(b"abc\r\n"), 3);
        assert_eq!(builder.finish().to_vec(), b"abc");
    }
}
