//! Helpers for the tests of this crate.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slimio_device::{Completion, Device, EngineChoice, LBA_SIZE, Op, PathOptions, Polling, Token};
use slimio_testing::loops::LoopDevice;

/// Options for each available engine. Prints which engines are missing.
pub(crate) fn engines() -> Vec<PathOptions> {
    let options = PathOptions { in_flight_max: 16, ..PathOptions::default() };
    let mut engines = vec![PathOptions { engine: EngineChoice::Plain, ..options }];
    match slimio_ring::probe() {
        Ok(_) => engines.push(options),
        Err(refused) => eprintln!("SKIPPED io_uring: {refused}"),
    }
    engines
}

/// Options with polling for submissions, for completions, and for both. Prints a message if there
/// is no io_uring.
pub(crate) fn polling() -> Vec<PathOptions> {
    let idle = Some(Duration::from_millis(2));
    let each = [(idle, false), (None, true), (idle, true)];
    let Some(options) = engines().into_iter().find(|options| options.engine == EngineChoice::Best)
    else {
        return Vec::new();
    };
    each.map(|(submissions_idle, completions)| {
        let polling = Polling { submissions_idle, completions };
        PathOptions { polling, ..options }
    })
    .into()
}

/// Name of an environment variable. If it names a block device, the tests run on partitions of that
/// device instead of loop devices, and destroy the device's contents.
const BLOCK_DEVICE: &str = "SLIMIO_BLOCK_DEVICE";

/// A block device of the given size, full of zeros. Dropping this value removes the device.
///
/// The device is a loop device, or a partition of the device that [`BLOCK_DEVICE`] names.
pub(crate) struct TestDevice {
    pub(crate) path: PathBuf,
    kind: Kind,
    _alone: Alone,
}

enum Kind {
    Loop { _device: LoopDevice },
    Piece { whole: PathBuf },
}

/// The lock of a test that starts programs, or that relies on a file being closed. While a child
/// process is being started, the child shares all open files of this process for a moment.
pub(crate) type Alone = MutexGuard<'static, ()>;

pub(crate) fn alone() -> Alone {
    static ALONE: Mutex<()> = Mutex::new(());
    // A poisoned mutex can still be used, because it protects no data that a failed test could
    // leave half changed.
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl TestDevice {
    /// Makes a device. Returns `None` and prints a message if this is impossible, because this
    /// process is not root or runs in a container.
    pub(crate) fn new(lba_count: u64) -> Option<Self> {
        let alone = alone();
        if let Some(whole) = std::env::var_os(BLOCK_DEVICE) {
            return Some(Self::piece(whole.into(), lba_count, alone));
        }
        let device = LoopDevice::new(lba_count * LBA_SIZE as u64)?;
        Some(Self {
            path: device.path().into(),
            kind: Kind::Loop { _device: device },
            _alone: alone,
        })
    }

    /// Makes a partition of the first blocks of `whole`. Only the kernel knows of this partition:
    /// no partition table is written.
    fn piece(whole: PathBuf, lba_count: u64, alone: Alone) -> Self {
        let device = File::options().write(true).open(&whole).expect("root may open the device");
        let zeros = vec![0; 1 << 20];
        let size = lba_count * LBA_SIZE as u64;
        for offset in (0..size).step_by(zeros.len()) {
            let count = zeros.len().min((size - offset) as usize);
            device.write_all_at(&zeros[..count], offset).expect("the device can be written");
        }
        device.sync_all().expect("the device can be written");
        drop(device);
        // `addpart` counts in sectors of 512 bytes.
        let sectors = (size / 512).to_string();
        let added = Command::new("addpart").arg(&whole).args(["1", "0", &sectors]).status();
        assert!(
            added.is_ok_and(|status| status.success()),
            "no partition could be added to {}",
            whole.display()
        );
        let path = PathBuf::from(format!("{}p1", whole.display()));
        Self { path, kind: Kind::Piece { whole }, _alone: alone }
    }
}

impl Drop for TestDevice {
    fn drop(&mut self) {
        if let Kind::Piece { whole } = &self.kind {
            let gone = Command::new("delpart").arg(whole).arg("1").status();
            assert!(
                gone.is_ok_and(|status| status.success()),
                "{} was not removed",
                self.path.display()
            );
        }
    }
}

/// Runs one operation to its end.
pub(crate) fn run(device: &mut dyn Device, op: Op) -> Completion {
    device.submit(Token(0), op).expect("the queue is not full");
    let mut completions = Vec::new();
    while completions.is_empty() {
        device.wait(None, &mut completions);
    }
    completions.remove(0)
}
