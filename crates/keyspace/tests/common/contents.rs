//! Values in a form that can be compared.

use slimio_keyspace::ValueRef;

/// Contents of a value, in an order that depends on nothing else: its type, then a string, or the
/// fields of a hash, each with its value.
pub(crate) fn words(value: ValueRef<'_>) -> Vec<Vec<u8>> {
    let mut pairs = Vec::new();
    match value {
        ValueRef::String(string) => pairs.push((string.as_arg().to_bytes().into_owned(), vec![])),
        ValueRef::Hash(hash) => pairs.extend(
            hash.iter().map(|(f, v)| (f.to_bytes().into_owned(), v.to_bytes().into_owned())),
        ),
    }
    pairs.sort();
    let name = value.value_type().name().as_bytes().to_vec();
    std::iter::once(name).chain(pairs.into_iter().flat_map(|(f, v)| [f, v])).collect()
}
