//! Owned values, which can move between keys, and borrowed views of values, for commands.

use std::sync::Arc;

use slimio_resp::{Arg, BLOB_PIECE_SIZE, Blob, Piece, reserve_in_piece};

use crate::collection::{CollectionRef, Form};
use crate::hash::HashRef;
use crate::kinds::{AnyTree, Packing, ValueType};
use crate::memory::{allocated, allocated_piece};
use crate::table::Written;

/// Size in bytes of the longest string that Redis stores next to its object header, as `embstr`.
const EMBSTR_SIZE_MAX: usize = 44;

/// An owned value without its key. Cloning a value always takes little time, because the clone
/// shares the large parts.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A string of up to `BLOB_PIECE_SIZE` bytes.
    Piece(Piece),
    /// A longer string.
    Blob(Box<Blob>),
    /// The bytes of a small collection.
    Packed(Packing, Piece),
    /// A large collection.
    Tree(Box<AnyTree>),
}

/// A borrowed view of a value.
#[derive(Clone, Copy, Debug)]
pub enum ValueRef<'a> {
    /// A string.
    String(StringRef<'a>),
    /// A collection.
    Collection(CollectionRef<'a>),
}

/// A borrowed view of a string.
#[derive(Clone, Copy, Debug)]
pub enum StringRef<'a> {
    /// In the key's entry.
    Inline(&'a [u8]),
    /// In its own allocation, which can be shared.
    Piece(&'a Piece),
    /// In pieces, which can be shared.
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
            ValueRef::Collection(collection) => collection.value_type(),
        }
    }

    /// The string, if the value is a string.
    pub fn as_string(self) -> Option<StringRef<'a>> {
        match self {
            ValueRef::String(string) => Some(string),
            ValueRef::Collection(_) => None,
        }
    }

    /// The collection, if the value is a collection.
    pub fn as_collection(self) -> Option<CollectionRef<'a>> {
        match self {
            ValueRef::Collection(collection) => Some(collection),
            ValueRef::String(_) => None,
        }
    }

    /// The hash, if the value is a hash.
    pub fn as_hash(self) -> Option<HashRef<'a>> {
        self.as_collection().filter(|it| it.value_type() == ValueType::Hash).map(HashRef::new)
    }

    /// The encoding that `OBJECT ENCODING` replies with.
    pub(crate) fn encoding_name(self, written: Written) -> &'static str {
        match (self, written) {
            (ValueRef::Collection(collection), _) => collection.encoding_name(),
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

    /// Size in bytes of a string, or about the size of all strings of a collection. Takes constant
    /// time.
    pub(crate) fn size(self) -> usize {
        match self {
            ValueRef::String(string) => string.size(),
            ValueRef::Collection(collection) => collection.size(),
        }
    }

    /// Whether freeing the value takes noticeable time.
    pub(crate) fn is_large(self) -> bool {
        match self {
            ValueRef::String(string) => matches!(string, StringRef::Blob(_)),
            ValueRef::Collection(collection) => collection.is_large(),
        }
    }

    /// An owned copy; large parts are shared.
    pub(crate) fn to_value(self) -> Value {
        match self {
            ValueRef::String(StringRef::Inline(bytes)) => Value::Piece(Arc::new(bytes.to_vec())),
            ValueRef::String(StringRef::Piece(piece)) => Value::Piece(Piece::clone(piece)),
            ValueRef::String(StringRef::Blob(blob)) => Value::Blob(Box::new(blob.clone())),
            ValueRef::Collection(collection) => collection.to_value(),
        }
    }
}

impl Value {
    /// An owned string from an argument. Bytes are copied; the pieces of a blob are shared.
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

    /// Bytes that the value takes in memory, found without a walk over its elements. Counts shared
    /// memory in full.
    pub(crate) fn memory(&self) -> usize {
        match self {
            Value::Piece(piece) | Value::Packed(_, piece) => allocated_piece(piece.capacity()),
            Value::Blob(blob) => blob_memory(blob),
            Value::Tree(tree) => allocated(size_of::<AnyTree>()) + tree.memory(),
        }
    }

    pub(crate) fn as_ref(&self) -> ValueRef<'_> {
        match self {
            Value::Piece(piece) => ValueRef::String(StringRef::Piece(piece)),
            Value::Blob(blob) => ValueRef::String(StringRef::Blob(blob)),
            Value::Packed(packing, piece) => {
                ValueRef::Collection(CollectionRef(Form::Packed(*packing, piece)))
            }
            Value::Tree(tree) => ValueRef::Collection(CollectionRef(Form::Tree(tree))),
        }
    }

    /// Overwrites the string from `offset` on, and extends the string if `arg` reaches beyond the
    /// string's end. A gap before `offset` is filled with zeros. Touches only the pieces of the
    /// string that it writes to.
    ///
    /// Panics if the value is not a string.
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
                Value::Packed(..) | Value::Tree(_) => panic!("a collection is not a string"),
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
