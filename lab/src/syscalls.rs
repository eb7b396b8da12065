//! Counts the system calls of a running server with `perf`, which uses the kernel's tracepoint for
//! system calls and costs nearly nothing. If `perf` can't be used, counts them with `strace`, which
//! slows the server down but counts correctly.

use std::fs::{self, File, OpenOptions};
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};

use crate::error::{BenchError, Doing, Result};

/// How long `perf` may take to answer.
const PERF_TIMEOUT_S: i64 = 5;

/// A counter that is attached to a process and has begun to count.
#[derive(Debug)]
pub struct SyscallCounter {
    tool: Tool,
    child: Child,
    output: PathBuf,
}

#[derive(Debug)]
enum Tool {
    Perf { control: File, acknowledged: File },
    Strace,
}

impl SyscallCounter {
    /// Attaches to all threads of `pid`; `None` if neither `perf` nor `strace` can attach. The
    /// tool's files are in `directory`.
    pub fn attach(pid: u32, directory: &Path) -> Option<Self> {
        Self::with_perf(pid, directory).or_else(|_| Self::with_strace(pid, directory)).ok()
    }

    /// Attaches by `perf stat`.
    pub fn with_perf(pid: u32, directory: &Path) -> Result<Self> {
        let output = directory.join("perf.csv");
        let control = make_fifo(&directory.join("perf.control"))?;
        let acknowledged = make_fifo(&directory.join("perf.acknowledged"))?;
        let fifos = format!(
            "--control=fifo:{},{}",
            directory.join("perf.control").display(),
            directory.join("perf.acknowledged").display()
        );
        let child = Command::new("perf")
            .args(["stat", "-x", ",", "-e", "raw_syscalls:sys_enter", "-D", "-1", &fifos, "-o"])
            .arg(&output)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .doing("starting perf")?;
        let mut counter = Self { tool: Tool::Perf { control, acknowledged }, child, output };
        counter.command_perf("enable\n")?;
        Ok(counter)
    }

    /// Attaches by `strace -c`.
    pub fn with_strace(pid: u32, directory: &Path) -> Result<Self> {
        let output = directory.join("strace.txt");
        let mut child = Command::new("strace")
            .args(["-f", "-c", "-o"])
            .arg(&output)
            .args(["-p", &pid.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn()
            .doing("starting strace")?;
        let stderr = child.stderr.take().expect("the standard error of strace is a pipe");
        let mut line = String::new();
        BufReader::new(stderr).read_line(&mut line).doing("reading what strace prints")?;
        let counter = Self { tool: Tool::Strace, child, output };
        if line.contains("attached") {
            Ok(counter)
        } else {
            Err(BenchError::Server(format!("strace does not attach: {line}")))
        }
    }

    /// The tool in use.
    pub fn tool(&self) -> &'static str {
        match self.tool {
            Tool::Perf { .. } => "perf raw_syscalls:sys_enter",
            Tool::Strace => "strace -c",
        }
    }

    /// Stops counting and detaches; returns the number of calls.
    pub fn finish(mut self) -> Result<u64> {
        if matches!(self.tool, Tool::Perf { .. }) {
            self.command_perf("disable\n")?;
        }
        let pid = Pid::from_raw(self.child.id() as i32).expect("the pid of a child is not 0");
        kill_process(pid, Signal::INT).doing("stopping the counter")?;
        self.child.wait().doing("waiting for the counter")?;
        let text = fs::read_to_string(&self.output).doing("reading the count")?;
        let count = match self.tool {
            Tool::Perf { .. } => parse_perf(&text),
            Tool::Strace => parse_strace(&text),
        };
        count.ok_or_else(|| BenchError::Server(format!("no count of system calls in:\n{text}")))
    }

    fn command_perf(&mut self, word: &str) -> Result<()> {
        let Tool::Perf { control, acknowledged } = &mut self.tool else { return Ok(()) };
        control.write_all(word.as_bytes()).doing("commanding perf")?;
        let mut watched = [PollFd::new(acknowledged, PollFlags::IN)];
        let timeout = Timespec { tv_sec: PERF_TIMEOUT_S, tv_nsec: 0 };
        if poll(&mut watched, Some(&timeout)).doing("waiting for perf")? == 0 {
            return Err(BenchError::Server("perf does not answer".into()));
        }
        let mut answer = [0; 16];
        let _ack = acknowledged.read(&mut answer).doing("reading the answer of perf")?;
        Ok(())
    }
}

impl Drop for SyscallCounter {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Makes a named pipe, and opens it so that neither end has to wait for the other.
fn make_fifo(path: &Path) -> Result<File> {
    let what = || format!("making the pipe {}", path.display());
    if path.exists() {
        fs::remove_file(path).doing(what())?;
    }
    mknodat(CWD, path, FileType::Fifo, Mode::RUSR | Mode::WUSR, 0).doing(what())?;
    OpenOptions::new().read(true).write(true).open(path).doing(what())
}

fn parse_perf(text: &str) -> Option<u64> {
    let line = text.lines().find(|line| line.contains("raw_syscalls:sys_enter"))?;
    line.split(',').next()?.parse().ok()
}

fn parse_strace(text: &str) -> Option<u64> {
    let line = text.lines().rfind(|line| line.ends_with(" total"))?;
    line.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_found_in_the_tools_output() {
        let perf = "# started on\n\n1234,,raw_syscalls:sys_enter,100,100.00,,\n";
        assert_eq!(parse_perf(perf), Some(1234));
        assert_eq!(parse_perf("<not counted>,,raw_syscalls:sys_enter,0,0.00,,"), None);
        let strace = "% time     seconds  usecs/call     calls    errors syscall\n\
            ------ ----------- ----------- --------- --------- ----------------\n\
             60.00    0.000100           1       100         2 read\n\
            100.00    0.000166           1       166         2 total\n";
        assert_eq!(parse_strace(strace), Some(166));
    }
}
