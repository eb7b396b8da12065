//! Views of the strings of collections, and the form in which long strings are stored.

use std::borrow::Cow;
use std::ops::Range;
use std::sync::Arc;

use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob, DecimalBuffer, Piece, ReplyBuf, parse_i64};

use crate::memory::allocated_piece;
use crate::value::blob_memory;

/// A borrowed view of a string of a collection, for example of a field or a value of a hash.
#[derive(Clone, Copy, Debug)]
pub enum Element<'a> {
    /// A string that is stored as the integer it spells.
    Integer(i64),
    /// A short string.
    Bytes(&'a [u8]),
    /// A longer string.
    Piece(&'a Piece),
    /// A large string, in pieces.
    Blob(&'a Arc<Blob>),
}

impl<'a> Element<'a> {
    /// Length of the string in bytes.
    pub fn size(self) -> usize {
        match self {
            Element::Integer(value) => DecimalBuffer::new().format(value).len(),
            Element::Bytes(bytes) => bytes.len(),
            Element::Piece(piece) => piece.len(),
            Element::Blob(blob) => blob.size(),
        }
    }

    /// Passes the string to `look` as an argument. If the string is an integer, its digits exist
    /// only during the call.
    pub fn with_arg<R>(self, look: impl FnOnce(Arg<'_>) -> R) -> R {
        match self {
            Element::Integer(value) => {
                look(Arg::Bytes(DecimalBuffer::new().format(value).as_bytes()))
            }
            Element::Bytes(bytes) => look(Arg::Bytes(bytes)),
            Element::Piece(piece) => look(Arg::Bytes(piece)),
            Element::Blob(blob) => look(Arg::Blob(blob)),
        }
    }

    /// The string as contiguous bytes. The bytes are copied if the string is large or an integer.
    pub fn to_bytes(self) -> Cow<'a, [u8]> {
        match self {
            Element::Bytes(bytes) => Cow::Borrowed(bytes),
            Element::Piece(piece) => Cow::Borrowed(piece),
            other => Cow::Owned(other.with_arg(|arg| arg.to_bytes().into_owned())),
        }
    }

    /// The integer that the string spells, if it spells one.
    pub fn to_i64(self) -> Option<i64> {
        match self {
            Element::Integer(value) => Some(value),
            Element::Bytes(bytes) => parse_i64(bytes),
            Element::Piece(_) | Element::Blob(_) => None,
        }
    }

    /// A copy that borrows nothing; a large string is shared.
    pub(crate) fn to_owned(self) -> OwnedElement {
        match self {
            Element::Piece(piece) => OwnedElement::Piece(piece.clone()),
            Element::Blob(blob) => OwnedElement::Blob(blob.clone()),
            other => OwnedElement::Bytes(other.to_bytes().into_owned()),
        }
    }

    /// Replies with the string. A large string is shared with the reply, not copied.
    pub(crate) fn reply(self, reply: &mut ReplyBuf) {
        match self {
            Element::Integer(value) => reply.bulk_integer(value),
            Element::Bytes(bytes) => reply.bulk(bytes),
            Element::Piece(piece) => reply.bulk_piece(piece, 0..piece.len()),
            Element::Blob(blob) => reply.bulk_blob(blob, 0..blob.size()),
        }
    }

    /// Whether this is the string `arg`.
    pub(super) fn is(self, arg: Arg<'_>) -> bool {
        match (self, arg) {
            (Element::Bytes(bytes), Arg::Bytes(wanted)) => bytes == wanted,
            _ => self.size() == arg.size() && self.is_in(arg, 0..arg.size()),
        }
    }

    /// Whether a range of this string is equal to the same range of `arg`. Both strings must have
    /// the same size.
    pub(super) fn is_in(self, arg: Arg<'_>, range: Range<usize>) -> bool {
        self.with_arg(|own| are_equal(chunks_in(own, range.clone()), chunks_in(arg, range)))
    }
}

/// The bytes of a range of a string, piece by piece, as they are stored.
fn chunks_in(arg: Arg<'_>, range: Range<usize>) -> impl Iterator<Item = &[u8]> {
    let (bytes, blob) = match arg {
        Arg::Bytes(bytes) => (Some(&bytes[range.clone()]), None),
        Arg::Blob(blob) => (None, Some(blob)),
    };
    bytes.into_iter().chain(blob.into_iter().flat_map(move |blob| blob.chunks(range.clone())))
}

/// Whether two strings of the same size are equal. Large strings are compared piece by piece.
fn are_equal<'a>(
    mut of_a: impl Iterator<Item = &'a [u8]>,
    mut of_b: impl Iterator<Item = &'a [u8]>,
) -> bool {
    let (mut x, mut y) = (&[][..], &[][..]);
    loop {
        let len = x.len().min(y.len());
        if x[..len] != y[..len] {
            return false;
        }
        (x, y) = (&x[len..], &y[len..]);
        if x.is_empty() {
            let Some(next) = of_a.next() else { return true };
            x = next;
        }
        if y.is_empty() {
            let Some(next) = of_b.next() else { return true };
            y = next;
        }
    }
}

impl<'a> From<slimio_rdb::Element<'a>> for Element<'a> {
    fn from(element: slimio_rdb::Element<'a>) -> Self {
        match element {
            slimio_rdb::Element::Integer(value) => Element::Integer(value),
            slimio_rdb::Element::Bytes(bytes) => Element::Bytes(bytes),
        }
    }
}

/// A string of a collection that borrows nothing.
#[derive(Clone, Debug)]
pub(crate) enum OwnedElement {
    Bytes(Vec<u8>),
    Piece(Piece),
    Blob(Arc<Blob>),
}

impl OwnedElement {
    pub(crate) fn as_arg(&self) -> Arg<'_> {
        match self {
            OwnedElement::Bytes(bytes) => Arg::Bytes(bytes),
            OwnedElement::Piece(piece) => Arg::Bytes(piece),
            OwnedElement::Blob(blob) => Arg::Blob(blob),
        }
    }
}

/// A string that is too long to be packed with other strings. It is never changed, only replaced.
#[derive(Clone, Debug)]
pub(crate) enum LargeString {
    Piece(Piece),
    Blob(Arc<Blob>),
}

impl LargeString {
    /// A string from an argument. Bytes are copied; the pieces of a blob are shared.
    pub(super) fn from_arg(arg: Arg<'_>) -> Self {
        match arg {
            Arg::Bytes(bytes) if bytes.len() <= BLOB_PIECE_SIZE => {
                LargeString::Piece(Arc::new(bytes.to_vec()))
            }
            Arg::Bytes(bytes) => LargeString::Blob(Arc::new(Blob::from_bytes(bytes))),
            Arg::Blob(blob) if blob.size() <= BLOB_PIECE_SIZE => {
                LargeString::Piece(blob.clone().into_pieces().pop().unwrap_or_default())
            }
            Arg::Blob(blob) => LargeString::Blob(Arc::new(blob.clone())),
        }
    }

    pub(super) fn as_element(&self) -> Element<'_> {
        match self {
            LargeString::Piece(piece) => Element::Piece(piece),
            LargeString::Blob(blob) => Element::Blob(blob),
        }
    }

    /// Bytes that the string takes in memory, besides the pointer to it.
    pub(super) fn memory(&self) -> usize {
        match self {
            LargeString::Piece(piece) => allocated_piece(piece.capacity()),
            LargeString::Blob(blob) => blob_memory(blob),
        }
    }

    /// Whether freeing the string takes noticeable time.
    pub(super) fn is_large(&self) -> bool {
        matches!(self, LargeString::Blob(_))
    }
}
