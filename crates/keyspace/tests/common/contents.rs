//! Values in a form that can be compared.

use std::borrow::Cow;

use slimio_keyspace::{Element, ValueRef, ValueType};

/// Contents of a value. The first word is its type. Then comes either a string, or the elements of
/// a collection. The elements are sorted if their order has no meaning.
pub(crate) fn words(value: ValueRef<'_>) -> Vec<Vec<u8>> {
    let mut words = vec![value.value_type().name().as_bytes().to_vec()];
    match value {
        ValueRef::String(string) => words.push(string.as_arg().to_bytes().into_owned()),
        ValueRef::Collection(collection) => {
            let strings: Vec<_> = collection.strings().map(Element::to_bytes).collect();
            let mut elements: Vec<_> = strings.chunks(value.value_type().strings()).collect();
            if value.value_type() != ValueType::List {
                elements.sort();
            }
            words.extend(elements.concat().into_iter().map(Cow::into_owned));
        }
    }
    words
}
