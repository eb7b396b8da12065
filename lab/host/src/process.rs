//! Child processes, which run in the workspace root without stdin. The functions whose names begin
//! with `run` print each command line first.

use std::ffi::OsStr;
use std::io::{BufRead, BufReader};
use std::num::NonZero;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::thread;

use crate::Failure;

/// The root of the workspace.
pub fn root() -> &'static Path {
    // The manifest lies in the folder `lab/host` of the root.
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .ancestors()
        .nth(2)
        .expect("`lab/host` lies in the workspace")
}

/// The folder that cargo builds in.
pub fn target_dir() -> PathBuf {
    match std::env::var_os("CARGO_TARGET_DIR") {
        Some(dir) => root().join(dir),
        None => root().join("target"),
    }
}

/// A command to run in the root. The environment variables that cargo sets for `cargo x` itself are
/// removed. If a nested build inherited these variables, the build would differ from one that a
/// person starts.
pub fn command(program: impl AsRef<OsStr>) -> Command {
    let mut command = Command::new(program);
    command.current_dir(root()).stdin(Stdio::null());
    for (name, _) in std::env::vars_os() {
        let name_text = name.to_string_lossy();
        if name_text.starts_with("CARGO_PKG_") || name_text == "CARGO_MANIFEST_DIR" {
            command.env_remove(&name);
        }
    }
    command
}

/// A [`command`] that runs the cargo which started this process.
pub fn cargo<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Command {
    let program = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = command(program);
    command.args(args);
    command
}

/// Runs the command to its end. Anything but success is a failure that names the command.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    eprintln!("$ {}", line_of(command));
    let status = command
        .status()
        .map_err(|error| format!("`{}` did not start: {error}", line_of(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}` failed: {status}", line_of(command)).into())
    }
}

/// Runs each command as [`run`] does, as many at a time as there are cores. The commands begin in
/// the given order, and their output is mixed. Returns the first failure.
pub fn run_all(commands: Vec<Command>) -> Result<(), Failure> {
    let failed = Mutex::new(None);
    side_by_side(commands, 1, |mut command| {
        if let Err(failure) = run(&mut command) {
            failed.lock().expect("no thread panics while it holds the lock").get_or_insert(failure);
        }
    });
    failed.into_inner().expect("no thread panics while it holds the lock").map_or(Ok(()), Err)
}

/// Number of cores that this process may use.
pub fn cores() -> usize {
    thread::available_parallelism().map_or(1, NonZero::get)
}

/// Calls `work` with each item, on `per_core` threads for each core. The threads take the items in
/// order.
pub fn side_by_side<I>(items: I, per_core: usize, work: impl Fn(I::Item) + Sync)
where
    I: IntoIterator<IntoIter: Send>,
{
    let items = Mutex::new(items.into_iter());
    let work = || {
        loop {
            let next = items.lock().expect("no thread panics while it holds the lock").next();
            let Some(item) = next else { break };
            work(item);
        }
    };
    thread::scope(|scope| (0..per_core * cores()).for_each(|_| drop(scope.spawn(work))));
}

/// Runs the command as [`run`] does. Each line of its stdout is printed and then passed to `see`.
pub fn run_seeing(command: &mut Command, mut see: impl FnMut(&str)) -> Result<(), Failure> {
    eprintln!("$ {}", line_of(command));
    let mut child = command
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|error| format!("`{}` did not start: {error}", line_of(command)))?;
    let stdout = child.stdout.take().ok_or("the command's stdout was not piped")?;
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(|error| format!("`{}`: {error}", line_of(command)))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        see(&line);
    }
    let status = child.wait().map_err(|error| format!("`{}`: {error}", line_of(command)))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{}` failed: {status}", line_of(command)).into())
    }
}

/// Whether the command starts and succeeds. Its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

/// Whether a folder in `PATH` has a program of this name.
pub fn is_installed(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|dir| dir.join(program).is_file())
}

fn line_of(command: &Command) -> String {
    let mut line = command.get_program().to_string_lossy().into_owned();
    if let Some(name) = Path::new(&line).file_name() {
        line = name.to_string_lossy().into_owned();
    }
    for arg in command.get_args() {
        line.push(' ');
        line += &arg.to_string_lossy();
    }
    line
}
