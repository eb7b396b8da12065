//! `slimio probe`

use std::path::{Path, PathBuf};

use clap::Args;
use slimio_device::{
    Contents, Directory, LBA_SIZE, OpenError, PathOptions, Purpose, WholeDevice, block_device_of,
    explain_refused_calls, open_whole, refused_calls,
};
use slimio_ring::Features;

use crate::tools::say;
use crate::volume::explain;

/// `slimio probe`
#[derive(Debug, Args)]
pub(crate) struct Probe {
    /// NVMe namespace (/dev/ng0n1 or /dev/nvme0n1), block device, or directory; probing changes
    /// nothing on it
    device: Option<PathBuf>,
}

impl Probe {
    /// Shows what the machine allows. If a device or directory was given, also shows what that one
    /// allows.
    ///
    /// # Errors
    /// If the device can't be used at all. The error is a sentence for the user.
    pub(crate) fn run(&self) -> Result<(), String> {
        machine();
        match &self.device {
            None => Ok(()),
            Some(path) if path.is_dir() => directory(path),
            Some(path) => device(path),
        }
    }
}

fn machine() {
    match slimio_ring::probe() {
        Ok(features) => say(&format!("io_uring: yes, {}", without(features))),
        Err(refused) => say(&format!("io_uring: no: {refused}")),
    }
    match slimio_ring::probe_wide() {
        Ok(_) => say("NVMe passthrough through io_uring: yes"),
        Err(refused) => say(&format!("NVMe passthrough through io_uring: no: {refused}")),
    }
    match explain_refused_calls(&[Purpose::Serving, Purpose::Epoll]) {
        None => say("plain system calls and epoll: yes"),
        Some(refused) => say(&format!("plain system calls and epoll: no: {refused}")),
    }
    for call in refused_calls(|purpose| matches!(purpose, Purpose::Better { .. })) {
        say(&format!("could be better: {call}"));
    }
    say(&format!("block size: {LBA_SIZE}"));
}

/// Names the io_uring features that the server would use but the kernel lacks.
fn without(features: Features) -> String {
    let Features { deferred, cooperative, multishot_accept, multishot_receive } = features;
    let lacks: Vec<&str> = [
        (deferred, "completions only while the server waits for them (since Linux 6.1)"),
        (cooperative, "completions that interrupt no running thread (since Linux 5.19)"),
        (multishot_accept, "one accept for many connections (since Linux 5.19)"),
        (multishot_receive, "one receive for many arrivals of data (since Linux 6.0)"),
    ]
    .into_iter()
    .filter_map(|(has, what)| (!has).then_some(what))
    .collect();
    if lacks.is_empty() {
        return "with all features that the server uses".into();
    }
    format!("but this kernel lacks: {}; so the server makes more system calls", lacks.join("; "))
}

fn device(path: &Path) -> Result<(), String> {
    let refused = |error: &OpenError| explain(error, &path.display().to_string());
    let mut device = open_whole(path, PathOptions::default()).map_err(|error| refused(&error))?;
    // Which kind of I/O path the device gets is known only after a path was opened.
    drop(device.open_path().map_err(|error| refused(&error))?);
    for (name, value) in device.facts() {
        say(&format!("{name}: {value}"));
    }
    match device.contents().map_err(|error| refused(&error))? {
        Contents::Known(what) => {
            say(&format!(
                "holds: {what}; slimio format will refuse it until wipefs has removed the signature"
            ));
        }
        Contents::Nothing => say("holds: nothing"),
        Contents::Unknown => {
            say("holds: a SlimIO volume (slimio inspect shows it), or data of an unknown kind");
        }
    }
    say(&format!("would be used as: {}", device.describe()));
    let mut notes = device.notes();
    let sharing = slimio_volume::sharing(device.placements().len());
    notes.extend((!sharing.is_empty()).then(|| sharing.to_owned()));
    better(&notes);
    say(&format!("fallback: {}", below(path, &*device)));
    Ok(())
}

/// How the device would be used if its present I/O path were refused.
fn below(path: &Path, device: &dyn WholeDevice) -> String {
    if device.describe().starts_with("NVMe passthrough") {
        let block = block_device_of(path).unwrap_or_else(|_| path.to_path_buf());
        return format!("direct I/O on block device {}", block.display());
    }
    "plain system calls".into()
}

fn directory(path: &Path) -> Result<(), String> {
    let directory = Directory::open(path, PathOptions::default())
        .map_err(|error| explain(&error, &path.display().to_string()))?;
    say(&format!("would be used as: {}", directory.describe()));
    better(&directory.notes());
    Ok(())
}

fn better(notes: &[String]) {
    if notes.is_empty() {
        say("a better way: there is none");
    }
    for note in notes {
        say(&format!("why not better: {note}"));
    }
}
