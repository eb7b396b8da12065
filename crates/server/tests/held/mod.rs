//! A volume on which the device of the log, or of the snapshots, can be held back: it reports no
//! completion until it is let go.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use slimio_device::{Buffer, Completion, Device, Layer, Layered, OpenError};
use slimio_storage::{Area, Media, Pool, SlotName, Storage};

/// Holds a volume's log back while `is_shut`.
pub(crate) fn hold(storage: Storage, is_shut: Arc<AtomicBool>) -> Storage {
    hold_areas(storage, is_shut, |area| area == Area::Wal)
}

/// Holds a volume's snapshots back while `is_shut`.
pub(crate) fn hold_snapshots(storage: Storage, is_shut: Arc<AtomicBool>) -> Storage {
    hold_areas(storage, is_shut, |area| matches!(area, Area::Snapshot(_)))
}

fn hold_areas(storage: Storage, is_shut: Arc<AtomicBool>, is_held: fn(Area) -> bool) -> Storage {
    let media = Box::new(HeldMedia { media: storage.media, is_shut, is_held });
    Storage { media, ..storage }
}

/// Completions are kept back while `is_shut`.
struct Held {
    is_shut: Arc<AtomicBool>,
    completions: Vec<Completion>,
}

impl Layer for Held {
    fn reaped(&mut self, completions: &mut Vec<Completion>, from: usize) {
        if self.is_shut.load(Ordering::SeqCst) {
            self.completions.extend(completions.drain(from..));
        } else {
            completions.append(&mut self.completions);
        }
    }

    fn kept(&self) -> usize {
        self.completions.len()
    }
}

/// A volume with [`Held`] paths to some areas.
struct HeldMedia {
    media: Box<dyn Media>,
    is_shut: Arc<AtomicBool>,
    is_held: fn(Area) -> bool,
}

impl Media for HeldMedia {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.media.open_path(area)?;
        if !(self.is_held)(area) {
            return Ok(path);
        }
        let is_shut = Arc::clone(&self.is_shut);
        Ok(Box::new(Layered::new(Held { is_shut, completions: Vec::new() }, path)))
    }

    fn pool(&self) -> Option<&Pool> {
        self.media.pool()
    }

    fn open_free(&mut self) -> Result<Option<Box<dyn Device + Send>>, OpenError> {
        self.media.open_free()
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.media.make_slot(slot)
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        self.media.create(super_lbas, wal_lbas)
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.media.open_buffers(size)
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.media.make_buffers(count, size)
    }

    fn io_path(&self) -> Option<(String, String)> {
        self.media.io_path()
    }

    fn buffers_outlive_process(&self) -> bool {
        self.media.buffers_outlive_process()
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        self.media.fresh_blocks_need_zeroing()
    }
}
