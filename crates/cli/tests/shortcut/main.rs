//! `slimio shortcut run` with real programs, such as redis-server, and with scripts that write logs
//! as such programs do.
#![expect(clippy::unwrap_used, reason = "a test fails if it cannot go on")]

mod calls;
mod databases;
mod kills;
mod mariadb;
mod opening;
mod others;
mod postgres;
mod redis;
mod sql;
mod traced;
mod whole;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::ops::{Deref, DerefMut};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use slimio_testing::loops::Mounted;
use tempfile::TempDir;

/// Held by each test that changes how long the kernel waits for leases, and by each test in which a
/// process waits for a lease.
static LEASES: Mutex<()> = Mutex::new(());

/// Time limit for waits that normally take only a moment.
const PATIENCE: Duration = Duration::from_secs(20);

/// A file system on which logs can take the short path, a folder for the stages, and a file for the
/// standard error of programs. A stage has the bytes of a log that are not in the log's file yet.
struct Place {
    mounted: Mounted,
    stages: TempDir,
}

impl Place {
    fn new() -> Option<Self> {
        Self::of_size(512 << 20)
    }

    fn of_size(size: u64) -> Option<Self> {
        let mounted = Mounted::new(&["mkfs.ext4", "-q"], size, "defaults")?;
        let stages =
            tempfile::Builder::new().permissions(private()).tempdir_in("/dev/shm").unwrap();
        Some(Self { mounted, stages })
    }

    fn path(&self) -> &Path {
        self.mounted.path()
    }

    /// The command `slimio shortcut run`, followed by `words`: options, then a program and its
    /// arguments. Standard error goes to a file.
    fn run(&self, words: &[&dyn AsRef<OsStr>]) -> Command {
        self.run_with(self.stages.path(), words)
    }

    /// Like [`Place::run`], with another folder for the stages.
    fn run_with(&self, stages: &Path, words: &[&dyn AsRef<OsStr>]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slimio"));
        command.args(["shortcut", "run", "--stages"]).arg(stages);
        command.arg("--notes").arg(self.notes());
        command.args(words.iter().map(AsRef::as_ref));
        command.env("SLIMIO_PRELOAD", library()).stdin(Stdio::null());
        command.stderr(File::options().create(true).append(true).open(self.said_path()).unwrap());
        command
    }

    /// Like [`Place::run`], for a script that python3 runs. The script's files `*.log` take the
    /// short path.
    fn python(&self, text: &str) -> Command {
        self.run(&[&"--match", &"*.log", &"--", &"python3", &self.script(text)])
    }

    fn script(&self, text: &str) -> PathBuf {
        let path = self.path().join("script.py");
        fs::write(&path, text).unwrap();
        path
    }

    fn stages_path(&self) -> &Path {
        self.stages.path()
    }

    fn notes(&self) -> PathBuf {
        self.path().join("notes")
    }

    fn said_path(&self) -> PathBuf {
        self.stages.path().join("said")
    }

    /// Everything that programs and their keepers have written to standard error so far.
    fn said(&self) -> String {
        fs::read_to_string(self.said_path()).unwrap()
    }

    /// Paths of the stages that exist.
    fn stages(&self) -> Vec<PathBuf> {
        let paths = fs::read_dir(self.stages.path()).unwrap().map(|entry| entry.unwrap().path());
        paths.filter(|path| path.extension() == Some(OsStr::new("stage"))).collect()
    }

    fn status(&self) -> String {
        let mut command = Command::new(env!("CARGO_BIN_EXE_slimio"));
        let command = command.args(["shortcut", "status", "--stages"]).arg(self.stages.path());
        text(&command.output().unwrap())
    }
}

/// A program under `slimio shortcut run`. If the test ends before the program, the program and its
/// keeper (the process that looks after the program's logs) are killed.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.0.try_wait(), Ok(None)) {
            return;
        }
        let process = pid(&self.0).as_raw_nonzero();
        let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children"));
        let _ = self.0.kill();
        let _ = self.0.wait();
        for child in children.unwrap_or_default().split_whitespace() {
            let child = child.parse().ok().and_then(Pid::from_raw);
            let _ = kill_process(child.unwrap(), Signal::KILL);
        }
    }
}

impl Deref for Running {
    type Target = Child;

    fn deref(&self) -> &Child {
        &self.0
    }
}

impl DerefMut for Running {
    fn deref_mut(&mut self) -> &mut Child {
        &mut self.0
    }
}

fn private() -> fs::Permissions {
    std::os::unix::fs::PermissionsExt::from_mode(0o700)
}

/// The preload library, which is built together with this test.
fn library() -> PathBuf {
    let program = Path::new(env!("CARGO_BIN_EXE_slimio"));
    program.with_file_name("deps").join("libslimio_preload.so")
}

fn text(output: &Output) -> String {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout.clone()).unwrap()
}

fn pid(child: &Child) -> Pid {
    Pid::from_child(child)
}

fn kill(process: Pid) {
    kill_process(process, Signal::KILL).unwrap();
}

/// The first child of a process.
fn child_of(process: Pid) -> Pid {
    let process = process.as_raw_nonzero();
    let path = format!("/proc/{process}/task/{process}/children");
    let mut found = None;
    wait_for("a child", || {
        let children = fs::read_to_string(&path).unwrap();
        found = children.split_whitespace().next().and_then(|pid| Pid::from_raw(pid.parse().ok()?));
        found.is_some()
    });
    found.unwrap()
}

/// The guard of a keeper: the process that gives the keeper's logs back if the keeper is killed.
fn guard_of(keeper: Pid) -> Pid {
    let process = keeper.as_raw_nonzero();
    let children = fs::read_to_string(format!("/proc/{process}/task/{process}/children")).unwrap();
    let is_guard = |pid: &&str| {
        let words = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        words.ends_with(b"\0guard\0")
    };
    let guard = children.split_whitespace().find(is_guard).expect("there is a guard");
    Pid::from_raw(guard.parse().unwrap()).unwrap()
}

fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "no {what} after {PATIENCE:?}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
