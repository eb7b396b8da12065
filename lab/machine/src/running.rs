//! Runs a session: a virtual machine boots and runs the session's script. If the writes to a device
//! were recorded meanwhile, power cuts are then simulated at points of this record. A planted bug
//! is a bug that was put into the code on purpose. For each planted bug that the power cuts must
//! catch, the boot and the power cuts are done once more.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;
use std::{fs, io};

use slimio_host::Failure;
use slimio_host::process::{cargo, root, run, target_dir};
use slimio_host::programs::{self, FEATURE, VARIABLE};
use slimio_host::report::Report;

use crate::guest::{Guest, Task, quoted, said, unpack_results};
use crate::machine::{self, Ended, Plan, RESULTS};
use crate::power_cut;
use crate::suite::{FOLDER, LIBRARIES, Session};
use crate::tools::{self, Tools};
use crate::verdicts::Verdicts;
use crate::{built_or_given, folder, names};

/// Longer than any session takes, even on a busy machine.
const TIME_LIMIT: Duration = Duration::from_secs(420);
/// If a machine broke, this many of its last lines are repeated at the end of the run.
const LINES_TOLD: usize = 10;
/// The programs that are built twice: as usual, and with planted bugs. Test programs are built only
/// with planted bugs.
const PLANTED: [&str; 2] = ["slimio", "libslimio_preload.so"];

/// The programs that cargo builds for sessions. All of them are built before the first session
/// begins, because the build with planted bugs replaces the ordinary server for a while.
#[derive(Debug)]
pub(super) struct Built {
    /// The folder of the programs with all planted bugs built in but inactive, if a session needs
    /// them.
    planted: Option<PathBuf>,
    /// Test programs, by package and target.
    tests: BTreeMap<(String, String), PathBuf>,
}

impl Built {
    pub(super) fn of(sessions: &[Session]) -> Result<Self, Failure> {
        let is_wanted = sessions.iter().any(|session| !session.planted.is_empty());
        let planted = is_wanted.then(build_planted).transpose()?;
        let needs_server =
            |session: &Session| !session.programs.is_empty() || session.drive.is_some();
        if sessions.iter().any(needs_server) {
            programs::build_server()?;
        }
        let mut tests = BTreeMap::new();
        for test in sessions.iter().flat_map(|session| &session.tests) {
            if !tests.contains_key(test) {
                tests.insert(test.clone(), build_test(&test.0, &test.1)?);
            }
        }
        Ok(Self { planted, tests })
    }
}

/// A session that is being run, perhaps beside others.
pub(super) struct Run<'a> {
    pub(super) session: &'a Session,
    pub(super) tools: &'a Tools,
    pub(super) built: &'a Built,
    pub(super) report: &'a Mutex<&'a mut Report>,
}

impl Run<'_> {
    /// Prints a line, prefixed with the session's name.
    pub(super) fn say(&self, line: &str) {
        println!("{}: {line}", self.session.name);
    }

    /// Runs the whole session.
    pub(super) fn whole(&self) -> Result<(), Failure> {
        let folder = self.boot(None, &mut |line| self.reported(|report| report.see(line)))?;
        if self.session.recorded {
            self.cut_power(&folder)?;
        }
        for bug in &self.session.planted {
            self.catch(bug)?;
        }
        only_results(&folder).map_err(|error| said(&folder, &error))
    }

    /// Runs the session's script in a machine, with or without a planted bug. `see` gets each line
    /// that the script prints. Returns the folder with the results.
    fn boot(&self, bug: Option<&str>, see: &mut dyn FnMut(&str)) -> Result<PathBuf, Failure> {
        let Self { session, tools, built, .. } = self;
        let mut guest = Guest::new(tools)?;
        guest.program(&session.path)?;
        for library in LIBRARIES {
            guest.program(&root().join(FOLDER).join(library))?;
        }
        for program in &session.programs {
            if bug.is_some() && PLANTED.contains(&program.as_str()) {
                let planted = built
                    .planted
                    .as_ref()
                    .ok_or("the programs were not built with planted bugs")?;
                guest.program(&planted.join(program))?;
                continue;
            }
            let known = [built_or_given(program), root().join(program)];
            let path = known.into_iter().find(|path| path.is_file());
            let path = path.or_else(|| tools::find(program));
            let path = path.ok_or_else(|| format!("{program} is neither built nor installed"))?;
            guest.program(&path)?;
        }
        let modules: Vec<&str> = session.modules.iter().map(String::as_str).collect();
        guest.optional_modules(tools, &modules)?;
        if session.drive.is_some() {
            guest.network(tools)?;
        }
        for test in &session.tests {
            guest.program_named(&built.tests[test], &test.1)?;
        }
        let folder = folder(&session.name)?;
        let plan = Plan {
            drive: session.drive.clone(),
            ..Plan::new(tools, &folder, &session.namespaces, TIME_LIMIT)
        };
        let target_tmp = target_dir().join("tmp");
        let planted = bug.map(|bug| format!("export {VARIABLE}={bug}\n"));
        let task = Task::Script(format!(
            "export TARGET_TMP={}\n{}exec sh /usr/local/bin/{}",
            quoted(&target_tmp.to_string_lossy()),
            planted.unwrap_or_default(),
            session.name
        ));
        guest.finish(&plan.archive, &names(&session.namespaces), &task)?;
        let (status, lines) = self.run_machine(&plan)?;
        let mut verdicts = Verdicts::default();
        for line in &lines {
            see(line);
            verdicts.see(line);
        }
        unpack_results(&folder.join(RESULTS), &folder.join("results"))?;
        let verdict = verdicts.finish(status);
        verdict.map_err(|why| format!("{why}; the machine's files are in {}", folder.display()))?;
        Ok(folder)
    }

    /// Runs a machine to its end. If QEMU or the guest's kernel broke, runs the machine once more,
    /// and adds a remark to the summary of the whole run. Returns the exit status and the lines
    /// printed.
    fn run_machine(&self, plan: &Plan<'_>) -> Result<(i32, Vec<String>), Failure> {
        let mut has_broken = false;
        loop {
            let mut lines = Vec::new();
            let ended = machine::run_once(plan, &mut |line| {
                self.say(line);
                lines.push(line.to_owned());
            })?;
            let Failure(why) = match ended {
                Ended::Status(status) => return Ok((status, lines)),
                Ended::Broken(why) => why,
            };
            let last = lines[lines.len().saturating_sub(LINES_TOLD)..].join("\n    ");
            let told = format!("{why}; the last lines of its output:\n    {last}");
            if has_broken {
                return Err(told.into());
            }
            has_broken = true;
            self.say(&told);
            let name = &self.session.name;
            self.reported(|report| report.skip(&format!("a machine of {name} broke: {told}")));
        }
    }

    fn cut_power(&self, folder: &Path) -> Result<(), Failure> {
        for namespace in self.session.namespaces.iter().filter(|namespace| namespace.recorded) {
            match power_cut::check(folder, namespace, self.session.log.as_deref())? {
                Some(images) => self.passed(&format!(
                    "test {images}_images_of_power_cuts_hold_what_was_acknowledged ... ok"
                )),
                None => self.no_loop_device(),
            }
        }
        Ok(())
    }

    /// Runs the session with a planted bug, and checks that an acknowledged write is missing after
    /// a power cut.
    fn catch(&self, bug: &str) -> Result<(), Failure> {
        self.say(&format!("runs once more, with the planted bug {bug}"));
        let folder = self.boot(Some(bug), &mut |_| {})?;
        for namespace in self.session.namespaces.iter().filter(|namespace| namespace.recorded) {
            match power_cut::check(&folder, namespace, self.session.log.as_deref()) {
                Err(Failure(why)) if why.contains(power_cut::MISSED) => {
                    self.passed(&format!("test the_planted_bug_{bug}_is_caught ... ok: {why}"));
                }
                Err(failure) => return Err(failure),
                Ok(None) => self.no_loop_device(),
                Ok(Some(_)) => return Err(format!("NOT CAUGHT: no cut shows {bug}").into()),
            }
        }
        Ok(())
    }

    fn passed(&self, what: &str) {
        self.say(what);
        self.reported(|report| report.see("test result: ok. 1 passed; 0 failed; 0 ignored"));
    }

    fn no_loop_device(&self) {
        let why = "no power cut was checked, because no loop device can be made";
        self.reported(|report| report.skip(why));
    }

    fn reported(&self, how: impl FnOnce(&mut Report)) {
        how(&mut self.report.lock().expect("no thread panics while it holds the lock"));
    }
}

/// Removes everything but the results from the folder of a machine, because images take space. Only
/// a failed session keeps its images, for inspection.
fn only_results(folder: &Path) -> io::Result<()> {
    for entry in fs::read_dir(folder)? {
        let path = entry?.path();
        if path.is_file() {
            fs::remove_file(path)?;
        }
    }
    Ok(())
}

/// Builds the programs with all planted bugs built in but inactive, and copies them to a folder of
/// the lab. In cargo's folder, they replace the ordinary programs until those are built again.
fn build_planted() -> Result<PathBuf, Failure> {
    let packages =
        ["slimio-planted", "slimio-cli", "slimio-preload"].map(|name| ["--package", name]);
    run(cargo(["build", "--features", FEATURE]).args(packages.as_flattened()))?;
    let folder = folder("with-bugs")?;
    for program in PLANTED {
        let built = target_dir().join("debug").join(program);
        fs::copy(&built, folder.join(program)).map_err(|error| said(&built, &error))?;
    }
    Ok(folder)
}

/// Builds a test target, with all planted bugs built in but inactive. Returns its program.
fn build_test(package: &str, target: &str) -> Result<PathBuf, Failure> {
    let packages = ["--package", "slimio-planted", "--package", package];
    let built =
        programs::build(&[&packages[..], &["--features", FEATURE, "--test", target]].concat())?;
    let program = built.into_iter().next_back().map(|program| program.path);
    program.ok_or_else(|| format!("cargo named no program for the test {target}").into())
}
