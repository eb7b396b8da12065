//! Encodes values as in RDB files. RDB files, chunks of snapshots and `DUMP` use this module.

use std::convert::Infallible;

use slimio_rdb::{Encoder, ValueType as RdbType, Version};

use crate::collection::{CollectionRef, Element};
use crate::kinds::Packing;
use crate::value::{StringRef, ValueRef};

/// The destination of an encoded value.
pub trait ValueSink {
    /// Why the value cannot be written.
    type Error;

    /// The encoder. [`encode_value`] calls this again between the parts of a large value, so that
    /// the sink can pass on the bytes encoded so far.
    ///
    /// # Errors
    /// Returns the errors of the sink. After an error, the value is incomplete.
    fn encoder(&mut self) -> Result<&mut Encoder, Self::Error>;
}

impl ValueSink for Encoder {
    type Error = Infallible;

    fn encoder(&mut self) -> Result<&mut Encoder, Infallible> {
        Ok(self)
    }
}

/// The RDB type in which [`encode_value`] writes a value.
pub fn rdb_type(value: ValueRef<'_>, version: Version) -> RdbType {
    let packed = value.as_collection().and_then(CollectionRef::packed);
    packed
        .map_or_else(|| value.value_type().rdb_type(), |(packing, _)| packing.rdb_type_in(version))
}

/// Writes a value without its type.
///
/// # Errors
/// Returns the errors of the sink. After an error, the value is incomplete.
pub fn encode_value<S: ValueSink>(sink: &mut S, value: ValueRef<'_>) -> Result<(), S::Error> {
    let version = sink.encoder()?.version();
    let collection = match value {
        ValueRef::String(StringRef::Inline(bytes)) => {
            sink.encoder()?.string(bytes);
            return Ok(());
        }
        ValueRef::String(StringRef::Piece(piece)) => {
            sink.encoder()?.string(piece);
            return Ok(());
        }
        ValueRef::String(StringRef::Blob(blob)) => {
            sink.encoder()?.string_start(blob.size() as u64);
            for piece in blob.pieces() {
                sink.encoder()?.raw(piece);
            }
            return Ok(());
        }
        ValueRef::Collection(collection) => collection,
    };
    if let Some((packing, bytes)) = collection.packed() {
        let rdb_type = packing.rdb_type_in(version);
        if rdb_type != packing.value_type().rdb_type() {
            encode_packed(sink.encoder()?, packing, bytes, rdb_type);
            return Ok(());
        }
    }
    sink.encoder()?.length(collection.len() as u64);
    for string in collection.strings() {
        encode_string(sink.encoder()?, string);
    }
    Ok(())
}

/// Writes a packed collection as the packed RDB type `rdb_type`.
fn encode_packed(encoder: &mut Encoder, packing: Packing, bytes: &[u8], rdb_type: RdbType) {
    if rdb_type == packing.rdb_type() {
        packing.rdb_head().iter().for_each(|length| encoder.length(*length));
        encoder.string(bytes);
    } else {
        let strings: Vec<_> = packing.strings(bytes).map(Element::to_bytes).collect();
        encoder.ziplist(strings.iter().map(|string| &**string));
    }
}

/// Writes one string of an element: a member, or a field or its value.
pub(crate) fn encode_string(encoder: &mut Encoder, string: Element<'_>) {
    match string {
        Element::Integer(value) => encoder.integer(value),
        Element::Bytes(bytes) => encoder.string(bytes),
        Element::Piece(piece) => encoder.string(piece),
        Element::Blob(blob) => encoder.string(&blob.to_vec()),
    }
}
