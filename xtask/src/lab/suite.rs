//! The sessions of `tests/lab`: a boot each, and what is tested in it.
//!
//! A session is a shell script. Comments at its head say what the machine needs:
//!
//! ```text
//! # namespaces: FDP=512M PLAIN     what the machine has; all where nothing is said
//! # record: PLAIN                one namespace; what it records is checked as power_cut.rs says
//! # planted: ack-before-flush     with record: once more with this bug in the server, the cut must tell
//! # programs: slimio redis-cli     built by cargo, a file of the repository, or installed on the host
//! # tests: slimio-device:nvme      test programs, packed under the name behind the colon
//! ```
//!
//! A session that would check less than it seems to is refused.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::guest::{Guest, Task, quoted, said, unpack_results};
use super::machine::{self, Plan, RESULTS};
use super::namespaces::Namespace;
use super::power_cut;
use super::tools::{self, Tools, lab_dir};
use super::verdicts::Verdicts;
use super::{MEMORY_MIB, built_or_given, folder, names};
use crate::Failure;
use crate::planted::{FEATURE, VARIABLE};
use crate::process::{cargo, root, run, target_dir};
use crate::programs;
use crate::report::Report;
use crate::suites;

const FOLDER: &str = "tests/lab";
/// What sessions source: functions for every one, those for a server, and a load.
const LIBRARIES: &[&str] = &["lab-test", "lab-server", "power-cut-load"];
/// No session takes as long even on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(420);
/// The program that a planted bug is in.
const SERVER: &str = "slimio";

/// What a comment at the head may be about.
const KEYS: &[&str] = &["namespaces", "record", "planted", "programs", "tests"];

#[derive(Debug)]
struct Session {
    name: String,
    path: PathBuf,
    namespaces: Vec<Namespace>,
    /// Whether writes are recorded, and the power cut after the fact.
    recorded: bool,
    /// Bugs that the power cut must catch.
    planted: Vec<String>,
    programs: Vec<String>,
    /// Package and target.
    tests: Vec<(String, String)>,
}

/// Runs the sessions whose name contains one of `words`, or all.
pub(super) fn run_all(report: &mut Report, words: &[String]) -> Result<(), Failure> {
    let tools = tools::install()?;
    let mut sessions = sessions()?;
    sessions.retain(|session| words.is_empty() || words.iter().any(|w| session.name.contains(w)));
    if sessions.is_empty() {
        return Err(format!("{FOLDER} has no session of that name").into());
    }
    if sessions.iter().any(|session| !session.programs.is_empty()) {
        suites::build_server()?;
    }
    let mut failed = Vec::new();
    for session in &sessions {
        println!("--- {}", session.name);
        if let Err(Failure(why)) = session.run(&tools, report) {
            println!("{}: {why}", session.name);
            failed.push(session.name.as_str());
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    Err(format!("sessions of the lab that failed: {}", failed.join(", ")).into())
}

/// All of them, by name.
fn sessions() -> Result<Vec<Session>, Failure> {
    let dir = root().join(FOLDER);
    let entries = fs::read_dir(&dir).map_err(|error| said(&dir, &error))?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.retain(|path| path.file_name().is_some_and(|name| !LIBRARIES.iter().any(|l| name == *l)));
    paths.sort();
    paths.into_iter().map(|path| Session::read(&path)).collect()
}

impl Session {
    fn read(path: &Path) -> Result<Self, Failure> {
        let text = fs::read_to_string(path).map_err(|error| said(path, &error))?;
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        Self::parse(name, path, &text)
    }

    fn parse(name: String, path: &Path, text: &str) -> Result<Self, Failure> {
        let (mut needs, mut body) = (Vec::new(), String::new());
        let mut is_head = true;
        for line in text.lines() {
            is_head &= line.starts_with('#');
            match key_and_value(line) {
                Some((key, _)) if is_head && !KEYS.contains(&key) => {
                    let keys = KEYS.join(", ");
                    return Err(format!("{name}: `{line}` is about none of {keys}").into());
                }
                Some((key, _)) if !is_head && KEYS.contains(&key) => {
                    return Err(format!("{name}: `{line}` stands behind the head").into());
                }
                Some(need) if is_head => needs.push(need),
                _ if !is_head => body.extend([line, "\n"]),
                _ => {}
            }
        }
        let words = |wanted: &str| -> Vec<&str> {
            let values = needs.iter().filter(|(key, _)| *key == wanted);
            values.flat_map(|(_, value)| value.split_whitespace()).collect()
        };
        let namespaces = words("namespaces").into_iter().map(Namespace::parse);
        let mut namespaces = namespaces.collect::<Result<Vec<_>, _>>()?;
        let recorded = words("record").into_iter().map(Namespace::parse);
        let recorded = recorded.collect::<Result<Vec<_>, _>>()?;
        let is_recorded = !recorded.is_empty();
        namespaces.extend(recorded.into_iter().map(|n| Namespace { recorded: true, ..n }));
        if namespaces.is_empty() {
            namespaces = Namespace::all();
        }
        let kinds = names(&namespaces);
        if let Some(twice) = kinds.iter().enumerate().find(|(at, kind)| kinds[..*at].contains(kind))
        {
            return Err(format!("{name}: it has two namespaces {}", twice.1).into());
        }
        let tests = words("tests").into_iter().map(|word| {
            let pair = word.split_once(':').map(|(p, t)| (p.to_owned(), t.to_owned()));
            pair.ok_or_else(|| Failure(format!("{name}: `{word}` is not PACKAGE:TARGET")))
        });
        let tests = tests.collect::<Result<Vec<_>, _>>()?;
        if let Some((package, target)) = tests.iter().find(|(_, target)| !body.contains(target)) {
            return Err(format!("{name}: {package}:{target} is packed and never run").into());
        }
        let programs = words("programs").into_iter().map(str::to_owned).collect();
        let planted: Vec<_> = words("planted").into_iter().map(str::to_owned).collect();
        if !is_recorded && !planted.is_empty() {
            let bugs = planted.join(", ");
            return Err(format!(
                "{name}: only a power cut can tell of {bugs}, and nothing is recorded: say which \
                 namespace with `# record: `"
            )
            .into());
        }
        let path = path.to_owned();
        Ok(Self { name, path, namespaces, recorded: is_recorded, planted, programs, tests })
    }

    fn run(&self, tools: &Tools, report: &mut Report) -> Result<(), Failure> {
        let folder = self.boot(tools, None, &mut |line| report.see(line))?;
        if self.recorded {
            self.cut_power(&folder, report)?;
        }
        for bug in &self.planted {
            self.catch(tools, bug, report)?;
        }
        // Images take room; those of a failure are looked at.
        fs::remove_dir_all(&folder).map_err(|error| said(&folder, &error))
    }

    /// Runs the session in a machine, `see` hears what it says. Returns the folder with what is left.
    fn boot(
        &self,
        tools: &Tools,
        planted: Option<&Planted<'_>>,
        see: &mut dyn FnMut(&str),
    ) -> Result<PathBuf, Failure> {
        let mut guest = Guest::new(tools)?;
        guest.program(&self.path)?;
        for library in LIBRARIES {
            guest.program(&root().join(FOLDER).join(library))?;
        }
        for program in &self.programs {
            if let Some(Planted { server, .. }) = planted.filter(|_| program == SERVER) {
                guest.program_named(server, SERVER)?;
                continue;
            }
            let known = [built_or_given(program), root().join(program)];
            let path = known.into_iter().find(|path| path.is_file());
            let path = path.or_else(|| tools::find(program));
            let path = path.ok_or_else(|| format!("{program} is neither built nor installed"))?;
            guest.program(&path)?;
        }
        for (package, target) in &self.tests {
            guest.program_named(&build_test(package, target)?, target)?;
        }
        let folder = folder(&self.name)?;
        let plan = Plan {
            tools,
            archive: folder.join("archive"),
            folder: folder.clone(),
            namespaces: self.namespaces.clone(),
            memory_mib: MEMORY_MIB,
            time_limit: TIME_LIMIT,
            keep_flushes: false,
            interactive: false,
        };
        let target_tmp = target_dir().join("tmp");
        let planted = planted.map(|Planted { bug, .. }| format!("export {VARIABLE}={bug}\n"));
        let task = Task::Script(format!(
            "export TARGET_TMP={}\n{}exec sh /usr/local/bin/{}",
            quoted(&target_tmp.to_string_lossy()),
            planted.unwrap_or_default(),
            self.name
        ));
        guest.finish(&plan.archive, &names(&self.namespaces), &task)?;
        let mut verdicts = Verdicts::default();
        let status = machine::run(&plan, &mut |line| {
            println!("{line}");
            see(line);
            verdicts.see(line);
        })?;
        unpack_results(&folder.join(RESULTS), &folder.join("results"))?;
        let verdict = verdicts.finish(status);
        verdict.map_err(|why| format!("{why}; what is left is in {}", folder.display()))?;
        Ok(folder)
    }
}

impl Session {
    fn cut_power(&self, folder: &Path, report: &mut Report) -> Result<(), Failure> {
        for namespace in self.namespaces.iter().filter(|namespace| namespace.recorded) {
            match power_cut::check(folder, namespace)? {
                Some(images) => {
                    println!(
                        "test {images}_images_of_power_cuts_hold_what_was_acknowledged ... ok"
                    );
                    report.see("test result: ok. 1 passed; 0 failed; 0 ignored");
                }
                None => report.skip("images of power cuts: no loop device can be made"),
            }
        }
        Ok(())
    }
}

impl Session {
    /// Runs it with a bug in the server: what the power cut leaves must miss what was acknowledged.
    fn catch(&self, tools: &Tools, bug: &str, report: &mut Report) -> Result<(), Failure> {
        println!("--- {} with the planted bug {bug}", self.name);
        let server = build_planted()?;
        let folder = self.boot(tools, Some(&Planted { bug, server }), &mut |_| {})?;
        for namespace in self.namespaces.iter().filter(|namespace| namespace.recorded) {
            match power_cut::check(&folder, namespace) {
                Err(Failure(why)) if why.contains(power_cut::MISSED) => {
                    println!("test the_planted_bug_{bug}_is_caught ... ok\n    {why}");
                    report.see("test result: ok. 1 passed; 0 failed; 0 ignored");
                }
                Err(failure) => return Err(failure),
                Ok(None) => report.skip("images of power cuts: no loop device can be made"),
                Ok(Some(_)) => return Err(format!("NOT CAUGHT: {bug}").into()),
            }
        }
        Ok(())
    }
}

/// `# key: value`
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.strip_prefix("# ")?.split_once(": ")?;
    key.bytes().all(|byte| byte.is_ascii_lowercase()).then_some((key, value))
}

/// A server with all bugs in it, and the one that is chosen.
struct Planted<'a> {
    bug: &'a str,
    server: PathBuf,
}

/// Builds the server with bugs, each asleep. It lies apart: the ordinary one is back in its place
/// when this returns.
fn build_planted() -> Result<PathBuf, Failure> {
    let packages = ["--package", "slimio-planted", "--package", "slimio-cli"];
    let built = run(cargo(["build", "--features", FEATURE]).args(packages));
    let path = lab_dir().join("planted");
    let copied = built.and_then(|()| {
        let ordinary = target_dir().join("debug").join(SERVER);
        fs::copy(&ordinary, &path).map_err(|error| said(&ordinary, &error))
    });
    suites::build_server()?;
    copied.map(|_| path)
}

/// Builds a test target. Returns its program.
fn build_test(package: &str, target: &str) -> Result<PathBuf, Failure> {
    let built = programs::build(&["--package", package, "--test", target])?;
    let program = built.into_iter().next_back().map(|program| program.path);
    program.ok_or_else(|| format!("cargo named no program for the test {target}").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_says_what_it_needs() {
        let text = "#!/bin/sh\n# About.\n#\n# namespaces: FDP=64M PLAIN\n# tests: a:b c:d\n\
            # record: B512=64M\n# planted: some-bug\n\nb && d\n# not so: this\n";
        let session = parse(text).unwrap();
        assert_eq!(names(&session.namespaces), ["FDP", "PLAIN", "B512"]);
        assert_eq!(session.tests, [("a".into(), "b".into()), ("c".into(), "d".into())]);
        assert_eq!(session.planted, ["some-bug"]);
        assert!(session.programs.is_empty());
        assert!(parse("# tests: a\n").is_err());
        assert!(parse("# namespaces: NONE\n").is_err());
    }

    fn parse(text: &str) -> Result<Session, Failure> {
        Session::parse("some".into(), Path::new("some"), text)
    }

    fn refused(text: &str) -> String {
        let Failure(why) = parse(text).expect_err("it would check too little");
        why
    }

    #[test]
    fn a_planted_bug_that_no_power_cut_could_tell_of_is_refused() {
        let why = refused("# namespaces: PLAIN\n# planted: ack-before-flush\n");
        assert!(why.starts_with("some: only a power cut can tell of ack-before-flush"), "{why}");
        assert!(parse("# record: PLAIN\n# planted: ack-before-flush\n").is_ok());
    }

    /// What could not be run there is in a comment, with the reason.
    #[test]
    fn the_guide_is_run_as_it_is_typed() {
        let read = |path: &str| fs::read_to_string(root().join(path)).unwrap();
        let (guide, session) = (read("docs/fdp.md"), read("tests/lab/guide"));
        // What follows is about measuring.
        let sections: Vec<&str> = guide.split("\n## ").collect();
        let last = sections.iter().position(|section| section.starts_with("WAF")).unwrap();
        let guide = sections[..=last].join("\n");
        let blocks = guide.split("```").filter_map(|block| block.strip_prefix("sh\n"));
        let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
        assert!(lines.len() > 20, "{lines:?}");
        for line in lines {
            let typed = line.split("  # ").next().unwrap_or_default().trim();
            assert!(session.contains(typed), "tests/lab/guide lacks `{typed}`");
        }
    }

    #[test]
    fn what_would_not_be_heeded_is_refused() {
        let misspelt = refused("# recorded: PLAIN\n");
        assert!(misspelt.contains("`# recorded: PLAIN` is about none of"), "{misspelt}");
        let twice = refused("# namespaces: PLAIN B512\n# record: PLAIN\n");
        assert!(twice.contains("it has two namespaces PLAIN"), "{twice}");
        let late = refused("#!/bin/sh\n\n# record: PLAIN\n");
        assert!(late.contains("`# record: PLAIN` stands behind the head"), "{late}");
        let idle = refused("# tests: package:target\nverdict\n");
        assert!(idle.contains("package:target is packed and never run"), "{idle}");
    }
}
