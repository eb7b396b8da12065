//! Values, as they move between keys and as commands look at them.

use std::sync::Arc;

use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob, Piece, reserve_in_piece};

/// A value that stands on its own, apart from its key.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A string of up to `BLOB_PIECE_SIZE` bytes.
    Piece(Piece),
    /// A longer string.
    Blob(Box<Blob>),
}

/// A value, looked at where it lives.
#[derive(Clone, Copy, Debug)]
pub(crate) enum ValueRef<'a> {
    Bytes(&'a [u8]),
    Piece(&'a Piece),
    Blob(&'a Blob),
}

impl<'a> ValueRef<'a> {
    /// The string as if it were an argument.
    pub(crate) fn as_arg(self) -> Arg<'a> {
        match self {
            ValueRef::Bytes(bytes) => Arg::Bytes(bytes),
            ValueRef::Piece(piece) => Arg::Bytes(piece),
            ValueRef::Blob(blob) => Arg::Blob(blob),
        }
    }

    /// Length in bytes.
    pub(crate) fn size(self) -> usize {
        self.as_arg().size()
    }

    /// What `TYPE` says.
    pub(crate) fn type_name(self) -> &'static str {
        match self {
            ValueRef::Bytes(_) | ValueRef::Piece(_) | ValueRef::Blob(_) => "string",
        }
    }

    /// Whether freeing the value takes noticeable time.
    pub(crate) fn is_large(self) -> bool {
        matches!(self, ValueRef::Blob(_))
    }

    /// A copy that stands on its own; large parts are shared.
    pub(crate) fn to_value(self) -> Value {
        match self {
            ValueRef::Bytes(bytes) => Value::Piece(Arc::new(bytes.to_vec())),
            ValueRef::Piece(piece) => Value::Piece(Piece::clone(piece)),
            ValueRef::Blob(blob) => Value::Blob(Box::new(blob.clone())),
        }
    }
}

impl Value {
    /// A string of its own, copied from an argument unless that is large: then it is shared.
    pub(crate) fn from_arg(arg: Arg<'_>) -> Self {
        match arg {
            Arg::Bytes(bytes) if bytes.len() <= BLOB_PIECE_SIZE => {
                Value::Piece(Arc::new(bytes.to_vec()))
            }
            Arg::Bytes(bytes) => Value::Blob(Box::new(Blob::from_bytes(bytes))),
            Arg::Blob(blob) => Value::from_blob(blob.clone()),
        }
    }

    pub(crate) fn from_blob(blob: Blob) -> Self {
        if blob.size() > BLOB_PIECE_SIZE {
            return Value::Blob(Box::new(blob));
        }
        Value::Piece(blob.into_pieces().pop().unwrap_or_default())
    }

    pub(crate) fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Piece(piece) => ValueRef::Piece(piece),
            Value::Blob(blob) => ValueRef::Blob(blob),
        }
    }

    /// Appends to the string; touches its last piece only.
    pub(crate) fn append(&mut self, arg: Arg<'_>) {
        self.write_at(self.as_ref().size(), arg);
    }

    /// Writes over the string from `offset` on, growing it with zeros and with what reaches behind
    /// its end; touches only the pieces written to.
    pub(crate) fn write_at(&mut self, mut offset: usize, arg: Arg<'_>) {
        let end = offset + arg.size();
        if let Value::Piece(piece) = self
            && end > BLOB_PIECE_SIZE
        {
            let pieces = if piece.is_empty() { vec![] } else { vec![std::mem::take(piece)] };
            *self = Value::Blob(Box::new(Blob::from_pieces(pieces)));
        }
        for chunk in arg.chunks() {
            match self {
                Value::Piece(piece) => {
                    let bytes = Arc::make_mut(piece);
                    let end = offset + chunk.len();
                    if bytes.len() < end {
                        reserve_in_piece(bytes, end - bytes.len());
                        bytes.resize(end, 0);
                    }
                    bytes[offset..end].copy_from_slice(chunk);
                }
                Value::Blob(blob) => blob.write_at(offset, chunk),
            }
            offset += chunk.len();
        }
    }
}
