//! `cargo x planted`: a test that has never failed proves nothing, so bugs are planted on purpose.
//!
//! Each line of `crates/planted/planted-bugs.txt` names a bug and the test that must catch it. One
//! build of a test target contains all bugs, and an environment variable activates one. The run is
//! green only if each test fails with its bug, and passes without it in the same program. Some bugs
//! show only if threads happen to meet in a certain order. So a test that misses its bug runs
//! again, until it has run [`RUNS_MAX`] times. The last line of the output names each bug that took
//! more than one run.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::process::Output;
use std::sync::Mutex;

use slimio_host::Failure;
use slimio_host::process::{command, root, side_by_side};
use slimio_host::programs::{self, FEATURE, Program, VARIABLE};

/// The list of all bugs, relative to the root.
pub(crate) const LIST: &str = "crates/planted/planted-bugs.txt";

/// The environment variable that tells tests how many seconds to wait for an expected event. With a
/// planted bug, this event usually never comes.
const PATIENCE: &str = "SLIMIO_PATIENCE_SECONDS";
const PATIENCE_SECONDS: &str = "8";

/// How often a test may run until it catches its bug.
const RUNS_MAX: usize = 3;

/// A line of the list.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Planted {
    pub(crate) bug: String,
    pub(crate) test: Test,
}

#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Test {
    pub(crate) package: String,
    /// Name of the integration test file, or `lib` for unit tests.
    target: String,
    pub(crate) name: String,
}

/// `cargo x planted [word]…`: with words, only the bugs whose name contains one of the words.
pub(crate) fn verb(words: &[String]) -> Result<(), Failure> {
    let text = fs::read_to_string(root().join(LIST)).map_err(|error| format!("{LIST}: {error}"))?;
    let mut planted = parse(&text).map_err(|sentence| format!("{LIST}:{sentence}"))?;
    planted.retain(|planted| {
        words.is_empty() || words.iter().any(|word| planted.bug.contains(word.as_str()))
    });
    if planted.is_empty() {
        return Err("no planted bug has one of these words in its name".into());
    }
    let chosen = targets(&planted, words.is_empty());
    let chosen: Vec<&str> = chosen.iter().map(String::as_str).collect();
    let programs = programs::build(&chosen)?;
    let mut of_test: BTreeMap<&Test, Vec<&str>> = BTreeMap::new();
    for Planted { bug, test } in &planted {
        of_test.entry(test).or_default().push(bug);
    }
    let (missed, late) = check_all(&programs, of_test);
    let caught = planted.len() - missed.len();
    let late = if late.is_empty() {
        String::new()
    } else {
        format!("; caught only in a later run: {}", late.join(", "))
    };
    println!("{caught} of {} planted bugs caught{late}", planted.len());
    if missed.is_empty() {
        Ok(())
    } else {
        Err(format!("not caught: {}", missed.join(", ")).into())
    }
}

/// The arguments that tell cargo what to build. If all bugs are chosen, cargo builds the same
/// programs as `cargo x test`, which may be built already. Otherwise, cargo builds only the
/// programs that the chosen bugs need.
fn targets(planted: &[Planted], are_all: bool) -> Vec<String> {
    let mut chosen = vec!["--features".to_owned(), FEATURE.to_owned()];
    if are_all {
        chosen.push("--workspace".into());
        return chosen;
    }
    let tests = || planted.iter().map(|planted| &planted.test);
    let packages: BTreeSet<&str> = tests().map(|test| &*test.package).collect();
    chosen.extend(packages.into_iter().flat_map(|package| ["--package".into(), package.into()]));
    let targets: BTreeSet<&str> = tests().map(|test| &*test.target).collect();
    for target in targets {
        match target {
            "lib" => chosen.push("--lib".into()),
            target => chosen.extend(["--test".into(), target.into()]),
        }
    }
    chosen
}

/// Checks all bugs. Runs more tests at a time than there are cores, because many tests with a bug
/// wait for an event that never comes. Returns two lists. The first has the bugs that were not
/// caught, each with the reason in a few words. The second has the bugs that were caught only in a
/// later run, each with the number of runs.
fn check_all(
    programs: &[Program],
    of_test: BTreeMap<&Test, Vec<&str>>,
) -> (Vec<String>, Vec<String>) {
    let (missed, late) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
    side_by_side(of_test, 3, |(test, bugs)| {
        let is_healthy = check_healthy(programs, test);
        for bug in bugs {
            match is_healthy.clone().and_then(|()| check(programs, bug, test)) {
                Ok(1) => println!("{bug}: caught by {}", test.name),
                Ok(runs) => {
                    println!("{bug}: caught by {}, but only in run {runs}", test.name);
                    let mut late = late.lock().expect("no thread panics here");
                    late.push(format!("{bug} ({runs} runs)"));
                }
                Err(why) => {
                    println!("{bug}: {why}");
                    let first_line = why.lines().next().unwrap_or_default();
                    missed
                        .lock()
                        .expect("no thread panics here")
                        .push(format!("{bug} ({})", first_line.trim_end_matches(':')));
                }
            }
        }
    });
    let unlocked = |list: Mutex<Vec<String>>| list.into_inner().expect("no thread panics here");
    (unlocked(missed), unlocked(late))
}

/// Parses lines of the form `bug package target test`. No line may occur twice, and `#` starts a
/// comment.
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
            return Err(format!("{}: a line must be `bug package target test`", index + 1));
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

/// Checks that a test passes without a bug.
fn check_healthy(programs: &[Program], test: &Test) -> Result<(), String> {
    let output = run_test(programs, test, None)?;
    if output.status.success() && text_of(&output).contains("test result: ok. 1 passed") {
        return Ok(());
    }
    Err(format!("{} does not pass without the bug:\n{}", test.name, text_of(&output)))
}

/// Checks that a test fails with a bug. Returns the number of the run in which it failed.
fn check(programs: &[Program], bug: &str, test: &Test) -> Result<usize, String> {
    for run in 1..=RUNS_MAX {
        let output = run_test(programs, test, Some(bug))?;
        if output.status.success() {
            continue;
        }
        let text = text_of(&output);
        if !text.contains("test result: FAILED. 0 passed; 1 failed") {
            return Err(format!(
                "with the bug active, {} ended without a result:\n{text}",
                test.name
            ));
        }
        return Ok(run);
    }
    Err(format!("NOT CAUGHT: {} passed with the bug active, {RUNS_MAX} times", test.name))
}

fn text_of(output: &Output) -> String {
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    text
}

fn run_test(programs: &[Program], test: &Test, bug: Option<&str>) -> Result<Output, String> {
    let Test { package, target, name } = test;
    let mut programs = programs.iter();
    let program = programs.find(|one| one.package == *package && one.target == *target);
    let program = program.ok_or_else(|| format!("{package} has no test target {target}"))?;
    let mut command = command(&program.path);
    command.current_dir(&program.folder).args(["--exact", name]);
    // Each test waits for the same time with a bug and without. Suppose that tests waited longer
    // without a bug. Then a test that fails only because the machine is slow would seem to have
    // caught its bug.
    command.env(PATIENCE, PATIENCE_SECONDS);
    match bug {
        Some(bug) => command.env(VARIABLE, bug),
        None => command.env_remove(VARIABLE),
    };
    command.output().map_err(|error| format!("{}: {error}", program.path.display()))
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
        assert_eq!(parse(text), Err("2: a line must be `bug package target test`".into()));
    }

    #[test]
    fn a_bug_may_have_several_tests_but_none_twice() {
        let text = "no-epoch p t first\nno-epoch p t second\n";
        assert_eq!(parse(text).map(|all| all.len()), Ok(2));
        let text = format!("{text}no-epoch p t first\n");
        assert_eq!(parse(&text), Err("3: no-epoch has this test already".into()));
    }
}
