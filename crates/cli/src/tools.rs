//! The tools for a volume.

use clap::Args;
use slimio_device::{EngineChoice, LBA_SIZE};
use slimio_server::Storage;
use slimio_server::config::Config;

use crate::volume;

/// Where the volume is.
#[derive(Debug, Args)]
struct VolumeArg {
    /// Directory or block device that holds the volume
    #[arg(long, default_value = "./slimio-data/")]
    volume: String,
}

impl VolumeArg {
    fn open(&self, create: bool) -> Result<Storage, String> {
        volume::open(&self.volume, EngineChoice::Best, create)
    }

    /// The volume, which must be there.
    fn open_existing(&self) -> Result<Storage, String> {
        let storage = self.open(false)?;
        if storage.exists {
            Ok(storage)
        } else {
            Err(format!(
                "there is no SlimIO volume in {}; make one with slimio format, or check --volume",
                storage.name
            ))
        }
    }
}

/// `slimio format`
#[derive(Debug, Args)]
pub(crate) struct Format {
    #[command(flatten)]
    volume: VolumeArg,
    /// Replace a volume that is there; what it holds is lost
    #[arg(long)]
    force: bool,
}

impl Format {
    /// Makes an empty volume.
    pub(crate) fn run(&self) -> Result<(), String> {
        let mut storage = self.volume.open(true)?;
        slimio_server::make_volume(&mut storage, &Config::default(), self.force)?;
        say(&format!("made a new volume in {}", storage.name));
        Ok(())
    }
}

/// `slimio inspect`
#[derive(Debug, Args)]
pub(crate) struct Inspect {
    #[command(flatten)]
    volume: VolumeArg,
    /// As JSON
    #[arg(long)]
    json: bool,
}

/// `slimio verify`
#[derive(Debug, Args)]
pub(crate) struct Verify {
    #[command(flatten)]
    volume: VolumeArg,
}

/// Shows what this machine allows.
pub(crate) fn probe() -> Result<(), String> {
    match slimio_ring::probe() {
        Ok(features) => say(&format!("io_uring: yes ({features:?})")),
        Err(refused) => say(&format!("io_uring: no: {refused}")),
    }
    say("plain system calls and epoll: yes");
    say(&format!("block size: {LBA_SIZE}"));
    Ok(())
}

/// Prints a line of the answer.
#[expect(clippy::print_stdout, reason = "it is what was asked for")]
fn say(line: &str) {
    println!("{line}");
}

impl Inspect {
    /// Shows the superblock and the log.
    pub(crate) fn run(&self) -> Result<(), String> {
        let storage = self.volume.open_existing()?;
        say(&storage.name);
        Ok(())
    }
}

impl Verify {
    /// Reads everything.
    pub(crate) fn run(&self) -> Result<(), String> {
        let storage = self.volume.open_existing()?;
        say(&storage.name);
        Ok(())
    }
}
