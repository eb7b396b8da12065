//! Builds hashes whose fields are all known, for recovery.

use slimio_resp::{Arg, Piece};

use super::{HashEdit, HashForm, HashLimits, empty};
use crate::hasher::KeyHasher;
use crate::value::Value;

/// Makes a hash from its fields, on any thread.
pub struct HashBuilder {
    form: HashForm<'static>,
    hasher: KeyHasher,
    limits: HashLimits,
}

impl HashBuilder {
    /// A hash without fields, for the keyspace that has this hasher.
    pub fn new(hasher: KeyHasher, limits: HashLimits) -> Self {
        let form = HashForm::Packed { bytes: empty().to_vec(), base: 0 };
        Self { form, hasher, limits }
    }

    /// Adds a field with its value; says whether it was not there yet.
    pub fn add(&mut self, field: Arg<'_>, value: Arg<'_>) -> bool {
        let Self { form, hasher, limits } = self;
        // A replaced value is freed here: the builder may take the time.
        let mut old = Vec::new();
        HashEdit { form, hasher: *hasher, limits: *limits, old: &mut old }.set(field, value)
    }

    /// The hash; `None` if it has no field.
    pub(crate) fn finish(self) -> Option<Value> {
        let value = match self.form {
            HashForm::Packed { mut bytes, .. } => {
                bytes.shrink_to_fit();
                Value::PackedHash(Piece::new(bytes))
            }
            HashForm::Grown { tree, .. } => Value::Hash(tree),
            HashForm::Tree(_) => unreachable!("a builder borrows no tree"),
        };
        let is_empty = value.as_ref().as_hash().is_none_or(super::HashRef::is_empty);
        (!is_empty).then_some(value)
    }
}
