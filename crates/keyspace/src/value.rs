//! Values, as they move between keys and as commands look at them.

use std::sync::Arc;

use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob, Piece, reserve_in_piece};

use crate::hash::{HashRef, HashTree};
use crate::memory::{allocated, allocated_piece};
use crate::table::Written;

/// Longest string in bytes that Redis keeps beside its head, and calls `embstr`.
const EMBSTR_SIZE_MAX: usize = 44;

/// An owned value, apart from its key. A clone takes little time whatever it is: large parts are
/// shared.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A string of up to `BLOB_PIECE_SIZE` bytes.
    Piece(Piece),
    /// A longer string.
    Blob(Box<Blob>),
    /// The listpack of a small hash.
    PackedHash(Piece),
    /// A large hash.
    Hash(Box<HashTree>),
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ValueType {
    /// A string.
    String,
    /// A hash.
    Hash,
}

impl ValueType {
    /// The name that `TYPE` replies with.
    pub fn name(self) -> &'static str {
        match self {
            ValueType::String => "string",
            ValueType::Hash => "hash",
        }
    }
}

/// A value, looked at where it lives.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// A string.
    String(StringRef<'a>),
    /// A hash.
    Hash(HashRef<'a>),
}

/// A string, looked at where it lives.
#[derive(Clone, Copy, Debug)]
pub enum StringRef<'a> {
    /// In the key's entry.
    Inline(&'a [u8]),
    /// In memory of its own; can be shared.
    Piece(&'a Piece),
    /// In pieces; can be shared.
    Blob(&'a Blob),
}

impl<'a> StringRef<'a> {
    /// The string as if it were an argument.
    pub fn as_arg(self) -> Arg<'a> {
        match self {
            StringRef::Inline(bytes) => Arg::Bytes(bytes),
            StringRef::Piece(piece) => Arg::Bytes(piece),
            StringRef::Blob(blob) => Arg::Blob(blob),
        }
    }

    /// Length in bytes.
    pub fn size(self) -> usize {
        self.as_arg().size()
    }
}

impl<'a> ValueRef<'a> {
    /// The type of the value.
    pub fn value_type(self) -> ValueType {
        match self {
            ValueRef::String(_) => ValueType::String,
            ValueRef::Hash(_) => ValueType::Hash,
        }
    }

    /// The string, if the value is one.
    pub fn as_string(self) -> Option<StringRef<'a>> {
        match self {
            ValueRef::String(string) => Some(string),
            ValueRef::Hash(_) => None,
        }
    }

    /// The hash, if the value is one.
    pub fn as_hash(self) -> Option<HashRef<'a>> {
        match self {
            ValueRef::Hash(hash) => Some(hash),
            ValueRef::String(_) => None,
        }
    }

    /// The encoding that `OBJECT ENCODING` replies with.
    pub(crate) fn encoding_name(self, written: Written) -> &'static str {
        match (self, written) {
            (ValueRef::Hash(hash), _) => hash.encoding_name(),
            (ValueRef::String(_), Written::InParts) => "raw",
            (ValueRef::String(string), _) if string.size() > EMBSTR_SIZE_MAX => "raw",
            (_, Written::Whole | Written::Copied) if self.as_integer().is_some() => "int",
            _ => "embstr",
        }
    }

    /// The integer that a string spells, if it spells one.
    pub(crate) fn as_integer(self) -> Option<i64> {
        self.as_string()?.as_arg().to_i64()
    }

    /// Bytes of a string; of a hash, about those of its fields and values. Takes constant time.
    pub(crate) fn size(self) -> usize {
        match self {
            ValueRef::String(string) => string.size(),
            ValueRef::Hash(HashRef::Tree(tree)) => tree.memory(),
            ValueRef::Hash(packed) => packed.listpack().map_or(0, <[u8]>::len),
        }
    }

    /// Whether freeing the value takes noticeable time.
    pub(crate) fn is_large(self) -> bool {
        match self {
            ValueRef::String(string) => matches!(string, StringRef::Blob(_)),
            ValueRef::Hash(HashRef::Tree(tree)) => tree.is_large(),
            ValueRef::Hash(_) => false,
        }
    }

    /// An owned copy; large parts are shared.
    pub(crate) fn to_value(self) -> Value {
        match self {
            ValueRef::String(StringRef::Inline(bytes)) => Value::Piece(Arc::new(bytes.to_vec())),
            ValueRef::String(StringRef::Piece(piece)) => Value::Piece(Piece::clone(piece)),
            ValueRef::String(StringRef::Blob(blob)) => Value::Blob(Box::new(blob.clone())),
            ValueRef::Hash(HashRef::Inline(bytes)) => Value::PackedHash(Arc::new(bytes.to_vec())),
            ValueRef::Hash(HashRef::Packed(piece)) => Value::PackedHash(Piece::clone(piece)),
            ValueRef::Hash(HashRef::Tree(tree)) => Value::Hash(Box::new(tree.clone())),
        }
    }
}

impl Value {
    /// An owned string, copied from an argument unless that is large: then it is shared.
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

    /// Bytes that the value takes in memory, found without a walk. Memory shared with others is
    /// counted as if it were not.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Value::Piece(piece) | Value::PackedHash(piece) => allocated_piece(piece.capacity()),
            Value::Blob(blob) => blob_memory(blob),
            Value::Hash(tree) => allocated(size_of::<HashTree>()) + tree.memory(),
        }
    }

    pub(crate) fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Piece(piece) => ValueRef::String(StringRef::Piece(piece)),
            Value::Blob(blob) => ValueRef::String(StringRef::Blob(blob)),
            Value::PackedHash(piece) => ValueRef::Hash(HashRef::Packed(piece)),
            Value::Hash(tree) => ValueRef::Hash(HashRef::Tree(tree)),
        }
    }

    /// Overwrites the string from `offset` on. Grows it with zeros up to `offset`, and with what
    /// reaches beyond its end. Touches only the pieces written to.
    ///
    /// Panics if the value is no string.
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
                Value::PackedHash(_) | Value::Hash(_) => panic!("a hash is no string"),
            }
            offset += chunk.len();
        }
    }
}

/// Bytes that a string in pieces takes in memory.
pub(crate) fn blob_memory(blob: &Blob) -> usize {
    let Some((last, full)) = blob.pieces().split_last() else {
        return allocated(size_of::<Blob>());
    };
    allocated(size_of::<Blob>())
        + allocated(size_of_val(blob.pieces()))
        + full.len() * allocated_piece(BLOB_PIECE_SIZE)
        + allocated_piece(last.capacity())
}
