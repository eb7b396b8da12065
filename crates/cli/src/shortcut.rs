//! `slimio shortcut`: the short path for the log files of other programs.

use std::ffi::OsString;
use std::os::unix::process::ExitStatusExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use slimio_device::{Alignment, FileSystem, WriteCache};
use slimio_shortcut::{
    Folder, Kind, PROFILES, Pattern, Probe, Profile, Repaired, Run, Space, Totals,
};

use crate::tools::say;

/// The short path for the log files of other programs.
#[derive(Debug, Args)]
pub(crate) struct Shortcut {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Run a program and write its logs by the short path
    Run(RunArgs),
    /// Show which logs are written by the short path now, and which need mending
    Status(Place),
    /// Show whether a file can be written by the short path, and if not, why; nothing is changed
    Probe {
        /// A log file, or a file in the same folder
        file: PathBuf,
    },
    /// Guard the logs of another process; standard input is the socket to that process
    #[command(hide = true)]
    Guard,
    /// Cut off the zeros that a power cut has left at the end of a log of Redis or Valkey
    Repair {
        /// The log file; no process may have it open
        file: PathBuf,
    },
}

#[derive(Debug, Args)]
struct RunArgs {
    /// Which program is run: redis, valkey, sqlite, rocksdb, postgres or mariadb. Without this
    /// option, the name of PROGRAM decides
    #[arg(long)]
    profile: Option<String>,
    /// Which files are logs: a pattern for absolute paths, for example '*/wal/*.log'; instead of
    /// --profile
    #[arg(long = "match", value_name = "PATTERN", conflicts_with = "profile")]
    patterns: Vec<String>,
    #[command(flatten)]
    place: Place,
    /// Folder on a disk for a list of the logs that are written by the short path; after a power
    /// cut, the logs on the list are repaired
    #[arg(long, value_name = "FOLDER")]
    notes: Option<PathBuf>,
    /// The program and its arguments, after `--`
    #[arg(last = true, required = true, value_name = "PROGRAM")]
    program: Vec<OsString>,
}

#[derive(Debug, Args)]
struct Place {
    /// Folder in memory (tmpfs) for log data that is not in the log file yet
    #[arg(long, value_name = "FOLDER")]
    stages: Option<PathBuf>,
}

impl Shortcut {
    /// Runs the verb.
    ///
    /// # Errors
    /// If the verb fails. The error is a sentence for the user.
    pub(crate) fn run(&self) -> Result<(), String> {
        match &self.verb {
            Verb::Run(args) => args.run(),
            Verb::Status(place) => status(place),
            Verb::Probe { file } => probe(file),
            Verb::Repair { file } => repair(file),
            Verb::Guard => {
                let guarded = slimio_shortcut::guard(std::io::stdin(), say_of_run);
                guarded.map_err(|error| error.to_string())
            }
        }
    }
}

/// The file name of the library that is loaded into a program.
const LIBRARY: &str = "libslimio_preload.so";
/// If this environment variable is set, the library at the path that it names is loaded instead.
const LIBRARY_VARIABLE: &str = "SLIMIO_PRELOAD";

impl RunArgs {
    /// Runs the program, and exits with its status.
    fn run(&self) -> Result<(), String> {
        let run = Run {
            program: self.program.clone(),
            library: library()?,
            guard: guard()?,
            patterns: self.patterns()?,
            stages: self.place.stages.clone(),
            notes: self.notes.clone(),
        };
        let program = self.program[0].display();
        let status = run.run(say_of_run);
        let status = status.map_err(|error| format!("{program}: {error}"))?;
        // If a signal has ended the program, the exit status is 128 plus the signal's number, as in
        // shells.
        let by_signal = status.signal().map(|signal| 128 + signal);
        std::process::exit(status.code().or(by_signal).unwrap_or(1));
    }

    fn patterns(&self) -> Result<Vec<Pattern>, String> {
        if !self.patterns.is_empty() {
            let log = |text: &String| Pattern { kind: Kind::Log, text: text.clone() };
            return Ok(self.patterns.iter().map(log).collect());
        }
        let names: Vec<&str> = PROFILES.iter().map(|profile| profile.name).collect();
        let names = names.join(", ");
        let profile = match &self.profile {
            Some(name) => Profile::named(name)
                .ok_or_else(|| format!("there is no profile `{name}`; choose one of {names}"))?,
            None => Profile::of(&self.program[0]).ok_or_else(|| {
                format!(
                    "it is not known which files of {} are logs; choose --profile ({names}) or \
                     --match PATTERN",
                    self.program[0].display()
                )
            })?,
        };
        Ok(profile.patterns())
    }
}

/// The command that starts a guard: this program with other arguments.
fn guard() -> Result<Vec<OsString>, String> {
    let program = std::env::current_exe()
        .map_err(|error| format!("the path of this program is not known: {error}"))?;
    Ok(vec![program.into(), "shortcut".into(), "guard".into()])
}

fn say_of_run(line: &str) {
    eprintln!("slimio: {line}");
}

/// Finds the library that is loaded into programs. The library is beside this program, or where a
/// package puts it.
fn library() -> Result<PathBuf, String> {
    if let Some(path) = std::env::var_os(LIBRARY_VARIABLE) {
        // The path is made absolute, because the program may start other programs in other folders.
        return std::path::absolute(path).map_err(|error| format!("{LIBRARY_VARIABLE}: {error}"));
    }
    let program = std::env::current_exe()
        .map_err(|error| format!("the path of this program is not known: {error}"))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let places = [folder.join(LIBRARY), folder.join("../lib/slimio").join(LIBRARY)];
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        format!(
            "{LIBRARY} is missing; put it beside {}, or set {LIBRARY_VARIABLE} to its path",
            program.display()
        )
    })
}

fn status(place: &Place) -> Result<(), String> {
    let folder = match &place.stages {
        Some(path) => Folder::at(path).map_err(|error| format!("{}: {error}", path.display()))?,
        None => Folder::of_user().map_err(|error| error.to_string())?,
    };
    let staged = folder.staged().map_err(|error| error.to_string())?;
    let Totals { files, writes, syncs } = folder.totals();
    if files > 0 {
        say(&format!(
            "{files} files whose blocks are overwritten in place: {writes} writes took the short path, \
             {syncs} syncs had nothing to do"
        ));
    }
    if staged.is_empty() && files == 0 {
        say("no log takes the short path");
    }
    for staged in staged {
        let length = staged.length().map_err(|error| error.to_string())?;
        let state = if staged.is_used {
            "takes the short path"
        } else {
            "needs mending, which the next `slimio shortcut run` does"
        };
        say(&format!("{}: {state}; {length} bytes", staged.path.display()));
    }
    Ok(())
}

fn probe(path: &Path) -> Result<(), String> {
    let probe = Probe::of(path).map_err(|error| format!("{}: {error}", path.display()))?;
    say(&format!("file system: {}", file_system(&probe.file_system)));
    if probe.can_be_taken() {
        say(&format!("a durable write is: {}", durable_write(probe.file_system.write_cache)));
    }
    if let Some(Alignment { offset, memory }) = probe.alignment {
        say(&format!("direct I/O: in units of {offset} bytes, from memory aligned to {memory}"));
    }
    say(&format!("size: {} bytes", probe.size));
    if let Some(Space { written, unwritten, holes }) = probe.space {
        say(&format!(
            "of these bytes, written: {written}, only allocated: {unwritten}, holes: {holes}"
        ));
        if written < probe.size && probe.can_be_taken() {
            say("first: the blocks that were not written yet have to be filled with zeros");
        }
    }
    if probe.can_be_taken() {
        say("short path: yes: a durable write can be one direct overwrite");
        if !probe.may_lease {
            say("but: only the file's owner can hold a write lease on the file, and a log needs \
                 the lease if its last byte that is not zero is the only sign of where it ends");
        }
    } else {
        say("short path: no");
    }
    for refusal in &probe.refusals {
        say(&format!("why not: {refusal}"));
    }
    Ok(())
}

fn repair(path: &Path) -> Result<(), String> {
    match slimio_shortcut::repair(path) {
        Ok(Repaired::Whole) => say("nothing to repair"),
        Ok(Repaired::Cut { before, now }) => {
            say(&format!("cut from {before} to {now} bytes: the bytes cut off were zeros"));
        }
        Err(error) => return Err(format!("{}: {error}; nothing was changed", path.display())),
    }
    Ok(())
}

fn file_system(file_system: &FileSystem) -> String {
    let FileSystem { kind, source, options, .. } = file_system;
    if source.is_empty() { kind.clone() } else { format!("{kind} on {source} ({options})") }
}

fn durable_write(cache: WriteCache) -> &'static str {
    match cache {
        WriteCache::Stable => "a write; the device has no cache that could lose it",
        WriteCache::VolatileWithFua => "a write with the FUA bit",
        WriteCache::Volatile => "a write and a flush of the device's cache",
        WriteCache::Unknown => "not known; a write and a flush of the device's cache is assumed",
    }
}
