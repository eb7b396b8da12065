//! Compares lists of every form with a deque of the standard library.

use std::collections::VecDeque;

use fastrand::Rng;
use slimio_resp::Arg;

use super::search::Search;
use super::*;
use crate::collection::{EditForm, Form};

type Model = VecDeque<Vec<u8>>;

fn view<'a>(form: &'a EditForm<'_>) -> ListRef<'a> {
    let seen = match form {
        EditForm::Packed { packing, bytes, base } => Form::Inline(*packing, &bytes[*base..]),
        EditForm::Grown { tree, .. } => Form::Tree(tree),
        EditForm::Tree(tree) => Form::Tree(tree),
    };
    ListRef::new(CollectionRef(seen))
}

fn encoding(form: &EditForm<'_>) -> &'static str {
    view(form).0.encoding_name()
}

/// A random element. There are so few different elements that the same element often comes again.
fn element(rng: &mut Rng) -> Vec<u8> {
    let size = match rng.usize(..40) {
        0 => 60 + rng.usize(..10),
        1 => rng.usize(..2500),
        2 => 9_000,
        _ => return rng.usize(..30).to_string().into_bytes(),
    };
    vec![b'e'; size]
}

fn compare(form: &EditForm<'_>, model: &Model) {
    let list = view(form);
    list.0.check();
    assert_eq!(list.len(), model.len());
    let listed: Model = list.0.strings().map(|it| it.to_bytes().into_owned()).collect();
    assert!(listed == *model, "the elements differ");
    for from in [End::First, End::Last] {
        let (mut index, mut left) = (if from == End::First { 0 } else { model.len() }, model.len());
        let mut met = Model::new();
        while left > 0 {
            let at = if from == End::First { index } else { index - 1 };
            let passed = list.run(at, left, from, |it| met.push_back(it.to_bytes().into_owned()));
            left -= passed;
            index = if from == End::First { index + passed } else { index - passed };
        }
        if from == End::Last {
            met.make_contiguous().reverse();
        }
        assert!(met == *model, "the elements differ");
    }
}

/// Removes matches as `LREM` does.
fn remove(edit: &mut ListEdit<'_, '_>, from: End, count: usize, wanted: &[u8]) -> usize {
    let (mut search, mut removed) = (Search::new(from, usize::MAX), 0);
    while removed < count && !search.is_over(view(edit.form)) {
        let wanted = Arg::Bytes(wanted);
        let (found, _) = search.step_removing(view(edit.form), wanted, count - removed);
        removed += found.len();
        edit.remove(&found);
    }
    edit.settle();
    removed
}

fn remove_in_model(model: &mut Model, from: End, count: usize, wanted: &[u8]) -> usize {
    let mut found: Vec<usize> = (0..model.len()).filter(|index| model[*index] == wanted).collect();
    if from == End::Last {
        found.reverse();
    }
    found.truncate(count);
    found.sort_unstable();
    found.iter().rev().for_each(|index| drop(model.remove(*index)));
    found.len()
}

fn run(fill: i64, base: usize, target: usize, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    let limits = ListLimits::of_directives([fill]);
    let bytes = [&vec![b'!'; base][..], Packing::ListListpack.empty()].concat();
    let mut form = EditForm::Packed { packing: Packing::ListListpack, bytes, base };
    let (mut model, mut old) = (Model::new(), Vec::new());
    for step in 0..3_000 {
        let mut edit = ListEdit { form: &mut form, limits, old: &mut old };
        let end = if rng.bool() { End::First } else { End::Last };
        let index = rng.usize(..=model.len());
        match rng.usize(..20) {
            0..8 if model.len() < target => {
                let string = element(&mut rng);
                edit.reserve(std::iter::once(string.len()));
                edit.push(end, Arg::Bytes(&string));
                match end {
                    End::First => model.push_front(string),
                    End::Last => model.push_back(string),
                }
            }
            8..11 if model.len() < target => {
                let string = element(&mut rng);
                edit.insert(index, Arg::Bytes(&string));
                model.insert(index, string);
            }
            11..14 if !model.is_empty() => {
                let popped = edit.pop(end, |element| element.to_bytes().into_owned());
                let expected = if end == End::First { model.pop_front() } else { model.pop_back() };
                assert_eq!(Some(popped), expected);
            }
            14..16 if index < model.len() => {
                let string = element(&mut rng);
                edit.set(index, Arg::Bytes(&string));
                model[index] = string;
            }
            16 if rng.usize(..8) == 0 => {
                let count = rng.usize(..=model.len());
                drop(edit.remove_at_end(end, count));
                match end {
                    End::First => drop(model.drain(..count)),
                    End::Last => model.truncate(model.len() - count),
                }
            }
            17 => {
                let (wanted, count) = (element(&mut rng), 1 + rng.usize(..12));
                let removed = remove(&mut edit, end, count, &wanted);
                assert_eq!(removed, remove_in_model(&mut model, end, count, &wanted));
            }
            _ => assert_eq!(
                view(&form).get(index).map(|it| it.to_bytes().into_owned()),
                model.get(index).cloned()
            ),
        }
        assert_eq!(view(&form).len(), model.len());
        if step % 20 == 0 {
            compare(&form, &model);
        }
    }
    compare(&form, &model);
}

#[test]
fn lists_of_every_form_are_deques() {
    for (seed, fill) in [-2, -1, -5, i64::MIN, 0, 1, 40, 128, i64::MAX].into_iter().enumerate() {
        for target in [10, 100, 2_000] {
            run(fill, seed % 3, target, seed as u64);
        }
    }
}

/// Removing more than a few matches from a listpack builds the listpack anew.
#[test]
fn most_elements_of_a_listpack_are_removed() {
    let (limits, old) = (ListLimits::default(), &mut Vec::new());
    for (from, count) in [(End::First, 100), (End::Last, 100), (End::First, usize::MAX)] {
        let mut form = EditForm::empty(Packing::ListListpack);
        let mut model = Model::new();
        for number in 0..900 {
            let string = (number % 2).to_string().into_bytes();
            ListEdit { form: &mut form, limits, old }.push(End::Last, Arg::Bytes(&string));
            model.push_back(string);
        }
        let mut edit = ListEdit { form: &mut form, limits, old };
        let removed = remove(&mut edit, from, count, b"1");
        assert_eq!(removed, remove_in_model(&mut model, from, count, b"1"));
        compare(&form, &model);
        assert_eq!(encoding(&form), "listpack");
    }
}

/// The forms follow the limits as in Redis 7.2.
#[test]
fn forms_change_at_the_limits() {
    let old = &mut Vec::new();
    for (fill, count, size, expected) in [
        (-2, 1, 8185, "listpack"),
        (-2, 1, 8186, "quicklist"),
        (-1, 1, 4089, "listpack"),
        (-1, 1, 4090, "quicklist"),
        (-9, 1, 65_520, "listpack"),
        (-9, 1, 65_530, "quicklist"),
        (3, 3, 10, "listpack"),
        (3, 4, 10, "quicklist"),
        (3, 1, 8186, "quicklist"),
        (0, 1, 1, "listpack"),
        (0, 2, 1, "quicklist"),
        (-2, 8185, 1, "listpack"),
        (-2, 8186, 1, "quicklist"),
    ] {
        let limits = ListLimits::of_directives([fill]);
        let mut form = EditForm::empty(Packing::ListListpack);
        let mut edit = ListEdit { form: &mut form, limits, old };
        edit.reserve(std::iter::repeat_n(size, count));
        for _ in 0..count {
            edit.push(End::First, Arg::Bytes(&vec![b'x'; size]));
        }
        assert_eq!(encoding(&form), expected, "{fill}: {count} of {size}");
    }
}

/// A tree does not become a listpack before it has shrunk to half of the limit.
#[test]
fn a_tree_that_has_shrunk_is_packed() {
    let old = &mut Vec::new();
    for (fill, expected) in [(-1, 113), (-2, 227), (100, 50)] {
        let limits = ListLimits::of_directives([fill]);
        let mut form = EditForm::empty(Packing::ListListpack);
        let mut edit = ListEdit { form: &mut form, limits, old };
        for _ in 0..1_000 {
            edit.append(Arg::Bytes(&[b'x'; 16]));
        }
        let mut left = 1_000;
        while encoding(&form) == "quicklist" {
            ListEdit { form: &mut form, limits, old }.pop(End::First, |_| ());
            left -= 1;
        }
        assert_eq!(left, expected, "{fill}");
        compare(&form, &vec![vec![b'x'; 16]; left].into());
    }
}

/// As in Redis since 7.2, replacing long elements by short ones can also turn a tree into a
/// listpack.
#[test]
fn a_tree_whose_elements_are_replaced_by_short_ones_is_packed() {
    let old = &mut Vec::new();
    let limits = ListLimits::default();
    let mut form = EditForm::empty(Packing::ListListpack);
    let mut edit = ListEdit { form: &mut form, limits, old };
    for _ in 0..3 {
        edit.reserve(std::iter::once(5_000));
        edit.push(End::Last, Arg::Bytes(&[b'x'; 5_000]));
    }
    for (index, expected) in ["quicklist", "quicklist", "listpack"].into_iter().enumerate() {
        ListEdit { form: &mut form, limits, old }.set(index, Arg::Bytes(b"short"));
        assert_eq!(encoding(&form), expected, "{index}");
    }
}
