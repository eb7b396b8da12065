//! Starts programs for a measurement, and makes sure that they end with the measurement.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};

use crate::error::{BenchError, Doing, Result};
use crate::server::find_program;

/// How long a server may take to start or to stop.
const PATIENCE: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Number of lines of a program's output that an error quotes.
const TAIL_LEN: usize = 12;

/// The user that a program runs as, and the signal that asks the program to end.
#[derive(Clone, Copy, Debug)]
pub(super) struct Life {
    /// The user that the program runs as. `None` stands for the user of this process. Another user
    /// is possible only if this process is root. Some servers need another user, because they
    /// refuse to run as root.
    pub(super) user: Option<&'static str>,
    pub(super) end: Signal,
}

impl Life {
    pub(super) const OURS: Self = Self { user: None, end: Signal::TERM };

    /// A command that runs `program`. If `under` is not empty, it is the command line of another
    /// program, and that program runs `program`.
    ///
    /// If our own process dies in any way, the kernel sends the signal `end` to the command. The
    /// signal is not SIGKILL, because if `slimio shortcut run` were killed, the program that it
    /// runs would go on alone.
    pub(super) fn command(self, under: &[String], program: &Path) -> Command {
        let mut command = Command::new("setpriv");
        let signal = if self.end == Signal::INT { "INT" } else { "TERM" };
        command.args(["--pdeathsig", signal]);
        if let Some(user) = self.user {
            command.args(["--reuid", user, "--regid", user, "--init-groups"]);
            // These variables name folders of our own user, which `user` may be unable to use.
            command.env_remove("HOME").env_remove("XDG_STATE_HOME");
        }
        command.arg("--").args(under).arg(program).stdin(Stdio::null());
        command
    }
}

/// The path of an installed program. If the program is missing, the error names the Debian package
/// that contains it.
pub(super) fn installed(program: &str, package: &str) -> Result<PathBuf> {
    find_program(program)
        .or_else(|| Some(Path::new("/usr/sbin").join(program)).filter(|path| path.is_file()))
        .ok_or_else(|| missing(program, package))
}

/// The error that a program is missing. It names the Debian packages to install.
pub(super) fn missing(program: &str, packages: &str) -> BenchError {
    let text = format!(
        "{program} is not installed (Debian: apt-get install --no-install-recommends {packages})"
    );
    BenchError::Usage(text)
}

/// Runs a command to its end. Returns its standard output, followed by its standard error.
pub(super) fn text_of(command: &mut Command) -> Result<String> {
    let name = words_of(command);
    let Output { status, stdout, stderr } = command.output().doing(format!("starting {name}"))?;
    let (stdout, stderr) = (String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr));
    let said = format!("{stdout}{stderr}");
    if status.success() {
        return Ok(said);
    }
    Err(BenchError::Server(format!("{name}: {status}\n{}", tail(&said))))
}

fn words_of(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    // An argument that contains a line feed is left out, because it is a whole script.
    let words = words.map(|word| word.to_string_lossy()).filter(|word| !word.contains('\n'));
    words.collect::<Vec<_>>().join(" ")
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LEN)..].join("\n")
}

/// The number before `unit`, in the line that begins with `line`.
pub(super) fn rate(text: &str, line: &str, unit: &str) -> Result<f64> {
    let found = || {
        let line = text.lines().map(str::trim_start).find(|it| it.starts_with(line))?;
        let (before, _) = line.split_once(unit)?;
        before.trim_end().rsplit([' ', '(']).next()?.parse().ok()
    };
    found()
        .ok_or_else(|| BenchError::Reply(format!("the output contains no rate:\n{}", tail(text))))
}

/// A server that is a child of this process. When this value is dropped, the server and its process
/// group are killed.
#[derive(Debug)]
pub(super) struct Running {
    child: Child,
    end: Signal,
    log: PathBuf,
}

impl Running {
    /// Starts a server, and waits until `answers` returns true. The server's output goes to the
    /// file `log`.
    pub(super) fn start(
        mut command: Command,
        end: Signal,
        log: PathBuf,
        answers: impl Fn() -> bool,
    ) -> Result<Self> {
        let name = words_of(&command);
        let file = File::create(&log).doing(format!("making {}", log.display()))?;
        let again = file.try_clone().doing("making the server's log")?;
        command.stdout(file).stderr(again).process_group(0);
        let child = command.spawn().doing(format!("starting {name}"))?;
        let mut running = Self { child, end, log };
        let begun = Instant::now();
        while !answers() {
            let is_over =
                running.child.try_wait().doing("checking whether the server still runs")?.is_some();
            if is_over || begun.elapsed() > PATIENCE {
                return Err(running.complaint(&format!("{name} does not answer")));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(running)
    }

    /// Stops the server in good order.
    pub(super) fn stop(mut self) -> Result<()> {
        kill_process(self.pid(), self.end).doing("stopping the server")?;
        let begun = Instant::now();
        while self.child.try_wait().doing("waiting for the server to stop")?.is_none() {
            if begun.elapsed() > PATIENCE {
                return Err(self.complaint("the server does not stop"));
            }
            thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// The output of the server. If `slimio shortcut run` runs the server, the output of `slimio
    /// shortcut run` is included.
    pub(super) fn said(&self) -> String {
        fs::read_to_string(&self.log).unwrap_or_default()
    }

    fn complaint(&self, what: &str) -> BenchError {
        BenchError::Server(format!("{what}:\n{}", tail(&self.said())))
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            // Both calls fail only if the server has just ended.
            let _ = kill_process_group(self.pid(), Signal::KILL);
            let _ = self.child.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_read_as_the_programs_print_them() {
        let of_db_bench =
            "DB path: [/x]\nfillrandom   :     185.227 micros/op 5398 ops/sec 2.0 seconds\n";
        assert_eq!(rate(of_db_bench, "fillrandom", "ops/sec").unwrap().to_string(), "5398");
        let of_pgbench =
            "latency average = 0.5 ms\ntps = 1914.5 (without initial connection time)\n";
        assert_eq!(rate(of_pgbench, "tps = ", "(without").unwrap().to_string(), "1914.5");
        let of_sysbench =
            "    transactions:           9912   (1982.09 per sec.)\n    queries: 1 (2 per sec.)\n";
        assert_eq!(rate(of_sysbench, "transactions:", "per sec").unwrap().to_string(), "1982.09");
        assert!(rate("nothing", "tps = ", "(without").is_err());
    }
}
