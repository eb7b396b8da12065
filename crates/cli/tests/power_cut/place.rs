//! The folders in which a test's programs run, and how the programs are started and ended.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tempfile::TempDir;

/// Time limit for waits that normally take only a moment.
const PATIENCE: Duration = Duration::from_secs(30);

/// Two folders. The file system is mounted in the first folder. The second folder is in memory, for
/// the stages of the short path (bytes that are not yet in a log), sockets and the output of
/// programs. Every user may use both folders, because some programs run as another user.
pub(crate) struct Place {
    folder: TempDir,
    memory: TempDir,
    /// The profile for `slimio shortcut run`. `None` if programs run without the short path.
    profile: Option<&'static str>,
}

impl Place {
    pub(crate) fn new(profile: Option<&'static str>) -> Self {
        let open = || fs::Permissions::from_mode(0o1777);
        let folder = tempfile::Builder::new().permissions(open()).tempdir().unwrap();
        let memory = tempfile::Builder::new().permissions(open()).tempdir_in("/dev/shm").unwrap();
        for path in [folder.path(), memory.path()] {
            fs::set_permissions(path, open()).unwrap();
        }
        let place = Self { folder, memory, profile };
        if profile.is_some() {
            // The program and the library are copied, because another user may have no access to
            // the folder in which they were built.
            let program = Path::new(env!("CARGO_BIN_EXE_slimio"));
            fs::copy(program, place.slimio()).unwrap();
            let library = program.with_file_name("deps").join("libslimio_preload.so");
            fs::copy(library, place.library()).unwrap();
        }
        place
    }

    /// The folder for the disk and for the disk's images.
    pub(crate) fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Where the file system is mounted.
    pub(crate) fn mounted(&self) -> PathBuf {
        self.folder.path().join("mounted")
    }

    /// The folder in memory.
    pub(crate) fn memory(&self) -> &Path {
        self.memory.path()
    }

    pub(crate) fn slimio(&self) -> PathBuf {
        self.folder.path().join("slimio")
    }

    fn library(&self) -> PathBuf {
        self.folder.path().join("libslimio_preload.so")
    }

    fn stages(&self) -> PathBuf {
        self.memory.path().join("stages")
    }

    /// Removes the files that a power cut would not leave: the stages in memory, and PostgreSQL's
    /// sockets with their lock files.
    pub(crate) fn forget(&self) {
        for entry in fs::read_dir(self.memory()).unwrap().flatten() {
            if entry.file_name().to_string_lossy().starts_with(".s.PGSQL") {
                let _ = fs::remove_file(entry.path());
            }
        }
        let removed = fs::remove_dir_all(self.stages());
        assert!(removed.is_ok() || !self.stages().exists());
    }

    /// The last lines that the programs have written to standard error.
    pub(crate) fn last_said(&self) -> String {
        let said = fs::read_to_string(self.said()).unwrap();
        let lines: Vec<&str> = said.lines().collect();
        lines[lines.len().saturating_sub(30)..].join("\n")
    }

    fn said(&self) -> PathBuf {
        self.memory.path().join("said")
    }

    /// Whether programs run under `slimio shortcut run`.
    pub(crate) fn is_short(&self) -> bool {
        self.profile.is_some()
    }

    /// The command that runs `program` as `user`: under `slimio shortcut run` if there is a
    /// profile, and directly if there is none.
    pub(crate) fn run(&self, user: Option<&str>, program: &Path) -> Command {
        let Some(profile) = self.profile else { return self.stock(user, program) };
        let mut command = self.stock(user, &self.slimio());
        command.env("SLIMIO_PRELOAD", self.library());
        command.args(["shortcut", "run", "--profile", profile]);
        command.arg("--stages").arg(self.stages());
        command.arg("--notes").arg(self.mounted().join("notes"));
        command.arg("--").arg(program);
        command
    }

    /// The command that runs `program` as `user` directly.
    pub(crate) fn stock(&self, user: Option<&str>, program: &Path) -> Command {
        // If this test dies, the kernel sends the program a signal that ends it, too. `slimio
        // shortcut run` passes the signal on to its program.
        let mut all = command("setpriv");
        all.args(["--pdeathsig", "TERM"]);
        if let Some(user) = user {
            all.args(["--reuid", user, "--regid", user, "--init-groups"]);
            all.env_remove("HOME").env_remove("XDG_STATE_HOME");
        }
        all.arg("--").arg(program).current_dir(self.folder.path()).stdin(Stdio::null());
        all.stderr(File::options().create(true).append(true).open(self.said()).unwrap());
        all
    }

    /// Checks how logs were written. If there is a profile, at least one log must have been written
    /// by the short path. Without a profile, no log may have been written by the short path.
    pub(crate) fn check_said(&self) {
        let said = fs::read_to_string(self.said()).unwrap();
        assert_eq!(said.contains(": written by the short path"), self.is_short(), "{said}");
    }
}

/// A running program. On drop, all processes of the program's process group end.
pub(crate) struct Running {
    pub(crate) child: Child,
    end: Signal,
}

impl Running {
    /// Starts a program that is killed on drop.
    pub(crate) fn new(command: &mut Command) -> Self {
        Self::ended_by(Signal::KILL, command)
    }

    /// Starts a program that gets the signal `end` on drop. Some programs use resources that the
    /// kernel would keep after SIGKILL, such as shared memory. On the signal `end`, such a program
    /// must free these resources, and then end at once.
    pub(crate) fn ended_by(end: Signal, command: &mut Command) -> Self {
        Self { child: command.process_group(0).spawn().unwrap(), end }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let group = Pid::from_child(&self.child);
        // An error is ignored, because the processes may have ended already.
        let _ = kill_process(group, self.end);
        let begin = Instant::now();
        while matches!(self.child.try_wait(), Ok(None)) && begin.elapsed() < PATIENCE / 3 {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = kill_process_group(group, Signal::KILL);
        let _ = self.child.wait();
    }
}

/// A mounted file system. If the test fails, the kernel unmounts the file system as soon as no
/// process uses it.
pub(crate) struct Mount {
    point: PathBuf,
}

impl Mount {
    pub(crate) fn new(device: &Path, options: &str, point: &Path) -> Self {
        fs::create_dir_all(point).unwrap();
        text(command("mount").args(["-o", options]).arg(device).arg(point)).unwrap();
        Self { point: point.to_owned() }
    }

    /// Unmounts the file system once the killed programs are gone.
    pub(crate) fn finish(self) {
        wait_for("an unmount", || text(command("umount").arg(&self.point)).is_ok());
        std::mem::forget(self);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let _ = text(command("umount").arg("--lazy").arg(&self.point));
    }
}

pub(crate) fn command(program: impl AsRef<OsStr>) -> Command {
    Command::new(program)
}

/// The output of a command. If the command fails, the error has the command's whole output,
/// standard error included.
pub(crate) fn text(command: &mut Command) -> Result<String, String> {
    let output = command.output().map_err(|error| error.to_string())?;
    let [out, err] = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    if output.status.success() { Ok(out.into_owned()) } else { Err(format!("{out}{err}")) }
}

pub(crate) fn wait_for(what: &str, mut is_so: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_so() {
        assert!(begin.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}
