//! Runs a program so that its logs take the short path: they are written by direct overwrites. This
//! process is the keeper, which looks after these logs.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, kill_process, set_child_subreaper, wait};

use crate::protocol::VARIABLE;
use crate::{Folder, Keeper, Notes, Pattern};

/// This environment variable names libraries. The dynamic linker loads them before all others.
const PRELOAD: &str = "LD_PRELOAD";
/// Signals that are passed on to the program.
pub(crate) const PASSED: [(i32, Signal); 7] = [
    (signal_hook::consts::SIGTERM, Signal::TERM),
    (signal_hook::consts::SIGINT, Signal::INT),
    (signal_hook::consts::SIGQUIT, Signal::QUIT),
    (signal_hook::consts::SIGHUP, Signal::HUP),
    (signal_hook::consts::SIGUSR1, Signal::USR1),
    (signal_hook::consts::SIGUSR2, Signal::USR2),
    (signal_hook::consts::SIGWINCH, Signal::WINCH),
];

/// How long to wait for a killed process to end.
const PATIENCE: Duration = Duration::from_secs(120);
/// Time between two checks whether the killed process has ended.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

const NONE_MET: &str = "no file was written by the short path: no process has opened a file that can take \
                        it, or the program is linked statically or has more rights than its user (setuid)";

/// A program, and which of its files take the short path.
#[derive(Debug)]
pub struct Run {
    /// The program and its arguments.
    pub program: Vec<OsString>,
    /// The library `libslimio_preload.so`, which asks the keeper to take the program's files.
    pub library: PathBuf,
    /// The command that starts a guard: a process that calls [`guard`](crate::guard) with its
    /// standard input.
    pub guard: Vec<OsString>,
    /// The patterns for the files that take the short path.
    pub patterns: Vec<Pattern>,
    /// The folder for the stages, in memory. `None` chooses a folder.
    pub stages: Option<PathBuf>,
    /// The folder for the notes about taken files, on a disk. `None` chooses a folder.
    pub notes: Option<PathBuf>,
}

impl Run {
    /// Mends left-over logs, starts the program, and looks after its logs until the program and all
    /// processes that it started have ended. Returns the program's exit status.
    ///
    /// This process becomes the parent of processes whose own parent has ended. Each call of `say`
    /// reports in one line what happens to a file.
    ///
    /// # Errors
    /// If a folder that the user named can't be used, if the program can't be started, or if the
    /// keeper fails.
    pub fn run(&self, say: impl Fn(&str) + Clone + 'static) -> io::Result<ExitStatus> {
        let places = self.places(&say)?;
        if let Some(folder) = &places.0 {
            mend(folder, &say)?;
        }
        if let Some(notes) = &places.1 {
            notes.repair(&say)?;
        }
        set_child_subreaper(Some(Pid::INIT))?;
        let signals = Signals::watched()?;
        let (mut keeper, meeting) = Keeper::new(places, self.patterns.clone(), say.clone())?;
        let child = Command::new(&self.program[0])
            .args(&self.program[1..])
            .env(VARIABLE, meeting.to_text())
            .env(PRELOAD, preload(&self.library, std::env::var_os(PRELOAD).as_deref())?)
            .spawn()?;
        let child = Pid::from_child(&child);
        // The guard is started before the keeper's first turn, because the keeper takes logs from
        // that turn on.
        if let Err(error) = keeper.start_guard(&self.guard) {
            say(&format!("there is no guard: {error}"));
        }
        // `SIGXFSZ` is ignored only after the start of the program, because a program inherits
        // which signals are ignored.
        slimio_device::ignore_file_size_signal();
        let mut ended = None;
        loop {
            keeper.turn(&signals.wake)?;
            for signal in signals.came() {
                // If the program is a daemon, its first process may have ended. Then the children
                // of this process get the signal.
                let to = if ended.is_none() { vec![child] } else { children(&keeper) };
                for process in to {
                    let _ = kill_process(process, signal);
                }
            }
            loop {
                match wait(WaitOptions::NOHANG) {
                    Ok(Some((pid, status))) if pid == child => {
                        ended = Some(ExitStatus::from_raw(status.as_raw()));
                    }
                    Ok(Some(_)) | Err(Errno::INTR) => {}
                    Ok(None) => {
                        // The guard is a child of this process, too, and the loop ends only when no
                        // child is left.
                        if ended.is_some() {
                            keeper.end_idle_guard();
                        }
                        break;
                    }
                    // There are no more children.
                    Err(_) => {
                        if !keeper.has_met() {
                            say(NONE_MET);
                        }
                        return Ok(ended.unwrap_or_default());
                    }
                }
            }
        }
    }

    /// The folders of stages and notes. If a folder that the user named can't be used, this fails
    /// before anything is started.
    fn places(&self, say: impl Fn(&str)) -> io::Result<(Option<Folder>, Option<Notes>)> {
        let folder = match &self.stages {
            Some(path) => Some(Folder::at(path)?),
            None => Folder::of_user()
                .inspect_err(|error| {
                    say(&format!(
                        "{error}; appended bytes are lost if the program and this process are killed \
                         at the same time"
                    ));
                })
                .ok(),
        };
        let notes = match &self.notes {
            Some(path) => Some(Notes::at(path)?),
            None => Notes::of_user()
                .inspect_err(|error| {
                    say(&format!("{error}; after a power cut, logs have to be repaired by hand"));
                })
                .ok(),
        };
        Ok((folder, notes))
    }
}

/// The signals that come to this process.
struct Signals {
    /// Readable when one of the signals has come.
    wake: UnixStream,
    /// The signals that are passed on, and whether each has come.
    passed: Vec<(Signal, Arc<AtomicBool>)>,
}

impl Signals {
    /// From now on, records which signals come. Signals that are ignored, for example because of
    /// nohup, stay ignored, and the program ignores them, too.
    fn watched() -> io::Result<Self> {
        let (wake, waker) = UnixStream::pair()?;
        wake.set_nonblocking(true)?;
        let ignored = ignored()?;
        let mut passed = Vec::new();
        for (number, signal) in PASSED.into_iter().filter(|(number, _)| !ignored.contains(number)) {
            let came = Arc::new(AtomicBool::new(false));
            signal_hook::flag::register(number, Arc::clone(&came))?;
            signal_hook::low_level::pipe::register(number, waker.try_clone()?)?;
            passed.push((signal, came));
        }
        for number in [signal_hook::consts::SIGCHLD, signal_hook::consts::SIGURG] {
            signal_hook::low_level::pipe::register(number, waker.try_clone()?)?;
        }
        Ok(Self { wake, passed })
    }

    /// The signals that have come since the last call and must be passed on.
    fn came(&self) -> impl Iterator<Item = Signal> {
        let came = self.passed.iter().filter(|(_, came)| came.swap(false, Ordering::Relaxed));
        came.map(|(signal, _)| *signal).filter(|signal| !is_from_terminal(*signal))
    }
}

/// The signals that this process ignores.
fn ignored() -> io::Result<Vec<i32>> {
    let status = std::fs::read_to_string("/proc/self/status")?;
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    Ok((1..=64).filter(|signal| mask & (1 << (signal - 1)) != 0).collect())
}

/// The value of `LD_PRELOAD`: the library, and then the libraries that the variable names already.
fn preload(library: &Path, others: Option<&OsStr>) -> io::Result<OsString> {
    if library.as_os_str().as_bytes().iter().any(|byte| matches!(byte, b' ' | b':')) {
        let why = format!("{}: LD_PRELOAD takes no path with a space or colon", library.display());
        return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
    }
    let mut value = library.as_os_str().to_owned();
    if let Some(others) = others {
        value.push(":");
        value.push(others);
    }
    Ok(value)
}

/// The children of this process: processes whose own parent has ended. They pass signals on to
/// their own children. The guard is a child, too, but ignores the signals. If the kernel does not
/// list the children of this process, returns the processes that have asked the keeper for files.
fn children(keeper: &Keeper) -> Vec<Pid> {
    let threads = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
    let texts =
        threads.filter_map(|entry| std::fs::read_to_string(entry.path().join("children")).ok());
    let texts: Vec<String> = texts.collect();
    let words = texts.iter().flat_map(|text| text.split_whitespace());
    let children: Vec<Pid> = words.filter_map(|pid| Pid::from_raw(pid.parse().ok()?)).collect();
    if children.is_empty() { keeper.processes() } else { children }
}

/// Whether the signal probably came from the terminal, so that the program got it too. This is
/// assumed if this process is in the terminal's foreground.
fn is_from_terminal(signal: Signal) -> bool {
    let is_of_terminal = [Signal::INT, Signal::QUIT, Signal::HUP, Signal::WINCH].contains(&signal);
    let is_foreground = || {
        let terminal = File::open("/dev/tty").ok()?;
        Some(rustix::termios::tcgetpgrp(&terminal).ok()? == rustix::process::getpgrp())
    };
    is_of_terminal && is_foreground() == Some(true)
}

/// Mends the logs that nobody looks after any more. If a killed process has not ended yet, because
/// its write is in flight, waits until the process ends, but at most for `PATIENCE`.
///
/// # Errors
/// If the folder of the stages can't be read.
fn mend(folder: &Folder, say: impl Fn(&str)) -> io::Result<()> {
    let begin = Instant::now();
    let mut all = folder.staged()?;
    if let Some(ending) = all.iter().find(|staged| staged.is_ending) {
        say(&format!("{}: a killed process still writes it; waiting", ending.path.display()));
    }
    while all.iter().any(|staged| staged.is_ending) && begin.elapsed() < PATIENCE {
        std::thread::sleep(LOOK_AGAIN);
        all = folder.staged()?;
    }
    for staged in all {
        if staged.is_used {
            continue;
        }
        match staged.mend(&say) {
            Ok((path, mended)) => say(&format!("{}: {mended}", path.display())),
            Err(error) if error.kind() == io::ErrorKind::NotFound && staged.forget_if_gone()? => {
                say(&format!("{}: was removed after it was written", staged.path.display()));
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => say(&format!(
                "{}: can't be mended: the file is not there, nor in its folder under another name; \
                 the bytes that it lacks are in {}; remove that file if the log is gone for good",
                staged.path.display(),
                staged.stage_path().display()
            )),
            Err(error) => say(&format!("{}: can't be mended: {error}", staged.path.display())),
        }
    }
    Ok(())
}
