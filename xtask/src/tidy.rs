//! House rules that no stock linter knows. Each rule is a function that reads files and adds
//! complaints to a list.

mod dependencies;
mod paths;
mod phrases;
mod planted;
mod source;
mod words;

use std::fs;

use slimio_host::Failure;
use slimio_host::process::{command, root};

/// A text file that git tracks, or that is new and not ignored.
#[derive(Debug)]
struct File {
    /// Relative to the root, with `/`.
    path: String,
    text: String,
}

/// The complaints of the rules, as `path:line: sentence`.
type Complaints = Vec<String>;

/// `cargo x tidy`.
pub(crate) fn verb(_args: &[String]) -> Result<(), Failure> {
    let files = read_files()?;
    let mut complaints = Complaints::new();
    for file in &files {
        source::check(file, &mut complaints);
        words::check(file, &mut complaints);
        paths::check(file, &mut complaints);
        phrases::check(file, &mut complaints);
    }
    dependencies::check(&files, &mut complaints);
    planted::check(&files, &mut complaints);
    for complaint in &complaints {
        println!("{complaint}");
    }
    if complaints.is_empty() {
        println!("tidy: {} files", files.len());
        return Ok(());
    }
    Err(format!("{} complaints", complaints.len()).into())
}

fn read_files() -> Result<Vec<File>, Failure> {
    let output = command("git")
        // With this setting, git accepts any owner of the checkout. That is safe, because this
        // command runs nothing from the checkout.
        .args(["-c", "safe.directory=*"])
        .args(["ls-files", "-z", "--cached", "--others", "--exclude-standard"])
        .output()
        .map_err(|error| format!("git did not start: {error}"))?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
    }
    let mut files = Vec::new();
    for path in String::from_utf8_lossy(&output.stdout).split_terminator('\0') {
        // Two kinds of files are left out: tracked files that are deleted, and files that are not
        // text, such as pictures.
        if let Ok(text) = fs::read_to_string(root().join(path)) {
            files.push(File { path: path.to_owned(), text });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(files)
}

impl File {
    fn is_rust(&self) -> bool {
        self.has_extension("rs")
    }

    fn has_extension(&self, wanted: &str) -> bool {
        self.path.rsplit_once('.').is_some_and(|(_, extension)| extension == wanted)
    }
}
