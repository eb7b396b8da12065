//! `slimio shortcut`: the short path for the log files of other programs.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use slimio_device::{Alignment, FileSystem, WriteCache};
use slimio_shortcut::{Probe, Repaired, Space};

use crate::tools::say;

/// The short path for the log files of other programs.
#[derive(Debug, Args)]
pub(crate) struct Shortcut {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Debug, Subcommand)]
enum Verb {
    /// Say whether a file can go the short way, and why not; nothing is changed
    Probe {
        /// A log file, or a file in the same folder
        file: PathBuf,
    },
    /// Cut zeros off the end of a log of Redis or Valkey that a power cut has left there
    Repair {
        /// The log file; nobody may have it open
        file: PathBuf,
    },
}

impl Shortcut {
    /// Runs the verb.
    ///
    /// # Errors
    /// When the file can't be looked at.
    pub(crate) fn run(&self) -> Result<(), String> {
        match &self.verb {
            Verb::Probe { file } => probe(file),
            Verb::Repair { file } => repair(file),
        }
    }
}

fn probe(path: &Path) -> Result<(), String> {
    let probe = Probe::of(path).map_err(|error| format!("{}: {error}", path.display()))?;
    say(&format!("file system: {}", file_system(&probe.file_system)));
    if probe.can_be_taken() {
        say(&format!("a durable write there is: {}", durable_write(probe.file_system.write_cache)));
    }
    if let Some(Alignment { offset, memory }) = probe.alignment {
        say(&format!("direct I/O: in units of {offset} bytes, from memory aligned to {memory}"));
    }
    say(&format!("size: {} bytes", probe.size));
    if let Some(Space { written, unwritten, holes }) = probe.space {
        say(&format!("of these, written: {written}, only allocated: {unwritten}, holes: {holes}"));
        if written < probe.size && probe.can_be_taken() {
            say("first: what was not written yet has to be filled with zeros");
        }
    }
    if probe.can_be_taken() {
        say("short way: yes: a durable write can be one direct overwrite");
        if !probe.may_lease {
            say(
                "but: only the file's owner can hold a write lease on it; a log that ends where its \
                 last byte that is not zero ends needs one",
            );
        }
    } else {
        say("short way: no");
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
            say(&format!("cut from {before} to {now} bytes: what was behind were zeros"));
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
