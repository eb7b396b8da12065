//! Phrases that are not plain English, or that are hard to understand. They are not allowed in
//! comments, in messages, or in documents.

use super::{Complaints, File};

/// The phrase, in lower case, and what to say instead.
const BANNED: &[(&str, &str)] = &[
    ("so many", "that many, or the number"),
    ("as becomes", "as suits"),
    ("time is over", "expired, or has passed"),
    ("where goes", "where it goes"),
    ("be it", "whether it is"),
    ("whereof", "of which"),
    ("thereof", "of it"),
    ("hereby", "by this"),
    ("leverage", "use"),
    ("utilize", "use"),
    ("simply put", "nothing instead"),
];

/// The path of this file. It is not checked, because it contains all banned phrases.
const HERE: &str = "xtask/src/tidy/phrases.rs";

const EXTENSIONS: &[&str] = &["rs", "py", "md", "sh", "toml"];

pub(super) fn check(file: &File, complaints: &mut Complaints) {
    if file.path == HERE || !EXTENSIONS.iter().any(|extension| file.has_extension(extension)) {
        return;
    }
    for (index, line) in file.text.lines().enumerate() {
        let line = line.to_lowercase();
        for (phrase, instead) in BANNED.iter().filter(|(phrase, _)| holds(&line, phrase)) {
            let line = index + 1;
            complaints.push(format!("{}:{line}: \"{phrase}\": say {instead}", file.path));
        }
    }
}

/// Whether a line contains a phrase, and not only as a part of longer words.
fn holds(line: &str, phrase: &str) -> bool {
    let is_letter = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(phrase).any(|(at, _)| {
        let before = line[..at].chars().next_back();
        let behind = line[at + phrase.len()..].chars().next();
        !before.is_some_and(is_letter) && !behind.is_some_and(is_letter)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn phrases_are_found_as_whole_words() {
        assert!(holds("// not so many of them", "so many"));
        assert!(!holds("also many of them", "so many"));
        assert!(!holds("maybe it is", "be it"));
    }
}
