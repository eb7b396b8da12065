//! Compares sets of every form with a set of the standard library.

use std::collections::HashSet;

use fastrand::Rng;

use super::*;
use crate::collection::Form;

type Model = HashSet<Vec<u8>>;

/// A member. One in `text_in` is a text, and the others are integers; 0 means no texts. A text may
/// be longer than a member of a listpack may be.
fn member(rng: &mut Rng, range: usize, text_in: usize) -> Vec<u8> {
    let number = rng.usize(..range) as i64 - 300;
    if text_in == 0 || rng.usize(..text_in) > 0 {
        return number.to_string().into_bytes();
    }
    let size = match rng.usize(..20) {
        0 => 62 + rng.usize(..4),
        1 => rng.usize(..2000),
        _ => rng.usize(..40),
    };
    format!("{number}{}", "m".repeat(size)).into_bytes()
}

fn view<'a>(form: &'a EditForm<'_>) -> SetRef<'a> {
    let seen = match form {
        EditForm::Packed { packing, bytes, .. } => Form::Inline(*packing, bytes),
        EditForm::Grown { tree, .. } => Form::Tree(tree),
        EditForm::Tree(tree) => Form::Tree(tree),
    };
    SetRef::new(CollectionRef(seen))
}

/// Checks that a packed set is within the limits.
fn check_packed(form: &EditForm<'_>, model: &Model, limits: SetLimits) {
    let EditForm::Packed { packing, bytes, .. } = form else { return };
    assert!(bytes.len() <= PACKED_SIZE_MAX + intset::EMPTY.len());
    if *packing == Packing::SetIntset {
        assert!(model.len() <= limits.integers_max());
        assert!(intset::check(bytes).is_ok());
    } else {
        assert!(model.len() <= limits.members_max());
        assert!(model.iter().all(|member| member.len() <= limits.size_max()));
        let open = Listpack::open(bytes).unwrap();
        assert!(open.into_iter().all(|element| element.is_ok()));
    }
}

#[test]
fn sets_of_every_form_hold_what_was_added() {
    let hasher = KeyHasher::new(1);
    let mut rng = Rng::with_seed(4);
    for integers in [0, 1, 40, 512, usize::MAX] {
        for members in [0, 1, 30, 128, usize::MAX] {
            for text_in in [0, 4, 200] {
                let limits = SetLimits { integers, members, member_size: [3, 64][members % 2] };
                let (mut model, mut old) = (Model::new(), Vec::new());
                let first = member(&mut rng, 1500, text_in);
                let packing = limits.packing(Arg::Bytes(&first), 1);
                let mut form = EditForm::empty(packing);
                for _ in 0..4_000 {
                    let mut edit = SetEdit { form: &mut form, hasher, limits, old: &mut old };
                    let member = member(&mut rng, 1500, text_in);
                    if rng.usize(..4) > 0 {
                        assert_eq!(edit.add(Arg::Bytes(&member)), model.insert(member));
                    } else {
                        assert_eq!(edit.remove(Arg::Bytes(&member)), model.remove(&member));
                    }
                    assert_eq!(edit.len(), model.len());
                    check_packed(&form, &model, limits);
                    let asked = self::member(&mut rng, 1500, text_in);
                    let is_member = view(&form).contains(&hasher, Arg::Bytes(&asked));
                    assert_eq!(is_member, model.contains(&asked));
                }
                let listed: Vec<_> =
                    view(&form).members().map(|member| member.to_bytes().into_owned()).collect();
                assert_eq!(listed.len(), model.len());
                assert_eq!(listed.into_iter().collect::<Model>(), model);
            }
        }
    }
}

/// If a request has more members than a packed set may have, the set becomes a tree at once.
#[test]
fn many_members_at_once_make_a_tree() {
    let (hasher, limits, old) = (KeyHasher::new(1), SetLimits::default(), &mut Vec::new());
    for (first, count, encoding) in [
        ("1", 512, "intset"),
        ("1", 513, "hashtable"),
        ("a", 128, "listpack"),
        ("a", 129, "hashtable"),
    ] {
        let mut form = EditForm::empty(limits.packing(Arg::Bytes(first.as_bytes()), count));
        let mut edit = SetEdit { form: &mut form, hasher, limits, old };
        edit.reserve(count);
        edit.add(Arg::Bytes(first.as_bytes()));
        assert_eq!(view(&form).0.encoding_name(), encoding, "{count} members from {first}");
    }
}
