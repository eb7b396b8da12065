//! A volume whose paths to the log, or to the snapshots, can be held. A held path reports no
//! completion until it is released. Tests on a simulated disk do not need such a volume: the
//! disk's faults can hold single blocks, fail operations, or fill the disk up.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slimio_device::{Completion, Layer, Layered};
use slimio_storage::{Area, Storage};

use crate::media::wrapped;

/// While a gate is open, it lets completions pass. All clones of a gate open and shut together.
#[derive(Clone, Debug, Default)]
pub struct Gate {
    is_shut: Arc<AtomicBool>,
}

impl Gate {
    /// Holds all completions from now on.
    pub fn shut(&self) {
        self.is_shut.store(true, Ordering::SeqCst);
    }

    /// Releases all held completions. The path sends no signal about the release, so the caller
    /// must poll the path to get the completions.
    pub fn open(&self) {
        self.is_shut.store(false, Ordering::SeqCst);
    }

    /// Puts this gate over every path to the volume's log.
    pub fn hold_log(&self, storage: Storage) -> Storage {
        self.hold(storage, |area| area == Area::Wal)
    }

    /// Puts this gate over every path to the volume's snapshots.
    pub fn hold_snapshots(&self, storage: Storage) -> Storage {
        self.hold(storage, |area| matches!(area, Area::Snapshot(_)))
    }

    fn hold(&self, storage: Storage, is_held: fn(Area) -> bool) -> Storage {
        let gate = self.clone();
        let media = wrapped(storage.media, move |area, path| {
            if !is_held(area) {
                return path;
            }
            Box::new(Layered::new(Held { gate: gate.clone(), completions: Vec::new() }, path))
        });
        Storage { media, ..storage }
    }
}

/// Keeps completions back while its gate is shut.
struct Held {
    gate: Gate,
    completions: Vec<Completion>,
}

impl Layer for Held {
    fn reaped(&mut self, completions: &mut Vec<Completion>, from: usize) {
        if self.gate.is_shut.load(Ordering::SeqCst) {
            self.completions.extend(completions.drain(from..));
        } else {
            completions.append(&mut self.completions);
        }
    }

    fn kept(&self) -> usize {
        self.completions.len()
    }
}
