//! A volume on a simulated disk with the descriptor that the server's event loop needs. It says
//! when the log's device has completed something.

use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::time::Duration;

use rustix::event::{EventfdFlags, eventfd};
use slimio_device::{
    Buffer, Completion, Device, DeviceError, FilledHoles, Geometry, LbaRange, Op, OpenError, Token,
};
use slimio_storage::{Area, Media, Pool, SlotName, Storage};

use super::media::SimMedia;

/// What the server opens.
pub(crate) fn storage(media: SimMedia, exists: bool) -> Storage {
    Storage {
        media: Box::new(Watched(media)),
        exists,
        name: "a simulated disk".into(),
        is_best: true,
        placement: None,
        io_path: "simulated".into(),
        why_not_better: String::new(),
    }
}

struct Watched(SimMedia);

impl Media for Watched {
    fn open_path(&mut self, area: Area) -> Result<Box<dyn Device + Send>, OpenError> {
        let path = self.0.open_path(area)?;
        if area != Area::Wal {
            return Ok(path);
        }
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Box::new(Readable { path, ready: eventfd(0, flags).unwrap() }))
    }

    fn pool(&self) -> Option<&Pool> {
        self.0.pool()
    }

    fn open_free(&mut self) -> Result<Option<Box<dyn Device + Send>>, OpenError> {
        self.0.open_free()
    }

    fn make_slot(&mut self, slot: SlotName) -> Result<(), OpenError> {
        self.0.make_slot(slot)
    }

    fn create(&mut self, super_lbas: u64, wal_lbas: u64) -> Result<(), OpenError> {
        self.0.create(super_lbas, wal_lbas)
    }

    fn open_buffers(&mut self, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.0.open_buffers(size)
    }

    fn make_buffers(&mut self, count: usize, size: usize) -> Result<Vec<Buffer>, OpenError> {
        self.0.make_buffers(count, size)
    }

    fn buffers_outlive_process(&self) -> bool {
        self.0.buffers_outlive_process()
    }

    fn fresh_blocks_need_zeroing(&self) -> bool {
        self.0.fresh_blocks_need_zeroing()
    }
}

/// Its descriptor is readable while operations are in flight: a simulated device completes them
/// when it is polled.
struct Readable {
    path: Box<dyn Device + Send>,
    ready: OwnedFd,
}

impl Readable {
    fn tell(&mut self) {
        if self.path.in_flight() > 0 && !self.path.has_unsubmitted() {
            rustix::io::write(&self.ready, &1_u64.to_ne_bytes()).unwrap();
        } else {
            // It may not have been readable.
            let _ = rustix::io::read(&self.ready, &mut [0; 8]);
        }
    }
}

impl Device for Readable {
    fn geometry(&self) -> Geometry {
        self.path.geometry()
    }

    fn submit(&mut self, token: Token, op: Op) -> Result<(), Op> {
        let submitted = self.path.submit(token, op);
        self.tell();
        submitted
    }

    fn kick(&mut self) {
        self.path.kick();
        self.tell();
    }

    fn poll(&mut self, completions: &mut Vec<Completion>) {
        self.path.poll(completions);
        self.tell();
    }

    fn wait(&mut self, timeout: Option<Duration>, completions: &mut Vec<Completion>) {
        self.path.wait(timeout, completions);
        self.tell();
    }

    fn has_unsubmitted(&mut self) -> bool {
        self.path.has_unsubmitted()
    }

    fn in_flight(&self) -> usize {
        self.path.in_flight()
    }

    fn readiness(&self) -> Option<BorrowedFd<'_>> {
        Some(self.ready.as_fd())
    }

    fn grow(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.path.grow(lba_count)
    }

    fn shrink(&mut self, lba_count: u64) -> Result<(), DeviceError> {
        self.path.shrink(lba_count)
    }

    fn reserve(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        self.path.reserve(range)
    }

    fn release(&mut self, range: LbaRange) -> Result<(), DeviceError> {
        self.path.release(range)
    }

    fn fill_holes(&mut self, range: LbaRange) -> Result<FilledHoles, DeviceError> {
        self.path.fill_holes(range)
    }

    fn empty_holes(&mut self, filled: &FilledHoles) {
        self.path.empty_holes(filled);
    }
}
