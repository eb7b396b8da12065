//! One word, one meaning: names in the code come from `docs/glossary.md`.

use super::{Complaints, File};

/// Words that no declared name may contain, and what to use instead. The list has only words that
/// have no other use in this code base. The glossary also lists words that have other uses.
const BANNED: &[(&str, &str)] = &[
    ("zone", "area"),
    ("partition", "area"),
    ("region", "area"),
    ("seqno", "lsn"),
    ("dmabuf", "buffer"),
    ("iobuf", "buffer"),
    ("shard", "bucket"),
    ("spill", "demote"),
    ("manager", "a function, or the thing itself"),
    ("utils", "the name of what it holds"),
    ("misc", "the name of what it holds"),
];

/// Keywords that come before a declared name.
const DECLARES: &[&str] =
    &["fn", "struct", "enum", "trait", "type", "const", "static", "mod", "let", "mut", "union"];

pub(super) fn check(file: &File, complaints: &mut Complaints) {
    if !file.is_rust() {
        return;
    }
    for (index, line) in code_of(&file.text).lines().enumerate() {
        for name in declared_names(line) {
            for part in parts_of(name) {
                if let Some((_, ours)) = BANNED.iter().find(|(banned, _)| *banned == part) {
                    complaints.push(format!(
                        "{}:{}: `{name}` says \"{part}\"; instead, use \"{ours}\"",
                        file.path,
                        index + 1
                    ));
                }
            }
        }
    }
}

/// The names that a line declares, each after a declaring keyword.
fn declared_names(line: &str) -> Vec<&str> {
    let words: Vec<&str> = line
        .split(|c: char| !c.is_alphanumeric() && c != '_')
        .filter(|word| !word.is_empty())
        .collect();
    words
        .windows(2)
        .filter(|pair| DECLARES.contains(&pair[0]) && !DECLARES.contains(&pair[1]))
        .map(|pair| pair[1])
        .collect()
}

/// The words of a name, in lower case: `wal` and `manager` for each of `WalManager`, `wal_manager`
/// and `WAL_MANAGER`.
fn parts_of(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut was_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && was_lower) {
            parts.push(String::new());
        }
        was_lower = c.is_lowercase();
        if c != '_'
            && let Some(part) = parts.last_mut()
        {
            part.extend(c.to_lowercase());
        }
    }
    parts
}

/// The text without comments and string literals. Lines stay where they are.
pub(super) fn code_of(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut code = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let rest = &chars[at..];
        if let Some(len) = comment_len(rest).or_else(|| string_len(rest)) {
            code.extend(rest[..len].iter().filter(|c| **c == '\n'));
            at += len;
            continue;
        }
        code.push(chars[at]);
        // The quote in `'"'` does not open a string.
        at += match rest {
            ['\'', '"', '\'', ..] => 3,
            ['\'', '\\', '"' | '\'', '\'', ..] => 4,
            _ => 1,
        };
    }
    code
}

fn comment_len(rest: &[char]) -> Option<usize> {
    if rest.starts_with(&['/', '/']) {
        return Some(rest.iter().position(|c| *c == '\n').unwrap_or(rest.len()));
    }
    if rest.starts_with(&['/', '*']) {
        let end = rest.windows(2).skip(2).position(|pair| pair == ['*', '/']);
        return Some(end.map_or(rest.len(), |end| end + 4));
    }
    None
}

fn string_len(rest: &[char]) -> Option<usize> {
    if rest[0] == 'r' && matches!(rest.get(1), Some('"' | '#')) {
        let hashes = rest[1..].iter().take_while(|c| **c == '#').count();
        if rest.get(1 + hashes) != Some(&'"') {
            return None;
        }
        let mut closing = vec!['"'];
        closing.extend(std::iter::repeat_n('#', hashes));
        let body = 2 + hashes;
        let end = rest[body..].windows(closing.len()).position(|w| w == closing);
        return Some(end.map_or(rest.len(), |end| body + end + closing.len()));
    }
    if rest[0] != '"' {
        return None;
    }
    let mut at = 1;
    while at < rest.len() {
        match rest[at] {
            '\\' => at += 2,
            '"' => return Some(at + 1),
            _ => at += 1,
        }
    }
    Some(rest.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn code_keeps_lines_and_loses_comments_and_strings() {
        let text = "a // zone\n\"zone\\\"\n\" b /* zone\n */ c r#\"zone\"# '\"' d";
        assert_eq!(code_of(text), "a \n\n b \n c  ' d");
    }

    #[test]
    fn names_are_cut_into_words() {
        assert_eq!(parts_of("WalManager"), ["wal", "manager"]);
        assert_eq!(parts_of("WAL_LEN_MAX"), ["wal", "len", "max"]);
    }

    #[test]
    fn a_banned_word_is_found_where_a_name_is_declared_only() {
        let text = "//! X.\nstruct ZoneMap;\nfn f() { let partition = 1; a.partition_point(g); }\n";
        let mut complaints = Complaints::new();
        check(&File { path: "crates/x/src/a.rs".into(), text: text.into() }, &mut complaints);
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].contains("a.rs:2: `ZoneMap` says \"zone\""));
        assert!(complaints[1].contains("a.rs:3: `partition`"));
    }
}
