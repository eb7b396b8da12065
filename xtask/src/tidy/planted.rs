//! Planted bugs are bugs that were put into the code on purpose, to see that a test fails. A list
//! names each bug and its test. This module checks that the list and the code have the same bugs,
//! because a bug that is not in the list would never be tested. It also checks that each test in
//! the list exists.

use std::collections::BTreeSet;

use super::{Complaints, File};
use crate::planted::{LIST, Test, parse};

/// Each call that asks whether a planted bug is active begins with this text. The text is put
/// together from two parts, so that this file does not contain it.
const CALL: &str = concat!("is_planted", "(\"");

pub(super) fn check(files: &[File], complaints: &mut Complaints) {
    let Some(list) = files.iter().find(|file| file.path == LIST) else {
        complaints.push(format!("{LIST}: this file is missing"));
        return;
    };
    let listed = match parse(&list.text) {
        Ok(planted) => planted,
        Err(sentence) => {
            complaints.push(format!("{LIST}:{sentence}"));
            return;
        }
    };
    let mut in_code = BTreeSet::new();
    for file in files.iter().filter(|file| file.is_rust()) {
        for (index, line) in file.text.lines().enumerate() {
            for bug in bugs_in(line) {
                in_code.insert(bug);
                if !listed.iter().any(|planted| planted.bug == bug) {
                    complaints.push(format!(
                        "{}:{}: {LIST} has no bug called {bug}",
                        file.path,
                        index + 1
                    ));
                }
            }
        }
    }
    for planted in listed.iter().filter(|planted| !in_code.contains(planted.bug.as_str())) {
        complaints.push(format!("{LIST}: no code has the bug {}", planted.bug));
    }
    for planted in listed.iter().filter(|planted| !has_test(files, &planted.test)) {
        let Test { package, name, .. } = &planted.test;
        complaints.push(format!("{LIST}: {package} has no test {name}"));
    }
}

/// Whether the package has a file that is named after the test's module and contains the test's
/// name.
fn has_test(files: &[File], test: &Test) -> bool {
    let folder = format!("crates/{}/", test.package.trim_start_matches("slimio-"));
    let mut words: Vec<&str> = test.name.split("::").filter(|word| *word != "tests").collect();
    let name = words.pop().unwrap_or_default();
    let module = words.last();
    let is_module =
        |path: &str| module.is_none_or(|module| path.split(['/', '.']).any(|part| part == *module));
    let mut sources = files.iter().filter(|file| file.is_rust() && file.path.starts_with(&folder));
    sources.any(|file| is_module(&file.path) && file.text.contains(name))
}

fn bugs_in(line: &str) -> impl Iterator<Item = &str> {
    line.split(CALL).skip(1).filter_map(|rest| rest.split('"').next())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_and_the_code_name_the_same_bugs() {
        let list = "no-cut slimio-storage lib x::tests::it_is\ngone slimio-storage lib y::it_is\n";
        let code = format!("//! Header.\nif {CALL}no-cut\") || {CALL}no-cat\") {{}}\nfn it_is()\n");
        let files = [
            File { path: LIST.into(), text: list.into() },
            File { path: "crates/storage/src/x.rs".into(), text: code },
        ];
        let mut complaints = Complaints::new();
        check(&files, &mut complaints);
        assert_eq!(
            complaints,
            [
                "crates/storage/src/x.rs:2: crates/planted/planted-bugs.txt has no bug called no-cat",
                "crates/planted/planted-bugs.txt: no code has the bug gone",
                "crates/planted/planted-bugs.txt: slimio-storage has no test y::it_is",
            ]
        );
    }
}
