//! Compares packed hashes with a map of the standard library.

use std::collections::HashMap;

use fastrand::Rng;

use super::*;
use crate::collection::Form;
use crate::kinds::Packing;

type Model = HashMap<Vec<u8>, Vec<u8>>;

/// A string of a random size, which may be above the limit of the hash.
fn string(rng: &mut Rng) -> Vec<u8> {
    let size = match rng.usize(..20) {
        0 => 62 + rng.usize(..4),
        1 => rng.usize(..2000),
        _ => rng.usize(..40),
    };
    vec![b'v'; size]
}

/// After random changes, a hash has the same fields as the map, whatever its limits are and
/// whichever form it has. A packed hash has at most the allowed number of fields, and at most
/// [`PACKED_SIZE_MAX`] bytes.
#[test]
fn packed_hashes_grow_at_their_limits() {
    let hasher = KeyHasher::new(1);
    let mut rng = Rng::with_seed(4);
    for fields_max in [0, 1, 5, 128, usize::MAX] {
        for element_size in [0, 1, 64, usize::MAX] {
            let limits = HashLimits { fields: fields_max, element_size };
            let mut form = EditForm::empty(Packing::HashListpack);
            let (mut model, mut old) = (Model::new(), Vec::new());
            // In the end, the hash has about three quarters of the 1500 names as fields. This is
            // more than any packed hash may have.
            for _ in 0..6_000 {
                let mut edit = HashEdit { form: &mut form, hasher, limits, old: &mut old };
                let field = (rng.usize(..1500) as i64 - 300).to_string().into_bytes();
                if rng.usize(..4) > 0 {
                    let value = string(&mut rng);
                    let is_new = edit.set(Arg::Bytes(&field), Arg::Bytes(&value));
                    assert_eq!(is_new, model.insert(field, value).is_none());
                } else {
                    assert_eq!(edit.remove(Arg::Bytes(&field)), model.remove(&field).is_some());
                }
                assert_eq!(edit.len(), model.len());
                let seen = match &form {
                    EditForm::Packed { packing, bytes, .. } => {
                        assert!(bytes.len() <= PACKED_SIZE_MAX);
                        assert!(model.len() <= fields_max.min(PACKED_LEN_MAX));
                        Form::Inline(*packing, bytes)
                    }
                    EditForm::Grown { tree, .. } => Form::Tree(tree),
                    EditForm::Tree(tree) => Form::Tree(tree),
                };
                let hash = HashRef::new(CollectionRef(seen));
                let asked = rng.usize(..1500).to_string().into_bytes();
                let value = hash.get(&hasher, Arg::Bytes(&asked)).map(Element::to_bytes);
                assert_eq!(value.as_deref(), model.get(&asked).map(|value| &value[..]));
            }
            assert!(matches!(form, EditForm::Grown { .. }));
        }
    }
}
