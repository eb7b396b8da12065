//! The keeper: the process that looks after the logs of programs.
//!
//! A program's process asks the keeper to take a file, and hands over the open file. From then on,
//! the process and the keeper have the same open file and the same stage (memory with the bytes
//! that were appended but are not in the file yet). The process appends and syncs. The keeper does
//! the work for which the process should not wait, or which must be done when the process can't
//! act:
//!
//! * It fills the file with zeros beyond the end of the log.
//! * It writes bytes that have been staged for some time.
//! * It holds a lease on the file. If another process opens the file, the kernel makes that process
//!   wait for the end of the lease. So the keeper gives the file back to the kernel, and takes it
//!   again later.
//! * It mends the log of a process that was killed.

mod answer;

use std::collections::HashMap;
use std::ffi::OsString;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use slimio_device::WriteLease;
use slimio_planted::is_planted;

use crate::folder::Folder;
use crate::guard::Guard;
use crate::log::{Log, is_late, is_lateness, said};
use crate::notes::Notes;
use crate::protocol::Meeting;
use crate::tables::Table;
use crate::{Kind, NotTaken, Pattern, Stage};

/// After the keeper has given a log back to the kernel, it waits before it takes the log again. It
/// waits for `RETRY_FIRST` at first, then at least twice as long each time, but at most for
/// `RETRY_MAX`.
const RETRY_FIRST: Duration = Duration::from_millis(500);
const RETRY_MAX: Duration = Duration::from_secs(60);
const BACKLOG: i32 = 64;
/// The largest number of paths for which the keeper remembers its last message.
const SAID_MAX: usize = 1024;
/// A number that no log has.
const NO_LOG: u32 = 0;
/// How long the keeper waits for a process that is in the middle of a call. The process may be
/// stopped in that call.
const PATIENCE: Duration = Duration::from_millis(20);
/// How many times the keeper tries to give back the file of a process that has ended.
const LAST_TRIES: usize = 50;

/// Looks after the logs of all processes that were started with its [`Meeting`], which says how to
/// reach the keeper.
pub struct Keeper {
    listener: OwnedFd,
    token: String,
    folder: Option<Folder>,
    notes: Option<Notes>,
    guard: Option<Guard>,
    /// The table of debts, for files that are overwritten in whole blocks. A file has a debt if it
    /// has changes that only the kernel can make durable. `None` if no pattern is for such files,
    /// or if there is no room for the table.
    table: Option<Table>,
    processes: Vec<Process>,
    logs: Vec<Log>,
    /// The number of the next process or log.
    next: u32,
    has_met: bool,
    /// Whether another process waits for a file that the keeper could not give back yet.
    is_late: bool,
    /// The last message about each path.
    said: HashMap<PathBuf, String>,
    say: Box<dyn Fn(&str)>,
}

/// A process that has connected.
struct Process {
    socket: OwnedFd,
    /// Readable once the process has ended. The socket does not show the end, because a forked
    /// child may still have the socket open.
    ended: OwnedFd,
    pid: Pid,
    number: u32,
}

impl Keeper {
    /// Makes a keeper that listens at a new socket. Also returns the [`Meeting`], which must be
    /// passed to the processes. The stages are files in `folder`. Without a folder, the stages are
    /// lost if this process and the program are both killed. `notes` are files that say, after a
    /// power cut, which logs to repair.
    ///
    /// # Errors
    /// If the socket can't be made.
    pub fn new(
        (folder, notes): (Option<Folder>, Option<Notes>),
        mut patterns: Vec<Pattern>,
        say: impl Fn(&str) + 'static,
    ) -> io::Result<(Self, Meeting)> {
        let table = if patterns.iter().any(|pattern| pattern.kind == Kind::WholeBlocks) {
            let made = Table::new(folder.as_ref(), &name(0)).inspect_err(|error| {
                say(&format!(
                    "files written in whole blocks are left to the kernel, because no table can be \
                     made: {error}"
                ));
            });
            made.ok()
        } else {
            None
        };
        // Without a table, processes must not be told of files that need the table.
        patterns.retain(|pattern| pattern.kind != Kind::WholeBlocks || table.is_some());
        let token = random()?;
        let meeting = Meeting { name: format!("slimio-{}", random()?), token, patterns };
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let listener =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)?;
        let address = SocketAddrUnix::new_abstract_name(meeting.name.as_bytes())?;
        rustix::net::bind(&listener, &address)?;
        rustix::net::listen(&listener, BACKLOG)?;
        let keeper = Self {
            listener,
            token: meeting.token.clone(),
            folder,
            notes,
            guard: None,
            table,
            processes: Vec::new(),
            logs: Vec::new(),
            next: 1,
            has_met: false,
            is_late: false,
            said: HashMap::new(),
            say: Box::new(say),
        };
        Ok((keeper, meeting))
    }

    /// Starts the guard, a process that gives the logs back if this process is killed. `command` is
    /// a program and its arguments. The program must call [`guard`](crate::guard) with its standard
    /// input.
    ///
    /// # Errors
    /// If the guard can't be started.
    pub fn start_guard(&mut self, command: &[OsString]) -> io::Result<()> {
        self.guard = Some(Guard::start(command)?);
        Ok(())
    }

    /// Ends the guard if there is no log.
    pub fn end_idle_guard(&mut self) {
        if self.logs.is_empty() {
            self.guard = None;
        }
    }

    /// Whether any process has ever asked the keeper to take a file.
    pub fn has_met(&self) -> bool {
        self.has_met
    }

    /// The processes that have asked for files and have not ended.
    pub fn processes(&self) -> Vec<Pid> {
        self.processes.iter().map(|process| process.pid).collect()
    }

    /// Waits until there is work or until `wake` is readable, and then does all work. The caller
    /// must make `wake` readable at each signal of a lease (SIGURG). This call reads `wake` until
    /// it is empty, so reading `wake` must not block.
    ///
    /// # Errors
    /// If waiting fails. A failure of a log is not returned, but reported by `say`.
    pub fn turn(&mut self, wake: &UnixStream) -> io::Result<()> {
        let mut polled =
            vec![PollFd::new(&wake, PollFlags::IN), PollFd::new(&self.listener, PollFlags::IN)];
        for process in &self.processes {
            polled.push(PollFd::new(&process.socket, PollFlags::IN));
            polled.push(PollFd::new(&process.ended, PollFlags::IN));
        }
        let timeout = self.timeout().map(|timeout| Timespec {
            tv_sec: timeout.as_secs() as i64,
            tv_nsec: i64::from(timeout.subsec_nanos()),
        });
        match poll(&mut polled, timeout.as_ref()) {
            Err(Errno::INTR) | Ok(_) => {}
            Err(error) => return Err(error.into()),
        }
        let is_ready: Vec<bool> = polled.iter().map(|fd| !fd.revents().is_empty()).collect();
        // If a process opens a leased file from now on, the signal ends the wait of the next turn.
        if !is_planted("wake-lost") {
            drain(wake);
        }
        self.is_late = false;
        self.give_wanted_back();
        let numbers: Vec<u32> = self.processes.iter().map(|process| process.number).collect();
        for (number, ready) in numbers.into_iter().zip(is_ready[2..].chunks(2)) {
            if ready[0] {
                self.hear(number);
            }
            if ready[1] {
                self.part_with(number);
            }
        }
        if is_ready[1] {
            self.accept();
        }
        self.look_after_logs();
        if is_planted("wake-lost") {
            drain(wake);
        }
        Ok(())
    }

    /// How long to wait for events before there is other work to do. `None` if there is no limit.
    fn timeout(&self) -> Option<Duration> {
        let now = Instant::now();
        if self.logs.iter().any(|log| log.is_behind) {
            return Some(Duration::ZERO);
        }
        if self.is_late {
            return Some(PATIENCE);
        }
        let looks = self.logs.iter().filter_map(|log| log.look.map(|(due, _)| due));
        let due = looks.chain(self.logs.iter().filter_map(|log| log.retry)).min();
        due.map(|due| due.saturating_duration_since(now))
    }

    fn accept(&mut self) {
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let Ok(socket) = rustix::net::accept_with(&self.listener, flags) else { return };
        let Ok(peer) = socket_peercred(&socket) else { return };
        let Ok(ended) = pidfd_open(peer.pid, PidfdFlags::empty()) else {
            // The process has ended meanwhile. It may have been a forked child that had appended to
            // a log.
            return self.look_at_all();
        };
        // A process that connects a second time has replaced its program (exec).
        let same = self.processes.iter().find(|process| process.pid == peer.pid);
        if let Some(number) = same.map(|process| process.number) {
            self.part_with(number);
        }
        let number = self.number();
        self.processes.push(Process { socket, ended, pid: peer.pid, number });
    }

    fn number(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    /// Sends the guard a message. A guard that does not answer counts as ended.
    fn tell_guard(&mut self, tell: impl FnOnce(&Guard) -> io::Result<()>) {
        if let Some(Err(error)) = self.guard.as_ref().map(tell) {
            self.guard = None;
            (self.say)(&format!(
                "there is no guard any more ({error}): if this process is killed, a process that \
                 opens a log may have to wait"
            ));
        }
    }

    fn make_stage(
        &self,
        number: u32,
        is_self_ending: bool,
    ) -> io::Result<(Option<PathBuf>, OwnedFd, Stage)> {
        let (path, file, stage) = if let Some(folder) = &self.folder {
            let (path, file, stage) = folder.create(&name(number))?;
            (Some(path), file, stage)
        } else {
            let flags = rustix::fs::MemfdFlags::CLOEXEC;
            let file = File::from(rustix::fs::memfd_create("stage", flags)?);
            let stage = Stage::create(&file)?;
            (None, file, stage)
        };
        stage.keep()?;
        stage.staged()?.set_self_ending(is_self_ending);
        Ok((path, file.into(), stage))
    }

    /// Gives back the files that other processes are opening.
    fn give_wanted_back(&mut self) {
        for at in 0..self.logs.len() {
            let log = &mut self.logs[at];
            if !log.lease.as_ref().is_some_and(WriteLease::is_wanted) {
                continue;
            }
            let released = if is_planted("lease-kept") { Ok(()) } else { log.file.release() };
            if is_late(&released) {
                self.is_late = true;
                continue;
            }
            log.lease = None;
            log.retry = Some(Instant::now() + log.pause);
            log.pause = (log.pause * 2).min(RETRY_MAX);
            if let Err(error) = released {
                let path = log.path.clone();
                self.say_of(&path, &format!("can't be given back to the kernel: {error}"));
            }
        }
    }

    fn look_after_logs(&mut self) {
        let now = Instant::now();
        for at in 0..self.logs.len() {
            let log = &mut self.logs[at];
            let mut failed = None;
            if log.is_behind {
                match log.file.keep_up(log.look.is_some()) {
                    Ok(is_behind) => log.is_behind = is_behind,
                    // The next append notifies the keeper, or the keeper looks at the log again by
                    // itself.
                    late if is_late(&late) => log.is_behind = false,
                    Err(error) => failed = Some(error),
                }
            }
            if let Some((_, staged_to)) = log.look.take_if(|(due, _)| *due <= now) {
                match log.file.rest(staged_to) {
                    Ok(true) => log.pause = RETRY_FIRST,
                    Ok(false) => log.look_again(log.staged_to()),
                    late if is_late(&late) => log.look_again(staged_to),
                    Err(error) => failed = Some(error),
                }
            }
            if let Some(error) = failed {
                log.is_behind = false;
                let path = log.path.clone();
                self.say_of(&path, &format!("a write has failed: {error}"));
            }
            self.retry(at, now);
        }
    }

    /// If a log was left to the kernel for a while, and that time has passed, takes the log again.
    fn retry(&mut self, at: usize, now: Instant) {
        let log = &mut self.logs[at];
        if log.retry.take_if(|due| *due <= now).is_none() {
            return;
        }
        let taken = log.take();
        let is_late = matches!(&taken, Err(NotTaken::Failed(error)) if is_lateness(error));
        if matches!(taken, Err(NotTaken::Busy)) || is_late {
            log.pause = (log.pause * 2).min(RETRY_MAX);
            log.retry = Some(now + log.pause);
            return;
        }
        if let Err(NotTaken::Refused(_) | NotTaken::Failed(_)) = taken {
            let path = log.path.clone();
            self.say_of(&path, &said(&taken));
        }
    }

    /// Drops a process that has ended or has sent an invalid message, and mends its logs.
    fn part_with(&mut self, process: u32) {
        self.processes.retain(|found| found.number != process);
        while let Some(at) = self.logs.iter().position(|log| log.process == process) {
            self.end(at);
        }
        self.look_at_all();
    }

    /// Makes the next turn look at all logs. If a process has ended, its last message about an
    /// append may be lost, and no process sends such a message again.
    fn look_at_all(&mut self) {
        if is_planted("child-not-heard") {
            return;
        }
        for log in &mut self.logs {
            log.is_behind = true;
            log.look_again(0);
        }
    }

    /// Gives a log back for good.
    fn end(&mut self, at: usize) {
        let mut log = self.logs.swap_remove(at);
        let mut released = if is_planted("killed-kept") { Ok(()) } else { log.file.release() };
        // The process has ended, but its forked child may be in the middle of a call.
        for _ in 0..LAST_TRIES {
            if is_late(&released) {
                released = log.file.release();
            }
        }
        self.tell_guard(|guard| guard.remove(log.number));
        match released {
            Ok(()) => log.forget_stage(),
            Err(error) => {
                // The note stays, so that the next keeper can mend the log.
                std::mem::forget(log.note.take());
                self.say_of(&log.path, &format!("can't be mended: {error}"));
            }
        }
        log.lease = None;
    }

    /// Reports a message about a path, unless the last message about the path was the same. A
    /// program may open a file many times.
    fn say_once(&mut self, path: &Path, what: String) {
        if self.said.get(path) == Some(&what) {
            return;
        }
        self.say_of(path, &what);
        if self.said.len() >= SAID_MAX {
            self.said.clear();
        }
        self.said.insert(path.to_owned(), what);
    }

    fn say_of(&self, path: &Path, what: &str) {
        (self.say)(&format!("{}: {what}", path.display()));
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        while !self.logs.is_empty() {
            self.end(0);
        }
    }
}

/// The name of a log's stage, which is also the name of the log's note.
fn name(number: u32) -> String {
    format!("{}-{number}", std::process::id())
}

fn drain(mut wake: &UnixStream) {
    while matches!(wake.read(&mut [0; 64]), Ok(1..)) {}
}

/// The path of an open file.
fn path_of(file: &File) -> PathBuf {
    use std::os::fd::AsRawFd as _;
    std::fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap_or_default()
}

/// Thirty-two hexadecimal digits that nobody can guess.
fn random() -> io::Result<String> {
    let mut bytes = [0; 16];
    let count = rustix::rand::getrandom(&mut bytes, rustix::rand::GetRandomFlags::empty())?;
    assert_eq!(count, bytes.len(), "getrandom must return all bytes at once");
    Ok(format!("{:032x}", u128::from_le_bytes(bytes)))
}
