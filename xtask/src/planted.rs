//! `cargo x planted`: a test that has never failed proves nothing, so bugs are planted on purpose.
//!
//! Each line of a `planted-bugs.txt` names a cargo feature that puts one bug in, and the test that
//! must catch it. The run is green only if that test fails with the feature and passes without it.
//! The builds have a target folder of their own, so that the features do not throw away the caches
//! of everyday builds.

use std::collections::BTreeSet;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output};

use crate::Failure;
use crate::process::{cargo, root, target_dir};

/// Crates that plant bugs: package and folder.
const CRATES: &[(&str, &str)] = &[
    ("slimio-storage", "crates/storage"),
    ("slimio-rdb", "crates/rdb"),
    ("slimio-keyspace", "crates/keyspace"),
    ("slimio-server", "crates/server"),
];

#[derive(Clone, Debug, PartialEq, Eq)]
struct Planted {
    package: &'static str,
    feature: String,
    /// Name of the integration test file, or `lib` for unit tests.
    target: String,
    test: String,
}

/// `cargo x planted [word]…`: with words, only the features that contain one.
pub(crate) fn verb(words: &[String]) -> Result<(), Failure> {
    let mut bugs = Vec::new();
    for &(package, folder) in CRATES {
        let path = root().join(folder).join("planted-bugs.txt");
        let text =
            fs::read_to_string(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        bugs.extend(parse(package, &text)?);
    }
    bugs.retain(|bug| {
        words.is_empty() || words.iter().any(|word| bug.feature.contains(word.as_str()))
    });
    if bugs.is_empty() {
        return Err("no planted bug of that name".into());
    }
    let mut missed = Vec::new();
    let mut healthy = BTreeSet::new();
    for bug in &bugs {
        match check(bug, &mut healthy) {
            Ok(()) => println!("{}: caught by {}", bug.feature, bug.test),
            Err(Failure(why)) => {
                println!("{}: {why}", bug.feature);
                missed.push(bug.feature.as_str());
            }
        }
    }
    println!("{} of {} planted bugs caught", bugs.len() - missed.len(), bugs.len());
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("not caught: {}", missed.join(", ")).into())
    }
}

/// `feature target test`, one per line; `#` starts a comment.
fn parse(package: &'static str, text: &str) -> Result<Vec<Planted>, Failure> {
    let mut bugs = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[feature, target, test] = words.as_slice() else {
            return Err(format!("{package}, line {}: want `feature target test`", index + 1).into());
        };
        bugs.push(Planted {
            package,
            feature: feature.into(),
            target: target.into(),
            test: test.into(),
        });
    }
    Ok(bugs)
}

/// `healthy` holds the tests that are known to pass without a bug: several bugs may share one.
fn check<'a>(bug: &'a Planted, healthy: &mut BTreeSet<[&'a str; 3]>) -> Result<(), Failure> {
    if healthy.insert([bug.package, &bug.target, &bug.test]) {
        let output = run_test(bug, false)?;
        if !passed(&output) {
            let text = text_of(&output);
            return Err(format!("{} does not pass without the bug:\n{text}", bug.test).into());
        }
    }
    let bitten = run_test(bug, true)?;
    if passed(&bitten) {
        return Err(format!("NOT CAUGHT: {} passes with the bug in", bug.test).into());
    }
    if !text_of(&bitten).contains("test result: FAILED. 0 passed; 1 failed") {
        return Err(
            format!("{} did not run with the bug in:\n{}", bug.test, text_of(&bitten)).into()
        );
    }
    Ok(())
}

fn passed(output: &Output) -> bool {
    output.status.success() && text_of(output).contains("test result: ok. 1 passed")
}

fn text_of(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    text
}

fn run_test(bug: &Planted, with_bug: bool) -> Result<Output, Failure> {
    let mut command = test_command(bug, with_bug);
    command.output().map_err(|error| format!("cargo did not start: {error}").into())
}

fn test_command(bug: &Planted, with_bug: bool) -> Command {
    let mut command = cargo(["test", "--quiet", "--package", bug.package]);
    command.env("CARGO_TARGET_DIR", planted_target_dir());
    if with_bug {
        command.args(["--features", &bug.feature]);
    }
    if bug.target == "lib" {
        command.arg("--lib");
    } else {
        command.args(["--test", &bug.target]);
    }
    command.args(["--", "--exact", &bug.test]);
    command
}

fn planted_target_dir() -> PathBuf {
    target_dir().join("planted")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_comments_are_not() {
        let text = "# what: why\n\nbug-no-epoch  crash  second_life  # orphan revives\n";
        let bugs = parse("slimio-storage", text).expect("well-formed");
        assert_eq!(
            bugs,
            [Planted {
                package: "slimio-storage",
                feature: "bug-no-epoch".into(),
                target: "crash".into(),
                test: "second_life".into(),
            }]
        );
    }

    #[test]
    fn a_line_without_a_test_is_refused() {
        let Failure(sentence) = parse("slimio-storage", "bug-no-epoch crash\n").unwrap_err();
        assert_eq!(sentence, "slimio-storage, line 1: want `feature target test`");
    }
}
