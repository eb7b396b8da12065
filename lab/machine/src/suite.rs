//! The sessions of `tests/lab`. Each session is one boot of a machine and the tests that run during
//! it.
//!
//! A session is a shell script. Comments at its head say what the machine needs:
//!
//! ```text
//! # namespaces: FDP=512M PLAIN     what the machine has; without this and record, all namespaces
//! # record: PLAIN                  one more namespace; power_cut.rs checks its writes afterwards
//! # recover: log                   needs record; the marks are in this file on ext4
//! # planted: ack-before-flush      needs record; runs again with this bug, which a cut must catch
//! # programs: slimio redis-cli     built by cargo, in the repository, or installed on the host
//! # tests: slimio-device:nvme      test programs, packed under the name after the colon
//! # modules: xfs                   of the kernel; `load_modules` loads them and what they need
//! # kernel: general                the kernel with every module; without this line, the small one
//! # drive: size=1G                 options of an emulated drive that the host serves over NVMe/TCP
//! ```
//!
//! A mark is a text in a write of a client. After a power cut, the marks that are found show which
//! writes have survived.
//!
//! A session is refused if its comments promise more than the session would check.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use slimio_host::Failure;
use slimio_host::process::{root, side_by_side};
use slimio_host::report::Report;

use crate::guest::said;
use crate::names;
use crate::namespaces::Namespace;
use crate::running::{Built, Run};
use crate::tools::{self, Kernel, Tools};

pub(super) const FOLDER: &str = "tests/lab";
/// Shell files in the same folder that sessions source. These files are not sessions themselves.
pub(super) const LIBRARIES: &[&str] =
    &["lab-test", "lab-server", "lab-fabrics", "lab-drive", "power-cut-load", "power-cut-trace"];

/// Keys of the comments at a session's head.
const KEYS: &[&str] = &[
    "namespaces",
    "record",
    "recover",
    "planted",
    "programs",
    "tests",
    "modules",
    "kernel",
    "drive",
];

/// A session, with the needs that its script states.
#[derive(Debug)]
pub(super) struct Session {
    pub(super) name: String,
    pub(super) path: PathBuf,
    pub(super) namespaces: Vec<Namespace>,
    /// Whether writes are recorded, so that power cuts can be simulated afterwards.
    pub(super) recorded: bool,
    /// The file that has the marks after a power cut; `None` if a server's data has the marks.
    pub(super) log: Option<String>,
    /// Planted bugs that the power cuts must catch.
    pub(super) planted: Vec<String>,
    pub(super) programs: Vec<String>,
    /// The package and target of each test program.
    pub(super) tests: Vec<(String, String)>,
    /// Modules that the script loads.
    pub(super) modules: Vec<String>,
    pub(super) kernel: Kernel,
    /// Options of an emulated drive that the host serves.
    pub(super) drive: Option<String>,
}

/// Sessions, and the tools and programs that they need.
#[derive(Debug)]
pub struct Suite {
    sessions: Vec<Session>,
    /// The tools, for each kernel that a session needs.
    tools: BTreeMap<Kernel, Tools>,
    built: Built,
}

impl Suite {
    /// Chooses the sessions whose name contains one of `words`. If there are no words, chooses all
    /// sessions; but unless `is_long` is set, sessions that need the general kernel are left out,
    /// and are reported as skipped. Then installs and builds everything that the chosen sessions
    /// need. During the build, a server with planted bugs replaces the ordinary one for a while. So
    /// nothing else may use the server until this function returns.
    pub(super) fn prepare(
        words: &[String],
        is_long: bool,
        report: &mut Report,
    ) -> Result<Self, Failure> {
        let mut sessions = sessions()?;
        let is_chosen = |name: &str| words.iter().any(|word| name.contains(word));
        sessions.retain(|session| words.is_empty() || is_chosen(&session.name));
        if words.is_empty() && !is_long {
            sessions.retain(|session| {
                let is_short = session.kernel == Kernel::Cloud;
                if !is_short {
                    let name = &session.name;
                    report.skip(&format!(
                        "{name} of the lab: runs only with `cargo x lab --long`, or by name"
                    ));
                }
                is_short
            });
        }
        if sessions.is_empty() {
            return Err(format!("no session in {FOLDER} has such a name").into());
        }
        let mut tools = BTreeMap::new();
        for Session { kernel, .. } in &sessions {
            if !tools.contains_key(kernel) {
                tools.insert(*kernel, tools::install(*kernel)?);
            }
        }
        let built = Built::of(&sessions)?;
        Ok(Self { sessions, tools, built })
    }

    /// Runs the sessions, as many at a time as there are cores.
    pub fn run(&self, report: &mut Report) -> Result<(), Failure> {
        let (report, failed) = (Mutex::new(report), Mutex::new(Vec::new()));
        side_by_side(&self.sessions, 1, |session| {
            let tools = &self.tools[&session.kernel];
            let run = Run { session, tools, built: &self.built, report: &report };
            run.say("begins");
            if let Err(Failure(why)) = run.whole() {
                run.say(&why);
                let why = format!("{} ({why})", session.name);
                failed.lock().expect("no thread panics while it holds the lock").push(why);
            }
        });
        let failed = failed.into_inner().expect("no thread panics while it holds the lock");
        if failed.is_empty() {
            return Ok(());
        }
        Err(format!("these sessions of the lab failed: {}", failed.join(", ")).into())
    }
}

/// All sessions, in the order of their names.
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
                    return Err(format!("{name}: `{line}` has none of the keys {keys}").into());
                }
                Some((key, _)) if !is_head && KEYS.contains(&key) => {
                    return Err(format!("{name}: `{line}` comes after the head").into());
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
            return Err(format!("{name}: the machine would have two namespaces {}", twice.1).into());
        }
        let tests = words("tests").into_iter().map(|word| {
            let pair = word.split_once(':').map(|(p, t)| (p.to_owned(), t.to_owned()));
            pair.ok_or_else(|| Failure(format!("{name}: `{word}` is not PACKAGE:TARGET")))
        });
        let tests = tests.collect::<Result<Vec<_>, _>>()?;
        if let Some((package, target)) = tests.iter().find(|(_, target)| !body.contains(target)) {
            return Err(format!("{name}: {package}:{target} is packed and never run").into());
        }
        let [programs, modules] = ["programs", "modules"]
            .map(|key| words(key).into_iter().map(str::to_owned).collect::<Vec<_>>());
        let planted: Vec<_> = words("planted").into_iter().map(str::to_owned).collect();
        if !is_recorded && !planted.is_empty() {
            let bugs = planted.join(", ");
            return Err(format!(
                "{name}: only a power cut can catch {bugs}, but no namespace is recorded: \
                 name one with `# record: `"
            )
            .into());
        }
        let kernel = match words("kernel").as_slice() {
            [] => Kernel::Cloud,
            ["general"] => Kernel::General,
            other => return Err(format!("{name}: `{}` is no kernel", other.join(" ")).into()),
        };
        let drive = words("drive").first().map(|options| (*options).to_owned());
        if drive.is_some() && !body.contains("lab drive start") {
            return Err(format!("{name}: its script never starts its drive").into());
        }
        let path = path.to_owned();
        let log = words("recover").first().map(|file| (*file).to_owned());
        let recorded = is_recorded;
        Ok(Self {
            name,
            path,
            namespaces,
            recorded,
            log,
            planted,
            programs,
            tests,
            modules,
            kernel,
            drive,
        })
    }
}

/// Parses `# key: value`.
fn key_and_value(line: &str) -> Option<(&str, &str)> {
    let (key, value) = line.strip_prefix("# ")?.split_once(": ")?;
    key.bytes().all(|byte| byte.is_ascii_lowercase()).then_some((key, value))
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
        assert_eq!((session.kernel, session.drive), (Kernel::Cloud, None));
        let long =
            parse("# kernel: general\n# drive: size=1G,ru=16M\n\nlab drive start\n").unwrap();
        assert_eq!((long.kernel, long.drive.as_deref()), (Kernel::General, Some("size=1G,ru=16M")));
        assert!(parse("# kernel: newest\n").is_err());
        assert!(parse("# tests: a\n").is_err());
        assert!(parse("# namespaces: NONE\n").is_err());
    }

    fn parse(text: &str) -> Result<Session, Failure> {
        Session::parse("some".into(), Path::new("some"), text)
    }

    fn refused(text: &str) -> String {
        let Failure(why) =
            parse(text).expect_err("a session that would check too little is refused");
        why
    }

    #[test]
    fn a_planted_bug_that_no_power_cut_could_tell_of_is_refused() {
        let why = refused("# namespaces: PLAIN\n# planted: ack-before-flush\n");
        assert!(why.starts_with("some: only a power cut can catch ack-before-flush"), "{why}");
        assert!(parse("# record: PLAIN\n# planted: ack-before-flush\n").is_ok());
    }

    /// Checks that each line of a guide's shell blocks is in the session. A line that the session
    /// cannot run must be in a comment of the session, with the reason. Returns the number of
    /// lines.
    fn lines_that_are_typed(guide: &str, session: &str) -> usize {
        let session = fs::read_to_string(root().join(FOLDER).join(session)).unwrap();
        let blocks = guide.split("```").filter_map(|block| block.strip_prefix("sh\n"));
        let lines: Vec<&str> = blocks.flat_map(str::lines).collect();
        for line in &lines {
            let typed = line.split("  # ").next().unwrap_or_default().trim();
            assert!(session.contains(typed), "the session lacks `{typed}`");
        }
        lines.len()
    }

    #[test]
    fn the_guide_is_run_as_it_is_typed() {
        let guide = fs::read_to_string(root().join("docs/fdp.md")).unwrap();
        // The session runs the guide only up to the section about WAF. The later sections are about
        // measuring.
        let sections: Vec<&str> = guide.split("\n## ").collect();
        let last = sections.iter().position(|section| section.starts_with("WAF")).unwrap();
        assert!(lines_that_are_typed(&sections[..=last].join("\n"), "guide") > 20);
    }

    #[test]
    fn the_drive_is_plugged_in_as_it_is_typed() {
        let guide = fs::read_to_string(root().join("docs/ssd.md")).unwrap();
        assert!(lines_that_are_typed(&guide, "drive-guide") > 10);
    }

    #[test]
    fn each_session_can_be_read() {
        assert!(sessions().unwrap().len() > 10);
    }

    #[test]
    fn what_would_not_be_heeded_is_refused() {
        let misspelt = refused("# recorded: PLAIN\n");
        assert!(misspelt.contains("`# recorded: PLAIN` has none of the keys"), "{misspelt}");
        let twice = refused("# namespaces: PLAIN B512\n# record: PLAIN\n");
        assert!(twice.contains("the machine would have two namespaces PLAIN"), "{twice}");
        let late = refused("#!/bin/sh\n\n# record: PLAIN\n");
        assert!(late.contains("`# record: PLAIN` comes after the head"), "{late}");
        let idle = refused("# tests: package:target\nverdict\n");
        assert!(idle.contains("package:target is packed and never run"), "{idle}");
        let still = refused("# drive: size=1G\nverdict\n");
        assert!(still.contains("its script never starts its drive"), "{still}");
    }
}
