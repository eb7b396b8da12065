//! A list of owned pieces of memory that are sent as if they were one piece.

#![expect(unsafe_code, reason = "the kernel takes memory by its address")]

use std::ops::Range;
use std::ptr::NonNull;
use std::sync::Arc;

/// The largest number of pieces that one system call takes (the kernel's `UIO_MAXIOV`). A longer
/// list needs several calls.
pub(crate) const IOVECS_MAX: usize = 1024;

/// Pieces of bytes that are sent in order. The list owns the bytes, by value or through an [`Arc`].
///
/// [`clear`](Self::clear) keeps the memory of the list itself, so one list can be used for many
/// sends.
#[derive(Default)]
pub struct Segments {
    owned: Vec<Vec<u8>>,
    pieces: Vec<Piece>,
    /// Index of the piece that contains the next byte to send.
    piece: usize,
    /// Number of bytes of that piece that were sent already.
    piece_sent: usize,
    /// Number of bytes that are left to send.
    size: usize,
    vectors: Kept,
}

enum Piece {
    Owned { index: usize, range: Range<usize> },
    Shared { bytes: Arc<Vec<u8>>, range: Range<usize> },
}

/// The description that the kernel reads while a send is in flight.
struct Vectors {
    header: libc::msghdr,
    iovecs: Vec<libc::iovec>,
}

/// Owns [`Vectors`] at a fixed address. `Segments` may move while the kernel has a pointer to the
/// vectors. So this is not a `Box`, which must have the only pointer to its contents when it moves.
struct Kept(NonNull<Vectors>);

// SAFETY: only the kernel reads the pointers in `vectors`, while a send is in flight. They point
// into memory that this value owns or shares immutably.
unsafe impl Send for Segments {}
// SAFETY: a shared reference gives no access to the pointers in `vectors`.
unsafe impl Sync for Segments {}

impl Default for Kept {
    fn default() -> Self {
        // SAFETY: a `msghdr` consists of integers and pointers, for which zero is a valid value.
        let header = unsafe { std::mem::zeroed() };
        let vectors = Box::new(Vectors { header, iovecs: Vec::new() });
        Self(NonNull::from(Box::leak(vectors)))
    }
}

impl Kept {
    /// The vectors, to be changed while no send is in flight.
    fn get(&mut self) -> &mut Vectors {
        // SAFETY: the pointer came from a box, which only `drop` frees. No send is in flight, so
        // addresses that were returned before are not used any more.
        unsafe { self.0.as_mut() }
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // SAFETY: the pointer came from a box, and is not used again.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

impl Segments {
    /// An empty list.
    pub fn new() -> Self {
        Self::default()
    }

    /// Appends all of `bytes`.
    pub fn push(&mut self, bytes: Vec<u8>) {
        let range = 0..bytes.len();
        let index = self.own(bytes);
        self.push_range(index, range);
    }

    /// Takes ownership of `bytes`, without appending any of them. Returns an index for
    /// [`push_range`](Self::push_range), which appends a range of these bytes.
    pub fn own(&mut self, bytes: Vec<u8>) -> usize {
        self.owned.push(bytes);
        self.owned.len() - 1
    }

    /// Appends a range of the bytes that [`own`](Self::own) took.
    ///
    /// # Panics
    /// When `index` was not returned by `own`, or when `range` is not within the bytes.
    pub fn push_range(&mut self, index: usize, range: Range<usize>) {
        self.size += self.owned[index][range.clone()].len();
        self.pieces.push(Piece::Owned { index, range });
    }

    /// Appends a range of shared bytes. The list holds the `Arc` until [`clear`](Self::clear).
    ///
    /// # Panics
    /// When `range` is not within `bytes`.
    pub fn push_shared(&mut self, bytes: Arc<Vec<u8>>, range: Range<usize>) {
        self.size += bytes[range.clone()].len();
        self.pieces.push(Piece::Shared { bytes, range });
    }

    /// Number of bytes that are left to send.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Whether nothing is left to send.
    pub fn is_empty(&self) -> bool {
        self.size == 0
    }

    /// Empties the list. The vectors that [`own`](Self::own) and [`push`](Self::push) took are
    /// emptied and put into `spare`, so that their memory can be reused.
    pub fn clear(&mut self, spare: &mut Vec<Vec<u8>>) {
        self.pieces.clear();
        self.vectors.get().iovecs.clear();
        (self.piece, self.piece_sent, self.size) = (0, 0, 0);
        for mut bytes in self.owned.drain(..) {
            bytes.clear();
            spare.push(bytes);
        }
    }

    /// The pieces that are left to send, in order, as slices. No slice is empty.
    pub fn slices(&self) -> impl Iterator<Item = &[u8]> {
        let mut skip = self.piece_sent;
        self.pieces[self.piece..].iter().filter_map(move |piece| {
            let bytes = &self.bytes(piece)[std::mem::take(&mut skip)..];
            (!bytes.is_empty()).then_some(bytes)
        })
    }

    /// Removes `sent` bytes from the front of the list, after a send of these bytes.
    ///
    /// # Panics
    /// When `sent` is more than [`size`](Self::size).
    pub fn advance(&mut self, mut sent: usize) {
        assert!(sent <= self.size, "{sent} bytes were sent of {}", self.size);
        self.size -= sent;
        while sent > 0 {
            let left = self.bytes(&self.pieces[self.piece]).len() - self.piece_sent;
            if sent < left {
                self.piece_sent += sent;
                return;
            }
            sent -= left;
            self.piece += 1;
            self.piece_sent = 0;
        }
    }

    fn bytes<'a>(&'a self, piece: &'a Piece) -> &'a [u8] {
        match piece {
            Piece::Owned { index, range } => &self.owned[*index][range.clone()],
            Piece::Shared { bytes, range } => &bytes[range.clone()],
        }
    }

    /// Describes the bytes that are left to send, for `sendmsg`, and returns the description's
    /// address. The address stays valid even if `self` moves. It becomes invalid at the next call
    /// of this function or of [`clear`](Self::clear), or when the list is dropped.
    pub(crate) fn describe(&mut self) -> *const libc::msghdr {
        let mut iovecs = std::mem::take(&mut self.vectors.get().iovecs);
        iovecs.clear();
        iovecs.extend(self.slices().take(IOVECS_MAX).map(|bytes| libc::iovec {
            iov_base: bytes.as_ptr().cast_mut().cast(),
            iov_len: bytes.len(),
        }));
        let vectors = self.vectors.get();
        vectors.iovecs = iovecs;
        vectors.header.msg_iov = vectors.iovecs.as_mut_ptr();
        vectors.header.msg_iovlen = vectors.iovecs.len();
        // SAFETY: the pointer points at `Vectors`. No reference is made, because the address must
        // stay valid when `self` moves.
        unsafe { &raw const (*self.vectors.0.as_ptr()).header }
    }
}

impl std::fmt::Debug for Segments {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Segments")
            .field("pieces", &self.pieces.len())
            .field("size", &self.size)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// "abcdefghijk" in five pieces, one of them empty.
    fn sample() -> Segments {
        let mut segments = Segments::new();
        segments.push(b"abc".to_vec());
        let index = segments.own(b"..defg..".to_vec());
        segments.push_range(index, 2..4);
        segments.push_shared(Arc::new(b"xx".to_vec()), 1..1);
        segments.push_range(index, 4..6);
        segments.push_shared(Arc::new(b"-hijk-".to_vec()), 1..5);
        segments
    }

    fn left(segments: &Segments) -> Vec<u8> {
        segments.slices().flatten().copied().collect()
    }

    #[test]
    fn any_two_short_sends_leave_the_rest() {
        let whole = b"abcdefghijk";
        for first in 0..=whole.len() {
            for second in 0..=whole.len() - first {
                let mut segments = sample();
                segments.advance(first);
                segments.advance(second);
                assert_eq!(left(&segments), whole[first + second..], "{first} and {second}");
                assert_eq!(segments.size(), whole.len() - first - second);
                assert!(segments.slices().all(|slice| !slice.is_empty()));
            }
        }
    }

    #[test]
    fn the_description_is_what_is_left() {
        let mut segments = sample();
        segments.advance(4);
        let header = segments.describe();
        let moved = Box::new(segments);
        // SAFETY: the description and the bytes do not move when the list moves.
        let described: Vec<u8> = unsafe {
            let header = &*header;
            let iovecs = std::slice::from_raw_parts(header.msg_iov, header.msg_iovlen);
            iovecs
                .iter()
                .flat_map(|iovec| {
                    std::slice::from_raw_parts(iovec.iov_base.cast::<u8>(), iovec.iov_len)
                })
                .copied()
                .collect()
        };
        assert_eq!(described, left(&moved));
    }

    #[test]
    fn more_pieces_than_one_call_takes() {
        let mut segments = Segments::new();
        let shared = Arc::new(vec![1, 2, 3]);
        for _ in 0..IOVECS_MAX + 5 {
            segments.push_shared(shared.clone(), 0..3);
        }
        let header = segments.describe();
        // SAFETY: the list lives, and was not changed after `describe`.
        assert_eq!(unsafe { (*header).msg_iovlen }, IOVECS_MAX);
        segments.advance(IOVECS_MAX * 3);
        assert_eq!(left(&segments), [1, 2, 3].repeat(5));
    }

    #[test]
    fn clearing_gives_the_memory_back() {
        let mut segments = sample();
        let mut spare = Vec::new();
        segments.advance(5);
        segments.clear(&mut spare);
        assert!(segments.is_empty());
        assert_eq!(segments.slices().count(), 0);
        assert_eq!(spare.len(), 2);
        assert!(spare.iter().all(|bytes| bytes.is_empty() && bytes.capacity() > 0));
        segments.push(b"again".to_vec());
        assert_eq!(left(&segments), b"again");
    }

    #[test]
    #[should_panic(expected = "bytes were sent of 11")]
    fn more_than_there_was_is_a_bug() {
        sample().advance(12);
    }
}
