//! `cargo x planted`: a test that has never failed proves nothing, so bugs are planted on purpose.
//!
//! Each line of `crates/planted/planted-bugs.txt` names a bug and the test that must catch it. One
//! build of a test target holds all bugs, and a variable of the environment chooses: the run is
//! green only if each test fails with its bug and passes, in the same program, without.

use std::collections::BTreeSet;
use std::fs;
use std::process::{Command, Output};

use crate::Failure;
use crate::process::{cargo, root};

/// All bugs, from the root.
pub(crate) const LIST: &str = "crates/planted/planted-bugs.txt";
/// Builds the bugs in, each asleep.
pub(crate) const FEATURE: &str = "slimio-planted/bugs";
/// Wakes the one it names.
pub(crate) const VARIABLE: &str = "SLIMIO_PLANTED";

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planted {
    pub(crate) bug: String,
    test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Test {
    package: String,
    /// Name of the integration test file, or `lib` for unit tests.
    target: String,
    name: String,
}

/// `cargo x planted [word]…`: with words, only the bugs whose name contains one.
pub(crate) fn verb(words: &[String]) -> Result<(), Failure> {
    let text = fs::read_to_string(root().join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let mut planted = parse(&text).map_err(|sentence| format!("{LIST}:{sentence}"))?;
    planted.retain(|planted| {
        words.is_empty() || words.iter().any(|word| planted.bug.contains(word.as_str()))
    });
    if planted.is_empty() {
        return Err("no planted bug of that name".into());
    }
    let mut missed = Vec::new();
    let mut healthy = BTreeSet::new();
    for Planted { bug, test } in &planted {
        match check(bug, test, &mut healthy) {
            Ok(()) => println!("{bug}: caught by {}", test.name),
            Err(Failure(why)) => {
                println!("{bug}: {why}");
                missed.push(bug.as_str());
            }
        }
    }
    println!("{} of {} planted bugs caught", planted.len() - missed.len(), planted.len());
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("not caught: {}", missed.join(", ")).into())
    }
}

/// `bug package target test`, one per line, no line twice; `#` starts a comment.
///
/// The error begins with the line's number.
pub(crate) fn parse(text: &str) -> Result<Vec<Planted>, String> {
    let mut all: Vec<Planted> = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let &[bug, package, target, name] = words.as_slice() else {
            return Err(format!("{}: want `bug package target test`", index + 1));
        };
        let test = Test { package: package.into(), target: target.into(), name: name.into() };
        let planted = Planted { bug: bug.into(), test };
        if all.contains(&planted) {
            return Err(format!("{}: {bug} has this test already", index + 1));
        }
        all.push(planted);
    }
    Ok(all)
}

/// `healthy` holds the tests that are known to pass without a bug: several bugs may share one.
fn check<'a>(bug: &str, test: &'a Test, healthy: &mut BTreeSet<&'a Test>) -> Result<(), Failure> {
    if !healthy.contains(test) {
        let output = run_test(test, None)?;
        if !passed(&output) {
            let text = text_of(&output);
            return Err(format!("{} does not pass without the bug:\n{text}", test.name).into());
        }
        healthy.insert(test);
    }
    let bitten = run_test(test, Some(bug))?;
    if passed(&bitten) {
        return Err(format!("NOT CAUGHT: {} passes with the bug in", test.name).into());
    }
    if !text_of(&bitten).contains("test result: FAILED. 0 passed; 1 failed") {
        let text = text_of(&bitten);
        return Err(format!("{} did not run with the bug in:\n{text}", test.name).into());
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

fn run_test(test: &Test, bug: Option<&str>) -> Result<Output, Failure> {
    let mut command = test_command(test, bug);
    command.output().map_err(|error| format!("cargo did not start: {error}").into())
}

fn test_command(test: &Test, bug: Option<&str>) -> Command {
    let mut command = cargo(["test", "--quiet", "--package", &test.package]);
    command.args(["--features", FEATURE]);
    match bug {
        Some(bug) => command.env(VARIABLE, bug),
        None => command.env_remove(VARIABLE),
    };
    if test.target == "lib" {
        command.arg("--lib");
    } else {
        command.args(["--test", &test.target]);
    }
    command.args(["--", "--exact", &test.name]);
    command
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_read_and_comments_are_not() {
        let text = "# what: why\n\nno-epoch slimio-storage  crash  second_life  # orphan revives\n";
        let test = Test {
            package: "slimio-storage".into(),
            target: "crash".into(),
            name: "second_life".into(),
        };
        assert_eq!(parse(text), Ok(vec![Planted { bug: "no-epoch".into(), test }]));
    }

    #[test]
    fn a_line_without_a_test_is_refused() {
        let text = "# why\nno-epoch slimio-storage crash\n";
        assert_eq!(parse(text), Err("2: want `bug package target test`".into()));
    }

    #[test]
    fn a_bug_may_have_several_tests_but_none_twice() {
        let text = "no-epoch p t first\nno-epoch p t second\n";
        assert_eq!(parse(text).map(|all| all.len()), Ok(2));
        let text = format!("{text}no-epoch p t first\n");
        assert_eq!(parse(&text), Err("3: no-epoch has this test already".into()));
    }
}
