//! `slimio drive serve`, as a process.

use std::ffi::OsStr;
use std::io::{self, BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::error::{BenchError, Doing as _, Result};

/// A drive that is served by a process of its own. The process is killed when this value is
/// dropped.
#[derive(Debug)]
pub struct Served {
    process: Child,
    /// The program's output. It is kept open, because the program would end if nobody could read
    /// its output.
    out: BufReader<ChildStdout>,
    /// The address at which the drive listens.
    pub address: SocketAddr,
    /// The drive's name.
    pub nqn: String,
    /// The line in which the program printed the address and the name.
    pub line: String,
}

impl Served {
    /// Starts a drive, and waits until hosts can connect to it.
    ///
    /// # Errors
    /// When the program does not start, or ends without a line that names its address.
    pub fn start(program: &Path, spec: &str) -> Result<Self> {
        Self::start_with(program, &[], spec)
    }

    /// Like [`start`](Self::start), with more flags for `slimio drive serve`.
    ///
    /// # Errors
    /// When the program does not start, or ends without a line that names its address.
    pub fn start_with(program: &Path, flags: &[&str], spec: &str) -> Result<Self> {
        let mut command = Command::new(program);
        Self::spawn(command.args(["drive", "serve"]).args(flags).arg(spec))
    }

    /// Like [`start`](Self::start), with a command that lacks only the flag for the address.
    ///
    /// # Errors
    /// When the program does not start, or ends without a line that names its address.
    pub fn spawn(command: &mut Command) -> Result<Self> {
        let mut process = command
            .args(["--listen", "127.0.0.1:0"])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .doing(format!("starting {}", command.get_program().display()))?;
        let out = BufReader::new(process.stdout.take().expect("stdout is a pipe"));
        let address = SocketAddr::from(([127, 0, 0, 1], 0));
        let mut served = Self { process, out, address, nqn: String::new(), line: String::new() };
        let mut line = String::new();
        while served.out.read_line(&mut line).doing("reading the output of the drive's program")?
            > 0
        {
            if let Some((nqn, address)) = told(line.trim_end()) {
                (served.nqn, served.address) = (nqn, address);
                served.line = line;
                return Ok(served);
            }
            line.clear();
        }
        let args: Vec<_> = command.get_args().map(OsStr::to_string_lossy).collect();
        Err(BenchError::Server(format!(
            "the program ended before it served a drive: {}",
            args.join(" ")
        )))
    }

    /// The ID of the drive's process.
    pub fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Waits until the process has ended. The caller must already have told the process to end.
    ///
    /// # Errors
    /// When the system can't wait for the process.
    pub fn wait(mut self) -> Result<ExitStatus> {
        self.process.wait().doing("waiting for the drive's end")
    }

    /// Ends the process by SIGTERM, as a person would, and waits until it has ended.
    ///
    /// # Errors
    /// When the process can't be signalled, or does not exit with success.
    pub fn stop(self) -> Result<()> {
        kill_process(self.pid(), Signal::TERM)
            .map_err(io::Error::from)
            .doing("stopping the drive")?;
        let status = self.wait()?;
        if status.success() {
            return Ok(());
        }
        Err(BenchError::Server(format!("the drive ended with {status}")))
    }

    /// Kills the process by SIGKILL, and waits until it has ended.
    ///
    /// # Errors
    /// When the process can't be killed.
    pub fn kill(mut self) -> Result<()> {
        self.process.kill().doing("killing the drive")?;
        self.process.wait().doing("waiting for the drive's end")?;
        Ok(())
    }
}

/// The name and the address in a line such as `serving NQN on ADDRESS; …`.
fn told(line: &str) -> Option<(String, SocketAddr)> {
    let (nqn, rest) = line.strip_prefix("serving ")?.split_once(" on ")?;
    let (address, _) = rest.split_once(';')?;
    Some((nqn.to_owned(), address.parse().ok()?))
}

impl Drop for Served {
    fn drop(&mut self) {
        // The process may have ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_line_that_invites_hosts_is_understood() {
        let line = "serving nqn.2014-08.org:x on 127.0.0.1:4420; on the host: nvme connect";
        let address = SocketAddr::from(([127, 0, 0, 1], 4420));
        assert_eq!(told(line), Some(("nqn.2014-08.org:x".into(), address)));
        assert_eq!(told("64 MiB, 8 handles"), None);
    }
}
