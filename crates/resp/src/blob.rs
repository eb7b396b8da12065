//! A large string in pieces of bounded size.
//!
//! ```text
//! | piece 0: BLOB_PIECE_SIZE | piece 1: BLOB_PIECE_SIZE | ... | last: 1..=BLOB_PIECE_SIZE |
//! ```
//!
//! Every piece except the last is exactly full, so a division finds the piece in which an offset
//! lies. Pieces are shared, not copied, when the string is cloned, sent or captured for a snapshot.
//! A later change of the string copies only the piece that it touches.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

/// Size in bytes of every piece of a [`Blob`] except the last.
pub const BLOB_PIECE_SIZE: usize = 256 * 1024;

/// One piece of a large string. It is cheap to clone, and is copied only if it is changed while it
/// is shared.
pub type Piece = Arc<Vec<u8>>;

/// A string held in pieces of [`BLOB_PIECE_SIZE`] bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Blob {
    pieces: Vec<Piece>,
    size: usize,
}

/// Part of a piece, as one contiguous stretch of a [`Blob`].
#[derive(Clone, Debug)]
pub struct BlobPart {
    /// The piece. It is shared, not copied.
    pub piece: Piece,
    /// The range of the piece's bytes.
    pub range: Range<usize>,
}

impl Blob {
    /// An empty string.
    pub fn new() -> Self {
        Self::default()
    }

    /// Copies `bytes` into pieces.
    pub fn from_bytes(bytes: &[u8]) -> Self {
        Self {
            pieces: bytes.chunks(BLOB_PIECE_SIZE).map(|chunk| Arc::new(chunk.to_vec())).collect(),
            size: bytes.len(),
        }
    }

    /// Makes a string of existing pieces, without copying them.
    ///
    /// Panics if a piece other than the last does not hold exactly [`BLOB_PIECE_SIZE`] bytes, or if
    /// the last piece is empty or holds more than [`BLOB_PIECE_SIZE`] bytes.
    pub fn from_pieces(pieces: Vec<Piece>) -> Self {
        let size = pieces.iter().map(|piece| piece.len()).sum();
        if let Some((last, full)) = pieces.split_last() {
            assert!(
                full.iter().all(|piece| piece.len() == BLOB_PIECE_SIZE),
                "a piece before the last is not exactly full"
            );
            assert!(
                (1..=BLOB_PIECE_SIZE).contains(&last.len()),
                "the last piece is empty or too large"
            );
        }
        Self { pieces, size }
    }

    /// Takes the string apart into its pieces, in order.
    pub fn into_pieces(self) -> Vec<Piece> {
        self.pieces
    }

    /// The pieces, in order.
    pub fn pieces(&self) -> &[Piece] {
        &self.pieces
    }

    /// Length in bytes.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether the string is empty.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Borrows the contiguous stretches that make up `range`, in order.
    ///
    /// Panics if `range` extends past the end.
    pub fn chunks(&self, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
        self.ranges(range).map(|(index, within)| &self.pieces[index][within])
    }

    /// The contiguous stretches that make up `range`, in order. Each stretch shares its piece with
    /// the string.
    ///
    /// Panics if `range` extends past the end.
    pub fn parts(&self, range: Range<usize>) -> impl Iterator<Item = BlobPart> {
        self.ranges(range)
            .map(|(index, range)| BlobPart { piece: Arc::clone(&self.pieces[index]), range })
    }

    /// Appends the bytes of `range` to `out`.
    pub fn copy_to(&self, range: Range<usize>, out: &mut Vec<u8>) {
        out.reserve(range.len());
        for chunk in self.chunks(range) {
            out.extend_from_slice(chunk);
        }
    }

    /// The whole string, copied into contiguous memory. Meant for small strings.
    pub fn to_vec(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.copy_to(0..self.size, &mut out);
        out
    }

    /// Appends `bytes`. Changes only the last piece, and adds new pieces after it.
    pub fn append(&mut self, mut bytes: &[u8]) {
        self.size += bytes.len();
        if let Some(last) = self.pieces.last_mut() {
            let room = BLOB_PIECE_SIZE - last.len();
            let (head, tail) = bytes.split_at(room.min(bytes.len()));
            if !head.is_empty() {
                let last = Arc::make_mut(last);
                reserve_in_piece(last, head.len());
                last.extend_from_slice(head);
            }
            bytes = tail;
        }
        self.pieces.extend(bytes.chunks(BLOB_PIECE_SIZE).map(|chunk| Arc::new(chunk.to_vec())));
    }

    /// Overwrites the string from `offset` on, and extends it if `bytes` reach past its end. If
    /// `offset` is past the end, the gap is filled with zeros. A piece is copied only if it is
    /// shared and changes.
    ///
    /// All whole pieces of a gap share one piece of zeros, so a large gap costs hardly any memory.
    pub fn write_at(&mut self, offset: usize, bytes: &[u8]) {
        self.grow_zeroed(offset);
        let over = bytes.len().min(self.size - offset);
        let mut rest = &bytes[..over];
        let ranges: Vec<_> = self.ranges(offset..offset + over).collect();
        for (index, within) in ranges {
            let (now, later) = rest.split_at(within.len());
            Arc::make_mut(&mut self.pieces[index])[within].copy_from_slice(now);
            rest = later;
        }
        self.append(&bytes[over..]);
    }

    /// Extends the string with zeros to `size` bytes. If the string has `size` bytes or more, it
    /// stays as it is.
    fn grow_zeroed(&mut self, size: usize) {
        static ZEROS: OnceLock<Piece> = OnceLock::new();

        if let Some(last) = self.pieces.last_mut()
            && size > self.size
        {
            let room = BLOB_PIECE_SIZE - last.len();
            let more = room.min(size - self.size);
            if more > 0 {
                let last = Arc::make_mut(last);
                reserve_in_piece(last, more);
                last.resize(last.len() + more, 0);
                self.size += more;
            }
        }
        while self.size < size {
            let more = (size - self.size).min(BLOB_PIECE_SIZE);
            self.pieces.push(if more == BLOB_PIECE_SIZE {
                Arc::clone(ZEROS.get_or_init(|| Arc::new(vec![0; BLOB_PIECE_SIZE])))
            } else {
                Arc::new(vec![0; more])
            });
            self.size += more;
        }
    }

    /// For every stretch of `range`, the index of its piece and the range within that piece.
    fn ranges(&self, range: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + use<> {
        assert!(range.end <= self.size, "the range ends past the end of the blob");
        let Range { start, end } = range;
        let pieces = if start < end {
            start / BLOB_PIECE_SIZE..(end - 1) / BLOB_PIECE_SIZE + 1
        } else {
            0..0
        };
        pieces.map(move |index| {
            let base = index * BLOB_PIECE_SIZE;
            (index, start.saturating_sub(base)..(end - base).min(BLOB_PIECE_SIZE))
        })
    }
}

/// Makes room in a piece for `more` bytes. If the piece must grow, its capacity becomes at least
/// twice its length, so that each of many small appends costs little. The capacity never exceeds a
/// full piece.
///
/// Panics if the bytes do not fit in a full piece.
pub fn reserve_in_piece(piece: &mut Vec<u8>, more: usize) {
    let needed = piece.len() + more;
    assert!(needed <= BLOB_PIECE_SIZE, "the bytes do not fit in a piece");
    if needed > piece.capacity() {
        let wanted = (piece.len() * 2).clamp(needed, BLOB_PIECE_SIZE);
        piece.reserve_exact(wanted - piece.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pattern(size: usize) -> Vec<u8> {
        (0..size).map(|i| (i % 251) as u8).collect()
    }

    #[test]
    fn appending_fills_pieces_exactly() {
        let bytes = pattern(3 * BLOB_PIECE_SIZE + 7);
        let mut blob = Blob::new();
        for chunk in bytes.chunks(100_001) {
            blob.append(chunk);
        }
        assert_eq!(blob, Blob::from_bytes(&bytes));
        assert_eq!(Blob::from_pieces(blob.clone().into_pieces()), blob);
        assert_eq!(blob.to_vec(), bytes);
    }

    #[test]
    fn writing_copies_only_the_shared_piece_it_touches() {
        let bytes = pattern(3 * BLOB_PIECE_SIZE);
        let original = Blob::from_bytes(&bytes);
        let mut changed = original.clone();
        changed.write_at(BLOB_PIECE_SIZE + 1, b"xyz");
        assert_eq!(original.to_vec(), bytes);
        assert_eq!(&changed.to_vec()[BLOB_PIECE_SIZE + 1..BLOB_PIECE_SIZE + 4], b"xyz");
        let shared = |i: usize| Arc::ptr_eq(&original.pieces[i], &changed.pieces[i]);
        assert_eq!((shared(0), shared(1), shared(2)), (true, false, true));
    }

    #[test]
    fn writing_far_behind_the_end_shares_the_zeros() {
        let mut blob = Blob::from_bytes(b"head");
        let offset = 512 * 1024 * 1024 - 4;
        blob.write_at(offset, b"tail");
        assert_eq!(blob.size(), offset + 4);
        assert!(Arc::ptr_eq(&blob.pieces[1], &blob.pieces[2]));
        let mut out = Vec::new();
        blob.copy_to(offset - 2..offset + 4, &mut out);
        assert_eq!(out, b"\0\0tail");
    }

    #[test]
    fn writing_across_the_end_overwrites_and_grows() {
        for (size, offset, count) in
            [(5, 3, 10), (0, 0, 3), (BLOB_PIECE_SIZE, BLOB_PIECE_SIZE - 1, 2)]
        {
            let mut expected = pattern(size);
            let mut blob = Blob::from_bytes(&expected);
            expected.truncate(offset);
            expected.extend(vec![b'!'; count]);
            blob.write_at(offset, &vec![b'!'; count]);
            assert_eq!(blob.to_vec(), expected);
        }
    }
}
