//! The shape of a source file: length, white space, module header, and what is forbidden.

use super::{Complaints, File};
use crate::tidy::words::code_of;

/// Longer files must be split.
const LINES_MAX: usize = 700;
/// Only these crates may use `unsafe`.
const UNSAFE_FOLDERS: &[&str] = &["crates/ring/", "crates/device/", "crates/preload/"];
/// Marks of unfinished work. Each is put together from two parts, so that this file does not
/// contain them.
const MARKS: &[&str] = &[concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn check(file: &File, complaints: &mut Complaints) {
    let mut complain = |line: usize, sentence: &str| {
        complaints.push(format!("{}:{line}: {sentence}", file.path));
    };
    if !file.text.is_empty() && !file.text.ends_with('\n') {
        complain(file.text.lines().count(), "the last line has no newline");
    }
    for (index, line) in file.text.lines().enumerate() {
        if line.ends_with([' ', '\t', '\r']) {
            complain(index + 1, "trailing space");
        }
        if MARKS.iter().any(|mark| has_word(line, mark)) {
            complain(index + 1, "a mark of unfinished work");
        }
    }
    let is_code = file.is_rust() || file.has_extension("py");
    let line_count = file.text.lines().count();
    if is_code && line_count > LINES_MAX {
        complain(
            line_count,
            &format!("the file has more than {LINES_MAX} lines: split it where one topic ends"),
        );
    }
    if file.is_rust() {
        check_rust(file, &mut complain);
    }
}

fn check_rust(file: &File, complain: &mut impl FnMut(usize, &str)) {
    let first = file.text.lines().find(|line| !line.starts_with("#!")).unwrap_or_default();
    if !first.starts_with("//!") {
        complain(1, "no module header: begin the file with `//!` and what the file contains");
    }
    let may_be_unsafe = UNSAFE_FOLDERS.iter().any(|folder| file.path.starts_with(folder));
    for (index, line) in code_of(&file.text).lines().enumerate() {
        if line.contains("#[allow") || line.contains("#![allow") {
            complain(index + 1, "`allow`: use `#[expect(…, reason = \"…\")]`");
        }
        if line.contains("#[ignore") {
            complain(index + 1, "an ignored test: let the test run, or remove it");
        }
        if !may_be_unsafe && has_word(line, "unsafe") {
            complain(index + 1, "`unsafe` outside ring, device and preload");
        }
    }
}

/// Whether `word` is in `line` with no letter, digit or `_` next to it.
pub(super) fn has_word(line: &str, word: &str) -> bool {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + word.len()..].chars().next();
        !before.is_some_and(is_part) && !behind.is_some_and(is_part)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints_on(path: &str, text: &str) -> Complaints {
        let mut complaints = Complaints::new();
        check(&File { path: path.into(), text: text.into() }, &mut complaints);
        complaints
    }

    #[test]
    fn a_tidy_file_passes() {
        let text = "//! What it is.\n\n#[expect(dead_code, reason = \"shown\")]\nfn f() {}\n";
        assert_eq!(complaints_on("crates/resp/src/x.rs", text), Complaints::new());
    }

    #[test]
    fn each_rule_bites() {
        let rules = [
            ("fn f() {}\n", "no module header"),
            ("//! X.\nfn f() {} \n", "trailing space"),
            ("//! X.\nfn f() {}", "the last line has no newline"),
            ("//! X.\n#[allow(dead_code)]\nfn f() {}\n", "`allow`"),
            ("//! X.\n#[ignore]\nfn f() {}\n", "an ignored test"),
            ("//! X.\nfn f() { unsafe { g() } }\n", "`unsafe` outside"),
            (concat!("//! X.\n// TO", "DO: later\n"), "a mark of unfinished work"),
        ];
        for (text, sentence) in rules {
            let complaints = complaints_on("crates/resp/src/x.rs", text);
            assert_eq!(complaints.len(), 1, "{text:?}: {complaints:?}");
            assert!(complaints[0].contains(sentence), "{text:?}: {complaints:?}");
        }
        let long = "//! X.\n".repeat(LINES_MAX + 1);
        assert_eq!(complaints_on("crates/resp/src/x.rs", &long).len(), 1);
    }

    #[test]
    fn unsafe_is_for_few_crates_and_for_words_in_strings() {
        let text = "//! X.\nfn f() { unsafe { g() } }\n";
        assert_eq!(complaints_on("crates/ring/src/x.rs", text), Complaints::new());
        let text = "//! Nothing unsafe.\nconst A: &str = \"unsafe\";\n";
        assert_eq!(complaints_on("crates/resp/src/x.rs", text), Complaints::new());
    }
}
