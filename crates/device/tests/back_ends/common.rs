//! What the tests of this crate share.

use std::fs::File;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};

use slimio_device::{Completion, Device, EngineChoice, LBA_SIZE, Op, PathOptions, Token};
use tempfile::TempDir;

/// Options for each way operations go to the kernel. Says which are missing.
pub(crate) fn engines() -> Vec<PathOptions> {
    let options = PathOptions { in_flight_max: 16, ..PathOptions::default() };
    let mut engines = vec![PathOptions { engine: EngineChoice::Plain, ..options }];
    match slimio_ring::probe() {
        Ok(_) => engines.push(options),
        Err(refused) => eprintln!("SKIPPED io_uring: {refused}"),
    }
    engines
}

/// A loop device over a file of zeros; it goes away with this.
pub(crate) struct LoopDevice {
    pub(crate) path: PathBuf,
    _directory: TempDir,
    _alone: Alone,
}

/// Held by whoever starts programs or needs to be the last one to have something open: a program
/// that is being started has, for a moment, everything open that this one has.
pub(crate) type Alone = MutexGuard<'static, ()>;

pub(crate) fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    // A test that has failed has left nothing half done here.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl LoopDevice {
    /// `None`, loudly, where they can't be made: without root, or in most containers.
    pub(crate) fn new(lba_count: u64) -> Option<Self> {
        let alone = alone();
        let directory = tempfile::tempdir().expect("a directory for the test");
        let backing = directory.path().join("backing");
        let file = File::create(&backing).expect("it can be made");
        file.set_len(lba_count * LBA_SIZE as u64).expect("the length can be set");
        let output = Command::new("losetup").args(["--find", "--show"]).arg(&backing).output();
        match output {
            Ok(output) if output.status.success() => {
                let path = String::from_utf8(output.stdout).expect("a path").trim().into();
                Some(Self { path, _directory: directory, _alone: alone })
            }
            Ok(output) => {
                let why = String::from_utf8_lossy(&output.stderr).into_owned();
                eprintln!("SKIPPED: no loop device can be made: {}", why.trim());
                None
            }
            Err(error) => {
                eprintln!("SKIPPED: losetup can't be run: {error}");
                None
            }
        }
    }
}

impl Drop for LoopDevice {
    fn drop(&mut self) {
        let detached = Command::new("losetup").arg("--detach").arg(&self.path).status();
        assert!(detached.is_ok_and(|status| status.success()), "{} stays", self.path.display());
    }
}

/// Runs one operation to its end.
pub(crate) fn run(device: &mut dyn Device, op: Op) -> Completion {
    device.submit(Token(0), op).expect("nothing is in flight");
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.wait(None, &mut completions);
    }
    completions.remove(0)
}
