//! Checks the documents: each file or folder that a document names must exist.

use slimio_host::process::root;

use super::{Complaints, File};

/// Path endings that make a backticked word a path.
const ENDINGS: &[&str] = &[".rs", ".md", ".py", ".toml", ".txt", "/"];
/// Paths that a document may name although they exist only after a program was built or has run.
const MADE_LATER: &[&str] = &["slimio-data/", "target/"];

pub(super) fn check(file: &File, complaints: &mut Complaints) {
    if !file.has_extension("md") {
        return;
    }
    let mut in_fence = false;
    for (index, line) in file.text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            in_fence = !in_fence;
        } else if !in_fence {
            for path in paths_in(line).filter(|path| !exists(path, &file.path)) {
                complaints.push(format!("{}:{}: `{path}` does not exist", file.path, index + 1));
            }
        }
    }
}

/// Words in backticks that look like a path of this workspace.
fn paths_in(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|word| {
        word.contains('/')
            && ENDINGS.iter().any(|ending| word.ends_with(ending))
            && word.chars().all(|c| c.is_ascii_alphanumeric() || "._-/".contains(c))
            && !word.starts_with('/')
            && !MADE_LATER.iter().any(|made| word.trim_start_matches("./").starts_with(made))
    })
}

/// Whether the path exists below the root, below `crates/`, or beside the document.
fn exists(path: &str, document: &str) -> bool {
    let beside = document.rsplit_once('/').map_or("", |(folder, _)| folder);
    ["", "crates", beside].iter().any(|base| root().join(base).join(path).exists())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_document_names_must_exist() {
        let text = "`xtask/src/main.rs` and `device/src/lib.rs`, `./slimio-data/`, `a/b`\n\
                    ```\n`not/looked/at.rs`\n```\nbut `xtask/src/nowhere.rs`\n";
        let mut complaints = Complaints::new();
        check(&File { path: "README.md".into(), text: text.into() }, &mut complaints);
        assert_eq!(complaints, ["README.md:5: `xtask/src/nowhere.rs` does not exist"]);
    }
}
